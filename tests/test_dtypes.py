"""Element types: kept by every op that takes them, integers exact, short floats summed in float32."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndpool
from ndpool import PoolTypeError

from . import cases
from .cases import BFLOAT16, BOOL, COMPLEX, FLOATS, INTEGERS, KINDS, UNSIGNED

FORMS: dict[str, Any] = {
    "": {"kernel_size": 2, "stride": 1, "padding": 1},
    "Adaptive": {"output_size": 2},
    "Global": {},
}
LAWS = {"max": "Max", "min": "Min", "sum": "Sum", "mean": "Avg", "smooth_max": "SmoothMax", "lp": "Lp", "mode": "Mode"}
RECORDS = [
    (law, getattr(ndpool, f"{form}{name}Pool")(**given, **({"norm_type": 2} if law == "lp" else {})))
    for law, name in LAWS.items()
    for form, given in FORMS.items()
]
each_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=str)


def whole_numbers(dtype: Any) -> st.SearchStrategy[list[int]]:
    """Lists of numbers of `dtype`, those at its limits and near 0 often."""
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    near = sorted({low, low + 1, low + 2, 0, 1, 2, high // 2, high // 2 + 1, high - 2, high - 1, high})
    return st.lists(st.sampled_from(near) | st.integers(low, high), min_size=1, max_size=9)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize(("law", "op"), RECORDS, ids=[op.name for _, op in RECORDS])
def test_dtype_is_kept_or_rejected(law: str, op: Any, dtype: np.dtype) -> None:
    x = cases.values(np.random.default_rng(0), (2, 3, 4), dtype)
    if dtype not in KINDS[law]:
        with pytest.raises(PoolTypeError, match=rf"^{op.name}: x has dtype {dtype.name}, but {law} takes"):
            op(x)
        return
    assert op(x).dtype == dtype
    if dtype in FLOATS + COMPLEX:
        at = op.linearize(x)
        assert at.y.dtype == at.jvp(x).dtype == at.vjp(at.y).dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + (BOOL,), ids=str)
def test_indices_are_int64_whatever_the_dtype(dtype: np.dtype) -> None:
    x = cases.values(np.random.default_rng(0), (3, 4), dtype)
    y, indices = ndpool.max_pool(x, 2, return_indices=True)
    assert (y.dtype, indices.dtype) == (dtype, np.int64)
    assert np.array_equal(x.reshape(-1)[indices], y)


@pytest.mark.parametrize("dtype", [np.dtype(bool), *INTEGERS], ids=str)
@pytest.mark.parametrize("tangent", FLOATS, ids=str)
def test_tangents_of_whole_numbers_are_real(dtype: np.dtype, tangent: np.dtype) -> None:
    """An integer moves in steps, but which tap wins still says where a tangent goes."""
    x, op = np.array([0, 1, 1], dtype), ndpool.MaxPool((3,))
    assert op.jvp(x, np.array([1, 2, 3], tangent)).tolist() == [2]
    dx = op.vjp(x, np.array([5], tangent))
    assert dx.dtype == tangent
    assert dx.tolist() == [0, 5, 0]


# -- integers: max, min and sum ----------------------------------------------------------------------------------------


@each_integer
@given(data=st.data())
def test_integer_max_and_min_are_exact(dtype: np.dtype, data: st.DataObject) -> None:
    x = data.draw(whole_numbers(dtype))
    assert ndpool.global_max_pool(np.array(x, dtype)).tolist() == [max(x)]
    assert ndpool.global_min_pool(np.array(x, dtype)).tolist() == [min(x)]


@each_integer
@given(data=st.data())
def test_integer_sums_are_exact_or_an_error(dtype: np.dtype, data: st.DataObject) -> None:
    x = data.draw(whole_numbers(dtype))
    info = np.iinfo(dtype)
    if info.min <= sum(x) <= info.max:
        assert ndpool.global_sum_pool(np.array(x, dtype)).tolist() == [sum(x)]
    else:
        with pytest.raises(ndpool.PoolError, match=rf"sum does not fit {dtype.name}"):
            ndpool.global_sum_pool(np.array(x, dtype))


def test_neighbours_that_a_double_cannot_tell_apart() -> None:
    assert float(2**63 - 1) == float(2**63 - 2)
    signed, unsigned = np.array([2**63 - 2, 2**63 - 1]), np.array([2**64 - 2, 2**64 - 1], np.uint64)
    for x in (signed, unsigned, signed[::-1], unsigned[::-1], -signed - 1):
        for name, best in (("max", max), ("min", min)):
            y, index = getattr(ndpool, f"{name}_pool")(x, (2,), return_indices=True)
            assert y.tolist() == [best(x.tolist())]
            assert index.tolist() == [x.tolist().index(best(x.tolist()))]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_a_sum_may_pass_through_what_does_not_fit(dtype: Any) -> None:
    """The order of a sum is ours to choose, so only the result has to fit."""
    top = int(np.iinfo(dtype).max)
    x = [top, -top, -5, top] if dtype == np.int64 else [top - 3, 1, 1, 1]
    assert ndpool.sum_pool(np.array(x, dtype), (4,)).tolist() == [sum(x)]
    if dtype == np.int64:
        assert ndpool.sum_pool(np.array([top, top, -top, -top], dtype), (4,)).tolist() == [0]


@each_integer
def test_unread_padding_changes_no_integer(dtype: np.dtype) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    assert ndpool.max_pool(np.array([low], dtype), (3,), 1, 1).tolist() == [low]
    assert ndpool.min_pool(np.array([high], dtype), (3,), 1, 1).tolist() == [high]
    assert ndpool.sum_pool(np.array([high], dtype), (3,), 1, 1).tolist() == [high]


def test_bool_max_is_any_and_min_is_all() -> None:
    x = np.array([[True, False, False, False], [True, True, False, False]])
    assert ndpool.max_pool(x, (2,)).tolist() == [[True, False], [True, False]]
    assert ndpool.min_pool(x, (2,)).tolist() == [[False, False], [True, False]]
    assert ndpool.max_pool(x, 2, return_indices=True)[1].tolist() == [[0, 2]]


# -- integers: mean ----------------------------------------------------------------------------------------------------


@each_integer
@given(data=st.data())
def test_integer_mean_is_the_exact_mean_rounded_half_to_even(dtype: np.dtype, data: st.DataObject) -> None:
    x = data.draw(whole_numbers(dtype))
    assert ndpool.global_avg_pool(np.array(x, dtype)).tolist() == [round(Fraction(sum(x), len(x)))]


@each_integer
@given(data=st.data())
def test_integer_mean_over_a_given_divisor(dtype: np.dtype, data: st.DataObject) -> None:
    x = data.draw(whole_numbers(dtype))
    divisor = data.draw(st.integers(1, 12) | st.integers(2**30, 2**31 - 1))
    want = round(Fraction(sum(x), divisor))
    op = ndpool.AvgPool((len(x),), divisor_override=divisor)
    info = np.iinfo(dtype)
    if info.min <= want <= info.max:
        assert op(np.array(x, dtype)).tolist() == [want]
    else:
        with pytest.raises(ndpool.PoolError, match=rf"does not fit {dtype.name}"):
            op(np.array(x, dtype))


def test_integer_mean_refuses_a_divisor_that_it_cannot_divide_by_exactly() -> None:
    with pytest.raises(ndpool.PoolError, match=r"divisor_override=2147483648 .* float64"):
        ndpool.avg_pool(np.array([1, 2]), (2,), divisor_override=2**31)


@each_integer
def test_integer_mean_counts_padding(dtype: np.dtype) -> None:
    x = np.array([7, 9], dtype)
    assert ndpool.avg_pool(x, (3,), 1, 1).tolist() == [5, 5]
    assert ndpool.avg_pool(x, (3,), 2, 1, count_include_pad=False).tolist() == [8]
    assert ndpool.avg_pool(x, (2,), 1, 1).tolist() == [4, 8, 4]  # 3.5, 8 and 4.5: halves to even


@each_integer
def test_integer_mean_of_equals_is_their_value(dtype: np.dtype) -> None:
    info = np.iinfo(dtype)
    for value in (int(info.min), int(info.max), int(info.max) - 1):
        assert ndpool.avg_pool(np.full((3, 5), value, dtype), (3, 5)).tolist() == [[value]]


def test_integer_mean_of_negatives() -> None:
    x = np.array([-1, -2, -3, -4, -1, 0, -7, 0, 127, -128], np.int8)
    assert ndpool.avg_pool(x, (2,)).tolist() == [-2, -4, 0, -4, 0]


@each_integer
def test_nested_lists_of_ints_have_exact_means_as_floats(dtype: np.dtype) -> None:
    """A list has no dtype to keep: Python's own division decides."""
    assert ndpool.avg_pool([1, 2], (2,)) == [1.5]
    low = 0 if dtype in UNSIGNED else -3
    assert ndpool.sum_pool([low, 2**70], (2,)) == [low + 2**70]


