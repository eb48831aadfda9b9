"""Calls of torch's pooling functions in a model's own code, found by reading it: what `convert` cannot change."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn import Module


@dataclass(frozen=True)
class FoundCall:
    """A call of a pooling function in a module's class: what is written there, and where."""

    owner: str
    function: str
    file: str
    line: int
    reached: bool  # by `patched`, which changes what torch.nn.functional holds, and no name imported from there

    def __str__(self) -> str:
        way = "run it within ndpool.torch.patched()" if self.reached else "call ndpool.torch.functional there"
        return f"{self.owner} calls {self.function} ({self.file}, line {self.line}); {way}"


def found_calls(model: Module, names: frozenset[str]) -> tuple[FoundCall, ...]:
    """The calls of torch's functions of these names in the classes of the model's modules, those of torch aside."""
    classes = dict.fromkeys(base for module in model.modules() for base in type(module).__mro__ if _is_own(base))
    return tuple(call for owner in classes for call in _calls(owner, names))


def _is_own(kind: type) -> bool:
    return issubclass(kind, Module) and kind.__module__.partition(".")[0] not in ("torch", "ndpool")


def _calls(owner: type, names: frozenset[str]) -> Iterator[FoundCall]:
    """In the methods of a class; none where its source is not to be had."""
    try:
        lines, first = inspect.getsourcelines(owner)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    scope = vars(sys.modules[owner.__module__])
    file = Path(inspect.getsourcefile(owner) or "?").name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            holder, name = _meant(node.func, scope)
            if name in names and (holder is F or holder is torch):
                written = ast.unparse(node.func)
                reached = holder is F and isinstance(node.func, ast.Attribute)
                yield FoundCall(owner.__qualname__, written, file, first + node.lineno - 1, reached)


def _meant(written: ast.expr, scope: dict[str, Any]) -> tuple[ModuleType | None, str]:
    """The module whose function is called, and the function's name there: for `F.max_pool2d`, or a name imported."""
    if isinstance(written, ast.Attribute):
        return _module(written.value, scope), written.attr
    found = scope.get(written.id) if isinstance(written, ast.Name) else None
    for holder in (F, torch):
        for name in getattr(found, "__name__", ""), getattr(written, "id", ""):
            if found is not None and getattr(holder, name, None) is found:
                return holder, name
    return None, ""


def _module(written: ast.expr, scope: dict[str, Any]) -> ModuleType | None:
    """The module that `F`, `nn.functional` or `torch.nn.functional` is in that scope."""
    found = None
    if isinstance(written, ast.Name):
        found = scope.get(written.id)
    elif isinstance(written, ast.Attribute):
        found = getattr(_module(written.value, scope), written.attr, None)
    return found if isinstance(found, ModuleType) else None
