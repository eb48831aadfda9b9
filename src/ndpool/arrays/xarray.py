"""xarray's DataArrays: axes by name, coordinates reduced as `coarsen` reduces them, attributes kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xarray

from ..engines import choose
from ..errors import PoolError
from ..spec import Axis, Window, maximum, mean
from .adapter import From, Held


class DataArrays(Held):
    """A DataArray holds an array of any library, which is pooled as that library's is."""

    def values(self, x: Any) -> Any:
        return x.data

    def names(self, x: Any) -> tuple[Any, ...]:
        return tuple(x.dims)

    def in_order(self, name: str, t: Any, names: tuple[Any, ...] | None) -> Any:
        if names is None or set(t.dims) != set(names):
            raise PoolError(f"{name} has the dims {t.dims}, not {names}; give it these")
        return t.transpose(*names)

    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        over = {x.dims[a]: axis for a, axis in axes}
        still = {dim for dim, axis in over.items() if axis is not None and axis.is_identity}
        moved = [name for name, c in x.coords.items() if not still.issuperset(c.dims)]
        coords = x.coords.to_dataset().drop_vars(moved).coords
        result = xarray.DataArray(y, coords=coords, dims=tuple(over), attrs=x.attrs)
        result.name = x.name  # now, because a name of None would be dask's name of y
        reduced = {name: found for name in moved if (found := _reduced(x.coords[name].variable, over)) is not None}
        return result.assign_coords(reduced)


def _reduced(labels: Any, over: dict[Any, Axis | None]) -> Any:
    """A coordinate's mean under each window, of the positions that are read; None where there is none: of text, and
    of axes that are gone or whose positions nobody can say."""
    axes = [over.get(dim) for dim in labels.dims]
    if any(axis is None for axis in axes) or labels.dtype.kind not in "biufmM":
        return None
    window = Window(tuple(replace(axis, margin=(0, 0)) for axis in axes if axis is not None))
    values, time = np.asarray(labels.values), labels.dtype.kind in "mM"
    missing = _empty(window)
    if time:
        missing = missing | _under(window, maximum(), np.isnat(values))
        values = np.where(np.isnat(values), 0, values.view(np.int64))  # exact means: a float has not all nanoseconds
    elif labels.dtype.kind != "f":
        values = values.astype(np.float64)
    means = _under(window, mean(), values)
    means = means.view(labels.dtype) if time else means
    means[missing] = "NaT" if time else np.nan
    return xarray.Variable(labels.dims, means, labels.attrs)


def _under(window: Window, law: Any, values: Any) -> Any:
    return np.array(choose(window, law, values).forward(values))


def _empty(window: Window) -> Any:
    """Which outputs read nothing."""
    found = np.zeros(window.out_shape, bool)
    for a, axis in enumerate(window.axes):
        lengths = axis.span(np.arange(axis.outputs))[1]
        found |= (lengths == 0).reshape((-1,) + (1,) * (len(window.axes) - a - 1))
    return found


ADAPTER = DataArrays()
