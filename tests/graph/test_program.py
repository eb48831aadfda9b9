"""A program runs forward, pushes tangents and pulls cotangents: one meaning on every scalar and array."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from ndpool import Dual, DualArray, Graph, GraphError, Interval, PoolError, Program
from ndpool.graph import Var

from .strategies import (
    TORCH_WARNS,
    Counted,
    ForwardOnly,
    Square,
    as_tuple,
    close,
    flat,
    floats,
    fractions,
    given,
    inner,
    like_hessian,
    of,
    programs,
    seeds,
    several,
    tangent,
    to_array,
    unary,
    zipped,
)

pytestmark = TORCH_WARNS


# -- laws of every program, exactly -------------------------------------------------------------------------------


@given(programs(), seeds, examples=150)
def test_jvp_and_vjp_are_adjoint_exactly(program: Program, rng: np.random.Generator) -> None:
    xs, dxs = several(rng, program.input_shapes), several(rng, program.input_shapes)
    dys = several(rng, program.output_shapes)
    dys = dys if len(dys) > 1 else dys[0]
    assert inner(program.jvp(xs, dxs), dys) == inner(dxs, as_tuple(program.vjp(xs, dys), len(xs)))


@given(programs(), seeds, examples=150)
def test_forward_on_dual_scalars_moves_by_jvp_exactly(program: Program, rng: np.random.Generator) -> None:
    xs, dxs = several(rng, program.input_shapes), several(rng, program.input_shapes)
    raised = program(*zipped(Dual, xs, dxs))
    assert list(map(tangent, flat(raised))) == flat(program.jvp(xs, dxs))
    values = [y.value if isinstance(y, Dual) else y for y in flat(raised)]
    assert values == flat(program(*xs))


@given(programs(), seeds, examples=80)
def test_results_over_fractions_are_exact(program: Program, rng: np.random.Generator) -> None:
    """Nothing turns into a float on the way."""
    xs = several(rng, program.input_shapes)
    ones = several(rng, program.output_shapes)
    results = flat([program(*xs), program.jvp(xs, xs), program.vjp(xs, ones if len(ones) > 1 else ones[0])])
    assert not [v for v in results if not isinstance(v, (int, Fraction))]


@given(programs(), seeds, examples=80)
def test_linearize_is_jvp_and_vjp(program: Program, rng: np.random.Generator) -> None:
    xs, dxs = several(rng, program.input_shapes), several(rng, program.input_shapes)
    dys = several(rng, program.output_shapes)
    dys = dys if len(dys) > 1 else dys[0]
    at = program.linearize(xs)
    assert at.y == program(*xs)
    for _ in range(2):  # as often as wanted
        assert at.jvp(dxs) == program.jvp(xs, dxs)
        assert at.vjp(dys) == program.vjp(xs, dys)


@given(programs(), seeds, examples=100)
def test_arrays_agree_with_fractions(program: Program, rng: np.random.Generator) -> None:
    xs, dxs = several(rng, program.input_shapes), several(rng, program.input_shapes)
    dys = several(rng, program.output_shapes)

    def same(got: Any, want: Any, count: int) -> None:
        for a, w in zip(as_tuple(got, count), as_tuple(want, count), strict=True):
            assert isinstance(a, np.ndarray)
            close(a, to_array(w), 1e-9)

    arrays, moved, pulled = (tuple(map(to_array, values)) for values in (xs, dxs, dys))
    outs, ins = len(dys), len(xs)
    same(program(*arrays), program(*xs), outs)
    same(program.jvp(arrays, moved), program.jvp(xs, dxs), outs)
    got = program.vjp(arrays, pulled if outs > 1 else pulled[0])
    same(got, program.vjp(xs, dys if outs > 1 else dys[0]), ins)
    at = program.linearize(arrays)
    same(at.jvp(moved), program.jvp(xs, dxs), outs)


@given(programs(), seeds, examples=60)
def test_dual_arrays_move_by_jvp(program: Program, rng: np.random.Generator) -> None:
    xs, dxs = (several(rng, program.input_shapes, floats) for _ in range(2))
    raised = program(*(DualArray(x, dx) for x, dx in zip(xs, dxs, strict=True)))
    count = len(program.outputs)
    for y, dy in zip(as_tuple(raised, count), as_tuple(program.jvp(xs, dxs), count), strict=True):
        close(y.tangent if isinstance(y, DualArray) else np.zeros(y.shape), dy, 1e-10)


@given(programs(), seeds, examples=60)
def test_intervals_enclose_every_point_inside(program: Program, rng: np.random.Generator) -> None:
    low = several(rng, program.input_shapes)
    wide = zipped(lambda lo: Interval(float(lo), float(lo) + float(rng.choice([0.0, 0.5, 1.0]))), low)
    try:
        enclosed = flat(program(*wide))
    except ZeroDivisionError:
        return  # b * b + 1 contains 0 for all that an interval knows
    for _ in range(3):
        inside = zipped(lambda i: Fraction(i.lo) + Fraction(float(rng.random())) * Fraction(i.hi - i.lo), wide)
        for interval, y in zip(enclosed, flat(program(*inside)), strict=True):
            assert Interval.of(interval).lo <= y <= Interval.of(interval).hi


@given(programs(steps=4), seeds, examples=60)
def test_the_jacobian_holds_every_jvp_and_vjp(program: Program, rng: np.random.Generator) -> None:
    xs, dxs = several(rng, program.input_shapes), several(rng, program.input_shapes)
    dys = several(rng, program.output_shapes)
    table = program.jacobian(xs)
    rows = as_tuple(table, len(dys))
    blocks = [[_matrix(b, o, i) for b, i in zip(as_tuple(row, len(xs)), program.input_shapes, strict=True)]
              for row, o in zip(rows, program.output_shapes, strict=True)]  # fmt: skip
    moved = as_tuple(program.jvp(xs, dxs), len(dys))
    for row, dy in zip(blocks, moved, strict=True):
        assert sum(block @ np.array(flat(dx), object) for block, dx in zip(row, dxs, strict=True)).tolist() == flat(dy)
    pulled = as_tuple(program.vjp(xs, dys if len(dys) > 1 else dys[0]), len(xs))
    for j, dx in enumerate(pulled):
        want = sum(np.array(flat(dy), object) @ row[j] for row, dy in zip(blocks, dys, strict=True))
        assert want.tolist() == flat(dx)


def _matrix(block: Any, out: tuple[int, ...], inp: tuple[int, ...]) -> np.ndarray:
    array = np.array(block, dtype=object)
    assert array.shape == (*out, *inp)
    return array.reshape(math.prod(out), math.prod(inp))


@given(programs(steps=4), seeds, examples=60)
def test_hvp_is_the_derivative_of_vjp(program: Program, rng: np.random.Generator) -> None:
    """Exactly: on nested lists hvp is vjp at dual numbers, on arrays the same to rounding."""
    g = Graph()
    made = {}
    for node in program.nodes:  # the same graph with one scalar output
        made[node.id] = (
            g.input(node.shape) if node.op.name == "input" else
            g.const(node.op.value) if node.op.name == "const" else
            g.push(node.op, *(made[a] for a in node.args))
        )  # fmt: skip
    total = None
    for i in program.outputs:
        part = g.sum(made[i] * made[i])
        total = part if total is None else total + part
    scalar = g.build(total)
    xs, vs = several(rng, program.input_shapes), several(rng, program.input_shapes)
    got = as_tuple(scalar.hvp(xs, vs), len(xs))
    raised = as_tuple(scalar.vjp(zipped(Dual, xs, vs), Dual(1, 0)), len(xs))
    assert flat(got) == [tangent(v) for v in flat(raised)]
    # symmetric: <H v, u> = <v, H u>
    us = several(rng, program.input_shapes)
    assert inner(got, us) == inner(vs, as_tuple(scalar.hvp(xs, us), len(xs)))
    arrays, moved = tuple(map(to_array, xs)), tuple(map(to_array, vs))
    for a, w in zip(as_tuple(scalar.hvp(arrays, moved), len(xs)), got, strict=True):
        close(a, to_array(w), 1e-9)


@given(programs(), seeds, examples=40)
def test_the_order_of_accumulation_is_fixed(program: Program, rng: np.random.Generator) -> None:
    xs = several(rng, program.input_shapes, floats)
    dys = several(rng, program.output_shapes, floats)
    first, second = (program.vjp(xs, dys if len(dys) > 1 else dys[0]) for _ in range(2))
    for a, b in zip(as_tuple(first, len(xs)), as_tuple(second, len(xs)), strict=True):
        assert a.tobytes() == b.tobytes()


# -- jacobian and hvp against torch ---------------------------------------------------------------------------------


def test_the_jacobian_is_torchs_forwards_and_backwards() -> None:
    torch = pytest.importorskip("torch", reason="torch is what jacobians are compared with")
    rng = np.random.default_rng(0)
    a, b = floats(rng, (2, 3)), floats(rng, (3,))
    narrow = of(lambda g, x, y: g.sum(g.tanh(x) * y, axes=1), (2, 3), (3,))  # 9 in, 2 out: by vjp
    wide = of(lambda g, x, y: g.concat(g.exp(x) * y, x @ g.const(np.ones((3, 3))) + y, x), (2, 3), (3,))  # 18 out
    for program, f in (
        (narrow, lambda x, y: (torch.tanh(x) * y).sum(1)),
        (wide, lambda x, y: torch.cat([torch.exp(x) * y, x @ torch.ones(3, 3, dtype=x.dtype) + y, x])),
    ):
        want = torch.func.jacrev(f, argnums=(0, 1))(torch.tensor(a), torch.tensor(b))
        for got, wanted in zip(program.jacobian((a, b)), want, strict=True):
            close(got, wanted.numpy())


class Sides(Square):
    """`Square`, counting which side of it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def jvp(self, x: Any, dx: Any) -> Any:
        self.asked.append("jvp")
        return super().jvp(x, dx)

    def vjp(self, x: Any, dy: Any) -> Any:
        self.asked.append("vjp")
        return super().vjp(x, dy)


