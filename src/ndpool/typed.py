"""What a command is, and what can be typed after its name: records, shapes."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import PoolError

if TYPE_CHECKING:
    from .op import Op


class Wrong(Exception):
    """A command line that cannot be followed."""


@dataclass(frozen=True)
class Command:
    """What `ndpool NAME` takes (`add_argument` calls: names and options) and does, or the commands under that name."""

    help: str
    arguments: dict[str, dict[str, Any]] = field(default_factory=dict)
    run: Callable[[argparse.Namespace], int] | None = None
    commands: dict[str, Command] = field(default_factory=dict)


def record(expression: str) -> Op:
    """The op that an expression like "MaxPool(3, stride=2)" makes: one call of a public record, literals only.

    >>> record("ndpool.MaxPool2d(3, stride=2)")
    MaxPool(kernel_size=3, stride=2, axes=(-2, -1))
    """
    try:
        name, args, kwargs = _call(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Wrong(f'{expression!r} is not an expression; use one like "MaxPool(3, stride=2)"') from None
    try:
        return maker(name)(*args, **kwargs)
    except PoolError:
        raise
    except TypeError as error:  # too few arguments, or unknown ones
        raise Wrong(str(error).replace(".__init__()", ":")) from None


def _call(node: ast.expr) -> tuple[str, list[Any], dict[str, Any]]:
    """The name that is called, and the arguments."""
    if not isinstance(node, ast.Call):
        raise Wrong(f'{ast.unparse(node)} is not a call; use one like "MaxPool(3, stride=2)"')
    args = [_literal(argument) for argument in node.args]
    kwargs = {keyword.arg or "**": _literal(keyword.value) for keyword in node.keywords}
    return ast.unparse(node.func).removeprefix("ndpool."), args, kwargs


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise Wrong(
            f"{ast.unparse(node)} is not a literal; use numbers, strings, tuples, True, False or None"
        ) from None


def maker(name: str) -> Callable[..., Op]:
    """The record of that name; `MaxPool2d` and its like too."""
    from difflib import get_close_matches

    import ndpool

    records = [n for n in ndpool.__all__ if n.endswith("Pool") and isinstance(getattr(ndpool, n), type)]
    if re.sub("[123]d$", "", name) not in records:
        known = get_close_matches(name, records) or ["MaxPool", "AdaptiveAvgPool", "GlobalLpPool"]
        raise Wrong(f"{name} is not an ndpool record; use one like {', '.join(known)}")
    maker: Callable[..., Op] = getattr(ndpool, name)
    return maker


def shape(text: str) -> tuple[int, ...]:
    """The sizes in "3,32,32".

    >>> shape("3,32,32")
    (3, 32, 32)
    """
    try:
        return tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes; use one like 3,32,32") from None
