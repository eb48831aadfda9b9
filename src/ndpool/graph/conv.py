"""N-D convolution (cross-correlation, as in every network library) on the same axes as pooling.

    y[.., o, p] = sum over c, t of w[o, c, t] x[.., c, position that output p reads as its tap t]

Each tap of the kernel is one selection of x along each spatial axis; stacked they are one matrix, and the convolution
is one matrix product. Its transpose is the transposed product followed by the transposed selections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from ..arguments import Size, entries, integer, numbered, sides, sizes
from ..engines.along import Select, cut, pad
from ..engines.base import Linear
from ..errors import PoolError
from ..spec import Axis, sliding
from .glue import Glue, total, transposed
from .glue import product as product_of
from .node import GraphError, Shape, library


@dataclass(frozen=True)
class _Taps:
    """One spatial axis: zeros around the input, and for each tap of the kernel which positions the outputs read."""

    before: int
    after: int
    selects: tuple[Select, ...]


@lru_cache(maxsize=256)
def _taps(axis: Axis, kernel: int) -> _Taps:
    size = axis.lo + max(axis.size, axis.stop(axis.outputs - 1))
    span = (axis.outputs - 1) * axis.stride + 1
    starts = range(0, kernel * axis.dilation, axis.dilation)
    selects = (Select(slice(t, t + span, axis.stride), size) for t in starts)
    return _Taps(axis.lo, size - axis.lo - axis.size, tuple(selects))


@dataclass(frozen=True)
class Conv(Glue):
    """x (.., C, *spatial) by w (O, C / groups, *kernel) to (.., O, *spatial')."""

    stride: Size = 1
    padding: Any = 0
    dilation: Size = 1
    groups: int = 1

    name = "conv"

    def __post_init__(self) -> None:
        for field, value in {
            "stride": sizes("stride", self.stride, 1),
            "padding": numbered(self.padding),
            "dilation": sizes("dilation", self.dilation, 1),
            "groups": integer("groups", self.groups, 1),
        }.items():
            object.__setattr__(self, field, value)

    def _axes(self, x: Shape, w: Shape) -> list[Axis]:
        rank = len(w) - 2
        if rank < 0 or len(x) < rank + 1:
            raise GraphError("w must be (O, C / groups, *kernel) and x (.., C, *spatial)")
        channels = x[len(x) - rank - 1]
        if channels != w[1] * self.groups or w[0] % self.groups:
            raise GraphError(
                f"x has {channels} channels, w takes {w[1]} for each of groups={self.groups} and gives {w[0]}"
            )
        axes = []
        for i, (n, k) in enumerate(zip(x[len(x) - rank :], w[2:], strict=True)):
            s, p, d = (entries(name, getattr(self, name), rank)[i] for name in ("stride", "padding", "dilation"))
            try:
                axes.append(sliding(n, k, s, sides(p), d))
            except PoolError as error:
                raise GraphError(f"on spatial axis {i}, {error}") from None
        return axes

    def out_shape(self, x: Shape, w: Shape) -> Shape:
        axes = self._axes(x, w)
        return (*x[: len(x) - len(axes) - 1], w[0], *(axis.outputs for axis in axes))

    def linearize(self, x: Any, w: Any) -> Linear:
        xp, axes, out = library(x, w), self._axes(x.shape, w.shape), self.out_shape(x.shape, w.shape)
        first, groups = x.ndim - len(axes), self.groups
        taps = [_taps(axis, k) for axis, k in zip(axes, w.shape[2:], strict=True)]
        lead, places, picks = x.shape[: first - 1], math.prod(out[first:]), math.prod(w.shape[2:])
        rows = w.shape[1] * picks
        columns_shape = (*lead, groups, w.shape[1], picks, places)

        def columns(t: Any) -> Any:
            """(.., groups, C / groups x taps, places): what each output reads."""
            for i, tap in enumerate(taps):
                t = pad(xp, t, first + i, tap.before, tap.after)
            picked = []
            for choice in product(*(tap.selects for tap in taps)):
                part = t
                for i, select in enumerate(choice):
                    part = select.take(xp, part, first + i)
                picked.append(xp.reshape(part, (*lead, groups, w.shape[1], 1, places)))
            return xp.reshape(xp.concat(picked, axis=len(lead) + 2), (*lead, groups, rows, places))

        def uncolumns(g: Any) -> Any:
            """The transpose of `columns`."""
            g = xp.reshape(g, columns_shape)
            summed: Any = None
            for j, choice in enumerate(product(*(tap.selects for tap in taps))):
                part = xp.reshape(cut(g, len(lead) + 2, slice(j, j + 1)), (*x.shape[:first], *out[first:]))
                for i, select in reversed(list(enumerate(choice))):
                    part = select.give_back(xp, part, first + i)
                summed = part if summed is None else summed + part
            for i, tap in enumerate(taps):
                summed = cut(summed, first + i, slice(tap.before, summed.shape[first + i] - tap.after))
            return summed

        def matrix(v: Any) -> Any:
            return xp.reshape(v, (groups, w.shape[0] // groups, rows))

        read, weights = columns(x), matrix(w)

        def jvp(dx: Any, dw: Any) -> Any:
            return xp.reshape(product_of(weights, columns(dx)) + product_of(matrix(dw), read), out)

        def vjp(g: Any) -> tuple[Any, Any]:
            g = xp.reshape(g, (*lead, groups, w.shape[0] // groups, places))
            dw = total(product_of(g, transposed(read)), tuple(range(len(lead))))
            return uncolumns(product_of(transposed(weights), g)), xp.reshape(dw, w.shape)

        return Linear(xp.reshape(product_of(weights, read), out), jvp, vjp)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        return None if flags[1] else self
