"""Pooling, once: forward, jvp and vjp of any law over any window, on flat row-major lists of any scalar.

This is the meaning; every engine is compared with it. There is no fast path here and never will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from .axis import Window
from .law import Law
from .scalar import alike


def fold(law: Law, x: Sequence[Any], taps: Sequence[int], count: int, zero: Any = 0) -> tuple[Any, Any]:
    """The value and the residual of one output; `zero` and None where nothing is read or counted."""
    states = [law.lift(x[t], t) for t in taps]
    states += [law.lift(zero, None)] * (count - len(taps))  # padding that counts is zeros without a position
    return law.finish(reduce(law.merge, states), count) if states else (zero, None)


def forward(window: Window, law: Law, x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The values and the residuals of all outputs.

    >>> from ndpool.spec import Window, sliding, maximum
    >>> forward(Window((sliding(4, kernel=2),)), maximum(), [3, 1, 4, 4])
    ([3, 4], [((0,), 1), ((2,), 1)])
    """
    zero, x = alike(x, params=law.params)
    folded = [fold(law, x, taps, count, zero) for taps, count in window]
    return [y for y, _ in folded], [r for _, r in folded]


def jvp(window: Window, law: Law, x: Sequence[Any], residuals: Sequence[Any], dx: Sequence[Any]) -> list[Any]:
    """The tangents of the outputs: each gathers from its taps."""
    zero, x, dx = alike(x, dx, params=law.params)
    outputs = zip(window, residuals, strict=True)
    return [sum((law.weigh(dx[t], x[t], t, r) for t in taps), zero) for (taps, _), r in outputs]


def vjp(window: Window, law: Law, x: Sequence[Any], residuals: Sequence[Any], dy: Sequence[Any]) -> list[Any]:
    """The cotangents of the inputs: each output scatters to its taps. The transpose of `jvp`."""
    zero, x, dy = alike(x, dy, params=law.params)
    dx = [zero] * len(x)
    for (taps, _), r, g in zip(window, residuals, dy, strict=True):
        for t in taps:
            dx[t] = dx[t] + law.weigh(g, x[t], t, r)
    return dx


def unpool(y: Sequence[Any], winners: Sequence[int], size: int) -> list[Any]:
    """Max pooling's vjp at given winners: each value goes back to where it came from; those that meet are added.

    >>> unpool([5, 7], [3, 0], 4)
    [7, 0, 0, 5]
    """
    zero, y = alike(y)
    x = [zero] * size
    for value, winner in zip(y, winners, strict=True):
        x[winner] = x[winner] + value
    return x
