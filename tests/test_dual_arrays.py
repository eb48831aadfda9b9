"""Dual arrays are dual numbers, element by element: the operators, the namespace, and every pooling record on them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import Dual, DualArray, spec
from ndpool.engines.dual import dual_namespace, point, tangent, value

from .cases import RECORDS, SHAPE, TIES

XP = dual_namespace(np)
numbers = st.integers(0, 10_000).map(np.random.default_rng)


def close(got: Any, want: Any, rtol: float = 1e-11, note: Any = "") -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, (note, got.shape, want.shape)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=str(note))


def dual(rng: np.random.Generator, shape: tuple[int, ...], positive: bool = False) -> DualArray:
    x = rng.standard_normal(shape)
    return DualArray(np.abs(x) + 0.5 if positive else x, np.asarray(rng.standard_normal(shape)))


def pairs(x: DualArray) -> list[Dual]:
    return [Dual(float(v), float(t)) for v, t in zip(np.ravel(x.value), np.ravel(x.tangent), strict=True)]


def split(ys: list[Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Values and tangents of a flat list of dual numbers, some of them plain."""
    parts = [(y.value, y.tangent) if isinstance(y, Dual) else (y, 0) for y in ys]
    return tuple(np.array([part[i] for part in parts], dtype=float).reshape(shape) for i in (0, 1))  # type: ignore[return-value]


# -- operators: against the scalar dual numbers of the spec --------------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@pytest.mark.parametrize("sign", OPERATORS)
@settings(max_examples=20)
@given(numbers)
def test_operators_are_those_of_dual_numbers(sign: str, rng: np.random.Generator) -> None:
    f = OPERATORS[sign]
    a, b = dual(rng, (2, 3), positive=True), dual(rng, (2, 3), positive=True)
    plain = np.abs(rng.standard_normal((2, 3))) + 0.5
    still = [Dual(float(v)) for v in plain.ravel()]
    for got, want in (
        (f(a, b), map(f, pairs(a), pairs(b))),
        (f(a, plain), map(f, pairs(a), still)),
        (f(plain, a), map(f, still, pairs(a))),
        (f(a, 2.5), [f(x, 2.5) for x in pairs(a)]),
        (f(2.5, a), [f(Dual(2.5), x) for x in pairs(a)]),
        (f(np.float64(2.5), a), [f(Dual(2.5), x) for x in pairs(a)]),
        (f(a, 3), [f(x, 3) for x in pairs(a)]),
    ):
        y, t = split(list(want), (2, 3))
        assert isinstance(got, DualArray)
        close(got.value, y)
        close(got.tangent, t)


@settings(max_examples=20)
@given(numbers)
def test_operators_broadcast_value_and_tangent_alike(rng: np.random.Generator) -> None:
    a, b = dual(rng, (2, 1)), dual(rng, (3,), positive=True)
    scalar = DualArray(np.array(2.0), np.array(1.0))
    for f in OPERATORS.values():
        for got in (f(a, b), f(a, b.value), f(a.value, b), f(scalar, a + b) if f is not operator.truediv else f(a, b)):
            assert got.shape == np.shape(got.tangent) == (2, 3)
    got = a * b
    close(got.tangent, a.tangent * b.value + a.value * b.tangent)


@pytest.mark.parametrize("p", [1, 2, 3, 0.5, -1.5, 2.0])
@settings(max_examples=10)
@given(numbers)
def test_powers(p: float, rng: np.random.Generator) -> None:
    a = dual(rng, (4,), positive=True)
    close((a**p).value, a.value**p)
    close((a**p).tangent, p * a.value ** (p - 1) * a.tangent)


def test_the_power_0_is_a_constant_even_at_0() -> None:
    y = DualArray(np.array([0.0, 2.0]), np.ones(2)) ** 0
    assert y.value.tolist() == [1, 1]
    assert y.tangent.tolist() == [0, 0]


@settings(max_examples=20)
@given(numbers)
def test_negation_and_indexing(rng: np.random.Generator) -> None:
    a = dual(rng, (3, 4))
    close((-a).tangent, -a.tangent)
    for key in (1, (slice(None), 2), slice(0, 2), (..., None), np.array([2, 0])):
        close(a[key].value, a.value[key])
        close(a[key].tangent, a.tangent[key])
    assert (a.shape, a.ndim, a.size, a.dtype) == ((3, 4), 2, 12, np.float64)
    assert a.device == a.value.device


