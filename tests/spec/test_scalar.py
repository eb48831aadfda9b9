"""Any scalar: plain numbers, dual numbers, intervals and symbols, and the operators of the two that ndpool brings."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction

import mpmath
import pytest
import sympy
from hypothesis import assume
from hypothesis import strategies as st

from ndpool import PoolError
from ndpool.spec import (
    SUM,
    Dual,
    Interval,
    Window,
    forward,
    jvp,
    lp,
    maximum,
    mean,
    minimum,
    sliding,
    smooth_max,
    vjp,
    whole,
)

from .strategies import every, fractions, given, inner, lists, nonzero, pool

TIES = ("first", "last", "all", "split")
small = st.fractions(-3, 3, max_denominator=7)
positive = st.fractions(Fraction(1, 7), 3, max_denominator=7)


# -- plain numbers


@pytest.mark.parametrize("kind", [int, float, Fraction, Decimal, sympy.Integer])
def test_max_and_min_return_one_of_their_taps(kind):
    x = [kind(2), kind(3), kind(1)]
    assert pool(maximum(), x) is x[1]
    assert pool(minimum(), x) is x[2]


@pytest.mark.parametrize("kind", [int, float, Fraction, Decimal, complex, sympy.Rational, Dual])
def test_sum_keeps_the_scalar(kind):
    y = pool(SUM, [kind(2), kind(5)])
    assert y == kind(7)
    assert isinstance(y, type(kind(7)))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1, 2], 1.5),
        ([0.5, 1.0], 0.75),
        ([Fraction(1), Fraction(0), Fraction(0)], Fraction(1, 3)),
        ([Decimal("0.1"), Decimal("0.2")], Decimal("0.15")),
        ([1 + 2j, 3 - 4j], 2 - 1j),
        ([sympy.Integer(1), sympy.Integer(0), sympy.Integer(0)], sympy.Rational(1, 3)),
    ],
)
def test_mean_divides_as_the_scalar_does(x, y):
    assert pool(mean(), x) == y


@given(st.lists(st.complex_numbers(max_magnitude=9), min_size=2, max_size=2), st.complex_numbers(max_magnitude=9))
def test_complex_mean_differentiates(dx, dy):
    window, x = Window((whole(2),)), [1 + 2j, 3j]
    _, residuals = forward(window, mean(), x)
    assert jvp(window, mean(), x, residuals, dx) == pytest.approx([sum(dx) / 2])
    assert vjp(window, mean(), x, residuals, [dy]) == pytest.approx([dy / 2, dy / 2])


def test_large_integers_stay_exact():
    """Neighbours that a float cannot tell apart."""
    x = [2**80, 2**80 + 1, 2**80 - 1]
    assert (pool(maximum(), x), pool(minimum(), x), pool(SUM, x)) == (2**80 + 1, 2**80 - 1, 3 * 2**80)


# -- Decimal keeps its own precision


decimals = st.integers(-8, 8).map(lambda i: Decimal(i) / 4)
padded = st.sampled_from([(0, 0), (1, 2)])


def counted(n, padding):
    return Window((sliding(n, n + sum(padding), 1, padding),))


@pytest.mark.parametrize("beta", [1.0, -2.0, 3, Decimal("0.5"), Fraction(1, 4)])
@given(x=st.lists(decimals, min_size=1, max_size=4), padding=padded)
def test_smooth_max_of_decimals_has_their_precision(beta, x, padding):
    (y,), residuals = forward(counted(len(x), padding), smooth_max(beta), x)
    slopes = vjp(counted(len(x), padding), smooth_max(beta), x, residuals, [Decimal(1)])
    with mpmath.workdps(40):
        b = mpmath.mpf(float(beta))
        terms = [mpmath.exp(b * mpmath.mpf(str(value))) for value in x]
        total = sum(terms) + sum(padding)
        assert abs(mpmath.mpf(str(y)) - mpmath.log(total) / b) < mpmath.mpf("1e-25")
        for slope, term in zip(slopes, terms, strict=True):
            assert abs(mpmath.mpf(str(slope)) - term / total) < mpmath.mpf("1e-25")


@pytest.mark.parametrize("p", [1, 2, 3, 1.5, Fraction(3, 2)])
@given(x=st.lists(decimals, min_size=1, max_size=4))
def test_lp_of_decimals_has_their_precision(p, x):
    y = pool(lp(p), x)
    with mpmath.workdps(40):
        q = mpmath.mpf(p.numerator) / p.denominator if isinstance(p, Fraction) else mpmath.mpf(p)
        expected = sum(abs(mpmath.mpf(str(value))) ** q for value in x) ** (1 / q)
        assert abs(mpmath.mpf(str(y)) - expected) < mpmath.mpf("1e-25")


# -- dual numbers

A, B = Fraction(3, 2), Fraction(-2, 5)
RULES = {
    "x + c": (lambda x: x + A, lambda x: 1),
    "c + x": (lambda x: A + x, lambda x: 1),
    "x - c": (lambda x: x - A, lambda x: 1),
    "c - x": (lambda x: A - x, lambda x: -1),
    "c x": (lambda x: A * x, lambda x: A),
    "x c": (lambda x: x * B, lambda x: B),
    "x x": (lambda x: x * x, lambda x: 2 * x),
    "x / c": (lambda x: x / A, lambda x: 1 / A),
    "c / x": (lambda x: A / x, lambda x: -A / x**2),
    "x / (x + c)": (lambda x: x / (x + 4), lambda x: 4 / (x + 4) ** 2),
    "-x": (lambda x: -x, lambda x: -1),
    "x**3": (lambda x: x**3, lambda x: 3 * x**2),
    "x**-2": (lambda x: x**-2, lambda x: -2 * x**-3),
    "|x|": (abs, lambda x: 1 if x > 0 else -1),
    "x |x| - 2/x": (lambda x: x * abs(x) - 2 / x, lambda x: 2 * abs(x) + 2 / x**2),
}


@pytest.mark.parametrize(("f", "slope"), RULES.values(), ids=RULES)
@given(x=small, dx=small)
def test_dual_differentiates(f, slope, x, dx):
    assume(x != 0)
    assert f(Dual(x, dx)) == Dual(f(x), slope(x) * dx)


@given(small, positive)
def test_dual_exp_and_log_have_their_slopes(x, a):
    assert Dual(float(x), 2.0).exp().tangent == 2 * math.exp(x)
    assert Dual(float(a), 2.0).log().tangent == pytest.approx(2 / float(a))


@given(small, small, small)
def test_nested_dual_is_second_order(x, u, v):
    """f(x) = x^3 / (x + 4): u v f'' in the tangent of the tangent."""
    assume(x != -4)
    y = Dual(Dual(x, v), Dual(u, Fraction(0)))
    s = sympy.Symbol("s")
    second = sympy.diff(s**3 / (s + 4), s, 2).subs(s, sympy.Rational(x.numerator, x.denominator))
    expected = Fraction(second.p, second.q) * u * v
    assert (y**3 / (y + 4)).tangent.tangent == expected


@given(fractions, fractions, small, small)
def test_dual_is_ordered_by_value_alone(a, b, da, db):
    assert (Dual(a, da) > Dual(b, db), Dual(a, da) < Dual(b, db)) == (a > b, a < b)
    assert (Dual(a, da) > b, Dual(a, da) < b) == (a > b, a < b)


@given(st.lists(small, min_size=1, max_size=5))
def test_duals_of_equal_value_tie_whatever_their_tangent(tangents):
    x = [Dual(Fraction(1), t) for t in tangents]
    y = [pool(maximum(ties), x) for ties in TIES]
    n = len(tangents)
    assert [d.tangent for d in y] == [tangents[0], tangents[-1], sum(tangents), sum(tangents) / n]


# -- intervals: every result of members lies inside

ends = st.floats(-4, 4, width=16) | st.floats(-4, 4)


@st.composite
def enclosed(draw, scalars=ends):
    """An interval and a rational inside it: often an end, often the only one."""
    lo, hi = sorted([draw(scalars), draw(scalars)])
    hi = draw(st.sampled_from([lo, hi, hi]))
    share = draw(st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 3)]))
    return Interval(lo, hi), Fraction(lo) + share * (Fraction(hi) - Fraction(lo))


def rational(x):
    return mpmath.mpf(x.numerator) / x.denominator


@pytest.mark.parametrize(
    "operation", [operator.add, operator.sub, operator.mul, operator.truediv], ids=lambda f: f.__name__
)
@given(a=enclosed(), b=enclosed())
def test_interval_arithmetic_encloses(operation, a, b):
    """Interval with interval, and with a plain number on either side."""
    (left, p), (right, q) = a, b
    if operation is operator.truediv:
        assume(0 not in right)
    assert operation(p, q) in operation(left, right)
    assert operation(p, q) in operation(left, q)
    assert operation(p, q) in operation(p, right)


@pytest.mark.parametrize("operation", [operator.neg, abs])
@given(a=enclosed())
def test_interval_negation_and_magnitude_are_exact(operation, a):
    interval, p = a
    assert operation(p) in operation(interval)
    result = operation(interval)
    members = [interval.lo, interval.hi] + [0.0] * (0 in interval)
    assert (result.lo, result.hi) == (min(map(operation, members)), max(map(operation, members)))


@given(enclosed())
def test_interval_exp_encloses(a):
    interval, p = a
    with mpmath.workdps(60):
        assert mpmath.exp(rational(p)) in interval.exp()


@given(enclosed(st.floats(0, 1e9)))
def test_interval_log_encloses(a):
    interval, p = a
    with mpmath.workdps(60):
        assert (mpmath.log(rational(p)) if p else -mpmath.inf) in interval.log()


@pytest.mark.parametrize("p", [2, 3, 0.5, 1.5])
@given(a=enclosed(st.floats(0, 1e9)))
def test_interval_power_encloses(p, a):
    interval, q = a
    with mpmath.workdps(60):
        assert rational(q) ** mpmath.mpf(p) in interval**p


def test_interval_results_are_not_much_wider_than_needed():
    tenth = Interval.of(Fraction(1, 10))
    assert tenth.lo < Fraction(1, 10) < tenth.hi
    for wide in (tenth + tenth, tenth * 2, tenth / 3, tenth.exp(), tenth.log(), tenth**3):
        assert 0 < wide.hi - wide.lo < 1e-14


def test_interval_of_a_float_is_that_float():
    assert Interval.of(0.1) == Interval(0.1, 0.1)
    assert Interval.of(Interval(1, 2)) == Interval(1, 2)


@given(enclosed(), enclosed())
def test_interval_order_is_certain(a, b):
    (left, p), (right, q) = a, b
    assert (left > right) == (left.lo > right.hi)
    assert not (left > right and p <= q)
    assert not (left < right and p >= q)
    assert not (left > q and p <= q)


def test_interval_divided_by_one_that_contains_zero_is_an_error():
    with pytest.raises(ZeroDivisionError, match="the divisor contains 0"):
        Interval(1, 2) / Interval(-1, 1)


def test_interval_power_of_negative_numbers_is_an_error():
    with pytest.raises(ValueError, match="take abs first"):
        Interval(-1, 2) ** 2


def test_interval_exp_overflows_to_infinity():
    assert Interval(0, 1000).exp().hi == math.inf
    assert Interval(-1000, 0).exp().lo == 0


# -- intervals: every law

EXTREMES = {f"{law.__name__}-{ties}": law(ties) for law in (maximum, minimum) for ties in TIES}
LINEAR = {"sum": SUM, "mean": mean(), "mean-over-3": mean(3)}
SMOOTH = {"smooth_max": smooth_max(2.0), "smooth_min": smooth_max(-0.75)}
NORMS = {f"lp-{p}": lp(p) for p in (1, 1.5, 2, 3)}


def exactly(law, x):
    """The value at rationals and the derivative in each, to 60 digits and by formulas of its own."""
    n, name = len(x), law.name
    if name in ("max", "min"):
        y = (max if name == "max" else min)(x)
        winners = [i for i, value in enumerate(x) if value == y]
        chosen = {"first": winners[:1], "last": winners[-1:]}.get(law.params[0], winners)
        share = Fraction(1, len(winners) if law.params[0] == "split" else 1)
        return y, [share * (i in chosen) for i in range(n)]
    if name in ("sum", "mean"):
        divisor = 1 if name == "sum" else law.params[0] or n
        return sum(x) / Fraction(divisor), [Fraction(1, divisor)] * n
    x, parameter = [rational(value) for value in x], mpmath.mpf(law.params[0])
    if name == "smooth_max":
        terms = [mpmath.exp(parameter * value) for value in x]
        return mpmath.log(sum(terms)) / parameter, [term / sum(terms) for term in terms]
    y = sum(abs(value) ** parameter for value in x) ** (1 / parameter)
    return y, [mpmath.sign(v) * (abs(v) / y) ** (parameter - 1) if v else mpmath.mpf(0) for v in x]


@every(EXTREMES | LINEAR | SMOOTH | NORMS)
@given(x=lists(3, enclosed()), dx=lists(3, enclosed()), dy=lists(2, enclosed()))
def test_pooled_intervals_enclose_the_pooled_members(law, x, dx, dy):
    """Value, jvp and vjp, with two windows that share a tap; intervals that overlap leave the winner open."""
    window = Window((sliding(3, kernel=2, stride=1),))
    wide, points = zip(*x, strict=True)
    y, residuals = forward(window, law, wide)
    along = jvp(window, law, wide, residuals, [interval for interval, _ in dx])
    back = vjp(window, law, wide, residuals, [interval for interval, _ in dy])
    with mpmath.workdps(60):
        pulled = [Fraction(0)] * 3
        for o in (0, 1):
            value, slopes = exactly(law, points[o : o + 2])
            assert value in y[o]
            tangents = [p if isinstance(slopes[0], Fraction) else rational(p) for _, p in dx[o : o + 2]]
            assert inner(slopes, tangents) in along[o]
            for i, slope in enumerate(slopes):
                g = dy[o][1]
                pulled[o + i] += slope * (g if isinstance(slope, Fraction) else rational(g))
        assert all(p in b for p, b in zip(pulled, back, strict=True))


@pytest.mark.parametrize(("law", "expected"), [(maximum(), Interval(1, 3)), (minimum(), Interval(0, 2))])
def test_max_and_min_of_overlapping_intervals_are_sharp(law, expected):
    assert pool(law, [Interval(0, 2), Interval(1, 3)]) == expected


def test_an_interval_that_certainly_loses_has_no_share():
    window, x = Window((whole(3),)), [Interval(0, 2), Interval(-2, -1), Interval(1, 3)]
    _, residuals = forward(window, maximum(), x)
    back = vjp(window, maximum(), x, residuals, [Interval(1, 1)])
    assert back[1] == Interval(0, 0)
    assert 1 in back[0]
    assert 0 in back[2]


def test_the_winner_among_overlapping_intervals_has_no_dual():
    with pytest.raises(PoolError, match="undecided; use jvp, not dual numbers"):
        pool(maximum(), [Dual(Interval(0, 2), 1), Dual(Interval(1, 3), 0)])


@every({"max": maximum(), "smooth_max": smooth_max(2.0), "lp-2": lp(2), "mean": mean()})
def test_duals_of_intervals_enclose_the_derivative(law):
    y = pool(law, [Dual(Interval(1, 1), Interval(1, 1)), Dual(Interval(2, 2), Interval(3, 3))])
    with mpmath.workdps(60):
        value, slopes = exactly(law, [Fraction(1), Fraction(2)])
        assert value in y.value
        assert slopes[0] + 3 * slopes[1] in y.tangent


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_of_zero_intervals_encloses_zero(p):
    assert 0 in pool(lp(p), [Interval(0, 0), Interval(0, 0)])


@pytest.mark.parametrize("p", [2, 3, 5])
def test_lp_of_an_interval_over_many_magnitudes_encloses_both_ends(p):
    """The exponent 1/p is rounded too; a hundred decades away from 1 that shows."""
    y = pool(lp(p), [Interval(1e-60, 1.0)])
    assert 1e-60 in y
    assert 1.0 in y


@pytest.mark.parametrize("beta", [1000.0, -1000.0])
def test_smooth_max_of_wide_intervals_still_encloses(beta):
    """The terms underflow; the shares are somewhere in [0, 1]."""
    window, law, x = Window((whole(2),)), smooth_max(beta), [Interval(0.0, 10.0), Interval(3.0, 4.0)]
    (y,), residuals = forward(window, law, x)
    (along,) = jvp(window, law, x, residuals, [Interval(1.0, 1.0), Interval(0.0, 0.0)])
    with mpmath.workdps(60):
        for first in (0, 5, 10):
            value, slopes = exactly(law, [Fraction(first), Fraction(4)])
            assert value in y
            assert slopes[0] in along


# -- SymPy

a, b, c = sympy.symbols("a b c", real=True)
beta = sympy.Symbol("beta", positive=True)
SYMBOLIC = {
    "sum": (SUM, a + b + c),
    "mean": (mean(), (a + b + c) / 3),
    "smooth_max": (smooth_max(2), sympy.log(sympy.exp(2 * a) + sympy.exp(2 * b) + sympy.exp(2 * c)) / 2),
    "smooth_max-beta": (
        smooth_max(beta),
        sympy.log(sympy.exp(beta * a) + sympy.exp(beta * b) + sympy.exp(beta * c)) / beta,
    ),
    "lp-1": (lp(1), sympy.Abs(a) + sympy.Abs(b) + sympy.Abs(c)),
    "lp-2": (lp(2), sympy.sqrt(a**2 + b**2 + c**2)),
    "lp-3": (lp(3), sympy.cbrt(sympy.Abs(a) ** 3 + sympy.Abs(b) ** 3 + sympy.Abs(c) ** 3)),
}


@pytest.mark.parametrize(("law", "formula"), SYMBOLIC.values(), ids=SYMBOLIC)
def test_symbols_give_the_formula(law, formula):
    assert sympy.simplify(pool(law, [a, b, c]) - formula) == 0


@pytest.mark.parametrize(("law", "formula"), SYMBOLIC.values(), ids=SYMBOLIC)
def test_vjp_of_symbols_is_the_derivative_of_the_formula(law, formula):
    window, x = Window((whole(3),)), [a, b, c]
    _, residuals = forward(window, law, x)
    at = {a: sympy.Rational(3, 2), b: sympy.Rational(-1, 3), c: 2, beta: 3}
    for slope, symbol in zip(vjp(window, law, x, residuals, [1]), x, strict=True):
        expected = sympy.diff(formula, symbol)
        assert sympy.N((slope - expected).subs(at), 30) == pytest.approx(0, abs=1e-25)


def test_symbolic_smooth_max_differentiates_in_beta():
    y = pool(smooth_max(beta), [a, b])
    weights = [sympy.exp(beta * x) / (sympy.exp(beta * a) + sympy.exp(beta * b)) for x in (a, b)]
    assert sympy.simplify(sympy.diff(y, beta) - (weights[0] * a + weights[1] * b - y) / beta) == 0


def test_max_of_numeric_expressions():
    x = [sympy.sqrt(2), sympy.pi, sympy.Rational(22, 7), sympy.E]
    assert (pool(maximum(), x), pool(minimum(), x)) == (sympy.Rational(22, 7), sympy.sqrt(2))


def test_max_of_a_free_symbol_has_no_answer():
    with pytest.raises(TypeError, match="truth value"):
        pool(maximum(), [a, b])


@pytest.mark.parametrize("x", [[1], [1, 1], [3, 4], [0, 1]])
def test_numeric_expressions_stay_exact(x):
    numbers = [sympy.Integer(value) for value in x]
    assert sympy.simplify(pool(smooth_max(1), numbers) - sympy.log(sum(map(sympy.exp, numbers)))) == 0
    length = pool(lp(2), numbers)
    assert length == sympy.sqrt(sum(value**2 for value in numbers))
    assert not length.has(sympy.Float)


# -- one law, many scalars


@every({"smooth_max": smooth_max(2.0), "lp-2": lp(2), "lp-3": lp(3), "mean": mean()})
@given(x=lists(3, nonzero))
def test_decimal_and_interval_agree_with_float(law, x):
    y = pool(law, x)
    assert float(pool(law, [Decimal(value) for value in x])) == pytest.approx(y, abs=1e-12)
    inside = pool(law, [Interval(value, value) for value in x])
    assert inside.lo - 1e-12 <= y <= inside.hi + 1e-12