# -- short floats ------------------------------------------------------------------------------------------------------


def test_float16_mean_of_ones_is_one() -> None:
    ones = np.ones((64, 64), np.float16)
    for op in (ndpool.GlobalAvgPool(), ndpool.AvgPool(64), ndpool.AdaptiveAvgPool(1)):
        assert op(ones).tolist() == [[1.0]]
        assert op.jvp(ones, ones).tolist() == [[1.0]]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ["SumPool", "AvgPool", "LpPool", "SmoothMaxPool"])
def test_short_floats_are_summed_in_float32(dtype: np.dtype, name: str) -> None:
    """What float32 gives, rounded once: 300 terms in the short float would be off by many places."""
    rng = np.random.default_rng(1)
    x, dx, dy = (rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in ((4, 300), (4, 300), (4, 3)))
    op = getattr(ndpool, name)(**({"norm_type": 2} if name == "LpPool" else {}), kernel_size=(100,))
    at, wide = op.linearize(x), op.linearize(x.astype(np.float32))
    assert np.array_equal(at.y, wide.y.astype(dtype))
    assert np.array_equal(at.jvp(dx), wide.jvp(dx.astype(np.float32)).astype(dtype))
    assert np.array_equal(at.vjp(dy), wide.vjp(dy.astype(np.float32)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_cotangents_of_short_floats_are_summed_in_float32(dtype: np.dtype) -> None:
    """One input that 100 windows read."""
    dy = np.full(100, 1 + 2.0**-7, dtype)
    for op in (ndpool.MaxPool((100,), 1, 99), ndpool.SumPool((100,), 1, 99)):
        assert op.vjp(np.ones(1, dtype), dy).tolist() == [float(np.array(100 * (1 + 2.0**-7), dtype))]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_a_short_mean_does_not_overflow_on_the_way(dtype: np.dtype) -> None:
    top = float(np.array(60000, dtype))
    assert ndpool.avg_pool(np.full(8, top, dtype), (8,)).tolist() == [top]
    assert ndpool.lp_pool(np.array([3 * 8192, 4 * 8192], dtype), 2, (2,)).tolist() == [5 * 8192]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_max_and_min_are_bit_exact(dtype: np.dtype) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5, 12)).astype(dtype)
    blocks = x.reshape(5, 4, 3).astype(np.float64)
    assert np.array_equal(ndpool.max_pool(x, (3,)), blocks.max(-1).astype(dtype))
    assert np.array_equal(ndpool.min_pool(x, (3,)), blocks.min(-1).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_subnormal_floats_survive(dtype: np.dtype) -> None:
    tiny = np.nextafter(np.array(0, dtype), np.array(1, dtype)).reshape(1).repeat(2)
    assert tiny[0] > 0
    assert np.array_equal(ndpool.max_pool(tiny, (2,)), tiny[:1])
    assert np.array_equal(ndpool.avg_pool(tiny, (2,)), tiny[:1])
    assert np.array_equal(ndpool.lp_pool(tiny, 1, (1,)), tiny)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_sum_and_mean(dtype: np.dtype) -> None:
    x = np.array([1 + 2j, 3 - 4j, -5j, 6], dtype)
    assert ndpool.sum_pool(x, (2,)).tolist() == [4 - 2j, 6 - 5j]
    assert ndpool.avg_pool(x, (2,)).tolist() == [2 - 1j, 3 - 2.5j]
    assert ndpool.AvgPool((2,)).vjp(x, np.array([2j, 4], dtype)).tolist() == [1j, 1j, 2, 2]
    assert ndpool.avg_pool(x.tolist(), (2,)) == [2 - 1j, 3 - 2.5j]


# -- element types that ndpool does not take ---------------------------------------------------------------------------

SMALL = {
    "int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8", "float4_e2m1fn": "float32",
    "float6_e3m2fn": "float32", "float8_e4m3fn": "float32", "float8_e5m2": "float32", "float8_e8m0fnu": "float32",
}  # fmt: skip
LAWS = {"Max": {}, "Min": {}, "Avg": {}, "Sum": {}, "SmoothMax": {}, "Lp": {"norm_type": 2}}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("law", LAWS)
def test_small_element_types_are_refused_by_name(law: str, name: str) -> None:
    x = np.ones((4, 4), getattr(ml_dtypes, name))
    wider = "float32" if law in ("SmoothMax", "Lp") else SMALL[name]
    words = rf"x has dtype {name}, which ndpool does not take; convert x to {wider}$"
    forms = {"": {"kernel_size": 2}, "Adaptive": {"output_size": 2}, "Global": {}}
    for form, arguments in forms.items():
        op = getattr(ndpool, f"{form}{law}Pool")(**LAWS[law], **arguments)
        dy = np.ones(op.out_shape(x.shape), x.dtype)
        for run in (op, op.linearize, lambda x, op=op: op.jvp(x, x), lambda x, op=op, dy=dy: op.vjp(x, dy)):
            with pytest.raises(ndpool.PoolTypeError, match=f"{op.name}: {words}"):
                run(x)
    assert getattr(ndpool, f"{law}Pool")(**LAWS[law], kernel_size=2)(x.astype(wider)).shape == (2, 2)


@pytest.mark.parametrize("name", SMALL)
def test_small_element_types_are_refused_elsewhere_too(name: str) -> None:
    small, x = np.ones((2, 2), getattr(ml_dtypes, name)), np.ones((4, 4), np.float32)
    with pytest.raises(ndpool.PoolTypeError, match=rf"max_unpool: y has dtype {name}, .*convert y to {SMALL[name]}"):
        ndpool.max_unpool(small, np.zeros((2, 2), int), 2)
    with pytest.raises(ndpool.PoolTypeError, match=rf"max_unpool: indices has dtype {name}"):
        ndpool.max_unpool(x[:2, :2], small, 2)
    for at in (x, x.astype(int)):
        with pytest.raises(ndpool.PoolTypeError, match=rf"max_pool: dy has dtype {name}, but"):
            ndpool.MaxPool(2).vjp(at, small)
    product = ndpool.Law(lambda x, t: x, lambda a, b: a * b, lambda s, n: (s, s), lambda g, x, t, y: g * y / x)
    with pytest.raises(ndpool.PoolTypeError, match=rf"pool: x has dtype {name}, .*convert x to {SMALL[name]}"):
        ndpool.pool(small, product, 2)