@settings(max_examples=20)
@given(numbers)
def test_matmul_is_the_product_rule(rng: np.random.Generator) -> None:
    a, b = dual(rng, (2, 3)), dual(rng, (3, 4))
    want = a.tangent @ b.value + a.value @ b.tangent
    for got in (a @ b, XP.matmul(a, b)):
        close(got.value, a.value @ b.value)
        close(got.tangent, want)
    close((a @ b.value).tangent, a.tangent @ b.value)
    close((a.value @ b).tangent, a.value @ b.tangent)
    close(XP.matmul(a.value, b).tangent, a.value @ b.tangent)


def test_comparisons_are_by_value() -> None:
    a = DualArray(np.array([1.0, 2, 3]), np.array([9.0, 9, 9]))
    b = DualArray(np.array([2.0, 2, 2]), np.array([0.0, 1, 2]))
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        want = compare(a.value, b.value)
        for got in (compare(a, b), compare(a, b.value), compare(a, 2), compare(a.value, b)):
            assert isinstance(got, np.ndarray)
            assert np.array_equal(got, want)
    with pytest.raises(TypeError):
        hash(a)


def test_numpy_functions_do_not_swallow_the_tangent() -> None:
    a = DualArray(np.ones(2), np.ones(2))
    with pytest.raises(TypeError):
        np.add(a, a)
    with pytest.raises(TypeError):
        np.exp(a)


def test_value_tangent_and_point() -> None:
    inner = DualArray(np.ones(2), np.full(2, 3.0))
    outer = DualArray(inner, DualArray(np.full(2, 5.0), np.zeros(2)))
    assert value(outer) is inner
    assert tangent(inner).tolist() == [3, 3]
    assert tangent(np.ones(2)).tolist() == [0, 0]
    assert tangent(2.0) == 0
    assert point(outer).tolist() == [1, 1]
    assert "DualArray" in repr(inner)


# -- the namespace -------------------------------------------------------------------------------------------------

SLOPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "log": lambda x: 1 / x,
    "log1p": lambda x: 1 / (1 + x),
    "sqrt": lambda x: 0.5 / np.sqrt(x),
    "tanh": lambda x: 1 / np.cosh(x) ** 2,
    "abs": np.sign,
}


@pytest.mark.parametrize("name", SLOPES)
@settings(max_examples=20)
@given(numbers)
def test_functions_move_by_their_slope(name: str, rng: np.random.Generator) -> None:
    a = dual(rng, (3, 2), positive=name in ("log", "log1p", "sqrt"))
    got = getattr(XP, name)(a)
    close(got.value, getattr(np, name)(a.value))
    close(got.tangent, SLOPES[name](a.value) * a.tangent)
    plain = getattr(XP, name)(a.value)
    assert isinstance(plain, np.ndarray)


@pytest.mark.parametrize("name", SLOPES)
@settings(max_examples=10)
@given(numbers)
def test_nested_dual_arrays_are_second_order(name: str, rng: np.random.Generator) -> None:
    x = np.abs(rng.standard_normal(3)) + 0.5
    one, zero = np.ones(3), np.zeros(3)
    y = DualArray(DualArray(x, one), DualArray(one, zero))
    second = getattr(y.__array_namespace__(), name)(y).tangent
    second = second.tangent if isinstance(second, DualArray) else np.zeros(3)
    want = {
        "exp": np.exp(x),
        "log": -1 / x**2,
        "log1p": -1 / (1 + x) ** 2,
        "sqrt": -0.25 * x**-1.5,
        "tanh": -2 * np.tanh(x) / np.cosh(x) ** 2,
        "abs": zero,
    }[name]
    close(second, want, 1e-9)


LINEAR: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda xp, x: xp.reshape(x, (6, 2)),
    "sum": lambda xp, x: xp.sum(x),
    "sum of axes": lambda xp, x: xp.sum(x, axis=(0, 2), keepdims=True),
    "mean": lambda xp, x: xp.mean(x, axis=1),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 2)),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=1),
    "squeeze": lambda xp, x: xp.squeeze(xp.expand_dims(x, axis=1), axis=1),
    "astype": lambda xp, x: xp.astype(x, np.float32),
    "take": lambda xp, x: xp.take(x, np.array([1, 0, 1]), axis=0),
    "concat": lambda xp, x: xp.concat([x, x], axis=1),
    "stack": lambda xp, x: xp.stack([x, x], axis=2),
}