@pytest.mark.parametrize(("shape", "count", "side"), [((4,), 1, "vjp"), ((1,), 4, "jvp"), ((), 1, "jvp")])
def test_the_jacobian_goes_the_shorter_way(shape: tuple[int, ...], count: int, side: str) -> None:
    op = Sides()
    g = Graph()
    y = g.push(op, g.input(shape))
    program = g.build(g.sum(y) if shape == (4,) else [y] * count)
    program.jacobian(np.ones(shape))
    assert set(op.asked) == {side}


def test_the_jacobian_of_several_inputs_and_outputs_is_a_table() -> None:
    g = Graph()
    x, y = g.input((2,)), g.input(())
    program = g.build([x * y, g.sum(x), y])
    got = program.jacobian((np.array([2.0, 3.0]), np.array(5.0)))
    want = [[[[5, 0], [0, 5]], [2, 3]], [[1, 1], 0], [[0, 0], 1]]
    assert [[np.asarray(b).tolist() for b in row] for row in got] == want
    exact = program.jacobian(([Fraction(2), Fraction(3)], Fraction(5)))
    assert [list(row) for row in exact] == want


HESSIANS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "smooth_max_pool": (
        lambda g, x: g.sum(g.smooth_max_pool(x, 2, stride=1, beta=1.5)),
        lambda F, t: (torch_unfold(F, t, 2, 1).mul(1.5).logsumexp(1) / 1.5).sum(),
        (1, 4, 4),
    ),
    "lp_pool": (
        lambda g, x: g.sum(g.lp_pool(x, 3, 2, stride=1)),
        lambda F, t: (torch_unfold(F, t, 2, 1).abs() ** 3).sum(1).pow(1 / 3).sum(),
        (1, 4, 4),
    ),
    "lp_pool 2": (
        lambda g, x: g.sum(g.lp_pool(x, 2, 2)),
        lambda F, t: (torch_unfold(F, t, 2, 2) ** 2).sum(1).sqrt().sum(),
        (1, 4, 4),
    ),
    "avg_pool": (lambda g, x: g.sum(g.exp(g.avg_pool(x, 2))), lambda F, t: F.avg_pool2d(t, 2).exp().sum(), (1, 4, 4)),
    "max_pool": (
        lambda g, x: g.sum(g.max_pool(x * x * x, 2, stride=1)),
        lambda F, t: F.max_pool2d(t * t * t, 2, stride=1).sum(),
        (1, 4, 4),
    ),
    "min_pool": (
        lambda g, x: g.sum(g.sigmoid(g.min_pool(g.tanh(x), 2))),
        lambda F, t: (-F.max_pool2d(-t.tanh(), 2)).sigmoid().sum(),
        (1, 4, 4),
    ),
    "conv": (
        lambda g, x: g.sum(g.softplus(g.conv(x, g.const(KERNEL), stride=2, padding=1))),
        lambda F, t: F.softplus(F.conv2d(t, to_tensor(KERNEL), stride=2, padding=1)).sum(),
        (2, 5, 5),
    ),
    "conv by itself": (
        lambda g, x: g.sum(g.conv(x, g.reshape(g.sum(x, axes=0), (1, 1, 5, 5)), padding=2, groups=1)),
        lambda F, t: F.conv2d(t, t.sum(0).reshape(1, 1, 5, 5), padding=2).sum(),
        (1, 5, 5),
    ),
    "softmax_cross_entropy": (
        lambda g, x: g.sum(g.softmax_cross_entropy(x, g.const(np.eye(3, 4)))),
        lambda F, t: -(to_tensor(np.eye(3, 4)) * t.log_softmax(-1)).sum(),
        (3, 4),
    ),
    "softmax_cross_entropy by itself": (
        lambda g, x: g.sum(g.softmax_cross_entropy(x, g.exp(x))),
        lambda F, t: -(t.exp() * t.log_softmax(-1)).sum(),
        (3, 4),
    ),
    "softmax_cross_entropy, target": (
        lambda g, x: g.sum(g.softmax_cross_entropy(g.const(np.eye(3, 4)), x * x)),
        lambda F, t: -(t * t * to_tensor(np.eye(3, 4)).log_softmax(-1)).sum(),
        (3, 4),
    ),
    "matmul": (
        lambda g, x: g.sum(g.exp(x @ g.reshape(x, (4, 3)))),
        lambda F, t: (t @ t.reshape(4, 3)).exp().sum(),
        (3, 4),
    ),
    "div": (lambda g, x: g.sum(1 / (x * x + 1)), lambda F, t: (1 / (t * t + 1)).sum(), (3, 4)),
    "mean, concat": (
        lambda g, x: g.mean(g.concat(x * x, g.exp(x)) / 3),
        lambda F, t: (lambda u: u.mean() / 3)(to_cat(t * t, t.exp())),
        (3, 4),
    ),
    "log, sqrt": (
        lambda g, x: g.sum(g.log(x * x + 1) * g.sqrt(x * x + 2)),
        lambda F, t: ((t * t + 1).log() * (t * t + 2).sqrt()).sum(),
        (3, 4),
    ),
    "relu": (lambda g, x: g.sum(g.relu(x) * x * x), lambda F, t: (t.relu() * t * t).sum(), (3, 4)),
    "detach": (lambda g, x: g.sum(x * x * g.detach(x)), lambda F, t: (t * t * t.detach()).sum(), (3, 4)),
    "detach, then pool": (
        lambda g, x: g.sum(x * x * g.global_max_pool(g.detach(x))),
        lambda F, t: (t * t * t.detach().max()).sum(),
        (3, 4),
    ),
    "pool, then detach": (
        lambda g, x: g.sum(x * x * g.detach(g.global_max_pool(x))),
        lambda F, t: (t * t * t.max().detach()).sum(),
        (3, 4),
    ),
    "pool of a constant": (
        lambda g, x: g.sum(x * x * g.global_avg_pool(g.const(np.ones((3, 4))))),
        lambda F, t: (t * t).sum(),
        (3, 4),
    ),
}  # fmt: skip
KERNEL = np.random.default_rng(9).standard_normal((3, 2, 3, 3))


