"""Laws of pooling that hold for any window: derivatives first, then how windows and laws go together."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
import sympy
from hypothesis import strategies as st

from ndpool.spec import (
    SUM,
    Dual,
    Window,
    adaptive,
    each,
    forward,
    jvp,
    lp,
    maximum,
    mean,
    minimum,
    sliding,
    smooth_max,
    unpool,
    vjp,
    whole,
)

from .strategies import (
    AXES,
    EXTREMES,
    FULL,
    LAWS,
    LINEAR,
    NORMS,
    SMOOTH,
    Exact,
    Slide,
    every,
    floats,
    given,
    inner,
    inputs,
    lists,
    nonzero,
    outputs,
    slides,
    taps_of,
    window_of,
    windows,
)

TIES = ("first", "last", "all", "split")
exacts = st.integers(-2, 2).map(Exact)
singular = st.sampled_from([math.nan, -math.inf, -1.0, 0.0, math.inf])


def values(window, law, x):
    return forward(window, law, x)[0]


# -- jvp and vjp are adjoint


@every(LAWS)
@given(window=windows(), data=st.data())
def test_vjp_is_the_adjoint_of_jvp(law, window, data):
    """<jvp(dx), dy> = <dx, vjp(dy)>, exactly."""
    x, dx, dy = data.draw(inputs(window, exacts)), data.draw(inputs(window)), data.draw(outputs(window))
    _, residuals = forward(window, law, x)
    assert inner(jvp(window, law, x, residuals, dx), dy) == inner(dx, vjp(window, law, x, residuals, dy))


@every(EXTREMES)
@given(window=windows(), data=st.data())
def test_vjp_is_the_adjoint_of_jvp_at_nan_and_infinity(law, window, data):
    x, dx, dy = data.draw(inputs(window, singular)), data.draw(inputs(window)), data.draw(outputs(window))
    _, residuals = forward(window, law, x)
    assert inner(jvp(window, law, x, residuals, dx), dy) == inner(dx, vjp(window, law, x, residuals, dy))


# -- jvp is forward on dual numbers


def by_duals(window, law, x, dx):
    y = values(window, law, [Dual(a, b) for a, b in zip(x, dx, strict=True)])
    return [Dual.of(value).value for value in y], [Dual.of(value).tangent for value in y]


@every(EXTREMES | LINEAR | SMOOTH)
@given(window=windows(), data=st.data())
def test_jvp_is_forward_on_dual_numbers(law, window, data):
    """Exactly, also at ties, and for smooth max whatever exp and log say."""
    x, dx = data.draw(inputs(window, exacts)), data.draw(inputs(window))
    y, residuals = forward(window, law, x)
    value, tangent = by_duals(window, law, x, dx)
    assert tangent == jvp(window, law, x, residuals, dx)
    assert value == y or law.name == "smooth_max"  # the stand-ins for exp and log are not math's


@pytest.mark.parametrize(("ties", "tangent"), [("first", 6), ("last", 0), ("all", 6), ("split", 3)])
def test_a_zero_of_counted_padding_ties_and_takes_its_share_nowhere(ties, tangent):
    window, law, x = Window((sliding(1, 2, 1, padding=(0, 1)),)), maximum(ties), [Fraction(0)]
    _, residuals = forward(window, law, x)
    assert jvp(window, law, x, residuals, [Fraction(6)]) == [tangent]
    assert by_duals(window, law, x, [Fraction(6)]) == ([0], [tangent])


@every(SMOOTH | NORMS | {"lp-1.5": lp(1.5)})
@given(window=windows(budget=24), data=st.data())
def test_jvp_is_forward_on_dual_numbers_to_rounding(law, window, data):
    x, dx = data.draw(inputs(window, floats)), data.draw(inputs(window, floats))
    y, residuals = forward(window, law, x)
    value, tangent = by_duals(window, law, x, dx)
    assert value == pytest.approx(y, abs=1e-12)
    assert tangent == pytest.approx(jvp(window, law, x, residuals, dx), abs=1e-9)


@pytest.mark.parametrize("x", [[-math.inf, 1.0], [1.0, -math.inf], [math.inf, 1.0], [-math.inf]])
def test_jvp_of_smooth_max_is_forward_on_dual_numbers_at_infinity(x):
    window, law = Window((whole(len(x)),)), smooth_max(2.0)
    y, residuals = forward(window, law, x)
    dx = [3.0, 5.0][: len(x)]
    assert by_duals(window, law, x, dx) == (y, jvp(window, law, x, residuals, dx))


# -- vjp is the derivative of a formula written down elsewhere


FORMULAS = {
    "sum": (SUM, lambda x, n: sum(x)),
    "mean": (mean(), lambda x, n: sum(x) / n),
    "mean-over-3": (mean(3), lambda x, n: sum(x) / 3),
    "smooth_max": (smooth_max(2), lambda x, n: sympy.log(sum(map(sympy.exp, (2 * v for v in x))) + n - len(x)) / 2),
    "smooth_min": (smooth_max(-1), lambda x, n: -sympy.log(sum(sympy.exp(-v) for v in x) + n - len(x))),
    "lp-2": (lp(2), lambda x, n: sympy.sqrt(sum(v**2 for v in x))),
    "lp-3": (lp(3), lambda x, n: sympy.cbrt(sum(sympy.Abs(v) ** 3 for v in x))),
}


@cache
def derivatives(name, taps, count):
    """The value, gradient and Hessian of the formula, as functions of a list of `taps` numbers."""
    x = sympy.symbols(f"x:{taps}", real=True)
    y = sympy.sympify(FORMULAS[name][1](x, count))
    gradient = [sympy.diff(y, v) for v in x]
    hessian = [[sympy.diff(slope, v).replace(sympy.DiracDelta, lambda *_: 0) for v in x] for slope in gradient]
    return [sympy.lambdify([x], part, "math") for part in (y, gradient, hessian)]


@pytest.mark.parametrize("name", FORMULAS)
@given(slides=st.lists(slides(n=3, k=2, s=2), max_size=2), data=st.data())
def test_forward_and_vjp_are_a_formula_and_its_derivative(name, slides, data):
    window, law = window_of(slides), FORMULAS[name][0]
    x, dy = data.draw(inputs(window, nonzero)), data.draw(outputs(window, floats))
    y, residuals = forward(window, law, x)
    dx = [0.0] * len(x)
    for (taps, count), value, g in zip(taps_of(slides), y, dy, strict=True):
        if not taps:
            continue
        formula, gradient, _ = derivatives(name, len(taps), count)
        here = [x[t] for t in taps]
        assert value == pytest.approx(formula(here), abs=1e-12)
        for t, slope in zip(taps, gradient(here), strict=True):
            dx[t] += g * slope
    assert vjp(window, law, x, residuals, dy) == pytest.approx(dx, abs=1e-9)


@given(st.lists(slides(n=3, k=2, s=2), max_size=3), st.data())
def test_vjp_of_max_sends_each_cotangent_to_the_first_winner(slides, data):
    bare = [Slide(s.n, s.k, s.s, s.lo, s.hi, s.d, s.ceil, count=False) for s in slides]
    window = window_of(bare)
    x, dy = data.draw(inputs(window)), data.draw(outputs(window))
    dx = [Fraction(0)] * len(x)
    for (taps, _), g in zip(taps_of(bare), dy, strict=True):
        if taps:
            best = max(x[t] for t in taps)
            dx[next(t for t in taps if x[t] == best)] += g
    _, residuals = forward(window, maximum(), x)
    assert vjp(window, maximum(), x, residuals, dy) == dx
    if all(residuals):
        assert unpool(dy, [winners[0] for winners, _ in residuals], len(x)) == dx


# -- second order

CURVED = ("smooth_max", "smooth_min", "lp-2", "lp-3")


@pytest.mark.parametrize("name", CURVED)
@given(x=lists(3, nonzero), u=lists(3, floats), v=lists(3, floats))
def test_second_derivative(name, x, u, v):
    """u'Hv three ways: jvp at a dual point, vjp at a dual point, and nested dual numbers."""
    window, law = Window((whole(3),)), FORMULAS[name][0]
    hessian = derivatives(name, 3, 3)[2](x)
    expected = inner(u, [inner(row, v) for row in hessian])
    at = [Dual(a, b) for a, b in zip(x, v, strict=True)]
    _, residuals = forward(window, law, at)
    (along,) = jvp(window, law, at, residuals, u)
    back = vjp(window, law, at, residuals, [1.0])
    (nested,) = values(window, law, [Dual(a, Dual(b)) for a, b in zip(at, u, strict=True)])
    for found in (along.tangent, inner(u, [g.tangent for g in back]), nested.tangent.tangent):
        assert found == pytest.approx(expected, abs=1e-9)


