"""What the tests of graphs share: random programs that are exact over Fractions, values for them, and torch as a judge.

Nothing here checks a law of its own; `like_torch` compares a program with a function of tensors in value, jvp and vjp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ndpool import Dual, Graph, Program
from ndpool.graph import Var

from .. import examples as thorough

settings.register_profile(
    "graph",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

TORCH_WARNS = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in forward mode
Shape = tuple[int, ...]


def given(*args: Any, examples: int = 60, **kwargs: Any) -> Any:
    """hypothesis' `given` under the profile "graph", whatever profile the rest of a run has loaded."""
    profile = settings(settings.get_profile("graph"), max_examples=thorough(examples))
    return lambda test: profile(hypothesis.given(*args, **kwargs)(test))


# -- values --------------------------------------------------------------------------------------------------------


def flat(x: Any) -> list[Any]:
    """A nested list's scalars in row-major order; those of several outputs one after another."""
    return [value for part in x for value in flat(part)] if isinstance(x, (list, tuple)) else [x]


def nest(values: Sequence[Any], shape: Shape) -> Any:
    """The nested list of that shape."""
    if not shape:
        return values[0]
    step = math.prod(shape[1:])
    return [nest(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def fractions(rng: np.random.Generator, shape: Shape) -> Any:
    """Small Fractions, ties and zeros among them."""
    return nest([Fraction(int(n), 2) for n in rng.integers(-4, 5, math.prod(shape))], shape)


def floats(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape))


def several(rng: np.random.Generator, shapes: Sequence[Shape], draw: Any = fractions) -> tuple[Any, ...]:
    return tuple(draw(rng, shape) for shape in shapes)


def as_tuple(x: Any, count: int) -> tuple[Any, ...]:
    """Results are alone where there is one, else a tuple."""
    return x if count > 1 else (x,)


def inner(a: Any, b: Any) -> Any:
    return sum(p * q for p, q in zip(flat(a), flat(b), strict=True))


def zipped(make: Callable[..., Any], *xs: Any) -> Any:
    """`make` of the scalars of equal nested lists."""
    if isinstance(xs[0], (list, tuple)):
        return type(xs[0])(zipped(make, *parts) for parts in zip(*xs, strict=True))
    return make(*xs)


def tangent(x: Any) -> Any:
    return x.tangent if isinstance(x, Dual) else 0


def to_array(x: Any) -> np.ndarray:
    return np.array(zipped(float, x), dtype=np.float64)


def unary(make: Callable[[Graph, Var], Var], shape: Shape = (3,), dtype: Any = None) -> Program:
    """The program of one input "x" that `make` builds."""
    g = Graph()
    return g.build(make(g, g.input(shape, "x", dtype)))


def of(make: Callable[..., Any], *shapes: Shape) -> Program:
    """The program of inputs of these shapes that `make(graph, *variables)` builds."""
    g = Graph()
    return g.build(make(g, *(g.input(shape) for shape in shapes)))


# -- random programs -----------------------------------------------------------------------------------------------

TIES = ("first", "last", "all", "split")
LARGEST = 27  # elements of a value: Fractions are slow


def _pooling(draw: Any, g: Graph, x: Var) -> Var:
    rank = draw(st.integers(1, min(2, len(x.shape))))
    axes = tuple(range(-rank, 0))
    law = draw(st.sampled_from(["max", "min", "avg", "sum", "lp"]))
    first = (1,) if law == "lp" else ()  # the 1-norm is exact
    extra = {"ties": draw(st.sampled_from(TIES))} if law in ("max", "min") else {}
    form = draw(st.sampled_from(["", "adaptive_", "global_"]))
    build = getattr(g, f"{form}{law}_pool")
    if form == "global_":
        return build(x, *first, axes=axes, keepdims=draw(st.booleans()), **extra)
    if form == "adaptive_":
        return build(x, *first, draw(st.integers(1, 3)), axes=axes, **extra)
    k, s, p = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 1))
    p = max(p, *(max(0, -(-(k - n) // 2)) for n in x.shape[-rank:]))  # at least one output
    return build(x, *first, k, stride=s, padding=p, axes=axes, **extra)


def _elementwise(draw: Any, g: Graph, x: Var) -> Var:
    return getattr(g, draw(st.sampled_from(["neg", "relu", "detach"])))(x)


def _reduction(draw: Any, g: Graph, x: Var) -> Var:
    axes = draw(st.sampled_from([None, -1, (0,), tuple(range(len(x.shape)))]))
    return getattr(g, draw(st.sampled_from(["sum", "mean"])))(x, axes=axes, keepdims=draw(st.booleans()))


def _shape(draw: Any, g: Graph, x: Var) -> Var:
    if draw(st.booleans()):
        return g.flatten(x, start=draw(st.integers(0, len(x.shape) - 1)))
    return g.reshape(x, (*x.shape[1:], -1))


def _arithmetic(draw: Any, g: Graph, x: Var) -> Var:
    fits = [v for v in _vars(g) if _broadcasts(v.shape, x.shape)]
    a, b = draw(st.permutations([x, draw(st.sampled_from(fits))]))
    op = draw(st.sampled_from(["add", "sub", "mul", "div"]))
    return g.div(a, b * b + 1) if op == "div" else getattr(g, op)(a, b)


def _scalar(draw: Any, g: Graph, x: Var) -> Var:
    c = Fraction(draw(st.integers(-3, 3)), draw(st.sampled_from([1, 2, 4])))
    return draw(st.sampled_from([lambda: x + c, lambda: c - x, lambda: c * x, lambda: x / (c * c + 1)]))()


def _concat(draw: Any, g: Graph, x: Var) -> Var:
    axis = draw(st.integers(0, len(x.shape) - 1))
    rest = (x.shape[:axis], x.shape[axis + 1 :])
    same = [v for v in _vars(g) if len(v.shape) == len(x.shape) and (v.shape[:axis], v.shape[axis + 1 :]) == rest]
    return g.concat(x, draw(st.sampled_from(same)), axis=axis)


def _matmul(draw: Any, g: Graph, x: Var) -> Var:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    b = g.const(fractions(rng, draw(st.sampled_from([(x.shape[-1],), (x.shape[-1], 2)]))))
    return g.matmul(x, b)


def _conv(draw: Any, g: Graph, x: Var) -> Var:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rank = draw(st.integers(0, len(x.shape) - 1))
    channels = x.shape[len(x.shape) - rank - 1]
    groups = draw(st.sampled_from([n for n in (1, 2) if channels % n == 0]))
    w = g.const(fractions(rng, (groups, channels // groups, *(2,) * rank)))
    return g.conv(x, w, stride=draw(st.integers(1, 2)), padding=1, groups=groups)


STEPS = (
    _pooling,
    _pooling,
    _elementwise,
    _reduction,
    _shape,
    _arithmetic,
    _arithmetic,
    _scalar,
    _concat,
    _matmul,
    _conv,
)


def _vars(g: Graph) -> list[Var]:
    return [Var(g, node.id) for node in g.nodes]


def _broadcasts(a: Shape, b: Shape) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= LARGEST
    except ValueError:
        return False


@st.composite
def programs(draw: st.DrawFn, steps: int = 6) -> Program:
    """A random graph of pooling and glue, rational throughout, with 1 to 3 inputs and 1 to 3 outputs."""
    g = Graph()
    for _ in range(draw(st.integers(1, 3))):
        g.input(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)))
    for _ in range(draw(st.integers(1, steps))):
        x = draw(st.sampled_from([v for v in _vars(g) if math.prod(v.shape) <= LARGEST]))
        if not x.shape:
            x = g.reshape(x, (1,))
        made = draw(st.sampled_from(STEPS))(draw, g, x)
        if math.prod(made.shape) > LARGEST:  # no one reads it but this
            g.sum(made, axes=-1)
    count = draw(st.integers(1, 3))
    return g.build([draw(st.sampled_from(_vars(g)[::-1])) for _ in range(count)])


seeds = st.integers(0, 10_000).map(np.random.default_rng)


# -- torch ---------------------------------------------------------------------------------------------------------


def close(got: Any, want: Any, rtol: float = 1e-12, note: Any = "") -> None:
    got, want = (to_array(x) if isinstance(x, list) else np.asarray(x) for x in (got, want))
    assert got.shape == want.shape, (note, got.shape, want.shape)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=str(note))


def like_torch(program: Program, f: Callable[..., Any], *xs: np.ndarray, rtol: float = 1e-12) -> None:
    """`program` is `f` of tensors: the value, the tangent for random tangents, the cotangents for random ones."""
    torch = pytest.importorskip("torch", reason="torch is what glue is compared with")
    rng = np.random.default_rng(len(xs))
    dxs = tuple(floats(rng, x.shape).astype(x.dtype) for x in xs)
    tensors, moved = (tuple(map(torch.tensor, arrays)) for arrays in (xs, dxs))
    y, dy = torch.func.jvp(f, tensors, moved)
    got = program(*xs)
    assert got.dtype == xs[0].dtype
    close(got, y.numpy(), rtol, "value")
    close(program.jvp(xs, dxs), dy.numpy(), rtol, "jvp")
    g = floats(rng, tuple(y.shape)).astype(xs[0].dtype)
    want = torch.func.vjp(f, *tensors)[1](torch.tensor(g))
    for pulled, wanted in zip(as_tuple(program.vjp(xs, g), len(xs)), want, strict=True):
        close(pulled, wanted.numpy(), rtol, "vjp")


def like_hessian(program: Program, f: Callable[..., Any], x: np.ndarray, rtol: float = 1e-9) -> None:
    """hvp on arrays, on floats in nested lists and torch's Hessian agree."""
    torch = pytest.importorskip("torch", reason="torch is what hvp is compared with")
    v = floats(np.random.default_rng(7), x.shape)
    want = torch.autograd.functional.hvp(lambda t: f(t).reshape(()), torch.tensor(x), torch.tensor(v))[1].numpy()
    assert np.abs(want).max() > 1e-6 or not np.abs(program.hvp(x, v)).max() > 1e-12
    close(program.hvp(x, v), want, rtol, "hvp on arrays")
    close(to_array(program.hvp(x.tolist(), v.tolist())), want, rtol, "hvp on nested lists")


# -- a user's own op, and ops that lack something ------------------------------------------------------------------


class Square:
    """The least that a user writes."""

    name = "square"

    def out_shape(self, shape: Shape) -> Shape:
        return shape

    def forward(self, x: Any) -> Any:
        return x * x

    def jvp(self, x: Any, dx: Any) -> Any:
        return 2 * x * dx

    def vjp(self, x: Any, dy: Any) -> Any:
        return 2 * x * dy


class ForwardOnly:
    """Counts how often it ran, and has no derivative."""

    name = "forward_only"

    def __init__(self) -> None:
        self.runs = 0

    def out_shape(self, shape: Shape) -> Shape:
        return shape

    def forward(self, x: Any) -> Any:
        self.runs += 1
        return x * 1


class Counted(ForwardOnly, Square):
    """`Square`, counting its runs."""

    name = "counted"

    def forward(self, x: Any) -> Any:
        self.runs += 1
        return x * x
