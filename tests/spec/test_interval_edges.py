"""Intervals whose ends are 0 or infinite: they enclose, they stay as narrow as they can, and no end becomes NaN."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction

import pytest

from ndpool import MaxPool, MinPool, SmoothMaxPool
from ndpool.spec import Interval, Window, forward, lp, maximum, vjp, whole
from ndpool.spec.scalar import part, power, root, sign, undecided

from .strategies import pool

INF = math.inf
TINY = 1e-300  # far above the steps by which a result near 0 is rounded outwards
NEAR = 1e-12


def assert_near(got, lo, hi):
    """Encloses [lo, hi], and is hardly wider."""
    assert got.lo <= lo
    assert got.hi >= hi
    assert got.lo >= (lo - TINY if lo == 0 else lo - NEAR * abs(lo) if lo > -INF else -INF)
    assert got.hi <= (TINY if hi == 0 else hi + NEAR * abs(hi) if hi < INF else INF)


# -- arithmetic

PRODUCTS = [
    ((0, 0), (-INF, INF), (0, 0)),
    ((0, 1), (INF, INF), (0, INF)),
    ((-1, 0), (INF, INF), (-INF, 0)),
    ((0, INF), (0, INF), (0, INF)),
    ((-1, 1), (0, INF), (-INF, INF)),
    ((0, 2), (-3, 0), (-6, 0)),
]


@pytest.mark.parametrize(("a", "b", "product"), PRODUCTS)
def test_zero_times_infinity_is_zero(a, b, product):
    """An infinite end stands for numbers without bound, not for infinity: 0 times each of them is 0."""
    assert_near(Interval(*a) * Interval(*b), *product)
    assert_near(Interval(*b) * Interval(*a), *product)


@pytest.mark.parametrize("divisor", [(0, 1), (-1, 0), (0, 0), (-1, 1), (0, INF), (-0.0, 1)])
def test_a_divisor_that_touches_zero_is_an_error(divisor):
    with pytest.raises(ZeroDivisionError, match="the divisor contains 0"):
        Interval(1, 2) / Interval(*divisor)


@pytest.mark.parametrize(("divisor", "quotient"), [((5e-324, 1), (1, INF)), ((-1, -5e-324), (-INF, -1))])
def test_a_divisor_next_to_zero_divides(divisor, quotient):
    assert_near(Interval(1, 1) / Interval(*divisor), *quotient)


@pytest.mark.parametrize(
    ("base", "p", "power"),
    [((0, 1), 2, (0, 1)), ((0, 0), 2, (0, 0)), ((0, 4), 0.5, (0, 2)), ((0, INF), 3, (0, INF)), ((0, 1), 1, (0, 1))],
)
def test_a_power_of_an_interval_that_touches_zero_has_a_power(base, p, power):
    """Rounding outwards must not leave the numbers >= 0, of which alone there are powers."""
    got = Interval(*base) ** p
    assert_near(got, *power)
    assert got.lo >= 0
    again = got**0.5
    assert 0 <= again.lo <= power[0] ** 0.5
    assert power[1] ** 0.5 <= again.hi <= power[1] ** 0.5 * (1 + NEAR) + 1e-150  # the root of a step at 0


def test_a_power_of_an_interval_below_zero_is_an_error():
    for lo in (-5e-324, -1, -INF):
        with pytest.raises(ValueError, match="take abs first"):
            Interval(lo, 1) ** 2


@pytest.mark.parametrize(
    ("x", "value"),
    [
        ((0, 0), (1, 1)),
        ((-INF, 0), (0, 1)),
        ((0, INF), (1, INF)),
        ((-INF, -INF), (0, 0)),
        ((-9, 900), (math.exp(-9), INF)),
    ],
)
def test_exp_is_never_below_zero(x, value):
    got = Interval(*x).exp()
    assert_near(got, *value)
    assert got.lo >= 0


@pytest.mark.parametrize(("x", "value"), [((0, 1), (-INF, 0)), ((1, 1), (0, 0)), ((0, INF), (-INF, INF))])
def test_log_at_zero_is_without_bound(x, value):
    assert_near(Interval(*x).log(), *value)


@pytest.mark.parametrize("x", [(0, 2), (-2, 0), (0, 0), (-3, 2), (-2, 3), (-INF, 1), (-2, -1)])
def test_magnitude_at_zero(x):
    got, ends = abs(Interval(*x)), [abs(end) for end in x]
    assert (got.lo, got.hi) == (0 if x[0] <= 0 <= x[1] else min(ends), max(ends))


@pytest.mark.parametrize(("x", "signs"), [((0, 2), (0, 1)), ((-1, 0), (-1, 0)), ((-1, 1), (-1, 1)), ((0, 0), (0, 0))])
def test_the_sign_of_an_interval_that_touches_zero(x, signs):
    assert sign(Interval(*x)) == Interval(*signs)


def test_both_ends_belong_to_an_interval_and_nothing_beyond():
    x = Interval(1, 2)
    assert [end in x for end in (math.nextafter(1, 0), 1, 2, math.nextafter(2, 3))] == [False, True, True, False]


def test_intervals_that_touch_do_not_beat_one_another():
    assert not Interval(1, 2) > Interval(0, 1)
    assert not Interval(1, 2) < Interval(2, 3)
    assert Interval(math.nextafter(1, 2), 2) > Interval(0, 1)
    assert Interval(1, math.nextafter(2, 1)) < Interval(2, 3)


@pytest.mark.parametrize("operation", [operator.add, operator.mul, operator.truediv, operator.sub])
def test_results_are_rounded_outwards_on_both_sides(operation):
    """1/3 and 1/10 are no floats, so neither end is exact."""
    a, b = Interval(1, 1) / 3, Interval(1, 1) / 10
    got = operation(a, b)
    point = operation(1 / 3, 0.1)
    assert got.lo < point < got.hi


def test_functions_of_the_library_are_widened_by_two_steps():
    """They may err by more than half a unit in the last place."""
    got = Interval(1, 2).monotone(lambda x: x)
    assert (got.lo, got.hi) == (math.nextafter(math.nextafter(1, 0), 0), math.nextafter(math.nextafter(2, 3), 3))
    assert Interval(1, 2).monotone(lambda x: x, (1, 2)) == Interval(1, 2)


def test_the_sign_of_nan_is_nan():
    assert math.isnan(sign(math.nan))
    assert [sign(x) for x in (-2.0, -0.0, 0.0, 3)] == [-1, 0, 0, 1]


# -- shares


@pytest.mark.parametrize("whole_", [Interval(0, 0), Interval(0, 2), Interval(-5e-324, 2)])
def test_a_share_of_what_may_be_nothing_is_anything(whole_):
    assert part(Interval(0, 1), whole_) == Interval(0, 1)


def test_a_share_of_what_is_something_is_the_quotient():
    assert_near(part(Interval(1, 1), Interval(2, 4)), 0.25, 0.5)
    assert part(1.0, 4.0) == 0.25


def test_a_sum_of_terms_that_underflows_to_zero_leaves_the_shares_open():
    """exp(-2000) is 0 in floats, so the lower end of the sum is exactly 0."""
    (dx,) = SmoothMaxPool((1,)).vjp([Interval(0, 2000)], [1.0])
    assert_near(dx, 0, 1)
    (dx,) = SmoothMaxPool((1,), beta=-1.0).vjp([Interval(0, 2000)], [1.0])
    assert 1 in dx


@pytest.mark.parametrize("op", [MaxPool((2,)), MinPool((2,))], ids=["max", "min"])
@pytest.mark.parametrize(("dy", "share"), [(INF, (0, INF)), (-INF, (-INF, 0)), (0.0, (0, 0)), (2.0, (0, 2))])
def test_a_share_of_an_infinite_cotangent_is_no_nan(op, dy, share):
    for dx in op.vjp([Interval(0, 2), Interval(1, 3)], [dy]):
        assert_near(dx, *share)


# -- laws


@pytest.mark.parametrize("x", [Interval(0, 1), Fraction(1, 3), Decimal("0.1"), 0.1], ids=str)
def test_the_first_power_and_root_are_the_number_itself(x):
    """Not rounded, and of no other kind."""
    assert power(x, 1) is x
    assert root(x, 1) is x


def test_a_norm_of_1_is_exact():
    assert pool(lp(1), [Fraction(1, 3), Fraction(-1, 3)]) == Fraction(2, 3)


def test_equal_points_are_decided_and_equal_intervals_are_not():
    assert not undecided([Interval(1, 1), Interval(1, 1)])
    assert not undecided([Interval(0, 2)])
    assert undecided([Interval(0, 2), Interval(0, 2)])
    assert undecided([Interval(1, 1), Interval(0, 1)])


def test_one_interval_alone_wins_for_certain():
    window, x = Window((whole(2),)), [Interval(0, 1), Interval(2, 3)]
    (y,), residuals = forward(window, maximum(), x)
    assert y == Interval(2, 3)
    assert vjp(window, maximum(), x, residuals, [5.0]) == [Interval(0, 0), Interval(5, 5)]


NORMED = [
    ([(0, 1), (0, 0)], (0, 1)),
    ([(-1, 0)], (0, 1)),
    ([(0, INF)], (0, INF)),
    ([(-3, -3), (0, 0)], (3, 3)),
    ([(0, 0), (0, 0)], (0, 0)),
]


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize(("x", "norm"), NORMED)
def test_a_norm_of_intervals_that_touch_zero(x, norm, p):
    y = pool(lp(p), [Interval(*ends) for ends in x])
    assert y.lo <= norm[0]
    assert y.hi >= norm[1]
    assert y.lo >= norm[0] - 1e-9
    assert y.hi <= norm[1] + 1e-9  # the p-th root of a rounding step at 0 is small, but no step


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("x", [[(0, 1), (0, 0)], [(-1, 0)], [(0, 0), (0, 0)], [(-1, 2), (0, 1)]])
def test_derivatives_of_a_norm_at_zero_are_shares(x, p):
    wide = [Interval(*ends) for ends in x]
    window, law = Window((whole(len(wide)),)), lp(p)
    _, residuals = forward(window, law, wide)
    for interval, dx in zip(wide, vjp(window, law, wide, residuals, [1.0]), strict=True):
        signs = sign(interval)
        assert_near(dx, signs.lo, signs.hi)