@pytest.mark.parametrize("name", LINEAR)
@settings(max_examples=10)
@given(numbers)
def test_linear_functions_act_on_value_and_tangent_alike(name: str, rng: np.random.Generator) -> None:
    f, a = LINEAR[name], dual(rng, (2, 3, 2))
    got = f(XP, a)
    assert isinstance(got, DualArray)
    close(got.value, f(np, a.value))
    close(got.tangent, f(np, a.tangent))
    assert isinstance(f(XP, a.value), (np.ndarray, np.generic))


def test_parts_without_a_tangent_are_still() -> None:
    a = DualArray(np.ones(2), np.full(2, 7.0))
    assert XP.concat([np.zeros(1), a]).tangent.tolist() == [0, 7, 7]
    assert XP.stack([a, np.zeros(2)]).tangent.tolist() == [[7, 7], [0, 0]]
    chosen = XP.where(np.array([True, False]), a, 0.0)
    assert chosen.value.tolist() == [1, 0]
    assert chosen.tangent.tolist() == [7, 0]
    assert XP.where(a > 0, np.zeros(2), np.ones(2)).tolist() == [0, 0]
    assert XP.where(np.array([True, False]), np.zeros(2), a).tangent.tolist() == [0, 7]


@settings(max_examples=20)
@given(numbers)
def test_maximum_and_minimum_take_the_winners_tangent(rng: np.random.Generator) -> None:
    a, b = dual(rng, (6,)), dual(rng, (6,))
    top, bottom = XP.maximum(a, b), XP.minimum(a, b)
    close(top.value, np.maximum(a.value, b.value))
    close(bottom.value, np.minimum(a.value, b.value))
    close(top.tangent, np.where(a.value > b.value, a.tangent, b.tangent))
    close(bottom.tangent, np.where(a.value < b.value, a.tangent, b.tangent))


@pytest.mark.parametrize("extreme", ["maximum", "minimum"])
def test_a_nan_wins_maximum_and_minimum_as_in_the_library(extreme: str) -> None:
    a = DualArray(np.array([math.nan, 1.0, math.nan]), np.array([1.0, 2, 3]))
    b = DualArray(np.array([1.0, math.nan, math.nan]), np.array([4.0, 5, 6]))
    got = getattr(XP, extreme)(a, b)
    assert np.isnan(got.value).all()
    assert got.tangent.tolist() == [1, 5, 3]


def test_constants_and_tests_have_no_tangent() -> None:
    a = DualArray(np.array([1.0, math.nan]), np.ones(2))
    assert XP.zeros_like(a).tolist() == [0, 0]
    assert XP.ones_like(a).tolist() == [1, 1]
    assert XP.full_like(a, 3).tolist() == [3, 3]
    assert XP.isnan(a).tolist() == [False, True]
    assert XP.sign(a).tolist()[0] == 1
    assert XP.float32 is np.float32
    assert XP.bool is np.bool


LOSSY: dict[str, Callable[[Any, Any], Any]] = {
    "sin": lambda xp, x: xp.sin(x),
    "square": lambda xp, x: xp.square(x),
    "negative": lambda xp, x: xp.negative(x),
    "expm1": lambda xp, x: xp.expm1(x),
    "log2": lambda xp, x: xp.log2(x),
    "add": lambda xp, x: xp.add(x, x),
    "multiply": lambda xp, x: xp.multiply(x, x),
    "divide": lambda xp, x: xp.divide(1.0, x),
    "pow": lambda xp, x: xp.pow(x, 2),
    "max": lambda xp, x: xp.max(x),
    "prod": lambda xp, x: xp.prod(x),
    "flip": lambda xp, x: xp.flip(x),
    "roll": lambda xp, x: xp.roll(x, 1),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x),
    "clip": lambda xp, x: xp.clip(x, 0.0, 1.5),
    "sort": lambda xp, x: xp.sort(x),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=1),
    "vecdot": lambda xp, x: xp.vecdot(x, x),
    "tril": lambda xp, x: xp.tril(xp.reshape(x, (1, 3))),
}