def test_second_derivative_of_the_length_where_a_tap_is_zero():
    """y = sqrt(9 + x^2) has y'' = 1/3 at x = 0."""
    window, law = Window((whole(2),)), lp(2)
    at = [Dual(3.0), Dual(0.0, 1.0)]
    _, residuals = forward(window, law, at)
    (along,) = jvp(window, law, at, residuals, [0.0, 1.0])
    (nested,) = values(window, law, [Dual(Dual(3.0)), Dual(Dual(0.0, 1.0), Dual(1.0))])
    assert (along.tangent, nested.tangent.tangent) == pytest.approx((1 / 3, 1 / 3))


@given(windows(FULL, budget=24), st.data())
def test_max_has_no_second_derivative(window, data):
    x, dx = data.draw(inputs(window, floats)), data.draw(inputs(window))
    at = [Dual(value, Fraction(1)) for value in x]
    _, residuals = forward(window, maximum(), at)
    assert all(not isinstance(tangent, Dual) for tangent in jvp(window, maximum(), at, residuals, dx))


# -- one law


@every(LINEAR)
@given(window=windows(), a=st.fractions(-2, 2), data=st.data())
def test_sum_and_mean_are_linear(law, window, a, data):
    x, z = data.draw(inputs(window)), data.draw(inputs(window))
    combined = values(window, law, [a * p + q for p, q in zip(x, z, strict=True)])
    parts = zip(values(window, law, x), values(window, law, z), strict=True)
    assert combined == [a * p + q for p, q in parts]


