"""Max-unpooling: values back to their winners, in sorts and gathers (no scatter, so the same bits everywhere)."""

from __future__ import annotations

import math
from typing import Any

from .. import spec
from ..errors import PoolError, PoolTypeError
from .dtypes import check, kind, name, wide
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
    """Sort the winners; then every position of the output looks up the values that go there, first to last."""
    xp = y.__array_namespace__()
    check("max_unpool", y.dtype, "y")
    if kind(indices.dtype) != "integer":
        raise PoolTypeError(f"indices has dtype {name(indices.dtype)}; give the integers of return_indices=True")
    order = [a for a in range(len(out)) if a not in axes] + list(axes)
    rows, size = math.prod(out[a] for a in order[: -len(axes) or None]), math.prod(out[a] for a in axes)
    columns = math.prod(y.shape[a] for a in axes)
    values, places = (xp.reshape(xp.permute_dims(a, tuple(order)), (rows, columns)) for a in (y, indices))
    values, places = xp.astype(values, wide(xp, y.dtype)), xp.astype(places, xp.int64)
    lowest, highest = (int(f(places)) if math.prod(y.shape) else -1 for f in (xp.min, xp.max))
    if lowest < -1 or highest >= size:
        raise _outside(highest if highest >= size else lowest, size)
    base = xp.reshape(xp.arange(rows, dtype=xp.int64) * size, (-1, 1))
    key = xp.reshape(xp.where(places < 0, xp.full_like(places, rows * size), places + base), (-1,))
    by_key = xp.argsort(key, stable=True)
    key, values = xp.take(key, by_key, axis=0), xp.take(xp.reshape(values, (-1,)), by_key, axis=0)
    here = xp.arange(rows * size, dtype=xp.int64)
    first, end = (xp.searchsorted(key, here, side=side) for side in ("left", "right"))
    x = xp.zeros(rows * size, dtype=values.dtype)
    most = int(xp.max(end - first)) if rows * size else 0
    for r in range(most if duplicates == "sum" else min(most, 1)):
        at = first + r if duplicates == "sum" else end - 1
        found = xp.take(values, xp.where(at < end, at, xp.zeros_like(at)), axis=0)
        x = x + xp.where((at < end) & (end > first), found, xp.zeros_like(found))
    if kind(y.dtype) == "integer" and rows * size:
        info = xp.iinfo(y.dtype)
        if int(xp.max(x)) > int(info.max) or int(xp.min(x)) < int(info.min):
            raise PoolError(f"values that meet add up beyond {name(y.dtype)}; convert y to a wider type first")
    x = xp.reshape(xp.astype(x, y.dtype), tuple(out[a] for a in order))
    return xp.permute_dims(x, tuple(order.index(a) for a in range(len(out))))
