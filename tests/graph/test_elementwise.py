"""Every row of the table is torch's function, at extreme values too, and runs on any scalar."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ndpool import Dual, Graph, Interval, Program
from ndpool.graph.elementwise import TABLE

from .strategies import TORCH_WARNS, close, given, like_torch, seeds, tangent, unary

torch = pytest.importorskip("torch", reason="torch is what the rows are compared with")
F = torch.nn.functional
pytestmark = TORCH_WARNS

TORCH: dict[str, Callable[[Any], Any]] = {
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": lambda t: F.softplus(t, threshold=50),
}
POSITIVE = ("log", "sqrt")
EVERYWHERE = tuple(name for name in TABLE if name not in POSITIVE)
every_row = pytest.mark.parametrize("name", TABLE)


def row(name: str, shape: tuple[int, ...] = (1,)) -> Program:
    return unary(lambda g, x: getattr(g, name)(x), shape)


def test_the_table_is_compared_in_full() -> None:
    assert set(TORCH) == set(TABLE)


@every_row
@given(seeds, examples=20)
def test_value_and_derivatives(name: str, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4)) * rng.choice([0.1, 1, 10])
    like_torch(row(name, (3, 4)), TORCH[name], np.abs(x) + 1e-3 if name in POSITIVE else x, rtol=1e-11)


@every_row
def test_a_single_number(name: str) -> None:
    like_torch(row(name, ()), TORCH[name], np.array(0.7))


EXTREMES = [
    0.0,
    -0.0,
    1e-320,
    40.0,
    -40.0,
    800.0,
    -800.0,
    1000.0,
    -1000.0,
    1e300,
    -1e300,
    math.inf,
    -math.inf,
    math.nan,
]


@pytest.mark.parametrize("x", EXTREMES)
@every_row
def test_extreme_values_are_torchs(name: str, x: float) -> None:
    """Warnings are errors here: a formula that handles an overflow inside does so quietly.

    What is itself infinite or undefined (exp(1000), log(0), log(-1), sqrt's slope at 0) may warn, as NumPy does.
    """
    t = torch.tensor([x], dtype=torch.float64)
    y, slope = torch.func.jvp(TORCH[name], (t,), (torch.ones_like(t),))
    loud = not (torch.isfinite(y) & torch.isfinite(slope)).all() and not math.isnan(x)
    with np.errstate(all="ignore") if loud and name in ("exp", "log", "sqrt") else nullcontext():
        program, a = row(name), np.array([x])
        close(program(a), y.numpy())
        close(program.jvp(a, np.ones(1)), slope.numpy())
        close(program.vjp(a, np.ones(1)), slope.numpy())


@pytest.mark.parametrize("x", [x for x in EXTREMES if x not in (1e300,)])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_nested_lists_of_floats_are_the_same(name: str, x: float) -> None:
    if name == "exp" and math.isfinite(x) and x > 700:
        pytest.skip("math.exp says itself that it overflows")
    program = row(name)
    with np.errstate(all="ignore"):
        y, slope = program(np.array([x])), program.jvp(np.array([x]), np.ones(1))
    close(program([x]), y)
    close(program.jvp([x], [1.0]), slope)
    close(program.vjp([x], [1.0]), slope)


@pytest.mark.parametrize("x", [-1.0, Fraction(-1), -math.inf])
@pytest.mark.parametrize("name", POSITIVE)
def test_outside_the_domain_there_is_no_real_value(name: str, x: Any) -> None:
    """An error or a NaN, never a complex number and never inf."""
    try:
        (y,) = row(name)([x])
    except (ValueError, ArithmeticError):
        return
    assert isinstance(y, float)
    assert math.isnan(y)


# -- other scalars -------------------------------------------------------------------------------------------------

DECIMAL: dict[str, Callable[[Decimal], Decimal]] = {
    "neg": lambda x: -x,
    "exp": lambda x: x.exp(),
    "log": lambda x: x.ln(),
    "sqrt": lambda x: x.sqrt(),
    "relu": lambda x: max(x, Decimal(0)),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1),
    "softplus": lambda x: (1 + x.exp()).ln(),
}


@every_row
@given(st.decimals(-20, 20, places=3))
def test_decimals_keep_their_digits(name: str, x: Decimal) -> None:
    x = abs(x) + 1 if name in POSITIVE else x
    with localcontext() as context:
        context.prec = 45
        (y,) = row(name)([x])
        want = DECIMAL[name](x)
        assert isinstance(y, (Decimal, int))
        assert abs(y - want) <= Decimal(10) ** -25 * max(1, abs(want))  # far beyond a float


@every_row
@given(st.fractions(-10, 10, max_denominator=50))
def test_fractions(name: str, x: Fraction) -> None:
    x = abs(x) + Fraction(1, 10) if name in POSITIVE else x
    program = row(name)
    close(float(program([x])[0]), program(np.array([float(x)]))[0])
    close(float(program.jvp([x], [Fraction(1)])[0]), program.jvp(np.array([float(x)]), np.ones(1))[0])
    if name in ("neg", "relu"):
        assert program([x]) == [-x if name == "neg" else max(x, 0)]


@every_row
@given(st.floats(-30, 30), st.floats(-3, 3))
def test_dual_numbers_move_by_jvp(name: str, x: float, dx: float) -> None:
    x = abs(x) + 0.01 if name in POSITIVE else x
    program = row(name)
    (y,) = program([Dual(x, dx)])
    close(float(tangent(y)), float(program.jvp([x], [dx])[0]), 1e-9)
    close(float(y.value if isinstance(y, Dual) else y), float(program([x])[0]))


@every_row
@given(st.floats(0.1, 5), st.booleans())
def test_nested_duals_are_second_order(name: str, x: float, negative: bool) -> None:
    x = -x if negative and name not in POSITIVE else x
    (y,) = row(name)([Dual(Dual(x, 1.0), Dual(1.0, 0.0))])
    t = torch.tensor(x, dtype=torch.float64)
    want = torch.func.grad(torch.func.grad(TORCH[name]))(t).item()
    outer = tangent(y)
    close(float(tangent(outer)), want, 1e-9)


# -- intervals -----------------------------------------------------------------------------------------------------


def ends(name: str) -> Any:
    positive = st.floats(1e-3, 50)
    span = positive if name in POSITIVE else st.one_of(positive, positive.map(lambda x: -x), st.just(0.0))
    return st.tuples(span, span).map(sorted)


@every_row
@given(st.data(), st.floats(0, 1))
def test_intervals_enclose_the_exact_value_and_slope(name: str, data: Any, part: float) -> None:
    """At a random point inside, worked out to 60 digits."""
    lo, hi = data.draw(ends(name))
    x = min(hi, max(lo, lo + part * (hi - lo)))
    program = row(name)
    (y,) = program([Interval(lo, hi)])
    (slope,) = program.jvp([Interval(lo, hi)], [1])
    with localcontext() as context:
        context.prec = 60
        value = DECIMAL[name](Decimal(x))
        assert y.lo <= value <= y.hi, (x, y, value)
        assert _enclosed(slope, _slope(name, Decimal(x))), (x, slope)


def _enclosed(slope: Any, exact: Decimal) -> bool:
    slope = Interval.of(slope)
    return bool(slope.lo <= exact <= slope.hi)


def _slope(name: str, x: Decimal) -> Decimal:
    f = DECIMAL
    return {
        "neg": lambda: Decimal(-1),
        "exp": lambda: f["exp"](x),
        "log": lambda: 1 / x,
        "sqrt": lambda: 1 / (2 * x.sqrt()),
        "relu": lambda: Decimal(int(x > 0)),
        "sigmoid": lambda: f["sigmoid"](x) * (1 - f["sigmoid"](x)),
        "tanh": lambda: 1 - f["tanh"](x) ** 2,
        "softplus": lambda: f["sigmoid"](x),
    }[name]()


@every_row
@given(st.data())
def test_intervals_of_one_point_enclose_it(name: str, data: Any) -> None:
    """The width is rounding alone, so this is where rounding that is not outwards would show."""
    x = data.draw(ends(name))[0]
    (y,) = row(name)([Interval(x, x)])
    with localcontext() as context:
        context.prec = 60
        value = DECIMAL[name](Decimal(x))
        assert y.lo <= value <= y.hi, (x, y, value)
    assert y.hi - y.lo <= 1e-13 * max(1, abs(y.hi))


WIDE = [(-1.0, 1000.0), (-1000.0, 1000.0), (-1000.0, 1.0), (1.0, 1000.0)]


@pytest.mark.parametrize(("lo", "hi"), WIDE)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_wide_intervals(name: str, lo: float, hi: float) -> None:
    program = row(name)
    (y,) = program([Interval(lo, hi)])
    (slope,) = program.jvp([Interval(lo, hi)], [1])
    with localcontext() as context:
        context.prec = 900
        for x in map(Decimal, (lo, hi, (lo + hi) / 2)):
            assert y.lo <= DECIMAL[name](x) <= y.hi, (x, y)
            assert _enclosed(slope, _slope(name, x)), (x, slope)


@pytest.mark.parametrize("name", POSITIVE)
def test_intervals_that_touch_the_end_of_the_domain(name: str) -> None:
    (y,) = row(name)([Interval(0.0, 4.0)])
    assert y.lo <= (0 if name == "sqrt" else -1e300)
    assert y.hi >= (2 if name == "sqrt" else math.log(4))


def test_rounding_outwards_stays_inside_the_range_of_a_function() -> None:
    graph = Graph()
    x = graph.input((1,))
    (y,) = graph.build(graph.sqrt(graph.sqrt(x)))([Interval(0.0, 16.0)])
    assert y.lo == 0
    assert 2 <= y.hi < 2.001
    assert [(y.lo, y.hi) for (y,) in (row("tanh")([Interval(-9e9, 9e9)]), row("sigmoid")([Interval(-9e9, 9e9)]))] == [
        (-1, 1),
        (0, 1),
    ]


def test_the_slope_of_relu_is_0_at_0() -> None:
    program = row("relu")
    assert program.vjp(np.zeros(1), np.ones(1)).tolist() == program.vjp([0], [1]) == [0]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_rows_compose(xs: list[float]) -> None:
    a = np.array(xs)
    program = unary(lambda g, x: g.log(g.softplus(g.tanh(g.neg(x)))), a.shape)
    like_torch(program, lambda t: torch.log(F.softplus(torch.tanh(-t))), a, rtol=1e-10)
