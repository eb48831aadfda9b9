"""flax.linen's pooling functions, with their arguments: channels last, and any number of batch axes, or none.

import ndpool.jax.flax as nn        # nn.max_pool(x, (2, 2), strides=(2, 2))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..arguments import named
from ..errors import PoolError
from .functional import array
from .lax import MAX, MIN, Monoid, Windows, mean, read, reduce_window

Array = Any
Padding = str | Sequence[tuple[int, int]]


def max_pool(
    inputs: Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """The largest value under each window; `strides` are 1 unless given."""
    return _extreme("max_pool", MAX, inputs, window_shape, strides, padding)


def min_pool(
    inputs: Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """The smallest value under each window; `strides` are 1 unless given."""
    return _extreme("min_pool", MIN, inputs, window_shape, strides, padding)


def avg_pool(
    inputs: Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """The sum under each window over its size, or with `count_include_pad=False` over the elements that it holds."""
    with named("avg_pool"):
        inputs = array(inputs, "inputs")
        windows = _windows(inputs, window_shape, strides, padding)
        counts: dict[str, Any] = {"divisor_override": math.prod(windows.dims)}
        op = windows.record(ops.AvgPool, **(counts if count_include_pad else {"count_include_pad": False}))
        return mean(op, inputs)


def _extreme(name: str, monoid: Monoid, inputs: Array, window_shape: Any, strides: Any, padding: Any) -> Array:
    with named(name):
        inputs = array(inputs, "inputs")
        found = _windows(inputs, window_shape, strides, padding)
        init = monoid.neutral(inputs.dtype)
        return reduce_window(inputs, init, monoid.function, found.dims, found.strides, found.pads)


def _windows(inputs: Array, window_shape: Any, strides: Any, padding: Any) -> Windows:
    """flax's arguments as lax has them: batch axes, the window's, channels."""
    window_shape = tuple(window_shape)
    batch = inputs.ndim - len(window_shape) - 1
    if batch < 0:
        raise PoolError(
            f"window_shape={window_shape} has {len(window_shape)} entries for inputs of {inputs.ndim} axes, of which "
            f"the last is channels; give at most {inputs.ndim - 1}"
        )
    strides = (1,) * len(window_shape) if strides is None else tuple(strides)
    if not isinstance(padding, str):
        padding = ((0, 0),) * batch + tuple(map(tuple, padding)) + ((0, 0),)
    found, _ = read(inputs.shape, (1,) * batch + window_shape + (1,), (1,) * batch + strides + (1,), padding)
    return found
