"""Max-unpooling: values back to their winners, by the native engine's kernel where there is one, else in sorts and
gathers (no scatter, so the same bits everywhere)."""

from __future__ import annotations

import math
from typing import Any

from .. import spec
from ..errors import PoolError, PoolTypeError
from ..spec.law import KINDS
from . import native
from .dtypes import check, kind, name, wide
from .portable import MASK32
from .reference import flatten, nest


def _outside(index: int, size: int) -> PoolError:
    return PoolError(f"indices holds {index}, outside the {size} positions of the output; give a larger output_size")


def nested(y: Any, indices: Any, out: tuple[int, ...], axes: tuple[int, ...], duplicates: str) -> Any:
    """`spec.unpool` on nested lists: one flat winner an output from its place within `axes`."""
    (values, shape), (places, _) = flatten(y), flatten(indices)
    size = math.prod(out[a] for a in axes)
    kept: dict[int, Any] = {}
    for o, (value, place) in enumerate(zip(values, places, strict=True)):
        if not -1 <= place < size:
            raise _outside(place, size)
        if place < 0:
            continue
        flat, step = 0, 1
        for a in reversed(range(len(out))):
            o, coordinate = divmod(o, shape[a])
            if a in axes:
                place, coordinate = divmod(place, out[a])
            flat, step = flat + coordinate * step, step * out[a]
        kept[flat] = value + kept[flat] if flat in kept and duplicates == "sum" else value
    return nest(spec.unpool(list(kept.values()), list(kept), math.prod(out)), out)


def arrays(y: Any, indices: Any, out: tuple[int, ...], axes: tuple[int, ...], duplicates: str) -> Any:
    """The same on arrays: one row per index of the other axes, by the native engine's kernel or by sorting."""
    xp = y.__array_namespace__()
    check(KINDS, "max_unpool", y.dtype, "y")
    if kind(indices.dtype) != "integer":
        raise PoolTypeError(f"indices has dtype {name(indices.dtype)}; give the integers of return_indices=True")
    order = [a for a in range(len(out)) if a not in axes] + list(axes)
    rows, size = math.prod(out[a] for a in order[: -len(axes) or None]), math.prod(out[a] for a in axes)
    columns = math.prod(y.shape[a] for a in axes)
    values, places = (xp.reshape(xp.permute_dims(a, tuple(order)), (rows, columns)) for a in (y, indices))
    put = by_kernel if native.unpools(y, indices) else by_sorting
    x = put(xp, values, places, size, duplicates)
    x = xp.reshape(x, tuple(out[a] for a in order))
    return xp.permute_dims(x, tuple(order.index(a) for a in range(len(out))))


def by_kernel(xp: Any, values: Any, places: Any, size: int, duplicates: str) -> Any:
    """One walk over values and places, in C++."""
    x, outcome = native.unpool(values, places, size, duplicates)
    if outcome == native.OUTSIDE:
        _check_places(xp, places, size)
    if outcome == native.OVERFLOW:
        raise _beyond(values.dtype)
    return x


def by_sorting(xp: Any, values: Any, places: Any, size: int, duplicates: str) -> Any:
    """Sort the winners; then every position of the output looks up the values that go there, first to last."""
    _check_places(xp, places, size)
    dtype, rows = values.dtype, values.shape[0]
    if 0 in values.shape:
        return xp.zeros((rows, size), dtype=dtype)
    whole = xp.arange(0).dtype  # the library's own integers: JAX has none of 64 bits unless asked for them
    places = xp.astype(places, whole)
    base = xp.reshape(xp.arange(rows, dtype=whole) * size, (-1, 1))
    key = xp.reshape(xp.where(places < 0, xp.full_like(places, rows * size), places + base), (-1,))
    by_key = xp.argsort(key, stable=True)
    key, values = xp.take(key, by_key, axis=0), xp.take(xp.reshape(values, (-1,)), by_key, axis=0)
    here = xp.arange(rows * size, dtype=whole)
    first, end = (xp.searchsorted(key, here, side=side) for side in ("left", "right"))
    if duplicates == "last":
        first = xp.where(end > first, end - 1, first)

    def total(terms: Any) -> Any:
        x = xp.zeros(rows * size, dtype=terms.dtype)
        for r in range(int(xp.max(end - first)) if rows * size else 0):
            there = first + r < end
            found = xp.take(terms, xp.where(there, first + r, xp.zeros_like(first)), axis=0)
            x = x + xp.where(there, found, xp.zeros_like(found))
        return x

    if kind(dtype) == "bool":
        return total(xp.astype(values, whole)) > 0
    values = xp.astype(values, wide(xp, dtype))
    if kind(dtype) != "integer":
        return xp.astype(total(values), dtype)
    # the upper and the lower halves apart, so that no sum overflows before it is looked at
    high, low = total(values >> 32), total(values & MASK32)
    high, low = high + (low >> 32), low & MASK32
    least, most = int(xp.iinfo(dtype).min), int(xp.iinfo(dtype).max)
    if bool(xp.any((high < least >> 32) | (high > most >> 32))):
        raise _beyond(dtype)
    x = high * (1 << 32) + low
    if bool(xp.any((x < least) | (x > most))):
        raise _beyond(dtype)
    return xp.astype(x, dtype)


def _check_places(xp: Any, places: Any, size: int) -> None:
    lowest, highest = (int(f(places)) if math.prod(places.shape) else -1 for f in (xp.min, xp.max))
    if lowest < -1 or highest >= size:
        raise _outside(highest if highest >= size else lowest, size)


def _beyond(dtype: Any) -> PoolError:
    return PoolError(f"values that meet add up beyond {name(dtype)}; convert y to a wider type first")
