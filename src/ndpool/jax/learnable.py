"""Smooth max and Lp whose parameter is a traced value: a number, or one per channel or sample, with derivatives.

Each is a pooling of another array by a law without a parameter, so JAX finds the derivatives, of any order:

    smooth max    (1/beta) log sum exp(beta x)  =  pool(beta x; 1) / beta
    Lp            (sum |x|^p)^(1/p)             =  exp(pool(p log |x|; 1) / p)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .. import ops
from ..engines.dtypes import wide
from ..errors import PoolError, PoolTypeError
from ..op import Op

Array = Any
Apply = Callable[[Op, Array], Array]

# the same window with the laws of smooth max and of max
SMOOTH: dict[type[Op], type[Op]] = {
    ops.LpPool: ops.SmoothMaxPool,
    ops.AdaptiveLpPool: ops.AdaptiveSmoothMaxPool,
    ops.GlobalLpPool: ops.GlobalSmoothMaxPool,
}
LARGEST: dict[type[Op], type[Op]] = {
    ops.LpPool: ops.MaxPool,
    ops.AdaptiveLpPool: ops.AdaptiveMaxPool,
    ops.GlobalLpPool: ops.GlobalMaxPool,
}


def smooth_max(record: type[Op], given: dict[str, Any], x: Array, beta: Array, apply: Apply) -> Array:
    """The record with that beta."""
    op = record(**given, beta=1.0)  # type: ignore[call-arg]
    beta, x, dtype = _ready(op, x, beta, "beta")
    return (apply(op, beta * x) / _kept(op, beta, x)).astype(dtype)


def lp(record: type[Op], given: dict[str, Any], x: Array, p: Array, apply: Apply) -> Array:
    """The record with that norm_type; a window of zeros is 0, with derivative 0."""
    op = record(norm_type=2, **given)  # type: ignore[call-arg]
    without: dict[str, Any] = {"count_include_pad": False} if record is ops.LpPool else {}
    smooth = SMOOTH[record](**given, **without, beta=1.0)  # type: ignore[call-arg]
    p, x, dtype = _ready(op, x, p, "norm_type")
    tiny = float(jnp.finfo(x.dtype).tiny)
    magnitude = jnp.where(x == 0, tiny, jnp.abs(x))  # the log of 0 has no derivative; a weight of tiny^p is none
    y = jnp.exp(apply(smooth, p * jnp.log(magnitude)) / _kept(op, p, x))
    zero = apply(LARGEST[record](**given), jnp.abs(x)) == 0
    return jnp.where(zero, 0, y).astype(dtype)


LEARNT: dict[str, Callable[..., Array]] = {"beta": smooth_max, "norm_type": lp}


def _ready(op: Op, x: Array, parameter: Array, name: str) -> tuple[Array, Array, Any]:
    """Both in the wider of their real types, and the type of the result; the parameter varies in no window."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise PoolTypeError(f"x has dtype {x.dtype}, but {op.law.name} takes real elements; convert x to float32")
    if not jnp.issubdtype(parameter.dtype, jnp.floating):
        raise PoolTypeError(f"{name} has dtype {parameter.dtype}; convert {name} to {x.dtype}")
    axes = op.pooled_axes(x.ndim)
    shape = (1,) * (x.ndim - parameter.ndim) + parameter.shape
    if len(shape) > x.ndim or any(shape[a] != 1 for a in axes):
        raise PoolError(f"{name} has shape {parameter.shape}, so it varies in a window; give it size 1 on axes {axes}")
    summed = wide(jnp, x.dtype)
    return jnp.reshape(parameter, shape).astype(summed), x.astype(summed), x.dtype


def _kept(op: Op, parameter: Array, x: Array) -> Array:
    """The parameter as results are shown: without the axes that the record drops."""
    if getattr(op, "keepdims", True):
        return parameter
    return jnp.squeeze(parameter, op.pooled_axes(x.ndim))
