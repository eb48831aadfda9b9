"""Max-unpooling: each value back to its winner; max pooling's vjp at given winners."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError
from ndpool.engines import native, unpooling

from .cases import BFLOAT16, BOOL, COMPLEX, FLOATS, INTEGERS, assert_close, assert_exact


def both(y: Any, indices: Any, *arguments: Any, **options: Any) -> list[Any]:
    """The result on nested lists, after checking that arrays give the same."""
    listed = ndpool.max_unpool(y, indices, *arguments, **options)
    array = ndpool.max_unpool(np.array(y), np.array(indices), *arguments, **options)
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.array(y).dtype
    assert array.tolist() == listed
    return listed


def test_each_value_goes_to_its_winner() -> None:
    assert both([5, 7], [3, 0], (2,)) == [7, 0, 0, 5]
    assert both([[6, 8]], [[5, 2]], 2) == [[0, 0, 8, 0], [0, 6, 0, 0]]


def test_unpooling_pooled_values_keeps_the_winners() -> None:
    x = np.random.default_rng(0).permutation(np.arange(1.0, 145.0)).reshape(2, 3, 4, 6)
    y, indices = ndpool.max_pool(x, 2, return_indices=True)
    back = ndpool.max_unpool(y, indices, 2)
    assert np.array_equal(back, np.where(np.isin(x, y), x, 0))
    assert np.array_equal(ndpool.max_pool(back, 2), y)


def test_the_default_size_inverts_the_output_size() -> None:
    """(n - 1) stride - lo - hi + kernel_size, the smallest input that gives n outputs."""
    y, indices = np.ones((1, 3, 4)), np.zeros((1, 3, 4), int)
    assert ndpool.max_unpool(y, indices, 2).shape == (1, 6, 8)
    assert ndpool.max_unpool(y, indices, 3, 2, 1).shape == (1, 5, 7)
    assert ndpool.max_unpool(y, indices, (3, 2), (2, 1), ((1, 0), (0, 1))).shape == (1, 6, 4)
    assert ndpool.max_unpool(y, indices, 3, 2, 1, axes=(0, 2)).shape == (1, 3, 7)


def test_output_size_names_the_pooled_axes_or_all() -> None:
    y, indices = [[[1, 2]], [[3, 4]]], [[[0, 4]], [[1, 3]]]
    for size in ((1, 5), (2, 1, 5), [1, 5]):
        assert both(y, indices, (1, 2), output_size=size) == [[[1, 0, 0, 0, 2]], [[0, 3, 0, 4, 0]]]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((5, 3, 8, 8), r"output_size=\(5, 3, 8, 8\) is not y's size on axis 0, which is not pooled"),
        ((2, 9, 8, 8), r"axis 1, which is not pooled; use output_size=\(2, 3, 8, 8\)"),
        ((5, 9, 7, 9), r"axes 0, 1, which are not pooled; use output_size=\(2, 3, 7, 9\)"),
    ],
)
def test_output_size_of_an_axis_that_is_not_pooled_must_be_right(size: tuple[int, ...], words: str) -> None:
    y = np.ones((2, 3, 4, 4))
    for values, indices in ((y, np.zeros(y.shape, int)), (y.tolist(), np.zeros(y.shape, int).tolist())):
        with pytest.raises(PoolError, match=f"max_unpool: .*{words}"):
            ndpool.max_unpool(values, indices, 2, output_size=size)


def test_output_size_of_all_axes_where_the_pooled_are_not_the_last() -> None:
    y, indices = np.ones((2, 2, 3)), np.zeros((2, 2, 3), int)
    pooled = ndpool.max_unpool(y, indices, 2, axes=(0, 1), output_size=(5, 4))
    assert pooled.shape == (5, 4, 3)
    assert np.array_equal(ndpool.max_unpool(y, indices, 2, axes=(0, 1), output_size=(5, 4, 3)), pooled)


def test_output_size_follows_the_order_of_axes() -> None:
    y, indices = np.ones((2, 3)), np.arange(6).reshape(2, 3)
    assert ndpool.max_unpool(y[None], indices[None], 2, axes=(2, 1), output_size=(7, 4)).shape == (1, 4, 7)


def test_an_index_of_minus_1_puts_nothing() -> None:
    assert both([5, 7, 9], [-1, 2, -1], (1,)) == [0, 0, 7]
    y, indices = ndpool.max_pool([4], (1,), 1, 1, return_indices=True)
    assert ndpool.max_unpool(y, indices, (1,), 1, 1) == [4]


def test_duplicates_are_added() -> None:
    assert both([5, 7, 9], [1, 1, 0], (1,)) == [9, 12, 0]
    assert both([[5, 7], [2, 3]], [[1, 1], [0, 0]], (1,)) == [[0, 12], [5, 0]]


def test_duplicates_last_keeps_the_last_in_row_major_order() -> None:
    assert both([5, 7, 9], [1, 1, 0], (1,), duplicates="last") == [9, 7, 0]
    assert both([[5, 7], [2, 3]], [[1, 0], [1, 3]], 1, duplicates="last") == [[7, 2], [0, 3]]
    assert both([5, 7], [-1, -1], (1,), duplicates="last") == [0, 0]


@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (2, 1), (-1,), (1,), (0, 1, 2)])
def test_axes_anywhere(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).permutation(4 * 6 * 4).reshape(4, 6, 4) + 1
    y, indices = ndpool.max_pool(x, 2, axes=axes, return_indices=True)
    back = ndpool.max_unpool(y, indices, 2, axes=axes)
    assert np.array_equal(back, np.where(np.isin(x, y), x, 0))
    assert ndpool.max_unpool(y.tolist(), indices.tolist(), 2, axes=axes) == back.tolist()


def test_one_axis_may_be_a_bare_int() -> None:
    """As in the records."""
    y, indices = ndpool.max_pool(np.arange(8).reshape(4, 2), 2, axes=0, return_indices=True)
    assert ndpool.max_unpool(y, indices, 2, axes=0).tolist() == [[0, 0], [2, 3], [0, 0], [6, 7]]


def test_batch_rows_do_not_mix() -> None:
    y, indices = np.array([[1.0], [2.0], [3.0]]), np.array([[0], [1], [0]])
    assert ndpool.max_unpool(y, indices, (2,)).tolist() == [[1, 0], [0, 2], [3, 0]]


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_zero_sizes(shape: tuple[int, ...]) -> None:
    got = ndpool.max_unpool(np.zeros(shape), np.zeros(shape, int), (2,), output_size=(6,))
    assert got.shape == (*shape[:2], 6)
    assert not got.any()


def test_nothing_to_put_and_nowhere_to_put_it() -> None:
    assert ndpool.max_unpool(np.zeros((3, 0)), np.zeros((3, 0), int), (2,)).shape == (3, 0)


def test_any_scalar() -> None:
    half = Fraction(1, 2)
    assert ndpool.max_unpool([half, half], [1, 1], (2,)) == [0, 1, 0, 0]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_dtype_is_kept(dtype: np.dtype) -> None:
    got = ndpool.max_unpool(np.array([3, 4], dtype), np.array([0, 0], np.int32), (1,))
    assert got.dtype == dtype
    assert got.tolist() == [7, 0]


def test_large_integers_are_exact() -> None:
    top = 2**63 - 1
    assert ndpool.max_unpool(np.array([top - 1, 1]), np.array([0, 0]), (1,)).tolist() == [top, 0]
    assert ndpool.max_unpool(np.array([2**64 - 1], np.uint64), np.array([0]), (1,)).tolist() == [2**64 - 1]


def test_a_sum_of_duplicates_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ndpool.PoolError, match=r"^max_unpool: .*int8"):
        ndpool.max_unpool(np.array([100, 100], np.int8), np.array([0, 0]), (1,))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kernel", [2, 3])
def test_unpool_is_the_vjp_of_max_pool_at_its_winners(kernel: int, dtype: np.dtype) -> None:
    """Overlapping windows: what meets is added, in float32 for short floats as everywhere."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, 5, (2, 7, 8)).astype(dtype)
    op = ndpool.MaxPool(kernel, 1, 1, return_indices=True)
    y, indices = op(x)
    dy = rng.normal(size=y.shape).astype(dtype)
    got = ndpool.max_unpool(dy, indices, kernel, 1, 1, output_size=x.shape)
    assert_close(got, op.vjp(x, dy))


