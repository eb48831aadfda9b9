"""`reduce_window` as jax.lax has it, for max, min and add: windows over all axes of the operand.

Padding, and what dilation of the base puts between elements, is not read; the initial value is folded in once, for each
output, which is what XLA does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import ops
from ..arguments import named
from ..errors import PoolError, PoolTypeError
from ..op import Op
from .functional import apply, array
from .pooled import of

Array = Any
Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Monoid:
    """A record of ndpool, the function of two that it folds, and the value that changes nothing."""

    record: type[Op]
    function: Callable[[Any, Any], Any]
    neutral: Callable[[Any], Any]


def _limit(dtype: Any, low: bool) -> Any:
    if dtype == np.bool_:
        return not low
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return info.min if low else info.max
    return -math.inf if low else math.inf


MAX = Monoid(ops.MaxPool, jnp.maximum, lambda dtype: _limit(dtype, True))
MIN = Monoid(ops.MinPool, jnp.minimum, lambda dtype: _limit(dtype, False))
ADD = Monoid(ops.SumPool, jnp.add, lambda dtype: 0)
MONOIDS: dict[Any, Monoid] = {
    jax.lax.max: MAX, jnp.maximum: MAX, np.maximum: MAX, max: MAX,
    jax.lax.min: MIN, jnp.minimum: MIN, np.minimum: MIN, min: MIN,
    jax.lax.add: ADD, jnp.add: ADD, np.add: ADD, operator.add: ADD,
}  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """What each output covers, one entry for each axis of the operand."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    pads: Pads
    dilation: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.dims, self.dilation, strict=True))

    def outputs(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The sizes of the result; 0 where no window fits."""
        return tuple(
            n if self.does_nothing(i) else max(0, (n + sum(self.pads[i]) - self.extents[i]) // self.strides[i] + 1)
            for i, n in enumerate(shape)
        )

    def does_nothing(self, i: int) -> bool:
        return (self.dims[i], self.strides[i], self.pads[i]) == (1, 1, (0, 0))

    def without_pads(self) -> Windows:
        return Windows(self.dims, self.strides, ((0, 0),) * len(self.dims), self.dilation)

    def record(self, kind: type[Op], **more: Any) -> Op | None:
        """The record of ndpool with these windows; None if there is nothing to pool."""
        axes = tuple(i for i in range(len(self.dims)) if not self.does_nothing(i))
        if not axes:
            return None
        lists = {"kernel_size": self.dims, "stride": self.strides, "padding": self.pads, "dilation": self.dilation}
        of_axes: dict[str, Any] = {name: tuple(values[a] for a in axes) for name, values in lists.items()}
        return kind(**of_axes, axes=axes, **more)


def reduce_window(
    operand: Array,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """`jax.lax.reduce_window` with max, min or add, and with every derivative: through dilation too, in both modes.

    Two differences: among equals the first has the derivative, and a sum of integers that does not fit is an error on
    the CPU.

    >>> import jax.numpy as jnp
    >>> from jax import lax
    >>> reduce_window(jnp.array([1.0, 5.0, 2.0, 0.0]), -jnp.inf, lax.max, (2,), (2,))
    Array([5., 2.], dtype=float32)
    """
    with named("reduce_window"):
        operand = array(operand, "operand")
        monoid = _monoid(computation)
        windows, spread = read(
            operand.shape, window_dimensions, window_strides, padding, base_dilation, window_dilation
        )
        nothing = monoid.neutral(operand.dtype)
        y = _reduced(operand, jnp.asarray(nothing, operand.dtype), monoid, windows, spread)
        if _is(init_value, nothing):
            return y
        init = jnp.asarray(init_value, operand.dtype)
        if init.ndim:
            raise PoolTypeError(f"init_value has shape {init.shape}; give it a scalar")
        return monoid.function(y, init)


def mean(op: Op | None, x: Array) -> Array:
    """The record's means as flax, haiku and equinox have them: of whole numbers they are not rounded."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        x = x.astype(jax.eval_shape(lambda a: a / 1, x).dtype)
    return x if op is None else apply(op, x)


def _reduced(operand: Array, nothing: Array, monoid: Monoid, windows: Windows, spread: Any) -> Array:
    """The fold of each window. What is not there is not read, where the record has words for it, else `nothing`."""
    sizes = [max(0, (n - 1) * d + 1) for n, d in zip(operand.shape, spread, strict=True)]
    outputs = windows.outputs(sizes)
    if 0 in outputs:
        return jnp.zeros(outputs, operand.dtype)
    inside = all(lo >= 0 and hi >= 0 for lo, hi in windows.pads) and set(spread) <= {1}
    op = windows.record(monoid.record) if inside else None
    if op is None or _reads_nothing(op, operand.shape):
        config = [(lo, hi, d - 1) for (lo, hi), d in zip(windows.pads, spread, strict=True)]
        if any(entry != (0, 0, 0) for entry in config):
            operand = jax.lax.pad(operand, nothing, config)
        op = windows.without_pads().record(monoid.record)
    return operand if op is None else apply(op, operand)


def _monoid(computation: Any) -> Monoid:
    try:
        return MONOIDS[computation]
    except (KeyError, TypeError):
        name = getattr(computation, "__name__", repr(computation))
        raise PoolError(
            f"computation={name} is none that ndpool pools with; use lax.max, lax.min or lax.add, "
            "or jax.lax.reduce_window for any other"
        ) from None


def _is(init: Any, nothing: Any) -> bool:
    """Whether init is known to change nothing; of infinity, integers know the nearest."""
    if isinstance(init, jax.core.Tracer) or np.ndim(init):
        return False
    if isinstance(nothing, int) and np.isinf(float(init)):
        return bool((init < 0) == (nothing <= 0))
    return bool(init == nothing)


def _reads_nothing(op: Op, shape: tuple[int, ...]) -> bool:
    one = of(op, shape)
    return any(one.window.axes[a].first_empty() is not None for a in one.pooled_axes)


def read(
    shape: tuple[int, ...], dims: Any, strides: Any, padding: Any, base_dilation: Any = None, dilation: Any = None
) -> tuple[Windows, tuple[int, ...]]:
    """The windows, and by how much elements of the base are spread; all as lax takes them."""
    ndim = len(shape)
    lists = {
        "window_dimensions": dims,
        "window_strides": strides,
        "base_dilation": base_dilation,
        "window_dilation": dilation,
    }
    whole = {name: _sizes(name, value, ndim) for name, value in lists.items()}
    dims, strides, spread, dilation = whole.values()
    windows = Windows(dims, strides, ((0, 0),) * ndim, dilation)
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID", "SAME_LOWER"):
            raise PoolError(f'padding={padding!r} is not a rule; use "SAME", "SAME_LOWER", "VALID" or pairs of ints')
        pads = jax.lax.padtype_to_pads(shape, windows.extents, strides, padding.upper())  # as lax: before it is spread
    else:
        pads = padding
    try:
        read = tuple((operator.index(lo), operator.index(hi)) for lo, hi in pads)
    except (TypeError, ValueError):
        raise PoolTypeError(f"padding={padding!r} is not a list of pairs; give (before, after) for each axis") from None
    if len(read) != ndim:
        raise PoolError(f"padding={padding!r} has {len(read)} pairs for {ndim} axes; give one for each axis")
    return Windows(dims, strides, read, dilation), spread


def _sizes(name: str, value: Any, ndim: int) -> tuple[int, ...]:
    if value is None:
        return (1,) * ndim
    try:
        found = tuple(operator.index(n) for n in value)
    except TypeError:
        raise PoolTypeError(f"{name}={value!r} is not a list of whole numbers; give one for each axis") from None
    if len(found) != ndim or min(found, default=1) < 1:
        raise PoolError(f"{name}={value!r} is not {ndim} numbers from 1 on, one for each axis of the operand")
    return found
