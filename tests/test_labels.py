"""What arrays carry beside their values: xarray's coordinates as `coarsen` has them, pandas' index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError, PoolTypeError

from . import examples


def needed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is the library in question")


def field(rows: int = 4, columns: int = 6) -> Any:
    """A DataArray with every sort of coordinate."""
    xarray = needed("xarray")
    times = np.datetime64("2026-01-01", "ns") + np.arange(columns) * np.timedelta64(12, "ns")
    coords = {
        "y": ("y", np.arange(rows) * 10, {"units": "m"}),
        "x": times,
        "wait": ("x", times - times[0]),
        "weight": (("y", "x"), np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)),
        "mask": ("y", np.arange(rows) % 2 == 0),
        "place": 7,
    }
    data = np.arange(2.0 * rows * columns).reshape(2, rows, columns) % 7
    attributes = {"units": "K"}
    return xarray.DataArray(data, coords, ("band", "y", "x"), name="heat", attrs=attributes)


# -- xarray ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.integers(2, 4), st.integers(2, 4))
def test_windows_that_tile_are_coarsen(rows: int, columns: int, high: int, wide: int) -> None:
    """Values, coordinates, their types and attributes, dims and name: all of it."""
    xarray, x = needed("xarray"), field(rows, columns)
    if high > rows or wide > columns:
        return
    want = x.coarsen(y=high, x=wide, boundary="trim").mean()
    got = ndpool.avg_pool(x, (high, wide), axes=("y", "x"))
    xarray.testing.assert_allclose(got, want)
    assert got.attrs == want.attrs
    assert got.name == want.name
    assert got.y.attrs == {"units": "m"}
    assert {name: c.dtype for name, c in got.coords.items()} == {name: c.dtype for name, c in want.coords.items()}


def test_coordinates_of_windows_that_overlap_or_hang_over() -> None:
    x = field()
    y = ndpool.max_pool(x, 3, stride=1, padding=1, axes=("y", "x"))
    assert y.y.values.tolist() == [5, 10, 20, 25]  # the mean of what is read: 0 and 10, then 0 to 20, ...
    assert y.x.values[0] == x.x.values[0] + np.timedelta64(6, "ns")
    assert ndpool.max_pool(x, 2, padding=2, axes="y").y.isnull().values.tolist() == [True, False, False, True]
    assert ndpool.max_pool(x, (2,), padding=2).x.isnull().values.tolist() == [True, False, False, False, True]


def test_missing_times_stay_missing() -> None:
    x = field()
    x = x.assign_coords(x=np.where(np.arange(6) == 2, np.datetime64("NaT"), x.x.values))
    assert ndpool.max_pool(x, (2,)).x.isnull().values.tolist() == [False, True, False]


def test_dims_by_name_in_any_order() -> None:
    x = field()
    want = ndpool.sum_pool(x.values, (2, 3), axes=(1, 2))
    for y in (
        ndpool.sum_pool(x, (2, 3), axes=("y", "x")),
        ndpool.sum_pool(x, (3, 2), axes=("x", "y")),
        ndpool.sum_pool(x, (2, 3), layout="BYX"),
        ndpool.sum_pool(x.transpose("x", "band", "y"), (2, 3), axes=("y", "x")).transpose("band", "y", "x"),
    ):
        assert np.array_equal(y.values, want)
        assert y.dims == ("band", "y", "x")
    y = ndpool.global_max_pool(x, axes=("y", "x"), keepdims=False)
    assert y.dims == ("band",)
    assert set(y.coords) == {"place"}
    assert ndpool.global_max_pool(x, axes="x").x.size == 1


def test_labels_of_text_are_left_out_of_pooled_axes_alone() -> None:
    x = field().assign_coords(town=("y", list("abcd")), colour=("band", ["red", "blue"]))
    y = ndpool.max_pool(x, 2, axes="y")
    assert "town" not in y.coords
    assert y.colour.values.tolist() == ["red", "blue"]


def test_derivatives_have_the_labels_of_what_they_move() -> None:
    xarray, x = needed("xarray"), field()
    op = ndpool.MaxPool(2, axes=("y", "x"))
    at = op.linearize(x)
    xarray.testing.assert_identical(at.y, op(x))
    dx = at.vjp(at.y)
    assert dx.indexes["x"].equals(x.indexes["x"])
    assert dx.dims == x.dims
    assert at.jvp(dx).identical(op.jvp(x, dx.transpose("x", "y", "band")))  # dims say which axis is which
    y, where = ndpool.max_pool(x, 2, axes=("y", "x"), return_indices=True)
    back = ndpool.max_unpool(y, where, 2, axes=("y", "x"))
    assert np.array_equal(back.values, dx.values)
    assert set(back.coords) == {"place"}  # nobody can say where a value of y lay
    edge = ndpool.unpad(x, 1, axes=("y", "x"))
    assert edge.identical(x[:, 1:-1, 1:-1].assign_coords({n: edge.coords[n] for n in ("y", "mask")}))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ndpool.max_pool(x, 2, axes=("y", "z")), r"max_pool: axes=\('y', 'z'\) names 'z', but x has 'band'"),
        (lambda x: ndpool.MaxPool(2, axes="y").vjp(x, x.rename(y="z")), "max_pool: dy has the dims .*'z'"),
        (lambda x: ndpool.max_pool(x.to_dataset(), 2), r"max_pool: x is a xarray.Dataset.* try x.to_dataarray\(\)"),
        (lambda x: ndpool.max_pool(x.values, 2, axes=("y", "x")), r"max_pool: axes=\('y', 'x'\) are names, but x has"),
        (lambda x: ndpool.max_pool(x.astype(str), 2), "max_pool: x has dtype str"),
        (lambda x: ndpool.max_pool(x, 2, out=np.empty((2, 2, 3))), "max_pool: out is for results that are NumPy"),
    ],
)
def test_what_xarray_cannot_mean(call: Any, words: str) -> None:
    with pytest.raises(PoolError, match=f"^{words}"):
        call(field())


# -- pandas ------------------------------------------------------------------------------------------------------------


def test_an_index_is_kept_where_windows_tile() -> None:
    pandas = needed("pandas")
    s = pandas.Series([3.0, 1, 4, 1, 5, 9, 2], index=list("abcdefg"), name="pi")
    for op, labels in (
        (ndpool.MaxPool((2,)), list("ace")),
        (ndpool.MaxPool((2,), ceil_mode=True), list("aceg")),
        (ndpool.MaxPool((2,), padding=1), list("abdf")),
        (ndpool.MaxPool((2,), stride=3), list("ad")),
        (ndpool.MaxPool((2,), stride=1), [0, 1, 2, 3, 4, 5]),
        (ndpool.AdaptiveMaxPool((7,)), list("abcdefg")),
        (ndpool.AdaptiveMaxPool((3,)), [0, 1, 2]),
        (ndpool.GlobalMaxPool(), ["a"]),
    ):
        y = op(s)
        assert y.index.tolist() == labels, op
        assert y.name == "pi"
        assert y.tolist() == op(s.to_numpy()).tolist()
    assert ndpool.MaxPool((2,)).vjp(s, s[:3]).index.tolist() == list("abcdefg")
    assert ndpool.global_max_pool(s, keepdims=False) == 9.0


def test_a_table_has_two_axes() -> None:
    pandas = needed("pandas")
    df = pandas.DataFrame(
        np.arange(12.0).reshape(4, 3), index=pandas.date_range("2026", periods=4), columns=list("abc")
    )
    y = ndpool.avg_pool(df, 2, axes="index")
    assert y.equals(pandas.DataFrame([[1.5, 2.5, 3.5], [7.5, 8.5, 9.5]], df.index[::2], df.columns))
    assert ndpool.max_pool(df, (3,)).columns.tolist() == ["a"]
    rows = ndpool.global_sum_pool(df, axes="columns", keepdims=False)
    assert rows.equals(df.sum(axis=1))
    assert ndpool.max_pool(df, 2, axes=("columns", "index")).shape == (2, 1)
    with pytest.raises(PoolTypeError, match=r"^max_pool: x holds other things than numbers.*select_dtypes\('number'\)"):
        ndpool.max_pool(df.assign(d="text"), 2, axes="index")
    with pytest.raises(PoolTypeError, match=r"^max_pool: x holds other things than numbers, or nothing.*fillna"):
        ndpool.max_pool(pandas.Series([1, None], dtype=object), 2)