@pytest.mark.parametrize("name", LOSSY)
def test_no_function_loses_a_tangent_silently(name: str) -> None:
    """What moves with x gives the right tangent or raises; a user's op may call any function of the namespace."""
    f = LOSSY[name]
    x, t, h = np.array([0.5, 1.0, 2.0]), np.array([1.0, -2.0, 0.5]), 1e-6
    try:
        got = f(XP, DualArray(x, t))
    except (TypeError, AttributeError, NotImplementedError, ndpool.PoolError):
        return
    assert isinstance(got, DualArray), f"{name} gave {got!r}: the tangent is gone"
    close(got.tangent, (f(np, x + h * t) - f(np, x - h * t)) / (2 * h), 1e-5)


# -- every pooling record on dual arrays: the spec over dual scalars -------------------------------------------------

SECOND_ORDER = {
    **{name: op for name, op in RECORDS.items() if name.removeprefix("Adaptive").removeprefix("Global") != "Pool"},
    **{
        f"{law} {form} {ties} {nan}": make
        for law, forms in {
            "max": (ndpool.MaxPool, ndpool.AdaptiveMaxPool, ndpool.GlobalMaxPool),
            "min": (ndpool.MinPool, ndpool.AdaptiveMinPool, ndpool.GlobalMinPool),
        }.items()
        for ties in TIES
        for nan in ("propagate", "ignore")
        for form, make in {
            "sliding": forms[0](3, 2, 1, ties=ties, nan=nan),
            "doubling": forms[0]((5, 6), 1, ties=ties, nan=nan),
            "adaptive": forms[1]((3, 4), ties=ties, nan=nan),
            "global": forms[2](ties=ties, nan=nan),
        }.items()
    },
    "avg, counted": ndpool.AvgPool(3, 2, 1),
    "avg, divisor": ndpool.AvgPool(2, 1, divisor_override=3),
    "smooth, counted": ndpool.SmoothMaxPool(3, 2, 1, beta=0.7),
    "smooth, not counted": ndpool.SmoothMaxPool(3, 2, 1, beta=0.7, count_include_pad=False),
    "smooth min": ndpool.SmoothMaxPool(2, 1, beta=-3.0),
    "sharp": ndpool.SmoothMaxPool(2, 1, beta=200.0),
    "lp 1": ndpool.LpPool(1, 2, 1),
    "lp 2": ndpool.LpPool(2, 3, 2, 1),
    "lp 2.5": ndpool.LpPool(2.5, (5, 6)),
    "lp 4": ndpool.LpPool(4, 2, 1),
}
every_op = pytest.mark.parametrize("op", SECOND_ORDER.values(), ids=SECOND_ORDER)


def compare_with_the_spec(op: ndpool.Op, x: DualArray, dx: DualArray, dy: DualArray, rtol: float = 1e-10) -> None:
    """y, jvp and vjp at dual arrays: values and tangents are the spec's at dual scalars."""
    window, law = op.window(x.shape), op.law
    flat = pairs(x)
    y, residuals = spec.forward(window, law, flat)
    at = op.linearize(x)
    out = op.out_shape(x.shape)
    for what, got, want, shape in (
        ("forward", op(x), y, out),
        ("linearize", at.y, y, out),
        ("jvp", at.jvp(dx), spec.jvp(window, law, flat, residuals, pairs(dx)), out),
        ("vjp", at.vjp(dy), spec.vjp(window, law, flat, residuals, pairs(dy)), x.shape),
    ):
        values, tangents = split(want, shape)
        close(value(got), values, rtol, f"{what}, value")
        close(got.tangent if isinstance(got, DualArray) else np.zeros(shape), tangents, rtol, f"{what}, tangent")


@every_op
@settings(max_examples=4)
@given(numbers)
def test_records_at_random_points(op: ndpool.Op, rng: np.random.Generator) -> None:
    compare_with_the_spec(op, dual(rng, SHAPE), dual(rng, SHAPE), dual(rng, op.out_shape(SHAPE)))


@every_op
@settings(max_examples=4)
@given(numbers)
def test_records_at_tied_points(op: ndpool.Op, rng: np.random.Generator) -> None:
    low = 1 if op.law.name == "lp" else -1  # |x| has no second derivative at 0
    x = DualArray(rng.integers(low, 3, SHAPE).astype(float), rng.standard_normal(SHAPE))
    compare_with_the_spec(op, x, dual(rng, SHAPE), dual(rng, op.out_shape(SHAPE)))


