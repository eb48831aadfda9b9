"""`Pooled`: a law over a window, which is what every primitive is told; and how a record becomes one.

Sizes of axes that are not pooled may be symbols of jax.export. What may not live here: an operation on arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import PoolError, PoolTypeError
from ..lazy import lazy
from ..op import Op
from ..spec import Axis, Law, Window, each

Shape = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Pooled:
    """A law over a window. One object for equal ones, so that comparing costs nothing (`pooled`)."""

    law: Law
    window: Window

    @lazy
    def pooled_axes(self) -> tuple[int, ...]:
        """The axes on which not every output reads itself."""
        return tuple(i for i, axis in enumerate(self.window.axes) if not axis.is_identity)

    @lazy
    def residual(self) -> np.dtype[Any]:
        """The type of which tap won: the smallest that can number all taps of a window."""
        taps = math.prod(self.window.axes[i].taps for i in self.pooled_axes)
        return np.min_scalar_type(max(taps - 1, 0))

    def with_axis(self, at: int, size: Any) -> Pooled:
        """The same over arrays with one more axis, which no window joins."""
        axes = self.window.axes
        return pooled(self.law, Window((*axes[:at], each(size), *axes[at:])))

    def with_law(self, law: Law) -> Pooled:
        return pooled(law, self.window)

    def __repr__(self) -> str:
        params = ", ".join(map(str, self.law.params))
        return f"{self.law.name}({params}) {' x '.join(map(_shown, self.window.axes))}"


@lru_cache(maxsize=4096)
def pooled(law: Law, window: Window) -> Pooled:
    """The one `Pooled` of that law and window."""
    return Pooled(law, window)


@lru_cache(maxsize=4096)
def of(op: Op, shape: Shape) -> Pooled:
    """The record on arrays of that shape."""
    if not op.law.built_in:
        raise PoolTypeError(
            f"{op.name}: a law of your own runs on NumPy arrays and nested lists, not in JAX's programs; "
            "use one of ndpool's laws, or numpy.asarray(x)"
        )
    check_numbers(op._pooled(len(shape)), shape)
    op.consider(shape)
    # the window of the numbers, checked; then the symbols in their places
    known = op.window(tuple(n if isinstance(n, int) else 1 for n in shape)).axes
    axes = (a.simplified() if isinstance(n, int) else each(n) for a, n in zip(known, shape, strict=True))
    return pooled(op.law, Window(tuple(axes)))


def check_numbers(axes: tuple[int, ...], shape: Shape) -> None:
    """Raise where a pooled axis has a symbol for its size."""
    for a in axes:
        if not isinstance(shape[a], int):
            raise PoolError(
                f"axis {a} is pooled and has the symbolic size {shape[a]}; "
                "give pooled axes numbers (other axes may be symbolic)"
            )


def first_winner(one: Pooled) -> Pooled:
    """The same, but among equals the first wins, where they would share the derivative."""
    return one if one.law.first is None else one.with_law(one.law.first)


def _shown(axis: Axis) -> str:
    if axis.is_identity:
        return str(axis.size)
    axis = axis.simplified()
    if axis.per > 1:
        return f"{axis.size} -> {axis.outputs}"
    plain = replace(axis, dilation=1, lo=0)
    padded = f" p{axis.lo}" if axis.lo else ""
    dilated = f" d{axis.dilation}" if axis.dilation > 1 else ""
    return f"{axis.size} -> {axis.outputs} (k{axis.taps} s{plain.stride}{padded}{dilated})"
