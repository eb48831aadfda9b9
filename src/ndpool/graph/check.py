"""A program tests itself: every node, and the whole, at random points and at points full of ties.

    adjoint   <jvp(dx), dy> = <dx, vjp(dy)>            exact up to rounding, whatever the op computes
    dual      forward on dual numbers moves by jvp     the derivative is that of the value

Values are float64; a difference counts as none below `tolerance` times the size of what is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engines.dual import DualArray
from .draw import plain
from .node import Shape, run_forward, run_linearize
from .program import Const, Input, Program

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Row:
    """One law checked at one place: the largest relative difference, or why it could not be checked."""

    node: str
    point: str
    law: str
    difference: float | None
    note: str = ""
    tolerance: float = 0.0

    @property
    def ok(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance

    @property
    def verdict(self) -> str:
        if self.difference is None:
            return f"not checked: {self.note}"
        return "ok" if self.ok else "WRONG"


@dataclass(frozen=True)
class Report:
    """What was checked; `ok` if nothing was found wrong and nothing was left unchecked."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        table = [("node", "point", "law", "difference", "")]
        for row in self.rows:
            size = "" if row.difference is None else f"{row.difference:.1e}"
            table.append((plain(row.node, 60), row.point, row.law, size, plain(row.verdict, 100)))
        widths = [max(len(line[i]) for line in table) for i in range(5)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table)


def check(program: Program, *, seed: int = 0, tolerance: float = 1e-9) -> Report:
    """Check every node that has a derivative, then the whole program."""
    rng = np.random.default_rng(seed)
    program = Program(tuple(replace(node, dtype=None) for node in program.nodes), program.outputs)
    draws: dict[str, Callable[[Shape], Any]] = {
        "random": rng.standard_normal,
        "tied": lambda shape: rng.integers(0, 2, shape).astype(np.float64),
    }
    rows: list[Row] = []
    for point, draw in draws.items():
        with np.errstate(all="ignore"):
            values = _values(program, tuple(draw(shape) for shape in program.input_shapes))
        for node, _ in program._steps:
            if node.id in program._active:
                xs = tuple(values[a] for a in node.args)
                rows += _laws(node.label, point, _Node(node.op), xs, rng, tolerance)
        inputs = tuple(values[node.id] for node in program.inputs)
        rows += _laws("the whole", point, _Whole(program), inputs, rng, tolerance)
    return Report(tuple(rows))


def _values(program: Program, inputs: Values) -> dict[int, Any]:
    """Every needed value of one run."""
    values = {node.id: x for node, x in zip(program.inputs, inputs, strict=True)}
    for node in program.nodes:
        if isinstance(node.op, Const):
            values[node.id] = node.op.value.astype(np.float64)
        elif node.id in program.needed and not isinstance(node.op, Input):
            values[node.id] = np.asarray(run_forward(node.op, tuple(values[a] for a in node.args)))
    return values


@dataclass(frozen=True)
class _Node:
    """One op as a function of several arguments with several results."""

    op: Any

    def forward(self, xs: Values) -> Values:
        return (run_forward(self.op, xs),)

    def jvp(self, xs: Values, dxs: Values) -> Values:
        return (run_linearize(self.op, xs).jvp(*dxs),)

    def vjp(self, xs: Values, dys: Values) -> Values:
        return tuple(run_linearize(self.op, xs).vjp(*dys))


@dataclass(frozen=True)
class _Whole:
    """A whole program likewise."""

    program: Program

    def forward(self, xs: Values) -> Values:
        return _several(self.program(*xs), len(self.program.outputs))

    def jvp(self, xs: Values, dxs: Values) -> Values:
        return _several(self.program.jvp(xs, dxs), len(self.program.outputs))

    def vjp(self, xs: Values, dys: Values) -> Values:
        return _several(self.program.vjp(xs, dys), len(xs))


def _several(got: Any, count: int) -> Values:
    return got if count != 1 else (got,)


def _laws(node: str, point: str, f: Any, xs: Values, rng: np.random.Generator, tolerance: float) -> list[Row]:
    def row(law: str, measure: Callable[[], float]) -> Row:
        try:
            with np.errstate(all="ignore"):
                return Row(node, point, law, measure(), tolerance=tolerance)
        except Exception as error:  # a user's op may fail in any way; the table says how
            return Row(node, point, law, None, f"{type(error).__name__}: {error}")

    if not _finite(f, xs):  # outside the domain of log, or at the edge of that of sqrt or div: move inside
        xs = tuple(np.abs(x) + 0.5 for x in xs)
        if not _finite(f, xs):
            return [Row(node, point, law, None, "the value is not finite here") for law in ("adjoint", "dual")]
    dxs = tuple(np.asarray(rng.standard_normal(x.shape)) for x in xs)

    def adjoint() -> float:
        dys = f.jvp(xs, dxs)
        weights = tuple(np.asarray(rng.standard_normal(dy.shape)) for dy in dys)
        pushed, pulled = _dot(dys, weights), _dot(dxs, f.vjp(xs, weights))
        return abs(pushed - pulled) / max(1.0, abs(pushed), abs(pulled))

    def dual() -> float:
        raised = f.forward(tuple(DualArray(x, dx) for x, dx in zip(xs, dxs, strict=True)))
        moved = [y.tangent if isinstance(y, DualArray) else np.zeros_like(y) for y in raised]
        pairs = list(zip(moved, f.jvp(xs, dxs), strict=True))
        return max(float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b)), initial=0.0)) for a, b in pairs)

    return [row("adjoint", adjoint), row("dual", dual)]


def _finite(f: Any, xs: Values) -> bool:
    """Whether f and its derivative are finite at xs; what fails in another way is told by the laws."""
    try:
        with np.errstate(all="ignore"):
            ys = f.forward(xs)
            return all(np.isfinite(v).all() for v in (*ys, *f.vjp(xs, tuple(np.ones_like(y) for y in ys))))
    except Exception:
        return True


def _dot(a: Values, b: Values) -> float:
    return float(sum(np.sum(p * q) for p, q in zip(a, b, strict=True)))