@pytest.mark.parametrize(("dtype", "big"), [(np.dtype(np.float16), 2048), (BFLOAT16, 256)], ids=str)
def test_duplicates_of_short_floats_are_summed_in_float32(dtype: np.dtype, big: int) -> None:
    """The next short float above `big` is big + 2, so in that type big + 1 + 1 would stay big."""
    got = ndpool.max_unpool(np.array([big, 1, 1], dtype), np.zeros(3, int), (1,))
    assert got.tolist() == [big + 2, 0, 0]


@given(data=st.data())
def test_arrays_and_lists_agree(data: st.DataObject) -> None:
    rows, n, size = (data.draw(st.integers(low, 4)) for low in (1, 1, 2))
    numbers = st.integers(-9, 9)
    y = data.draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=rows, max_size=rows))
    places = st.integers(-1, size - 1)
    indices = data.draw(st.lists(st.lists(places, min_size=n, max_size=n), min_size=rows, max_size=rows))
    both(y, indices, (1,), output_size=(size,), duplicates=data.draw(st.sampled_from(["sum", "last"])))


# -- the kernel and the sorts are the spec ----------------------------------------------------------------------------

WAYS = ("kernel", "sorts")
PLACES = tuple(map(np.dtype, ("int8", "uint8", "int16", "int32", ">i4", "uint32", "int64", ">i8", "uint64")))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """max_unpool goes this way, and no other."""
    if request.param == "kernel" and not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")
    go_by(request.param, monkeypatch)
    return str(request.param)


