"""Convolution is torch's at ranks 1 to 3, and exact over Fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from .strategies import TORCH_WARNS, close, floats, fractions, given, inner, like_torch, of, seeds, to_array

torch = pytest.importorskip("torch", reason="torch is what convolution is compared with")
F = torch.nn.functional
pytestmark = TORCH_WARNS


@st.composite
def convolutions(draw: st.DrawFn, rank: int, per_side: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """The shapes of x and w, and the arguments: one for all axes or one an axis."""
    groups, batch = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([(), (1,), (2,)]))
    into, out = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    spread = draw(st.booleans())

    def sizes(low: int, high: int) -> Any:
        one = st.integers(low, high)
        return draw(st.tuples(*[one] * rank) if spread else one)

    k = draw(st.tuples(*[st.integers(1, 3)] * rank))
    s, d = sizes(1, 3), sizes(1, 2)
    p: Any = draw(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * rank)) if per_side else sizes(0, 2)
    least = [max(1, _one(d, i) * (k[i] - 1) + 1 - sum(p[i] if per_side else (_one(p, i),) * 2)) for i in range(rank)]
    space = tuple(n + draw(st.integers(0, 3)) for n in least)
    arguments = {"stride": s, "padding": p, "dilation": d, "groups": groups}
    return (*batch, into * groups, *space), (out * groups, into, *k), arguments


def _one(value: Any, i: int) -> int:
    return value[i] if isinstance(value, tuple) else value


@pytest.mark.parametrize("rank", [1, 2, 3])
@given(st.data(), seeds, examples=30)
def test_convolution(rank: int, data: Any, rng: np.random.Generator) -> None:
    x, w, arguments = data.draw(convolutions(rank))
    program = of(lambda g, a, b: g.conv(a, b, **arguments), x, w)
    conv = getattr(F, f"conv{rank}d")
    like_torch(program, lambda a, b: conv(a, b, **arguments), floats(rng, x), floats(rng, w), rtol=1e-11)


@pytest.mark.parametrize("rank", [1, 2])
@given(st.data(), seeds, examples=30)
def test_padding_before_and_after(rank: int, data: Any, rng: np.random.Generator) -> None:
    x, w, arguments = data.draw(convolutions(rank, per_side=True))
    program = of(lambda g, a, b: g.conv(a, b, **arguments), x, w)
    conv = getattr(F, f"conv{rank}d")
    sides = [n for pair in reversed(arguments["padding"]) for n in pair]
    plain = arguments | {"padding": 0}
    like_torch(program, lambda a, b: conv(F.pad(a, sides), b, **plain), floats(rng, x), floats(rng, w), rtol=1e-11)


def test_several_leading_axes() -> None:
    rng = np.random.default_rng(0)
    x, w = floats(rng, (2, 3, 4, 7, 6)), floats(rng, (6, 2, 3, 2))
    program = of(lambda g, a, b: g.conv(a, b, stride=(2, 1), padding=1, groups=2), x.shape, w.shape)

    def f(a: Any, b: Any) -> Any:
        y = F.conv2d(a.reshape(6, 4, 7, 6), b, stride=(2, 1), padding=1, groups=2)
        return y.reshape(2, 3, *y.shape[1:])

    like_torch(program, f, x, w, rtol=1e-11)


def test_an_empty_batch() -> None:
    x, w = np.zeros((0, 2, 5, 5)), np.ones((3, 2, 2, 2))
    program = of(lambda g, a, b: g.conv(a, b), x.shape, w.shape)
    y = program(x, w)
    assert y.shape == (0, 3, 4, 4)
    dx, dw = program.vjp((x, w), y)
    assert dx.shape == x.shape
    assert dw.tolist() == np.zeros_like(w).tolist()


def test_no_spatial_axis_is_a_matrix_product() -> None:
    rng = np.random.default_rng(2)
    x, w = floats(rng, (5, 4)), floats(rng, (3, 4))
    program = of(lambda g, a, b: g.conv(a, b), x.shape, w.shape)
    like_torch(program, lambda a, b: a @ b.T, x, w)


@given(st.integers(1, 2).flatmap(convolutions), seeds, examples=40)
def test_convolution_is_adjoint_exactly_and_the_same_on_arrays(case: Any, rng: np.random.Generator) -> None:
    x_shape, w_shape, arguments = case
    program = of(lambda g, a, b: g.conv(a, b, **arguments), x_shape, w_shape)
    xs, dxs = [(fractions(rng, x_shape), fractions(rng, w_shape)) for _ in range(2)]
    dy = fractions(rng, program.output_shapes[0])
    pulled = program.vjp(xs, dy)
    assert inner(program.jvp(xs, dxs), dy) == inner(dxs, pulled)
    arrays = tuple(map(to_array, xs))
    close(program(*arrays), to_array(program(*xs)))
    for got, want in zip(program.vjp(arrays, to_array(dy)), pulled, strict=True):
        close(got, to_array(want))


def test_a_one_by_one_average_is_average_pooling() -> None:
    x = floats(np.random.default_rng(3), (1, 6, 6))
    program = of(
        lambda g, a: [g.conv(a, g.const(np.full((1, 1, 3, 3), 1 / 9)), stride=2, padding=1), g.avg_pool(a, 3, 2, 1)],
        x.shape,
    )
    got, want = program(x)
    close(got, want)
