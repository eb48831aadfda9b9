"""What each law makes of its taps: ties, NaN, padding, empty windows, and the laws of smooth max and the p-norms."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import reduce

import pytest
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError
from ndpool.spec import (
    SUM,
    Dual,
    Law,
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

from .strategies import EXTREMES, LAWS, LINEAR, NORMS, SMOOTH, every, floats, fractions, given, pool

NAN, INF = math.nan, math.inf
betas = st.floats(0.1, 50)
some = st.lists(floats, min_size=1, max_size=6)
tied = st.lists(fractions, min_size=1, max_size=6)
gappy = st.lists(st.sampled_from([NAN, -INF, -1.0, 0.0, 1.0, INF]), min_size=1, max_size=6)


def shares(law, x):
    """dy/dx_t of one window over all of x, by vjp."""
    window = Window((whole(len(x)),))
    _, residuals = forward(window, law, x)
    return vjp(window, law, x, residuals, [1])


def winners(x):
    return [i for i, value in enumerate(x) if value == max(x)]


# -- ties


@given(tied)
def test_first_of_equals_wins(x):
    first = winners(x)[0]
    assert shares(maximum(), x) == [int(i == first) for i in range(len(x))]


@given(tied)
def test_last_of_equals_wins(x):
    last = winners(x)[-1]
    assert shares(maximum("last"), x) == [int(i == last) for i in range(len(x))]


@given(tied)
def test_all_equals_get_the_full_share(x):
    assert shares(maximum("all"), x) == [int(value == max(x)) for value in x]


@given(tied)
def test_equals_split_evenly(x):
    assert shares(maximum("split"), x) == [(value == max(x)) / len(winners(x)) for value in x]


@every(EXTREMES)
@given(x=tied)
def test_the_value_does_not_depend_on_the_tie_rule(law, x):
    assert pool(law, x) == (max if law.name == "max" else min)(x)


def test_the_sign_of_zero_does_not_break_a_tie():
    assert shares(maximum(), [-0.0, 0.0]) == shares(minimum(), [0.0, -0.0]) == [1, 0]


@pytest.mark.parametrize("law", [maximum, minimum])
def test_unknown_rules_name_the_known_ones(law):
    with pytest.raises(PoolError, match="ties='middle' is not a rule; use one of 'first', 'last', 'all', 'split'"):
        law("middle")
    with pytest.raises(PoolError, match="nan='drop' is not a rule; use one of 'propagate', 'ignore'"):
        law("first", "drop")


# -- NaN


@pytest.mark.parametrize("law", [maximum, minimum])
@given(before=st.lists(st.sampled_from([-INF, 0.0, INF]), max_size=3), after=gappy)
def test_nan_propagates_and_the_first_nan_wins(law, before, after):
    x = [*before, NAN, *after]
    assert math.isnan(pool(law(), x))
    assert shares(law(), x) == [int(i == len(before)) for i in range(len(x))]


@pytest.mark.parametrize(("law", "builtin"), [(maximum, max), (minimum, min)])
@given(x=gappy)
def test_ignored_nan_loses_to_every_number(law, builtin, x):
    numbers = [value for value in x if value == value]
    y = pool(law("first", "ignore"), x)
    assert y == builtin(numbers) if numbers else math.isnan(y)


@pytest.mark.parametrize("law", [maximum, minimum])
def test_a_window_of_ignored_nans_gives_nan_and_the_first_wins(law):
    assert math.isnan(pool(law("first", "ignore"), [NAN, NAN]))
    assert shares(law("first", "ignore"), [NAN, NAN]) == [1, 0]


@every(LAWS)
def test_nan_of_decimal_does_not_raise(law):
    y = pool(law, [Decimal(1), Decimal("NaN"), Decimal(2)])
    ignored = law.name in ("max", "min") and law.params[1] == "ignore"
    assert y == (2 if law.name == "max" else 1) if ignored else y.is_nan()


@every(LINEAR | SMOOTH | NORMS)
@given(x=some, at=st.integers(0, 6))
def test_nan_propagates_through_sums(law, x, at):
    assert math.isnan(pool(law, [*x[:at], NAN, *x[at:]]))


# -- padding and empty windows


@given(st.lists(st.integers(-9, -1), min_size=2, max_size=6))
def test_padding_is_never_read_by_max(x):
    """All of x is negative, so a zero that was read would win."""
    assert ndpool.MaxPool((3,), 1, 1)(x) == [max(x[max(i - 1, 0) : i + 2]) for i in range(len(x))]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_padding_is_never_read_by_min(x):
    assert ndpool.MinPool((3,), 1, 1)(x) == [min(x[max(i - 1, 0) : i + 2]) for i in range(len(x))]


def test_padding_counts_as_zeros_in_mean():
    window = Window((sliding(2, kernel=3, stride=1, padding=(1, 1)),))
    assert forward(window, mean(), [Fraction(6), Fraction(3)])[0] == [3, 3]


def test_uncounted_padding_is_left_out_of_the_mean():
    window = Window((sliding(3, kernel=3, stride=2, padding=(1, 1), count_padding=False),))
    assert forward(window, mean(), [Fraction(6), Fraction(2), Fraction(8)])[0] == [4, 5]


@given(tied, st.integers(1, 9))
def test_divisor_replaces_the_count_in_the_mean(x, divisor):
    assert pool(mean(divisor), x) == sum(x) / divisor
    assert shares(mean(divisor), [Fraction(1)]) == [1 / divisor]


def test_padding_counts_as_zeros_in_smooth_max():
    window = Window((sliding(1, kernel=3, stride=1, padding=(1, 1)),))
    assert forward(window, smooth_max(1.0), [-1.0])[0] == pytest.approx([math.log(math.exp(-1) + 2)])


def test_uncounted_padding_is_left_out_of_smooth_max():
    window = Window((sliding(1, kernel=3, stride=1, padding=(1, 1), count_padding=False),))
    assert forward(window, smooth_max(1.0), [-1.0])[0] == [-1.0]


@every(LAWS)
def test_empty_window_gives_zero(law):
    """Outputs 0 and 1 lie in the padding: value 0, tangent 0, and nothing flows back."""
    window = Window((sliding(1, kernel=1, stride=1, padding=(2, 0), count_padding=False),))
    x = [Fraction(5)]
    y, residuals = forward(window, law, x)
    assert y[:2] == [0, 0]
    assert jvp(window, law, x, residuals, [Fraction(7)])[:2] == [0, 0]
    assert vjp(window, law, x, residuals, [Fraction(7), Fraction(7), Fraction(0)]) == [0]


# -- every law: merge


def merged(law, x, split):
    """y, with the taps merged in two groups that meet at `split`."""
    states = [law.lift(value, t) for t, value in enumerate(x)]
    groups = [reduce(law.merge, part) for part in (states[:split], states[split:]) if part]
    return law.finish(reduce(law.merge, groups), len(x))


@every(EXTREMES | LINEAR)
@given(x=tied, split=st.integers(0, 6))
def test_merge_is_associative(law, x, split):
    assert merged(law, x, split) == merged(law, x, 0)


@every(SMOOTH | NORMS)
@given(x=some, split=st.integers(0, 6))
def test_merge_is_associative_to_rounding(law, x, split):
    assert merged(law, x, split)[0] == pytest.approx(merged(law, x, 0)[0])


# -- smooth max


@given(some, betas)
def test_smooth_max_lies_between_max_and_max_plus_log_n_over_beta(x, beta):
    assert max(x) <= pool(smooth_max(beta), x) <= max(x) + math.log(len(x)) / beta


@given(some, betas, betas)
def test_smooth_max_falls_as_beta_grows(x, a, b):
    assert pool(smooth_max(max(a, b)), x) <= pool(smooth_max(min(a, b)), x) + 1e-12


@given(some)
def test_smooth_max_tends_to_max(x):
    assert pool(smooth_max(1e9), x) == pytest.approx(max(x), abs=1e-8)


@given(some, betas)
def test_smooth_max_is_the_scaled_logarithm_of_a_sum_of_exponentials(x, beta):
    expected = math.log(math.fsum(math.exp(beta * value) for value in x)) / beta
    assert pool(smooth_max(beta), x) == pytest.approx(expected, abs=1e-12)


@given(some, betas)
def test_negative_beta_is_smooth_min(x, beta):
    assert pool(smooth_max(-beta), x) == -pool(smooth_max(beta), [-value for value in x])
    assert min(x) - math.log(len(x)) / beta <= pool(smooth_max(-beta), x) <= min(x)


@pytest.mark.parametrize("beta", [1000.0, -1000.0])
@given(x=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=4))
def test_smooth_max_never_overflows(beta, x):
    assert pool(smooth_max(beta), x) == pytest.approx(max(x) if beta > 0 else min(x), abs=2e-3)
    assert sum(shares(smooth_max(beta), x)) == pytest.approx(1)


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, NAN, INF, -INF, Dual(0.0, 1.0), Decimal("NaN"), Fraction(0)])
def test_beta_without_a_smooth_max_is_an_error(beta):
    with pytest.raises(PoolError, match="gives no smooth max; use beta > 0, or beta < 0 for a smooth min"):
        smooth_max(beta)


@pytest.mark.parametrize(
    ("x", "y", "share"),
    [
        ([INF, 1.0], INF, [1, 0]),
        ([1.0, INF], INF, [0, 1]),
        ([-INF, 1.0], 1.0, [0, 1]),
        ([INF, -INF], INF, [1, 0]),
        ([INF, INF], INF, [0.5, 0.5]),
        ([-INF, -INF], -INF, [0.5, 0.5]),
    ],
)
def test_smooth_max_of_infinities_is_their_max(x, y, share):
    assert (pool(smooth_max(2.0), x), shares(smooth_max(2.0), x)) == (y, share)
    mirrored = [-value for value in x]
    assert (pool(smooth_max(-2.0), mirrored), shares(smooth_max(-2.0), mirrored)) == (-y, share)


@given(some, betas, st.booleans())
def test_derivative_in_beta(x, beta, falling):
    """dy/dbeta = (sum_t softmax(beta x)_t x_t - y) / beta."""
    beta = -beta if falling else beta
    y = pool(smooth_max(Dual(beta, 1.0)), x)
    weights = [math.exp(beta * value) for value in x]
    center = math.fsum(w * value for w, value in zip(weights, x, strict=True)) / math.fsum(weights)
    assert y.tangent == pytest.approx((center - y.value) / beta, abs=1e-11)


@given(some, betas)
def test_shares_of_smooth_max_are_positive_and_add_up_to_one(x, beta):
    assert sum(shares(smooth_max(beta), x)) == pytest.approx(1)
    assert min(shares(smooth_max(beta), x)) >= 0


# -- Lp


@given(some)
def test_lp_1_is_the_sum_of_magnitudes(x):
    assert pool(lp(1), x) == pytest.approx(math.fsum(map(abs, x)), rel=1e-12)


@given(some)
def test_lp_2_is_the_length(x):
    assert pool(lp(2), x) == pytest.approx(math.hypot(*x), rel=1e-12)


@given(some, st.floats(1, 20))
def test_lp_lies_between_the_largest_magnitude_and_n_to_the_1_over_p_times_it(x, p):
    largest = max(map(abs, x))
    assert largest <= pool(lp(p), x) <= largest * len(x) ** (1 / p) * (1 + 1e-14)


@given(some, floats, st.sampled_from([1, 1.5, 2, 3]))
def test_lp_is_homogeneous(x, scale, p):
    assert pool(lp(p), [scale * value for value in x]) == pytest.approx(abs(scale) * pool(lp(p), x), rel=1e-12)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_lp_neither_overflows_nor_underflows(p):
    for scale in (1e300, 1e-300):
        assert pool(lp(p), [scale, -scale]) == pytest.approx(scale * 2 ** (1 / p), rel=1e-14)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, Fraction(3, 2)])
def test_derivative_of_lp_at_zero_is_zero(p):
    assert shares(lp(p), [0.0, 0.0]) == [0, 0]
    assert shares(lp(p), [0.0, -2.0]) == [0, -1]


@pytest.mark.parametrize("p", [0, 0.5, -1, INF, NAN])
def test_p_without_a_norm_is_an_error(p):
    with pytest.raises(PoolError, match="is not a norm; use a finite norm_type >= 1"):
        lp(p)


# -- a law of one's own


@given(st.lists(st.integers(1, 5).map(Fraction), min_size=1, max_size=5))
def test_a_law_of_ones_own_needs_four_functions(x):
    product = Law(lambda x, t: x, lambda a, b: a * b, lambda s, n: (s, s), lambda g, x, t, y: g * y / x)
    assert pool(product, x) == math.prod(x)
    assert shares(product, x) == [math.prod(x[:i] + x[i + 1 :]) for i in range(len(x))]


@pytest.mark.parametrize("law", [maximum, minimum, mean, smooth_max, lp])
def test_a_law_is_made_once_for_each_choice_of_arguments(law):
    assert law() is law()


def test_a_law_says_which_one_it_is():
    assert (maximum("all").name, maximum("all").params) == ("max", ("all", "propagate"))
    assert (SUM.name, mean(3).params, smooth_max(2.0).params, lp(3).params) == ("sum", (3,), (2.0,), (3,))