def go_by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def supported(y: Any, indices: Any) -> bool:
        return way == "kernel"

    monkeypatch.setattr(native, "unpools", supported)


def unpooled(way: str, *arguments: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        go_by(way, patch)
        return ndpool.max_unpool(*arguments, **options)


def scattered(rng: np.random.Generator, a: np.ndarray) -> np.ndarray:
    """The same numbers, that do not lie side by side: every other of a larger array, the axes in another order."""
    order = rng.permutation(a.ndim)
    home = np.zeros([2 * n for n in np.array(a.shape)[order]], a.dtype)
    view = home[(slice(None, None, 2),) * a.ndim] if rng.integers(2) else home[(slice(None, None, -2),) * a.ndim]
    view = view.transpose(np.argsort(order))
    view[...] = a
    return view


@pytest.mark.parametrize("duplicates", ["sum", "last"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, BOOL, np.dtype(">f4"), np.dtype(">i2")], ids=str)
def test_kernel_and_sorts_agree_with_the_spec(way: str, dtype: np.dtype, duplicates: str) -> None:
    rng = np.random.default_rng(len(dtype.name))
    for case in range(60):
        rank = int(rng.integers(1, 4))
        shape, out = (tuple(int(n) for n in rng.integers(1, 5, rank)) for _ in range(2))
        axes = tuple(int(a) for a in rng.permutation(rank)[: rng.integers(1, rank + 1)])
        size = int(np.prod([out[a] for a in axes]))
        places = PLACES[case % len(PLACES)]
        if way == "kernel" and places == np.uint64:
            continue
        low = 0 if places.kind == "u" else -1
        y, indices = rng.integers(0, 4, shape).astype(dtype), rng.integers(low, size, shape).astype(places)
        options = {"axes": axes, "output_size": tuple(out[a] for a in axes), "duplicates": duplicates}
        want = ndpool.max_unpool(y.tolist(), indices.tolist(), 1, **options)
        for a, b in ((y, indices), (scattered(rng, y), scattered(rng, indices))):
            got = ndpool.max_unpool(a, b, 1, **options)
            assert got.dtype == dtype
            assert got.tolist() == np.array(want).astype(dtype).tolist(), (case, shape, options)


@pytest.mark.parametrize("duplicates", ["sum", "last"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kernel_and_sorts_give_the_same_bits(dtype: np.dtype, duplicates: str) -> None:
    """Sums are rounded in the same order, and no zero keeps its sign."""
    if not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")
    rng = np.random.default_rng(4)
    y = rng.normal(size=(7, 50, 40)).astype(dtype)
    y[rng.random(y.shape) < 0.2] = -0.0
    indices = rng.integers(-1, 900, y.shape)
    options = {"output_size": (30, 30), "duplicates": duplicates}
    kernel, sorts = (unpooled(way, y, indices, 1, **options) for way in WAYS)
    assert kernel.tobytes() == np.ascontiguousarray(sorts).tobytes()
    assert not np.signbit(kernel[kernel == 0]).any()


def test_any_number_of_threads_puts_the_same() -> None:
    rng = np.random.default_rng(5)
    y, indices = rng.normal(size=(64, 40, 40)), rng.integers(-1, 6400, (64, 40, 40))
    before = native.threads()
    try:
        results = []
        for n in (1, 2, 5):
            native.set_threads(n)
            results.append(ndpool.max_unpool(y, indices, 2, output_size=(80, 80)))
    finally:
        native.set_threads(before)
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("duplicates", ["sum", "last"])
@pytest.mark.parametrize("place", [-2, 12, -(2**31), 2**31 - 1, 2**62, -(2**63)])
def test_a_place_outside_is_an_error(way: str, place: int, duplicates: str) -> None:
    """At both ends, in a small array and in one that is worth threads; -1 and 11 are inside."""
    for rows in (1, 5000):
        y, indices = np.ones((rows, 3)), np.tile([-1, 11, 0], (rows, 1))
        assert ndpool.max_unpool(y, indices, (4,), duplicates=duplicates)[0].tolist() == [1, *[0] * 10, 1]
        indices[-1, 1] = place
        with pytest.raises(ndpool.PoolError, match=rf"^max_unpool: indices holds {place}, outside the 12 positions"):
            ndpool.max_unpool(y, indices, (4,), duplicates=duplicates)
        with pytest.raises(ndpool.PoolError, match=rf"indices holds {place}, outside the 12 positions"):
            ndpool.max_unpool(y[-1:].tolist(), indices[-1:].tolist(), (4,), duplicates=duplicates)


def test_an_unsigned_place_beyond_the_signed_is_outside() -> None:
    with pytest.raises(ndpool.PoolError, match=r"indices holds 18446744073709551615, outside the 1 positions"):
        ndpool.max_unpool(np.ones(1), np.array([2**64 - 1], np.uint64), (1,))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_an_integer_sum_fits_exactly_or_is_an_error(way: str, dtype: np.dtype) -> None:
    """One beyond either end is an error; what wraps around and back is not."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    zeros = np.zeros(3, int)
    assert ndpool.max_unpool(np.array([high - 1, 1, 0], dtype), zeros, (1,)).tolist() == [high, 0, 0]
    beyond = [[high, 1, 0], [high, high, high]]
    if low:
        assert ndpool.max_unpool(np.array([low + 1, -1, 0], dtype), zeros, (1,)).tolist() == [low, 0, 0]
        assert ndpool.max_unpool(np.array([high, 1, -1], dtype), zeros, (1,)).tolist() == [high, 0, 0]
        assert ndpool.max_unpool(np.array([low, -1, 1], dtype), zeros, (1,)).tolist() == [low, 0, 0]
        beyond += [[low, -1, 0], [low, low, 0], [low, low, low]]
    for values in beyond:
        with pytest.raises(ndpool.PoolError, match=rf"^max_unpool: values that meet add up beyond {dtype.name};"):
            ndpool.max_unpool(np.array(values, dtype), zeros, (1,))
        assert ndpool.max_unpool(np.array(values, dtype), zeros, (1,), duplicates="last")[0] == values[-1]


def test_truth_values_that_meet_are_true_if_any_is(way: str) -> None:
    y = np.array([True, True, True, False, False])
    indices = np.array([0, 0, 1, 1, 2])
    assert ndpool.max_unpool(y, indices, (1,)).tolist() == [True, True, False, False, False]
    assert ndpool.max_unpool(y, indices, (1,), duplicates="last").tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_values_are_moved_and_added(dtype: np.dtype) -> None:
    got = ndpool.max_unpool(np.array([1 + 2j, 3j, 5], dtype), np.array([2, 2, 0]), (1,))
    assert_exact(got, np.array([5, 0, 1 + 5j], dtype))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32, np.complex64])
def test_other_array_libraries_unpool(dtype: Any) -> None:
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict checks the array API standard")
    y, indices = np.array([[1, 0, 1], [1, 1, 1]]).astype(dtype), np.array([[2, 2, 0], [-1, 1, 1]])
    got = ndpool.max_unpool(xp.asarray(y), xp.asarray(indices), (1,))
    assert_exact(np.asarray(got), ndpool.max_unpool(y, indices, (1,)))


@pytest.mark.parametrize(("shape", "size"), [((3, 0), 0), ((3, 0), 2), ((0, 3), 2), ((0, 0), 0), ((2**40, 0), 0)])
def test_nothing_at_all(way: str, shape: tuple[int, ...], size: int) -> None:
    got = ndpool.max_unpool(np.zeros(shape), np.zeros(shape, int), (2,), output_size=(size,))
    assert got.shape == (shape[0], size)
    assert not got.any()


def test_the_kernel_takes_only_rows_that_it_was_told_of() -> None:
    """What the extension is given is checked once more: a wrong size must not become a wrong address."""
    if not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")
    extension, _ = native._load()
    values, places, out = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64), np.zeros((2, 4), np.float32)
    assert extension.unpool(values, places, out, 0, 0, 2, 3, 4, 1) == 0
    sizes = [(0, 0, 2, 3, 5), (0, 0, 2, 4, 4), (0, 0, 3, 3, 4), (0, 0, -2, 3, 4), (0, 0, 2**62, 3, 4), (0, 0, 2, -3, 4)]
    types = [(1, 0, 2, 3, 4), (12, 0, 2, 3, 4), (-1, 0, 2, 3, 4), (0, 2, 2, 3, 4), (0, 3, 2, 3, 4), (0, -1, 2, 3, 4)]
    for wrong in sizes + types:
        with pytest.raises(ValueError, match="rows of the sizes"):
            extension.unpool(values, places, out, *wrong, 1)


def test_numpy_arrays_take_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")

    def sorts(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(unpooling, "by_sorting", sorts)
    for dtype in (*FLOATS, *INTEGERS, BOOL):
        assert ndpool.max_unpool(np.ones(2, dtype), np.array([1, 0]), (1,)).all()
