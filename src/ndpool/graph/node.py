"""What a node carries: an op with `out_shape`, `forward`, `jvp` and `vjp`, and how a run asks it.

    out_shape(*shapes) -> shape       raises if the shapes have no meaning
    forward(*xs)       -> y
    jvp(*xs, *dxs)     -> dy          forward mode
    vjp(*xs, dy)       -> dx, or a tuple with one dx an argument: the adjoint of jvp

Optional: `linearize(*xs)` gives y, jvp(*dxs) and vjp(dy) from one forward pass and keeps residuals only; `wants_lists`
says that exact scalars come as nested lists rather than as NumPy object arrays. An op without jvp or vjp can be run
forward; asking for the missing derivative is an error before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..engines import namespace
from ..engines.base import Linear
from ..engines.dual import DualArray
from ..engines.reference import flatten
from ..errors import PoolError
from ..spec.scalar import primal

Shape = tuple[int, ...]


class GraphError(PoolError):
    """A graph that cannot be built, loaded or run; the message names the node, the shapes and the rule."""


@runtime_checkable
class NodeOp(Protocol):
    """The least that an op must have to stand in a graph."""

    def out_shape(self, *shapes: Any) -> Shape: ...
    def forward(self, *xs: Any) -> Any: ...


def jvp_available(op: Any) -> bool:
    """Whether `op` has a jvp of its own; a graph never makes one up."""
    return callable(getattr(op, "jvp", None))


def vjp_available(op: Any) -> bool:
    """Whether `op` has a vjp of its own."""
    return callable(getattr(op, "vjp", None))


def op_name(op: Any) -> str:
    """The name of an op in drawings, tables, files and errors: its own `name`, else its class's."""
    return str(getattr(op, "name", type(op).__name__))


# -- values: arrays as they are, nested lists as object arrays so that glue is written once ----------------------------


def enter(x: Any) -> Any:
    """An array as it is; a nested list or a bare scalar as a NumPy object array."""
    if isinstance(x, (np.ndarray, DualArray)) or namespace(x) not in (None, np):
        return x
    if isinstance(x, np.generic):
        return np.asarray(x)
    flat, shape = flatten(x)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


def integers_as(*xs: Any) -> Callable[[int], Any] | None:
    """What Python integers beside these scalars become, so that division stays exact: Decimals, Fractions, or None."""
    kinds = {type(primal(v)) for x in xs if exact(x) for v in x.reshape(-1)}
    if Decimal in kinds:
        return Decimal
    return Fraction if kinds <= {int, Fraction} else None


def settled(x: Any, whole: Callable[[int], Any] | None) -> Any:
    """x with Python integers as `whole` makes them."""
    if whole is None or not exact(x):
        return x
    return np.asarray(np.frompyfunc(lambda v: whole(v) if type(v) is int else v, 1, 1)(x), dtype=object)


def exact(x: Any) -> bool:
    """Whether x holds scalars of any kind rather than machine numbers."""
    return isinstance(x, np.ndarray) and x.dtype == object


def leave(x: Any) -> Any:
    """The inverse of `enter`."""
    return x.tolist() if exact(x) else x


def library(*xs: Any) -> Any:
    """The array library that serves all of xs: the dual one if any is dual."""
    spaces = [x.__array_namespace__() for x in xs]
    return next((xp for x, xp in zip(xs, spaces, strict=True) if isinstance(x, DualArray)), spaces[0])


def zeros_like(x: Any) -> Any:
    """A zero tangent of x."""
    if isinstance(x, DualArray):
        return DualArray(zeros_like(x.value), zeros_like(x.tangent))
    return settled(library(x).zeros_like(x), integers_as(x))


# -- asking an op ------------------------------------------------------------------------------------------------------


def run_forward(op: Any, xs: tuple[Any, ...]) -> Any:
    """op.forward at xs, as a value."""
    whole = integers_as(*xs)
    if getattr(op, "wants_lists", False) and any(map(exact, xs)):
        xs = tuple(leave(x) for x in xs)
    return settled(enter(op.forward(*xs)), whole)


def run_linearize(op: Any, xs: tuple[Any, ...]) -> Linear:
    """op at xs: y, jvp(*dxs), and vjp(dy) as a tuple; by op.linearize if there is one, else keeping xs."""
    whole, lists = integers_as(*xs), getattr(op, "wants_lists", False) and any(map(exact, xs))
    given = tuple(leave(x) for x in xs) if lists else xs
    if hasattr(op, "linearize"):
        at = op.linearize(*given)
    else:
        at = Linear(op.forward(*given), lambda *dxs: op.jvp(*given, *dxs), lambda dy: op.vjp(*given, dy))
    y, push, pull = at.y, at.jvp, at.vjp  # the closures below must not keep y

    def jvp(*dxs: Any) -> Any:
        return settled(enter(push(*(leave(dx) for dx in dxs) if lists else dxs)), whole)

    def vjp(dy: Any) -> tuple[Any, ...]:
        dxs = pull(leave(dy) if lists else dy)
        return tuple(settled(enter(dx), whole) for dx in (dxs if isinstance(dxs, tuple) else (dxs,)))

    return Linear(settled(enter(y), whole), jvp, vjp)