def to_tensor(x: np.ndarray) -> Any:
    import torch

    return torch.tensor(x)


def to_cat(*ts: Any) -> Any:
    import torch

    return torch.cat(ts)


def torch_unfold(F: Any, t: Any, k: int, s: int) -> Any:
    """(1, taps, windows) of a one-channel image."""
    return F.unfold(t[None], k, stride=s)


@pytest.mark.parametrize("case", HESSIANS)
def test_hvp_is_torchs(case: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is what hvp is compared with")
    build, f, shape = HESSIANS[case]
    x = floats(np.random.default_rng(8), shape)
    like_hessian(unary(build, shape), lambda t: f(torch.nn.functional, t), x)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "tanh", "relu"])
def test_hvp_at_extreme_values_is_finite(name: str) -> None:
    program = unary(lambda g, x: g.sum(getattr(g, name)(x)), (4,))
    with np.errstate(all="ignore"):
        got = program.hvp(np.array([1000.0, -1000.0, 0.0, 40.0]), np.ones(4))
    assert np.isfinite(got).all()


def test_hvp_of_several_inputs_with_none_for_zero() -> None:
    program = of(lambda g, x, y: g.sum(x * x * y), (2,), (2,))
    x, y, v = np.array([1.0, 2]), np.array([3.0, 4]), np.array([1.0, 1])
    assert [part.tolist() for part in program.hvp((x, y), (v, None))] == [[6, 8], [2, 4]]
    assert program.hvp(([1, 2], [3, 4]), ([1, 1], None)) == ([6, 8], [2, 4])
    assert program.hvp({"x0": x, "x1": y}, {"x0": None, "x1": v})[1].tolist() == [0, 0]


