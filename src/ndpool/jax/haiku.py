"""haiku's pooling functions, with their arguments: windows over all axes, or over all but the batch and channels."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..arguments import named
from ..errors import PoolError
from .functional import array
from .lax import MAX, mean, read, reduce_window

Array = Any


def max_pool(
    value: Array, window_shape: int | Sequence[int], strides: int | Sequence[int], padding: str,
    channel_axis: int | None = -1,
) -> Array:  # fmt: skip
    """The largest value under each window. An int stands for all axes but the first and `channel_axis`."""
    with named("max_pool"):
        value = array(value, "value")
        dims, strides = (_entries(value, size, channel_axis) for size in (window_shape, strides))
        return reduce_window(value, MAX.neutral(value.dtype), MAX.function, dims, strides, _rule(padding))


def avg_pool(
    value: Array, window_shape: int | Sequence[int], strides: int | Sequence[int], padding: str,
    channel_axis: int | None = -1,
) -> Array:  # fmt: skip
    """The mean under each window of the elements that it holds. Arguments as in `max_pool`."""
    with named("avg_pool"):
        value = array(value, "value")
        dims, strides = (_entries(value, size, channel_axis) for size in (window_shape, strides))
        windows, _ = read(value.shape, dims, strides, _rule(padding))
        counts: dict[str, Any] = {"count_include_pad": False}
        if padding == "VALID":
            counts = {"divisor_override": math.prod(windows.dims)}
        return mean(windows.record(ops.AvgPool, **counts), value)


def _rule(padding: str) -> str:
    if padding not in ("SAME", "VALID"):
        raise PoolError(f'padding={padding!r} is not a rule; use "SAME" or "VALID"')
    return padding


def _entries(value: Array, size: int | Sequence[int], channel_axis: int | None) -> tuple[int, ...]:
    """One entry for each axis of value."""
    ndim: int = value.ndim
    if isinstance(size, Sequence):
        return (1,) * (ndim - len(size)) + tuple(size)
    if channel_axis is not None and not -ndim <= channel_axis < ndim:
        raise PoolError(f"channel_axis={channel_axis} is no axis of a value of {ndim}; use {-ndim} to {ndim - 1}")
    skipped = {0} if channel_axis is None else {0, channel_axis % ndim}
    return tuple(1 if i in skipped else operator.index(size) for i in range(ndim))
