"""Nodes, and the values of one run: inputs checked, constants and zeros in the inputs' kind of number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engines import dtypes
from ..engines.along import device
from ..engines.dual import DualArray, plain_namespace
from ..spec import Dual
from .node import GraphError, Shape, enter, exact, integers_as, leave, library, op_name, settled, zeros_like

if TYPE_CHECKING:
    from .program import Program


@dataclass(frozen=True)
class Input:
    """A value given at each run."""

    name = "input"


@dataclass(frozen=True)
class Parameter(Input):
    """An input that is a weight: learnt, counted in the summary, and shared by a batch."""

    name = "parameter"


@dataclass(frozen=True, eq=False)
class Const:
    """A fixed value. It follows the run: cast to the inputs' dtype, or taken exactly for other scalars."""

    value: np.ndarray[Any, Any] = field(repr=False)

    name = "const"


@dataclass(frozen=True)
class Node:
    """One value: the op that makes it, the nodes it reads, its shape and, if fixed, its dtype."""

    id: int
    op: Any
    args: tuple[int, ...]
    shape: Shape
    dtype: str | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """How errors and drawings call it."""
        return self.name or f"{op_name(self.op)} {self.id}"


def alone(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


def raised(x: Any, tangent: Any) -> Any:
    """x with a tangent: dual scalars for any scalar, a dual array for an array."""
    if exact(x):
        return np.frompyfunc(Dual, 2, 1)(x, 0 if tangent is None else tangent)
    return DualArray(x, zeros_like(x) if tangent is None else tangent)


def tangent_of(x: Any) -> Any:
    if exact(x):
        return np.frompyfunc(lambda v: v.tangent if isinstance(v, Dual) else 0, 1, 1)(x)
    return x.tangent if isinstance(x, DualArray) else zeros_like(x)


class Run:
    """The values of one run: inputs checked, constants in the inputs' number type."""

    def __init__(self, program: Program, primals: Any):
        self.program = program
        given = [enter(x) for x in self.spread(primals, program.inputs, "inputs")]
        self.exact = any(map(exact, given))
        if self.exact and not all(map(exact, given)):
            raise GraphError("program: some inputs are nested lists and some arrays; use the same kind for all")
        self.whole = integers_as(*given)
        given = [settled(x, self.whole) for x in given]
        self.like = max(given, key=_width, default=np.zeros((), np.float64))
        self.dtypes = [x.dtype for x in given]
        self.values: dict[int, Any] = {}
        for node, x in zip(program.inputs, given, strict=True):
            self._check(node, x, "input")
            self.values[node.id] = x
        wanted = self._wanted() if len({dtypes.name(d) for d in self.dtypes}) > 1 else {}
        for node in program.nodes:
            if isinstance(node.op, Const) and node.id in program.needed:
                self.values[node.id] = self._constant(node.op.value, wanted.get(node.id))

    def spread(self, given: Any, nodes: tuple[Node, ...], what: str) -> list[Any]:
        """One value for each of `nodes`, from a tuple, a dict by name, or the value itself."""
        if isinstance(given, Mapping):
            names = [node.label for node in nodes]
            if set(given) != set(names):
                raise GraphError(f"program: {what} are {', '.join(names)}, not {', '.join(map(str, given))}")
            return [given[name] for name in names]
        parts = list(given) if isinstance(given, tuple) else [given]
        if len(parts) != len(nodes):
            raise GraphError(
                f"program: {len(nodes)} {what} ({', '.join(n.label for n in nodes)}), but {len(parts)} given"
            )
        return parts

    def _check(self, node: Node, x: Any, what: str) -> None:
        if tuple(x.shape) != node.shape:
            raise GraphError(
                f"program: {what} {node.label} has shape {tuple(x.shape)}, but the graph says {node.shape}"
            )
        if node.dtype and not exact(x) and dtypes.name(x.dtype) != node.dtype:
            raise GraphError(f"program: {what} {node.label} has dtype {dtypes.name(x.dtype)}, not {node.dtype}")

    def _wanted(self) -> dict[int, Any]:
        """Where inputs differ in dtype: that of what each constant first meets."""
        found = dict(self.values)  # for each node an array of its dtype; none for a constant that met nothing
        for node, _ in self.program._steps:
            met = [found[a] for a in node.args if a in found]
            if met:
                widest = max(met, key=_width)
                for a in (node.id, *node.args):
                    found.setdefault(a, widest)
        return {i: x.dtype for i, x in found.items()}

    def _constant(self, value: np.ndarray[Any, Any], dtype: Any = None) -> Any:
        if self.exact:
            number = Decimal if self.whole is Decimal else Fraction
            return np.asarray(np.frompyfunc(lambda v: _rational(v, number), 1, 1)(value.astype(object)), dtype=object)
        return self._array(value.astype(np.float64) if exact(value) else value, dtype)

    def _array(self, host: np.ndarray[Any, Any], dtype: Any = None) -> Any:
        """A host array in the inputs' library, device and (unless that would cut off a fraction) dtype."""
        xp, dtype = plain_namespace(library(self.like)), dtype or self.like.dtype
        array = xp.asarray(host, device=device(self.like))
        cuts = dtypes.kind(dtype) in ("bool", "integer") and dtypes.kind(host.dtype) not in ("bool", "integer")
        return array if cuts else xp.astype(array, dtype)

    def tangents_of_inputs(self, tangents: Any) -> dict[int, Any]:
        moved = {}
        for node, t in zip(self.program.inputs, self.spread(tangents, self.program.inputs, "tangents"), strict=True):
            if t is not None:
                moved[node.id] = self.tangent(node, t, "tangent of")
        return moved

    def tangent(self, node: Node, t: Any, what: str) -> Any:
        """A tangent or cotangent of `node`, of the inputs' kind; a plain number will do for a single element."""
        t = enter(t)
        if exact(t) and not self.exact:
            if t.shape or not isinstance(t[()], int | float):
                raise GraphError(f"program: {what} {node.label} is a nested list, but the inputs are arrays")
            t = self._array(t.astype(np.float64))
        elif self.exact and not exact(t):
            raise GraphError(f"program: {what} {node.label} is an array, but the inputs are nested lists")
        self._check(node, t, what)
        return settled(t, self.whole)

    def basis(self, shape: Shape, element: int | None, dtype: Any = None) -> Any:
        """Zeros of that shape, with a 1 at one place."""
        flat = np.zeros(math.prod(shape), dtype=object if self.exact else np.float64)
        if element is not None:
            flat[element] = 1
        array = flat.reshape(shape)
        return settled(array, self.whole) if self.exact else self._array(array, dtype)

    def stacked(self, rows: list[Any], shape: Shape) -> Any:
        return library(rows[0]).stack(rows, axis=0) if rows else self.basis((0, *shape), None)

    def results(self, values: list[Any]) -> Any:
        return alone([leave(v) for v in values])


def _rational(v: Any, number: Callable[[Any], Any]) -> Any:
    """A machine number as an exact one; other scalars, and what is not finite, stay as they are."""
    return v if isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v) else number(v)


def _width(x: Any) -> tuple[bool, int]:
    """Orders arrays by how much their elements hold: real ones last, wide ones last."""
    return dtypes.kind(x.dtype) in ("real", "complex"), getattr(x.dtype, "itemsize", 0)