@pytest.mark.parametrize("outputs", [lambda g, x: x * x, lambda g, x: [g.sum(x), g.sum(x)]])
def test_hvp_needs_one_number(outputs: Any) -> None:
    with pytest.raises(GraphError, match="one output with one element"):
        of(outputs, (2,)).hvp(np.ones(2), np.ones(2))


def test_hvp_of_decimals() -> None:
    program = unary(lambda g, x: g.sum(x * x * x), (2,))
    assert program.hvp([Decimal(1), Decimal(2)], [Decimal(1), Decimal(1)]) == [6, 12]


# -- kinds of values ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> Program:
    """A convolution, a pooling and a dense layer with float64 constants."""
    rng = np.random.default_rng(1)
    g = Graph()
    x = g.input((1, 6, 6), "x")
    h = g.max_pool(g.relu(g.conv(x, g.const(floats(rng, (2, 1, 3, 3))), padding=1)), 2)
    h = g.flatten(h) @ g.const(floats(rng, (18, 3))) + np.array([0.5, 0.25, 0.125])
    return g.build(h)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_program_with_constants_runs_in_the_inputs_dtype(network: Program, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x, dx = (floats(rng, (1, 6, 6)).astype(dtype) for _ in range(2))
    dy = floats(rng, (3,)).astype(dtype)
    wide = [v.astype(np.float64) for v in (x, dx, dy)]
    rtol = 100 * float(ml_dtypes.finfo(dtype).eps)
    for got, want in (
        (network(x), network(wide[0])),
        (network.jvp(x, dx), network.jvp(*wide[:2])),
        (network.linearize(x).jvp(dx), network.jvp(*wide[:2])),
        (network.vjp(x, dy), network.vjp(wide[0], wide[2])),
        (network.jacobian(x), network.jacobian(wide[0])),
    ):
        assert got.dtype == np.dtype(dtype)
        close(got.astype(np.float64), want, rtol)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_hvp_runs_in_the_inputs_dtype(dtype: Any) -> None:
    program = unary(lambda g, x: g.sum(g.exp(x * np.array([0.5, 1.0, 2.0]))))
    x = np.array([0.5, 0.25, -1]).astype(dtype)
    got = program.hvp(x, x)
    assert got.dtype == np.dtype(dtype)
    close(got.astype(float), program.hvp(x.astype(float), x.astype(float)), 8 * float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize("constant", [0.5, [0.5], np.array([0.5]), np.float32(0.5)])
@pytest.mark.parametrize(
    "scalar", [Fraction, Decimal, Interval.of, Dual], ids=["Fraction", "Decimal", "Interval", "Dual"]
)
def test_constants_are_taken_exactly(constant: Any, scalar: Any) -> None:
    program = unary(lambda g, x: x * g.const(constant), (1,))
    (y,) = program([scalar(3)])
    one = scalar(3)
    assert type(y) is type(one)
    if isinstance(y, Interval):
        assert 1.5 in y
        assert y.hi - y.lo < 1e-12
    else:
        assert (y.value if isinstance(y, Dual) else y) == Fraction(3, 2)


@pytest.mark.parametrize("constant", [0.1, [0.1], np.array([0.1])])
def test_a_float_constant_means_its_exact_value(constant: Any) -> None:
    assert unary(lambda g, x: x * g.const(constant), (1,))([Fraction(1)]) == [Fraction(0.1)]


def test_integer_constants_divide_exactly() -> None:
    g = Graph()
    x = g.input((1,))
    program = g.build([x * (g.const(1) / g.const(3)), x * g.mean(g.const([1, 2, 2])), x * (g.const(np.array([1])) / 3)])
    assert program([Fraction(1)]) == ([Fraction(1, 3)], [Fraction(5, 3)], [Fraction(1, 3)])


@pytest.mark.parametrize("constant", [np.array(0.5), np.float32(0.5), 0.5])
def test_a_constant_of_no_axes(constant: Any) -> None:
    program = unary(lambda g, x: x * g.const(constant) + g.const(constant), (2,))
    x = [Fraction(1), Fraction(3)]
    assert program(x) == [1, 2]
    assert program.jvp(x, x) == program.vjp(x, x) == [Fraction(1, 2), Fraction(3, 2)]
    assert program(np.array([1.0, 3.0])).tolist() == [1, 2]


def test_hvp_of_decimals_with_constants() -> None:
    program = unary(lambda g, x: g.sum(x * x * np.array([0.5, 0.25])), (2,))
    assert program([Decimal(2), Decimal(4)]) == 6
    assert program.hvp([Decimal(2), Decimal(4)], [Decimal(1), Decimal(1)]) == [Decimal(1), Decimal("0.5")]


def test_a_fractional_constant_is_not_truncated_for_integer_arrays() -> None:
    program = unary(lambda g, x: x * 0.5, (2,))
    try:
        got = program(np.array([3, 4]))
    except PoolError:
        return
    assert got.tolist() == [1.5, 2]


def test_constants_keep_their_precision_beside_an_input_of_a_shorter_dtype() -> None:
    g = Graph()
    a, b = g.input((1,), "a", "float32"), g.input((1,), "b", "float64")
    program = g.build([a * 2, b * np.array([0.1])])
    low, high = program(np.ones(1, np.float32), np.ones(1))
    assert low.dtype == np.float32
    assert high.dtype == np.float64
    assert high.tolist() == [0.1]
    pulled = program.vjp((np.ones(1, np.float32), np.ones(1)), (np.ones(1, np.float32), np.ones(1)))
    assert [p.dtype.name for p in pulled] == ["float32", "float64"]
    assert pulled[1].tolist() == [0.1]


def test_the_strictest_array_library(network: Program) -> None:
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict checks the array API standard")
    rng = np.random.default_rng(3)
    x, dx, dy = floats(rng, (1, 6, 6)), floats(rng, (1, 6, 6)), floats(rng, (3,))
    for got, want in (
        (network(xp.asarray(x)), network(x)),
        (network.jvp(xp.asarray(x), xp.asarray(dx)), network.jvp(x, dx)),
        (network.vjp(xp.asarray(x), xp.asarray(dy)), network.vjp(x, dy)),
        (network.jacobian(xp.asarray(x)), network.jacobian(x)),
    ):
        assert type(got).__module__.startswith("array_api_strict")
        close(np.asarray(got), want)


GLUE = (
    "matmul",
    "conv",
    "softmax_cross_entropy",
    "softmax_cross_entropy by itself",
    "div",
    "mean, concat",
    "log, sqrt",
)


@pytest.mark.parametrize("case", [*GLUE, "relu", "detach", "smooth_max_pool", "lp_pool", "max_pool"])
def test_glue_in_the_strictest_library(case: str) -> None:
    """First order: its operators raise at a dual array rather than let it try, so there is no second."""
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict checks the array API standard")
    build, _, shape = HESSIANS[case]
    program = unary(build, shape)
    x = floats(np.random.default_rng(8), shape)
    close(np.asarray(program(xp.asarray(x))), program(x))
    close(np.asarray(program.jvp(xp.asarray(x), xp.asarray(x))), program.jvp(x, x))
    close(np.asarray(program.vjp(xp.asarray(x), xp.asarray(1.0))), program.vjp(x, np.array(1.0)))


def test_torch_tensors_of_the_array_api_are_not_numpy() -> None:
    torch = pytest.importorskip("torch", reason="torch tensors have no array namespace of their own")
    with pytest.raises(PoolError, match="Tensor"):
        unary(lambda g, x: x + 1)(torch.ones(3))


# -- how values are given -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Program:
    g = Graph()
    a, b = g.input((2,), "a"), g.input((2,), "b")
    return g.build([a * b, a + b])


def test_inputs_by_position_by_name_and_by_dict(pair: Program) -> None:
    a, b = np.array([1.0, 2]), np.array([3.0, 4])
    want = [[3, 8], [4, 6]]
    assert [y.tolist() for y in pair(a, b)] == want
    assert [y.tolist() for y in pair(b=b, a=a)] == want
    ones = np.ones(2)
    assert [y.tolist() for y in pair.jvp({"b": b, "a": a}, {"a": ones, "b": None})] == [[3, 4], [1, 1]]
    assert [y.tolist() for y in pair.vjp({"b": b, "a": a}, (ones, ones))] == [[4, 5], [2, 3]]
    assert [y.tolist() for y in pair.linearize({"b": b, "a": a}).y] == want


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "too few": (lambda p, a: p(a), ("2 inputs", "a, b", "1 given")),
    "too many": (lambda p, a: p(a, a, a), ("2 inputs", "3 given")),
    "a name too few": (lambda p, a: p(a=a), ("a, b", "not a")),
    "another name": (lambda p, a: p(a=a, c=a), ("a, b", "not a, c")),
    "both ways": (lambda p, a: p(a, b=a), ("a, b",)),
    "both ways, all named": (lambda p, a: p(a, a=a, b=a), ()),
    "shape": (lambda p, a: p(a, np.ones(3)), ("b", "(3,)", "(2,)")),
    "shape of a list": (lambda p, a: p([1, 2], [[1, 2]]), ("b", "(1, 2)", "(2,)")),
    "ragged": (lambda p, a: p([1, 2], [[1], 2]), ("ragged",)),
    "kinds": (lambda p, a: p(a, [1, 2]), ("nested lists", "arrays")),
    "text": (lambda p, a: p(a, "no"), ("str",)),
    "nothing": (lambda p, a: p(a, None), ("NoneType",)),
    "tangent shape": (lambda p, a: p.jvp((a, a), (a, np.ones(3))), ("tangent of b", "(3,)", "(2,)")),
    "tangent count": (lambda p, a: p.jvp((a, a), a), ("2 tangents", "1 given")),
    "tangent kind": (lambda p, a: p.jvp((a, a), ([1, 2], [1, 2])), ("tangent",)),
    "tangent kind, of lists": (lambda p, a: p.jvp(([1, 2], [1, 2]), (a, a)), ("tangent",)),
    "cotangent shape": (lambda p, a: p.vjp((a, a), (a, np.ones(3))), ("cotangent of add 3", "(3,)", "(2,)")),
    "cotangent count": (lambda p, a: p.vjp((a, a), a), ("2 cotangents", "1 given")),
    "cotangent kind": (lambda p, a: p.vjp((a, a), ([1, 2], [1, 2])), ("cotangent",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_errors_that_name_the_input(pair: Program, case: str) -> None:
    call, words = WRONG[case]
    with pytest.raises(PoolError) as caught:
        call(pair, np.ones(2))
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, (missing, str(caught.value))


def test_a_fixed_dtype_is_kept() -> None:
    program = unary(lambda g, x: x + 1, (2,), "float32")
    x = np.ones(2, np.float32)
    assert program(x).dtype == np.float32
    with pytest.raises(GraphError, match=r"input x has dtype float64, not float32"):
        program(np.ones(2))
    with pytest.raises(GraphError, match=r"tangent of x has dtype float64"):
        program.jvp(x, np.ones(2))
    with pytest.raises(GraphError, match=r"cotangent of add 2 has dtype float64"):
        program.vjp(x, np.ones(2))
    assert program([Fraction(1), 2]) == [2, 3]  # exact scalars have no dtype to differ


def test_numbers_are_arrays_of_no_axes() -> None:
    program = of(lambda g, x, y: x * y, (), ())
    assert program(3, Fraction(1, 2)) == Fraction(3, 2)
    assert program(np.float64(3), np.float64(2)) == 6
    assert program.vjp((np.array(3.0), np.array(2.0)), np.array(1.0)) == (2, 3)
    assert program.jvp((3, 2), (1, None)) == 2


# -- preflight ------------------------------------------------------------------------------------------------------


def lacking(op: Any, *, detach: bool = False) -> tuple[Program, Counted]:
    """A counted op, then `op`, which lacks a derivative, behind a detach if asked for."""
    counted = Counted()
    g = Graph()
    x = g.input((2,), "x")
    h = g.push(counted, x)
    h = g.push(op, g.detach(h) if detach else h, name="mine")
    return g.build(g.sum(h)), counted


RUNS: dict[str, Any] = {
    "jvp": lambda p: p.jvp(np.ones(2), np.ones(2)),
    "jvp, zero tangent": lambda p: p.jvp(np.ones(2), None),
    "vjp": lambda p: p.vjp(np.ones(2), np.array(1.0)),
    "jacobian": lambda p: p.jacobian(np.ones(2)),
    "hvp": lambda p: p.hvp(np.ones(2), np.ones(2)),
    "preflight jvp": lambda p: p.preflight("jvp"),
    "preflight vjp": lambda p: p.preflight("vjp"),
}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("run", RUNS)
def test_an_op_without_a_derivative_fails_before_anything_runs(run: str, batched: bool) -> None:
    op = ForwardOnly()
    program, counted = lacking(op)
    if batched:
        if run in ("hvp", "jacobian"):
            pytest.skip("of one sample")
        program = program.batched(1)
        call = {
            "jvp": lambda p: p.jvp(np.ones((1, 2)), np.ones((1, 2))),
            "jvp, zero tangent": lambda p: p.jvp(np.ones((1, 2)), None),
            "vjp": lambda p: p.vjp(np.ones((1, 2)), np.ones(1)),
        }.get(run, RUNS[run])
    else:
        call = RUNS[run]
    with pytest.raises(GraphError, match=r"no (jvp|vjp) for mine; define (jvp|vjp) on the op, or detach"):
        call(program)
    assert op.runs == counted.runs == 0


class NoVjp(Square):
    name = "no_vjp"
    vjp = None  # type: ignore[assignment]


def test_each_side_needs_its_own_derivative_only() -> None:
    program, _ = lacking(NoVjp())
    assert program.jvp(np.ones(2), np.ones(2)) == 8
    assert program.linearize(np.ones(2)).jvp(np.ones(2)) == 8
    for call in (
        lambda: program.vjp(np.ones(2), np.array(1.0)),
        lambda: program.linearize(np.ones(2)).vjp(np.array(1.0)),
        lambda: program.hvp(np.ones(2), np.ones(2)),
    ):
        with pytest.raises(GraphError, match="no vjp for mine"):
            call()


def test_an_op_without_a_derivative_runs_forward_and_on_constants() -> None:
    op = ForwardOnly()
    program, _ = lacking(op)
    assert program(np.full(2, 3.0)) == 18
    g = Graph()
    x = g.input((2,))
    constant = g.build(x * g.push(op, g.const([2, 3])))
    assert constant.jvp([1, 1], [1, 1]) == [2, 3]
    assert constant.vjp([1, 1], [1, 1]) == [2, 3]


def test_an_op_that_no_output_needs_may_lack_a_derivative() -> None:
    g = Graph()
    x = g.input((2,))
    g.push(ForwardOnly(), x)
    assert g.build(x * 3).vjp([1, 1], [1, 1]) == [3, 3]


@pytest.mark.parametrize("run", ["jvp", "vjp", "hvp", "jacobian"])
def test_detach_is_the_way_out_that_the_message_names(run: str) -> None:
    program, _ = lacking(ForwardOnly(), detach=True)
    assert np.all(np.asarray(RUNS[run](program)) == 0)


# -- corners --------------------------------------------------------------------------------------------------------


def test_detach_stops_derivatives_in_every_mode() -> None:
    """x * detach(x) moves by x dx only; so it does on dual numbers, and its Hessian is 0."""
    g = Graph()
    x = g.input((2,), "x")
    program = g.build(g.sum(x * g.detach(x)))
    q = [Fraction(3), Fraction(5)]
    a = np.array([3.0, 5.0])
    assert program.jvp(q, [1, 0]) == 3
    assert program.vjp(q, 1) == [3, 5]
    assert tangent(program([Dual(3, 1), Dual(5, 0)])) == 3
    assert program(DualArray(a, np.array([1.0, 0.0]))).tangent == 3
    assert program.hvp(q, [1, 1]) == [0, 0]
    assert program.hvp(a, np.ones(2)).tolist() == [0, 0]


def test_the_same_input_twice() -> None:
    program = of(lambda g, x: [x * x, g.concat(x, x), g.matmul(x, x)], (2,))
    x, one = [Fraction(2), Fraction(3)], [1, 1]
    assert program.jvp(x, one) == ([4, 6], [1, 1, 1, 1], 10)
    assert program.vjp(x, (one, [1, 2, 3, 4], 1)) == [4 + 4 + 4, 6 + 6 + 6]


def test_an_output_that_is_an_input_or_a_constant() -> None:
    g = Graph()
    x, y = g.input((2,), "x"), g.input((1,), "y")
    program = g.build([x, g.const([7]), x + y])
    assert program([1, 2], [3]) == ([1, 2], [7], [4, 5])
    assert program.jvp(([1, 2], [3]), ([5, 6], None)) == ([5, 6], [0], [5, 6])
    assert program.vjp(([1, 2], [3]), ([1, 1], [9], [10, 20])) == ([11, 21], [30])
    a, b = np.ones(2), np.ones(1)
    assert [v.tolist() for v in program.vjp((a, b), (a, b, a))] == [[2, 2], [2]]
    at = program.linearize(([1, 2], [3]))
    assert at.jvp(([5, 6], None)) == ([5, 6], [0], [5, 6])
    jacobian = program.jacobian(([1, 2], [3]))
    assert jacobian[0] == ([[1, 0], [0, 1]], [[0], [0]])
    assert jacobian[1] == ([[0, 0]], [[0]])


def test_a_constant_that_is_an_output_cannot_be_changed_from_outside() -> None:
    g = Graph()
    x = g.input((1,))
    program = g.build([g.const(np.ones(2)), x])
    y, _ = program(np.ones(1))
    y[:] = 5
    assert program(np.ones(1))[0].tolist() == [1, 1]


def test_the_same_output_twice() -> None:
    g = Graph()
    x = g.input((2,))
    y = x * 3
    program = g.build([y, y, x])
    assert program([1, 2]) == ([3, 6], [3, 6], [1, 2])
    assert program.vjp([1, 2], ([1, 0], [0, 1], [5, 5])) == [8, 8]
    assert program.jvp([1, 2], [1, 1]) == ([3, 3], [3, 3], [1, 1])


def test_an_output_that_others_read() -> None:
    g = Graph()
    x = g.input((2,))
    y = x * x
    program = g.build([y, y * x, g.sum(y)])
    assert program([2, 3]) == ([4, 9], [8, 27], 13)
    assert program.vjp([2, 3], ([1, 1], [1, 1], 1)) == [4 + 12 + 4, 6 + 27 + 6]


def test_none_is_a_zero_tangent() -> None:
    program = of(lambda g, x, y: [x * y, g.max_pool(x, (2,))], (2,), (2,))
    xs = ([1, 2], [3, 4])
    assert program.jvp(xs, (None, [1, 1])) == ([1, 2], [0])
    assert program.jvp(xs, (None, None)) == ([0, 0], [0])
    assert program.linearize(xs).jvp((None, [1, 1])) == ([1, 2], [0])
    arrays = (np.array([1.0, 2]), np.array([3.0, 4]))
    assert [v.tolist() for v in program.jvp(arrays, (None, arrays[0]))] == [[1, 4], [0]]


def test_an_input_that_nothing_reads_has_a_zero_cotangent() -> None:
    program = of(lambda g, x, y: x * 2, (2,), (3,))
    assert program.vjp(([1, 2], [0, 0, 0]), [1, 1]) == ([2, 2], [0, 0, 0])
    got = program.vjp((np.ones(2), np.ones(3)), np.ones(2))
    assert [v.tolist() for v in got] == [[2, 2], [0, 0, 0]]


def test_a_program_without_inputs() -> None:
    g = Graph()
    program = g.build(g.const([1, 2]) + g.const([3, 4]))
    assert np.asarray(program()).tolist() == [4, 6]
    assert np.asarray(program.jvp((), ())).tolist() == [0, 0]


def test_inputs_are_not_changed_by_a_run(network: Program) -> None:
    rng = np.random.default_rng(4)
    x, dx, dy = floats(rng, (1, 6, 6)), floats(rng, (1, 6, 6)), floats(rng, (3,))
    copies = [v.copy() for v in (x, dx, dy)]
    for v in (x, dx, dy):
        v.flags.writeable = False
    network(x), network.jvp(x, dx), network.vjp(x, dy)
    assert all(np.array_equal(v, c) for v, c in zip((x, dx, dy), copies, strict=True))


def test_zero_sized_values_run_in_every_mode() -> None:
    program = unary(lambda g, x: g.max_pool(g.relu(x * 2), (2,)), (0, 4))
    x = np.zeros((0, 4))
    assert program(x).shape == program.jvp(x, x).shape == (0, 3 - 1)
    assert program.vjp(x, np.zeros((0, 2))).shape == (0, 4)
    assert program.jacobian(x).shape == (0, 2, 0, 4)


def test_a_program_is_immutable_and_its_variables_are_not_its_own() -> None:
    program = unary(lambda g, x: x + 1)
    with pytest.raises(AttributeError):
        program.outputs = (0,)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        program.nodes[0].shape = (9,)  # type: ignore[misc]
    assert not isinstance(program.nodes[0], Var)


@given(st.permutations(range(3)), seeds, examples=10)
def test_names_say_which_input_is_which(order: list[int], rng: np.random.Generator) -> None:
    g = Graph()
    a, b, c = (g.input((2,), name) for name in "abc")
    program = g.build((a - b) * c)
    values = {name: fractions(rng, (2,)) for name in "abc"}
    shuffled = {list(values)[i]: values[list(values)[i]] for i in order}
    assert program(**shuffled) == program(*values.values())
