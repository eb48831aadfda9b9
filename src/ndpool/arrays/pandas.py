"""pandas' Series and DataFrames: their values are pooled; where windows tile, each keeps the label of its first row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas

from ..errors import PoolTypeError
from ..spec import Axis
from .adapter import From, Held


class Tables(Held):
    """A Series has one axis, "index"; a DataFrame has two, "index" and "columns"."""

    def values(self, x: Any) -> Any:
        values = x.to_numpy()
        if values.dtype == object:
            told = "x.select_dtypes('number')" if values.ndim == 2 else "x.astype('float64')"
            raise PoolTypeError(f"x holds other things than numbers, or nothing; use {told}, or x.fillna(value)")
        return values

    def names(self, x: Any) -> tuple[str, ...]:
        return ("index", "columns")[: x.ndim]

    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        labels = [_labels(x.axes[a], axis) for a, axis in axes]
        if not axes:
            return y[()]
        if len(axes) == 1:
            return pandas.Series(y, labels[0], name=getattr(x, "name", None))
        return pandas.DataFrame(y, *labels)


def _labels(index: Any, axis: Axis | None) -> Any:
    """The label of what each output reads first, where no position is read twice; else None, for 0, 1, 2, ..."""
    if axis is None or axis.is_identity:
        return None if axis is None else index
    first, length = axis.span(np.arange(axis.outputs))
    return index.take(first) if axis.most_readers == 1 and length.all() else None


ADAPTER = Tables()