@pytest.mark.parametrize("ties", TIES)
@given(window=windows(), data=st.data())
def test_min_is_minus_max_of_minus(ties, window, data):
    x, dy = data.draw(inputs(window)), data.draw(outputs(window))
    y, residuals = forward(window, minimum(ties), x)
    flipped, mirrored = forward(window, maximum(ties), [-value for value in x])
    assert y == [-value for value in flipped]
    assert vjp(window, minimum(ties), x, residuals, dy) == vjp(window, maximum(ties), x, mirrored, dy)


@every({"max": maximum(), "min": minimum(), "mean": mean()} | SMOOTH)
@given(window=windows(FULL), c=exacts, data=st.data())
def test_adding_a_constant_moves_the_value_by_it(law, window, c, data):
    x = data.draw(inputs(window, exacts))
    assert values(window, law, [a + c for a in x]) == [y + c for y in values(window, law, x)]


@every({"max": maximum(), "sum": SUM, "mean": mean()} | SMOOTH)
@given(slide=slides(), data=st.data())
def test_an_input_moved_by_a_stride_moves_the_output_by_one(law, slide, data):
    axis = sliding(slide.n + slide.s, min(slide.k, slide.n), slide.s, dilation=1)
    moved = sliding(slide.n, min(slide.k, slide.n), slide.s, dilation=1)
    x = data.draw(lists(slide.n + slide.s, exacts))
    assert values(Window((moved,)), law, x[slide.s :]) == values(Window((axis,)), law, x)[1:]


@given(st.lists(st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 2)]), max_size=3), st.data())
def test_max_of_a_tiling_is_max_of_maxes(tiles, data):
    tiling = Window(tuple(sliding(k * m, kernel=k) for k, m in tiles))
    every_tile = Window(tuple(whole(m) for _, m in tiles))
    x = data.draw(inputs(tiling))
    assert values(every_tile, maximum(), values(tiling, maximum(), x)) == [max(x)]


# -- one window


@every(LAWS)
@given(sizes=st.lists(st.integers(1, 3), max_size=4), data=st.data())
def test_global_is_adaptive_to_one_is_sliding_over_everything(law, sizes, data):
    x = data.draw(lists(math.prod(sizes), exacts))
    (found,) = {
        str(forward(Window(tuple(axis(n) for n in sizes)), law, x))
        for axis in (whole, lambda n: adaptive(n, 1), lambda n: sliding(n, kernel=n))
    }
    assert found == str(forward(Window((whole(len(x)),)), law, x))


@every(EXTREMES | LINEAR | SMOOTH)
@given(shape=st.lists(st.integers(1, 3), max_size=4), data=st.data())
def test_axes_that_read_themselves_change_nothing(law, shape, data):
    x = data.draw(lists(math.prod(shape), exacts))
    scale = 3 if law is LINEAR["mean-over-3"] else 1
    assert values(Window(tuple(map(each, shape))), law, x) == [value / scale for value in x]


