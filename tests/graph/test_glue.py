"""Every glue op is torch's: value, jvp and vjp."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from ndpool import GraphError

from .strategies import (
    TORCH_WARNS,
    close,
    flat,
    floats,
    fractions,
    given,
    inner,
    like_torch,
    of,
    seeds,
    several,
    unary,
)

torch = pytest.importorskip("torch", reason="torch is what glue is compared with")
pytestmark = TORCH_WARNS


@st.composite
def broadcasting(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, either longer, ones and zeros among the sizes."""
    full = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4))
    shapes = []
    for _ in range(2):
        kept = [1 if draw(st.booleans()) else n for n in full]
        shapes.append(tuple(kept[draw(st.integers(0, len(kept))) :]))
    return shapes[0], shapes[1]


ARITHMETIC = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}


@pytest.mark.parametrize("op", ARITHMETIC)
@given(broadcasting(), seeds, examples=40)
def test_arithmetic_broadcasts_as_torch_does(op: str, shapes: Any, rng: np.random.Generator) -> None:
    a, b = (floats(rng, shape) for shape in shapes)
    b = np.where(np.abs(b) < 0.1, 0.5, b)
    like_torch(of(lambda g, x, y: getattr(g, op)(x, y), *shapes), ARITHMETIC[op], a, b, rtol=1e-11)


@pytest.mark.parametrize("op", ARITHMETIC)
def test_a_value_with_itself(op: str) -> None:
    x = np.array([0.5, -2.0])
    like_torch(unary(lambda g, v: getattr(g, op)(v, v), (2,)), lambda t: ARITHMETIC[op](t, t), x)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, bool]:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=4)))
    axes = draw(st.sets(st.integers(0, max(0, len(shape) - 1)), max_size=len(shape)))
    signed = tuple(a - len(shape) if draw(st.booleans()) else a for a in axes)
    given_axes: Any = draw(st.sampled_from([None, signed])) if signed else None
    if len(signed) == 1 and draw(st.booleans()):
        given_axes = signed[0]
    return shape, given_axes, draw(st.booleans())


@pytest.mark.parametrize("op", ["sum", "mean"])
@given(reductions(), seeds, examples=40)
def test_reductions(op: str, case: Any, rng: np.random.Generator) -> None:
    shape, axes, keepdims = case
    dim = tuple(range(len(shape))) if axes is None else axes
    program = unary(lambda g, x: getattr(g, op)(x, axes, keepdims), shape)

    def f(t: Any) -> Any:
        return getattr(torch, op)(t, dim=dim, keepdim=keepdims) if shape else t

    like_torch(program, f, floats(rng, shape))


def test_a_reduction_over_no_axes_is_the_identity() -> None:
    x = np.array([1.0, 2.0])
    for op in ("sum", "mean"):
        program = unary(lambda g, v, op=op: getattr(g, op)(v, axes=()), (2,))
        assert program(x).tolist() == [1, 2]
        assert program.vjp(x, np.array([3.0, 4.0])).tolist() == [3, 4]


def test_a_sum_over_nothing_is_zero() -> None:
    program = unary(lambda g, x: g.sum(x, axes=1), (2, 0))
    assert program(np.zeros((2, 0))).tolist() == [0, 0]
    assert program([[], []]) == [0, 0]
    assert program.vjp(np.zeros((2, 0)), np.ones(2)).shape == (2, 0)


RESHAPES: dict[str, tuple[Any, Any]] = {
    "reshape": (lambda g, x: g.reshape(x, (4, 6)), lambda t: t.reshape(4, 6)),
    "reshape, -1": (lambda g, x: g.reshape(x, (3, -1, 2)), lambda t: t.reshape(3, -1, 2)),
    "reshape, all": (lambda g, x: g.reshape(x, (-1,)), lambda t: t.reshape(-1)),
    "flatten": (lambda g, x: g.flatten(x), torch.flatten),
    "flatten from 1": (lambda g, x: g.flatten(x, start=1), lambda t: torch.flatten(t, 1)),
    "flatten from -1": (lambda g, x: g.flatten(x, start=-1), lambda t: torch.flatten(t, -1)),
    "flatten from -2": (lambda g, x: g.flatten(x, start=-2), lambda t: torch.flatten(t, -2)),
}


