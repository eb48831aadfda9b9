"""The portable engine's laws that look at all taps of a window at once: their state is no few numbers to be merged.

`Stacked` lays the taps of every output along a new first axis, in row-major order, for so many outputs at a time that
memory stays bounded; a law in `STACKED` makes values of them:

    law(xp, taps, there, *params) -> values     there: which of the taps are read, or None for all

What may not live here: geometry beyond asking `Axis.span`, argument names, any array library by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..errors import PoolTypeError
from ..spec import Axis, Law, Window
from .along import Array, concat, cut, device, on
from .base import Linear, Plan
from .dtypes import kind

HELD = 1 << 21  # taps that are held at once; one window's are never cut
FEW = 12  # taps that are compared pair by pair: more are sorted


@dataclass(frozen=True)
class Stacked(Plan):
    """A window and a law, for arrays of one library."""

    xp: Any
    window: Window
    law: Law
    differentiates = False

    def forward(self, x: Array) -> Array:
        flags = kind(x.dtype) == "bool"  # numbers have an order in every library, booleans have not
        y = self._values(self.window.axes, self.xp.astype(x, self.xp.uint8) if flags else x)
        return self.xp.astype(y, x.dtype) if flags else y

    def linearize(self, x: Array) -> Linear:
        self._refuse()

    def winners(self, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PoolTypeError(self.law.no_derivative)

    def _values(self, axes: Sequence[Axis], x: Array) -> Array:
        """The outputs: all at once, or one half of the longest axis after the other."""
        xp, outputs = self.xp, [axis.outputs for axis in axes]
        if 0 in x.shape or 0 in outputs:
            return xp.zeros(tuple(outputs), dtype=x.dtype, device=device(x))
        longest = max(range(len(axes)), key=outputs.__getitem__, default=0)
        if math.prod(outputs) * math.prod(axis.taps for axis in axes) > HELD and outputs[longest] > 1:
            middle, halves = outputs[longest] // 2, []
            for begin, end in ((0, middle), (middle, outputs[longest])):
                where, part = axes[longest].part(begin, end)
                some = [part if i == longest else axis for i, axis in enumerate(axes)]
                halves.append(self._values(some, cut(x, longest, slice(where.start, where.stop))))
            return concat(xp, halves, longest)
        taps, there = _stack(xp, axes, x)
        if there is None:
            return STACKED[self.law.name](xp, taps, None, *self.law.params)
        y = STACKED[self.law.name](xp, taps, on(xp, device(x), there), *self.law.params)
        return xp.where(on(xp, device(x), there.any(axis=0)), y, xp.zeros_like(y))


def _stack(xp: Any, axes: Sequence[Axis], x: Array) -> tuple[Array, Any]:
    """Taps along a new first axis, and which of them are read: those that are not are taps that are, once more."""
    there = np.ones((1,) * (len(axes) + 1), bool)
    x = x[None, ...]
    for i, axis in enumerate(axes):
        if axis.is_identity:
            continue
        first, length = axis.span(np.arange(axis.outputs))
        tap = np.arange(max(1, length.max()))[:, None]
        again = np.minimum(tap, np.maximum(length - 1, 0))
        index = np.clip(first + axis.dilation * again, 0, axis.size - 1)
        x = xp.take(x, on(xp, device(x), index.reshape(-1)), axis=i + 1)
        x = xp.reshape(x, (*x.shape[: i + 1], *index.shape, *x.shape[i + 2 :]))
        x = xp.permute_dims(x, (0, i + 1, *(a for a in range(1, len(axes) + 2) if a != i + 1)))
        x = xp.reshape(x, (-1, *x.shape[2:]))
        mask = (tap < length).reshape(1, len(tap), *(1,) * i, axis.outputs, *(1,) * (len(axes) - i - 1))
        there = there[:, None] & mask
        there = there.reshape(-1, *there.shape[2:])
    return x, None if there.all() else there


# -- laws --------------------------------------------------------------------------------------------------------------


def _mode(xp: Any, taps: Array, there: Array | None, ties: str) -> Array:
    return (_mode_of_few if taps.shape[0] <= FEW else _mode_of_many)(xp, taps, there, ties)


def _mode_of_few(xp: Any, taps: Array, there: Array | None, ties: str) -> Array:
    """Each tap counts itself and those after it that are equal: the first of equals counts them all."""
    y = most = None
    for i in range(taps.shape[0]):
        tap = taps[i, ...]
        same = taps[i:, ...] == tap
        same = same if there is None else same & there[i:, ...] & there[i, ...]
        count = xp.sum(xp.astype(same, xp.uint8), axis=0, dtype=xp.uint8)
        if y is None:
            y, most = tap, count
            continue
        better = count > most
        if ties == "smallest":
            better = better | ((count == most) & (tap < y))
        y, most = xp.where(better, tap, y), xp.where(better, count, most)
    return y


def _mode_of_many(xp: Any, taps: Array, there: Array | None, ties: str) -> Array:
    """Equal taps are neighbours once they are sorted; a scan that doubles its reach counts along them."""
    n = taps.shape[0]
    order = None if there is None and ties == "smallest" else xp.argsort(taps, axis=0, stable=True)
    taps = xp.sort(taps, axis=0) if order is None else xp.take_along_axis(taps, order, axis=0)
    count = xp.ones_like(taps, dtype=xp.int32)
    if there is not None:
        there = xp.take_along_axis(xp.broadcast_to(there, taps.shape), order, axis=0)
        count = xp.astype(there, xp.int32)
    first = None if ties == "smallest" else order if there is None else xp.where(there, order, xp.full_like(order, n))
    hop = 1
    while hop < n:
        same = taps[hop:, ...] == taps[:-hop, ...]
        before = xp.where(same, count[:-hop, ...], xp.zeros_like(count[hop:, ...]))
        count = xp.concat([count[:hop, ...], count[hop:, ...] + before], axis=0)
        if first is not None:
            earliest = xp.where(same, xp.minimum(first[:-hop, ...], first[hop:, ...]), first[hop:, ...])
            first = xp.concat([first[:hop, ...], earliest], axis=0)
        hop *= 2
    if first is None:
        at = xp.argmax(count, axis=0, keepdims=True)  # the first of the greatest counts: the smallest value
    else:
        often = count == xp.max(count, axis=0, keepdims=True)
        at = xp.argmin(xp.where(often, first, xp.full_like(first, n + 1)), axis=0, keepdims=True)
    return xp.take_along_axis(taps, at, axis=0)[0, ...]


STACKED: dict[str, Callable[..., Array]] = {"mode": _mode}
