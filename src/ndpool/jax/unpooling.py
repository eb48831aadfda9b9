"""Max-unpooling as a primitive on rows: each value goes to its place, everything else is 0.

It is linear in the values, and places have no derivative, so its tangent is itself and its transpose takes cotangents
from places. By XLA's call of the native engine on the CPU, in JAX's own operations elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..engines import native
from ..engines.dtypes import kind, wide
from . import composed, ffi
from .sharded import by_parts

Array = Any
UNPOOL = Primitive("ndpool_unpool")


def unpool(y: Array, indices: Array, sizes: Sequence[int], axes: tuple[int, ...], last: bool) -> Array:
    """Each value of y at its place within `axes`, which are ascending, and have these sizes in the result."""
    out = list(y.shape)
    for a, n in zip(axes, sizes, strict=True):
        out[a] = n
    order = [a for a in range(y.ndim) if a not in axes] + list(axes)
    size, columns = (math.prod(shape[a] for a in axes) for shape in (out, y.shape))
    lead = math.prod(y.shape[a] for a in order[: y.ndim - len(axes)])
    values, places = (jnp.reshape(jnp.transpose(a, order), (lead, columns)) for a in (y, indices))
    x = rows(places, values, size, last)
    return jnp.transpose(jnp.reshape(x, [out[a] for a in order]), [order.index(a) for a in range(y.ndim)])


def rows(places: Array, values: Array, size: int, last: bool) -> Array:
    """Rows of `size`. Where values meet they are added, or the last stays; a place of -1 puts nothing."""
    return UNPOOL.bind(*composed.alike((places, values)), size=size, last=last)


# -- in JAX's operations -----------------------------------------------------------------------------------------------


def _composed(places: Array, values: Array, *, size: int, last: bool) -> Array:
    if last:
        values = jnp.where(_stays(places, size), values, 0).astype(values.dtype)

    def put(at: Array, row: Array) -> Array:
        if kind(row.dtype) == "bool":
            return jnp.zeros(size, bool).at[at].max(row, mode="drop")
        return jnp.zeros(size, row.dtype).at[at].add(row, mode="drop")

    moved = values if kind(values.dtype) != "real" else values.astype(wide(jnp, values.dtype))
    return jax.vmap(put)(_dropped(places, size), moved).astype(values.dtype)


def _dropped(places: Array, size: int) -> Array:
    """Places with those that are none behind the end, where a scatter drops them."""
    return jnp.where(places < 0, size, places)


def _stays(places: Array, size: int) -> Array:
    """Whether each value is the last at its place."""

    def of_row(at: Array) -> Array:
        column = jnp.arange(at.shape[0])
        final = jnp.full(size, -1).at[at].max(column, mode="drop")
        return final.at[at].get(mode="fill", fill_value=-1) == column

    return jax.vmap(of_row)(_dropped(places, size))


def _taken(places: Array, x: Array, *, size: int, last: bool) -> Array:
    """The transpose: for each value, what lies at its place."""
    dy = jax.vmap(lambda row, at: row.at[at].get(mode="fill", fill_value=0))(x, _dropped(places, size))
    return jnp.where(_stays(places, size), dy, 0).astype(x.dtype) if last else dy


# -- by the native engine ----------------------------------------------------------------------------------------------


def serves(values: Any) -> bool:
    """Whether its kernel puts such values."""
    return ffi.available() and values.dtype.name in native.TYPES


def _called(places: Array, values: Array, *, size: int, last: bool) -> Array:
    meet = native.LAST if last else native.ANY if kind(values.dtype) == "bool" else native.SUM
    if places.dtype not in (np.int32, np.int64):
        places = places.astype(jax.dtypes.canonicalize_dtype(np.int64))
    result = jax.ShapeDtypeStruct((values.shape[0], size), values.dtype)
    plan = np.array([ffi.FORMAT, ffi.UNPOOL, meet], np.int64)
    return jax.ffi.ffi_call(ffi.TARGET, result)(places, values, plan=plan)


# -- the primitive's rules ---------------------------------------------------------------------------------------------


def _abstract(places: Any, values: Any, *, size: int, last: bool) -> Any:
    return values.update(shape=(values.shape[0], size), weak_type=False)


def _jvp_rule(primals: Any, tangents: Any, **how: Any) -> Any:
    places, values = primals
    x, moved = UNPOOL.bind(places, values, **how), tangents[1]
    if type(moved) is ad.Zero:
        return x, ad.Zero(jax.typeof(x).to_tangent_aval())
    return x, rows(places, moved, **how)


def _transpose_rule(cotangent: Any, places: Array, values: Any, **how: Any) -> Any:
    if type(cotangent) is ad.Zero:
        return [None, ad.Zero(values.aval)]
    return [None, _taken(places, cotangent, **how)]


def _batch_rule(arrays: Any, dims: Any, **how: Any) -> Any:
    """More rows."""
    n = next(a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None)
    placed = [
        jnp.broadcast_to(a, (n, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
        for a, d in zip(arrays, dims, strict=True)
    ]

    def run(*parts: Array) -> Array:
        x = rows(*(jnp.reshape(a, (-1, a.shape[2])) for a in parts), **how)
        return jnp.reshape(x, (*parts[0].shape[:2], x.shape[1]))

    return by_parts(run, (2,), (), *placed), 0


@lru_cache(maxsize=1024)
def _compiled(size: int, last: bool) -> Callable[..., Array]:
    run: Callable[..., Array] = jax.jit(partial(UNPOOL.bind, size=size, last=last))
    return run


def _eagerly(places: Array, values: Array, **how: Any) -> Array:
    with jax.disable_jit(False):  # or this would come back here
        return _compiled(**how)(places, values)


def _lowered(context: Any, *operands: Any, by_engine: bool, **how: Any) -> Any:
    run = _called if by_engine and serves(context.avals_in[1]) else _composed
    return mlir.lower_fun(partial(run, **how), multiple_results=False)(context, *operands)


UNPOOL.def_impl(_eagerly)
UNPOOL.def_abstract_eval(_abstract)
ad.primitive_jvps[UNPOOL] = _jvp_rule
ad.primitive_transposes[UNPOOL] = _transpose_rule
batching.primitive_batchers[UNPOOL] = _batch_rule
mlir.register_lowering(UNPOOL, partial(_lowered, by_engine=False))
mlir.register_lowering(UNPOOL, partial(_lowered, by_engine=True), platform="cpu")