@pytest.mark.parametrize("case", RESHAPES)
def test_reshapes(case: str) -> None:
    build, f = RESHAPES[case]
    like_torch(unary(build, (2, 3, 4)), f, floats(np.random.default_rng(0), (2, 3, 4)))


def test_flatten_of_a_scalar_has_one_element() -> None:
    like_torch(unary(lambda g, x: g.flatten(x), ()), torch.flatten, np.array(3.0))


@given(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.booleans(), seeds, examples=30)
def test_concat(axis: int, lengths: list[int], negative: bool, rng: np.random.Generator) -> None:
    shapes = [tuple(n if a == axis else 2 for a in range(3)) for n in lengths]
    a = axis - 3 if negative else axis
    program = of(lambda g, *xs: g.concat(*xs, axis=a), *shapes)
    like_torch(program, lambda *ts: torch.cat(ts, dim=a), *(floats(rng, shape) for shape in shapes))


MATMULS = [
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((3,), (5, 3, 2)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (1, 6, 3, 4)),
    ((6, 2, 3), (5, 1, 3, 4)),
    ((1, 2, 3), (5, 3, 1)),
    ((3,), (2, 5, 3, 2)),
    ((2, 0), (0, 3)),
    ((0, 2, 3), (3, 2)),
    ((1,), (1,)),
]


@pytest.mark.parametrize(("a", "b"), MATMULS, ids=str)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    like_torch(of(lambda g, x, y: g.matmul(x, y), a, b), torch.matmul, floats(rng, a), floats(rng, b))


@given(st.sampled_from([pair for pair in MATMULS if 0 not in pair[0] + pair[1]]), seeds, examples=30)
def test_matmul_is_adjoint_exactly(shapes: Any, rng: np.random.Generator) -> None:
    program = of(lambda g, x, y: x @ y, *shapes)
    xs, dxs = several(rng, shapes), several(rng, shapes)
    (dy,) = several(rng, program.output_shapes)
    assert inner(program.jvp(xs, dxs), dy) == inner(dxs, program.vjp(xs, dy))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (3, 1)], ids=str)