@every_op
@settings(max_examples=3)
@given(numbers)
def test_the_tangent_of_y_is_jvp(op: ndpool.Op, rng: np.random.Generator) -> None:
    for values in (rng.standard_normal(SHAPE), rng.integers(1, 3, SHAPE).astype(float)):
        x = DualArray(values, rng.standard_normal(SHAPE))
        close(op(x).tangent, op.jvp(x.value, x.tangent), 1e-10)


@pytest.mark.parametrize("nan", ["propagate", "ignore"])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("record", [ndpool.MaxPool, ndpool.MinPool])
def test_a_nan_moves_as_jvp_says(record: Any, ties: str, nan: str) -> None:
    op = record((3,), 1, ties=ties, nan=nan)
    x = np.array([1.0, math.nan, 1.0, 2.0, math.inf, -math.inf, math.nan, math.nan])
    t = np.arange(1.0, 9.0)
    close(op(DualArray(x, t)).value, op(x))
    close(op(DualArray(x, t)).tangent, op.jvp(x, t))


def test_a_norm_of_zeros_does_not_move_to_nan() -> None:
    for p in (1, 2, 3):
        op = ndpool.LpPool(p, (2,))
        x = DualArray(np.zeros(4), np.ones(4))
        assert np.isfinite(op(x).tangent).all()
        assert np.array_equal(op(x).tangent, op.jvp(np.zeros(4), np.ones(4)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_records_keep_the_dtype_of_both_parts(dtype: Any) -> None:
    x = DualArray(np.arange(6, dtype=dtype), np.ones(6, dtype))
    for op in (ndpool.MaxPool((2,)), ndpool.AvgPool((2,)), ndpool.SmoothMaxPool((2,)), ndpool.LpPool(2, (2,))):
        y = op(x)
        assert y.value.dtype == y.tangent.dtype == dtype
        g = op.vjp(x, y)
        assert g.value.dtype == g.tangent.dtype == dtype


def test_a_law_of_the_users_own_says_that_it_takes_no_dual_arrays() -> None:
    law = spec.Law(lambda x, t: x, operator.add, lambda s, n: (s, None), lambda g, x, t, r: g)
    with pytest.raises(ndpool.PoolTypeError, match="law of your own"):
        ndpool.Pool(law, (2,))(DualArray(np.ones(4), np.ones(4)))


@pytest.mark.parametrize(
    "op", [ndpool.LpPool(2, (2,)), ndpool.LpPool(1, (2,)), ndpool.LpPool(3, (9,), 4), ndpool.SmoothMaxPool((9,), 4)]
)
def test_what_no_output_reads_has_no_cotangent_and_no_tangent_of_one(op: ndpool.Op) -> None:
    """Not even if it is NaN, in the value or in the tangent."""
    rng = np.random.default_rng(0)
    x = dual(rng, (11,) if op.kernel_size == (2,) else (18,), positive=True)
    clean = op.vjp(x, np.ones(op.out_shape(x.shape)))
    for spoiled in (x.value, x.tangent):
        spoiled[-1] = np.nan
        got = op.vjp(x, np.ones(op.out_shape(x.shape)))
        for part, want in ((got.value, clean.value), (got.tangent, clean.tangent)):
            assert want[-1] == 0
            assert np.array_equal(part, want)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("p", [1, 2, 2.5, 3, 4])
def test_the_second_order_of_a_norm_at_zero_is_the_specs(p: float, dtype: str) -> None:
    """A tap that is 0 has the second derivative 1/y for p = 2; where all taps are 0 there is none."""
    op = ndpool.LpPool(p, (3,))
    x = [0.0, 4.0, -3.0, 0.0, 0.0, 0.0, -0.0, 2.0, 0.0]
    dx, dy = [1.0, 2.0, -1.0, 3.0, 1.0, 2.0, 5.0, 1.0, -1.0], [1.0, 2.0, 0.5]
    got, close = op.hvp(*(np.array(a, dtype) for a in (x, dx, dy))), 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(got, op.hvp(x, dx, dy), rtol=close, atol=close)
