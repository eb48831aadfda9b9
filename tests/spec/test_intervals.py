"""Intervals enclose: every value, jvp and vjp of every record is an interval that holds the exact one at any member.

The exact ones are worked out by mpmath from formulas of this file's own. Arithmetic by value comes first.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import pytest
from hypothesis import strategies as st

import ndpool
from ndpool import Interval
from ndpool.engines.reference import flatten, nest
from ndpool.spec import Dual, Window, forward, lp, maximum, mean, smooth_max, vjp, whole
from ndpool.spec.scalar import alike, part

from .strategies import given, pool

INF, NAN, TINY = math.inf, math.nan, math.ulp(0.0)

# -- arithmetic, by value


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Interval(0, 1) * INF, (0, INF)),
        (INF * Interval(0, 0), (0, 0)),
        (Interval(-1, 2) * INF, (-INF, INF)),
        (Interval(0, INF) * Interval(0, INF), (0, INF)),
        (Interval(0, INF) + Interval(-INF, 0), (-INF, INF)),
        (Interval(INF, INF) - Interval(INF, INF), (-INF, INF)),
        (Interval(1, INF) / Interval(1, INF), (0, INF)),
        (Interval(-INF, -1) / Interval(-INF, -1), (0, INF)),
        (Interval(-INF, -1) / Interval(1, INF), (-INF, 0)),
        (Interval(0, 1) / INF, (0, 2 * TINY)),
        (Interval(TINY, 1) * TINY, (0, 2 * TINY)),
        (Interval(-1, -TINY) * TINY, (-2 * TINY, 0)),
        (Interval(TINY, TINY) / 4, (0, 2 * TINY)),
        (Interval(3, 4) + 0, (3, 4)),
        (0 + Interval(3, 4), (3, 4)),
        (Interval(-1, 1) + Interval(1, 2), (0, math.nextafter(3, 4))),
        (Interval(0, 0) ** 2, (0, 2 * TINY)),
        (Interval(0, 10) ** 400, (0, INF)),
        (Interval(0, 1) ** -1, (1 - 2**-52, INF)),
        (Interval.of(10**400), (math.nextafter(INF, 0), INF)),
        (Interval.of(-(10**400)), (-INF, math.nextafter(-INF, 0))),
        (Interval.of(Decimal("0.1")), (math.nextafter(0.1, 0), math.nextafter(0.1, 1))),
    ],
)
def test_arithmetic_at_zero_and_infinity(result, expected):
    assert (result.lo, result.hi) == expected


def test_the_root_of_a_square_that_touches_0():
    for square in (Interval(0, 1) ** 2, Interval(0, 1) * Interval(0, 1), Interval(0, TINY) * TINY):
        assert (square**0.5).lo == 0
        assert 1e-162 < (square**0.5).hi < 1 + 1e-15


def test_a_power_that_no_float_holds_is_enclosed():
    third = Interval(1e-60, 1e-60) ** Fraction(1, 3)
    assert third.lo < 1e-20 < third.hi
    assert third.hi - third.lo < 1e-30


@pytest.mark.parametrize("operation", [lambda x: x + 1, lambda x: 0 * x, lambda x: 1 / x, abs, Interval.exp])
@pytest.mark.parametrize("x", [Interval(NAN, NAN), Interval.of(NAN)])
def test_nan_stays_nan(operation, x):
    assert not any(operation(x).lo <= end <= operation(x).hi for end in (-INF, 0, INF))


def test_swapped_ends_are_an_error():
    with pytest.raises(ValueError, match=r"ends swapped; use Interval\(1, 2\)"):
        Interval(2, 1)


def test_a_share_of_a_sum_that_may_be_0():
    assert part(Interval(0, 1), Interval(0, 2)) == Interval(0, 1)
    assert part(Interval(-1, 0), Interval(0, 2)) == Interval(-1, 0)
    assert part(Interval(0, 0), Interval(0, 0)) == Interval(0, 0)
    assert part(Interval(1, 3), Interval(2, 4)) == Interval(math.nextafter(0.25, 0), 1)


def test_one_interval_makes_all_scalars_intervals():
    thirds = (Fraction(1, 3), Dual(Fraction(1, 3), 1))
    zero, xs, _ = alike(thirds, [Interval(0, 1)])
    assert zero == Interval(0, 0)
    assert xs[0].lo < Fraction(1, 3) < xs[0].hi
    assert xs[1] == Dual(xs[0], Interval(1, 1))
    assert alike(thirds) == (0, thirds)
    assert alike([1], params=(Interval(1, 2),)) == (Interval(0, 0), [Interval(1, 1)])


# -- laws at infinity, by value


def test_an_infinite_cotangent_of_an_undecided_max():
    x = [Interval(0, 2), Interval(1, 3)]
    assert ndpool.MaxPool(2).vjp(x, [INF]) == [Interval(0, INF)] * 2
    assert ndpool.MaxPool(2).vjp(x, [-INF]) == [Interval(-INF, 0)] * 2


@pytest.mark.parametrize(
    ("law", "x", "inside", "outside"),
    [
        (smooth_max(1.0), [Interval(-INF, INF), Interval(0, INF)], (0, 1, INF), (-1e-9,)),
        (smooth_max(-1.0), [Interval(-INF, INF), Interval(0, INF)], (-INF, 0, INF), ()),
        (smooth_max(1.0), [Interval(-INF, -INF), Interval(-INF, 0)], (-INF, 0), (1e-9,)),
        (smooth_max(1.0), [Interval(INF, INF), Interval(0, INF)], (INF,), (1e300,)),
        (smooth_max(1.0), [INF, Interval(0, 1)], (INF,), (1e300,)),
        (lp(2), [Interval(-1, 1), Interval(0, INF)], (0, 1, INF), (-TINY,)),
        (lp(3), [Interval(2, INF), Interval(0, 0)], (2, INF), (1.9,)),
        (lp(2), [Interval(0, 1), INF], (INF,), (1e300,)),
        (maximum(), [Interval(-INF, 1), Interval(0, INF)], (0, INF), (-TINY,)),
        (mean(), [Interval(-INF, 1), Interval(0, INF)], (-INF, 0, INF), ()),
    ],
)
def test_laws_of_unbounded_intervals(law, x, inside, outside):
    y = pool(law, x)
    assert all(value in y for value in inside)
    assert not any(value in y for value in outside)
    window = Window((whole(2),))
    shares = vjp(window, law, x, forward(window, law, x)[1], [1])
    assert all(isinstance(share, Interval) and -2 < share.lo <= share.hi < 2 for share in shares)


@pytest.mark.parametrize(("nan", "expected"), [("propagate", None), ("ignore", Interval(0, 1))])
def test_a_nan_among_intervals_wins_or_loses(nan, expected):
    y = pool(maximum(nan=nan), [Interval(0, 1), NAN])
    assert y == expected if expected else y.lo != y.lo


def test_a_nan_among_intervals_spoils_a_smooth_max():
    for law in (smooth_max(2.0), lp(2)):
        y = pool(law, [Interval(0, 1), NAN])
        assert y.lo != y.lo


def test_an_interval_as_beta_makes_every_result_an_interval():
    op = ndpool.SmoothMaxPool((2,), 2, 2, beta=Interval(0.5, 1))
    for results in (op([0.1, 0.7]), op.jvp([0.1, 0.7], [1.0, 0.0]), op.vjp([0.1, 0.7], [1.0, 1.0, 1.0])):
        assert all(isinstance(result, Interval) for result in results)
    with mpmath.workdps(50):
        for beta in (mpmath.mpf(1) / 2, mpmath.mpf(1)):
            taps = [mpmath.exp(beta * mpmath.mpf(x)) for x in (0.1, 0.7)]
            assert mpmath.log(sum(taps)) / beta in op([0.1, 0.7])[1]
            assert mpmath.log(2) / beta in op([0.1, 0.7])[0]


def test_unpooled_intervals_lie_among_intervals():
    assert ndpool.max_unpool([Interval(1, 2)], [1], (2,)) == [Interval(0, 0), Interval(1, 2)]


# -- every record

LAWS = {
    **{
        f"{kind}-{ties}": (kind, {"ties": ties})
        for kind in ("Max", "Min")
        for ties in ("first", "last", "all", "split")
    },
    "Sum": ("Sum", {}),
    "Avg": ("Avg", {}),
    "SmoothMax": ("SmoothMax", {"beta": 0.5}),
    "SmoothMax-sharp": ("SmoothMax", {"beta": 300.0}),
    "SmoothMin": ("SmoothMax", {"beta": -2.0}),
    **{f"Lp-{p}": ("Lp", {"norm_type": p}) for p in (1, 1.5, 2, 3, 40)},
}
FORMS = {
    "padded": ("", {"kernel_size": (2,), "stride": 2, "padding": 2}),
    "uncounted": ("", {"kernel_size": (2,), "stride": 2, "padding": 2, "count_include_pad": False}),
    "dilated": ("", {"kernel_size": (2,), "stride": 1, "padding": 1, "dilation": 3}),
    "ceil": ("", {"kernel_size": (3,), "stride": 3, "padding": 1, "ceil_mode": True}),
    "2d": ("", {"kernel_size": (2, 2), "stride": 1, "padding": (1, 0)}),
    "adaptive": ("Adaptive", {"output_size": (3,)}),
    "global": ("Global", {}),
}


def record(law, form):
    (kind, own), (prefix, shape) = LAWS[law], FORMS[form]
    if kind not in ("Avg", "SmoothMax"):
        shape = {name: value for name, value in shape.items() if name != "count_include_pad"}
    return getattr(ndpool, f"{prefix}{kind}Pool")(**own, **shape)


def exactly(op, x, pads):
    """The value of one window at exact numbers and the derivative in each; `pads` zeros count."""
    if op.name.endswith(("max_pool", "min_pool")) and "smooth" not in op.name:
        y = (max if "max" in op.name else min)(x)
        winners = [i for i, value in enumerate(x) if value == y]
        chosen = {"first": winners[:1], "last": winners[-1:]}.get(op.ties, winners)
        share = mpmath.mpf(1) / (len(winners) if op.ties == "split" else 1)
        return y, [share * (i in chosen) for i in range(len(x))]
    if op.name.endswith(("sum_pool", "avg_pool")):
        divisor = len(x) + pads if "avg" in op.name else 1
        return mpmath.fsum(x) / divisor, [mpmath.mpf(1) / divisor] * len(x)
    if "smooth" in op.name:
        terms = [mpmath.exp(op.beta * value) for value in x]
        total = mpmath.fsum(terms) + pads
        return mpmath.log(total) / op.beta, [term / total for term in terms]
    p = mpmath.mpf(op.norm_type)
    y = mpmath.fsum(abs(value) ** p for value in x) ** (1 / p)
    return y, [mpmath.sign(value) * (abs(value) / y) ** (p - 1) if value else mpmath.mpf(0) for value in x]


ends = st.sampled_from([0.0, TINY, -TINY, 1.0, -1.0, 1e-200, -1e-200, 700.0]) | st.floats(-4, 4)


@st.composite
def members(draw, plain=True):
    """An interval, or a plain number, and an exact number in it: often an end."""
    lo, hi = sorted([draw(ends), draw(ends)])
    hi = draw(st.sampled_from([lo, hi, hi]))
    inside = draw(st.sampled_from([lo, hi, (lo + hi) / 2]))
    return lo if plain and lo == hi and draw(st.booleans()) else Interval(lo, hi), mpmath.mpf(inside)


def drawn(data, shape, plain=True):
    """A nested list of what the op is given, and the exact numbers, flat."""
    n = math.prod(shape)
    found = data.draw(st.lists(members(plain), min_size=n, max_size=n))
    return nest([given for given, _ in found], shape), [exact for _, exact in found]


@pytest.mark.parametrize("law", LAWS)
@given(form=st.sampled_from(list(FORMS)), data=st.data())
def test_every_result_is_an_interval_that_encloses(law, form, data):
    op = record(law, form)
    shape = (2, 3) if form == "2d" else (4,)
    window, out = op.window(shape), op.out_shape(shape)
    (x, at), (dx, along), (dy, back) = drawn(data, shape), drawn(data, shape), drawn(data, out)
    if not any(isinstance(value, Interval) for value in flatten(x)[0]):
        x, at = drawn(data, shape, plain=False)
    results = [flatten(result)[0] for result in (op(x), op.jvp(x, dx), op.vjp(x, dy))]
    assert all(isinstance(value, Interval) for result in results for value in result)
    with mpmath.workdps(60):  # `fsum` rounds once, so a sum that cancels keeps its digits
        expected, arriving = ([], [], []), [[] for _ in at]
        for (taps, count), g in zip(window, back, strict=True):
            pads = max(0, count - len(taps)) if getattr(op, "count_include_pad", False) else 0
            value, slopes = exactly(op, [at[t] for t in taps], pads) if taps or pads else (mpmath.mpf(0), [])
            expected[0].append(value)
            expected[1].append(mpmath.fsum(slope * along[t] for slope, t in zip(slopes, taps, strict=True)))
            for slope, t in zip(slopes, taps, strict=True):
                arriving[t].append(slope * g)
        expected[2].extend(map(mpmath.fsum, arriving))
        for what, result, exact in zip(("value", "jvp", "vjp"), results, expected, strict=True):
            for i, (enclosure, number) in enumerate(zip(result, exact, strict=True)):
                assert number in enclosure, (what, i, x, enclosure)