@pytest.mark.parametrize("rank", range(9))
@every({"max": maximum(), "min": minimum(), "sum": SUM, "mean": mean()})
def test_rank_is_not_a_case(law, rank):
    """2 x 2 x ... corners hold 0, 1, ..., 2**rank - 1; the whole of them is pooled, at every rank."""
    corners = [Fraction(i) for i in range(2**rank)]
    builtin = {"max": max, "min": min, "sum": sum, "mean": lambda x: sum(x) / len(x)}[law.name]
    window = Window((whole(2),) * rank)
    y, residuals = forward(window, law, corners)
    assert y == [builtin(corners)]
    assert sum(vjp(window, law, corners, residuals, y)) == (2**rank * y[0] if law is SUM else y[0])


@every({"max": maximum(), "min-all": minimum("all")} | LINEAR | SMOOTH | NORMS)
@given(window=windows(budget=24), batch=st.integers(0, 3), data=st.data())
def test_leading_axes_are_independent(law, window, batch, data):
    parts = [data.draw(inputs(window, exacts)) for _ in range(batch)]
    batched = Window((each(batch), *window.axes))
    x = [value for part in parts for value in part]
    assert values(batched, law, x) == [y for part in parts for y in values(window, law, part)]


COUNTING = {"sum": SUM, "mean": mean(), "smooth_max": smooth_max(2.0), "smooth_min": smooth_max(-0.5), "lp-2": lp(2)}


@every(COUNTING)
@given(slides=st.lists(slides(n=3, k=2, s=2), max_size=2), data=st.data())
def test_counted_padding_is_a_zero_padded_input(law, slides, data):
    """The value is that of the larger input, and the cotangent is its middle."""
    counted = Window(tuple(sliding(s.n, s.k, s.s, (s.lo, s.hi), s.d) for s in slides))
    padded = Window(tuple(sliding(s.lo + s.n + s.hi, s.k, s.s, (0, 0), s.d) for s in slides))
    x, dy = data.draw(inputs(counted, floats)), data.draw(outputs(counted, floats))
    inside = [
        all(s.lo <= i < s.lo + s.n for s, i in zip(slides, place, strict=True))
        for place in product(*(range(n) for n in padded.shape))
    ]
    rest = iter(x)
    larger = [next(rest) if real else 0.0 for real in inside]
    y, residuals = forward(counted, law, x)
    z, others = forward(padded, law, larger)
    assert y == pytest.approx(z, abs=1e-12)
    back = vjp(padded, law, larger, others, dy)
    middle = [g for g, real in zip(back, inside, strict=True) if real]
    assert vjp(counted, law, x, residuals, dy) == pytest.approx(middle, abs=1e-9)


# -- separable laws, axis by axis


def by_axes(window, law, x):
    """Pool the innermost axis alone, then the next; the values and, for max, where each came from."""
    origin = list(range(len(x)))
    shape = list(window.shape)
    for i in reversed(range(len(shape))):
        alone = Window(tuple(window.axes[i] if i == j else each(n) for j, n in enumerate(shape)))
        x, residuals = forward(alone, law, x)
        if law.name in ("max", "min"):
            origin = [origin[winners[0]] for winners, _ in residuals]
        shape[i] = window.axes[i].outputs
    return x, origin


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("law", [maximum, minimum])
@given(window=windows(FULL), data=st.data())
def test_max_axis_by_axis_has_the_same_winner(law, ties, window, data):
    """Row-major order among equals survives because the innermost axis goes first."""
    x = data.draw(inputs(window))
    y, residuals = forward(window, law(ties), x)
    assert by_axes(window, law(ties), x) == (y, [winners[0] for winners, _ in residuals])


@every({"sum": SUM, "mean": mean()})
@given(window=windows(AXES), data=st.data())
def test_sum_and_mean_axis_by_axis_are_the_same(law, window, data):
    """With any padding: zeros add nothing, and a count is the product of its axes'."""
    x = data.draw(inputs(window))
    assert by_axes(window, law, x)[0] == values(window, law, x)


@every(SMOOTH)
@given(window=windows(FULL), data=st.data())
def test_smooth_max_axis_by_axis_is_the_same(law, window, data):
    x = data.draw(inputs(window, floats))
    assert by_axes(window, law, x)[0] == pytest.approx(values(window, law, x), abs=1e-12)


# -- unpool


@given(st.integers(1, 6), st.data())
def test_unpool_adds_values_that_meet(size, data):
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=6))
    y = data.draw(lists(len(places)))
    expected = [sum(v for v, place in zip(y, places, strict=True) if place == i) for i in range(size)]
    assert unpool(y, places, size) == expected