def test_softmax_cross_entropy(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    logits = floats(rng, shape) * 3
    target = np.abs(floats(rng, shape))  # need not sum to 1

    def f(x: Any, t: Any) -> Any:
        return -(t * torch.log_softmax(x, dim=-1)).sum(-1)

    like_torch(of(lambda g, x, t: g.softmax_cross_entropy(x, t), shape, shape), f, logits, target, rtol=1e-11)


def test_softmax_cross_entropy_is_torchs_loss_for_one_hot_targets() -> None:
    rng = np.random.default_rng(5)
    logits, labels = floats(rng, (6, 4)), rng.integers(0, 4, 6)
    one_hot = np.eye(4)[labels]
    program = unary(lambda g, x: g.mean(g.softmax_cross_entropy(x, g.const(one_hot))), (6, 4))
    like_torch(program, lambda x: torch.nn.functional.cross_entropy(x, torch.tensor(labels)), logits)


def test_softmax_cross_entropy_never_overflows() -> None:
    logits = np.array([[1000.0, -1000.0], [-1e300, 0.0], [500.0, 500.0]])
    target = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    program = of(lambda g, x, t: g.softmax_cross_entropy(x, t), (3, 2), (3, 2))
    close(program(logits, target), [0, 0, np.log(2)])
    for part in program.vjp((logits, target), np.ones(3)):
        assert np.isfinite(part).all()


# -- detach --------------------------------------------------------------------------------------------------------


def test_detach_is_the_identity_without_a_derivative() -> None:
    x = np.array([1.0, -2.0])
    program = unary(lambda g, v: v * g.detach(v), (2,))
    like_torch(program, lambda t: t * t.detach(), x)
    assert program.jvp(x, np.ones(2)).tolist() == [1, -2]  # not 2 x


# -- exact, and in every dtype -------------------------------------------------------------------------------------


@given(seeds)
def test_glue_is_exact_over_fractions(rng: np.random.Generator) -> None:
    a, b = np.array(fractions(rng, (2, 3))), np.array(fractions(rng, (3,)))
    program = of(lambda g, x, y: [g.mean(x / (y * y + 1), axes=0), g.sum(x @ y), g.concat(y, y)], (2, 3), (3,))
    mean, dot, twice = program(a.tolist(), b.tolist())
    assert mean == ((a / (b * b + 1)).sum(0) / Fraction(2)).tolist()
    assert dot == (a @ b).sum()
    assert twice == [*b, *b]
    assert all(isinstance(v, Fraction) for v in flat([mean, dot, twice]))


UNARY: dict[str, tuple[Any, tuple[int, ...]]] = {
    "add": (lambda g, x: x + x, (2, 4)),
    "sub": (lambda g, x: x - 1, (2, 4)),
    "mul": (lambda g, x: x * 0.5, (2, 4)),
    "div": (lambda g, x: 1 / x, (2, 4)),
    "sum": (lambda g, x: g.sum(x), (2, 4)),
    "mean": (lambda g, x: g.mean(x, axes=1), (2, 4)),
    "reshape": (lambda g, x: g.reshape(x, (8,)), (2, 4)),
    "concat": (lambda g, x: g.concat(x, x), (2, 4)),
    "matmul": (lambda g, x: x @ g.const(np.ones((4, 3))), (2, 4)),
    "conv": (lambda g, x: g.conv(x, g.const(np.ones((1, 2, 2)))), (2, 4)),
    "detach": (lambda g, x: g.detach(x), (2, 4)),
    "softmax_cross_entropy": (lambda g, x: g.softmax_cross_entropy(x, g.const(np.full((2, 4), 0.25))), (2, 4)),
    "relu": (lambda g, x: g.relu(x), (2, 4)),
    "sigmoid": (lambda g, x: g.sigmoid(x), (2, 4)),
    "softplus": (lambda g, x: g.softplus(x), (2, 4)),
    "sqrt": (lambda g, x: g.sqrt(x), (2, 4)),
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("op", UNARY)
def test_glue_keeps_the_dtype(op: str, dtype: Any) -> None:
    build, shape = UNARY[op]
    program = unary(build, shape)
    x = np.linspace(0.25, 2, 8).reshape(shape)
    small = x.astype(dtype)
    y = program(small)
    assert y.dtype == np.dtype(dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    close(y.astype(np.float64), program(small.astype(np.float64)), 8 * eps)
    assert program.jvp(small, small).dtype == np.dtype(dtype)
    assert program.linearize(small).vjp(y).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", ["sum", "mean", "matmul", "softmax_cross_entropy"])
def test_short_floats_are_summed_in_a_wider_type(op: str, dtype: Any) -> None:
    n = 2000
    build = {
        "sum": lambda g, x: g.sum(x),
        "mean": lambda g, x: g.mean(x),
        "matmul": lambda g, x: x @ g.const(np.ones(n)),
        "softmax_cross_entropy": lambda g, x: g.softmax_cross_entropy(g.const(np.zeros(n)), x * (1 / n)),
    }[op]
    x = np.ones(n, dtype)
    want = {"sum": n, "mean": 1, "matmul": n, "softmax_cross_entropy": np.log(n)}[op]
    close(float(unary(build, (n,))(x)), want, 4 * float(ml_dtypes.finfo(dtype).eps))


def test_the_mean_of_nothing_is_nan_as_in_torch() -> None:
    with np.errstate(invalid="ignore"):
        assert np.isnan(unary(lambda g, x: g.mean(x), (0,))(np.zeros(0)))


def test_axes_may_be_a_list() -> None:
    assert unary(lambda g, x: g.sum(x, axes=[0, 1]), (2, 3)).output_shapes == ((),)


@pytest.mark.parametrize("axes", ["0", 1.5, (0.5,)])
def test_axes_that_are_none_are_named(axes: Any) -> None:
    with pytest.raises(GraphError, match="axes"):
        unary(lambda g, x: g.sum(x, axes=axes), (2, 3))
