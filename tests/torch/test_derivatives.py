"""gradcheck and gradgradcheck of every op, both modes, batched too; derivatives in beta; and rules that torch lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from ndpool.torch import functional as N
from ndpool.torch import nn

from .ops import QUIET

pytestmark = QUIET

OPS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "max": ("max_pool", ((2, 3), 1, (1, 0)), {}),
    "max, last of ties": ("max_pool", ((3,), 2), {"ties": "last", "dilation": 2, "padding": ((2, 1),)}),
    "max, all of ties": ("max_pool", ((2, 2),), {"ties": "all"}),
    "min, split": ("min_pool", ((2, 2, 2), 1), {"ties": "split"}),
    "avg": ("avg_pool", ((3, 2), 2, 1), {"ceil_mode": True, "count_include_pad": False}),
    "avg over 3": ("avg_pool", ((3, 2), 2, 1), {"divisor_override": 3}),
    "sum": ("sum_pool", ((2, 3), 1), {"dilation": (2, 1)}),
    "smooth max": ("smooth_max_pool", ((3, 3), 2, 1), {"beta": 2.0}),
    "smooth min": ("smooth_max_pool", ((3, 3), 2, 1), {"beta": -0.5, "count_include_pad": False}),
    "lp 1": ("lp_pool", (1, (2, 2)), {}),
    "lp 2": ("lp_pool", (2, (3, 3), 1, 1), {}),
    "lp 3.5": ("lp_pool", (3.5, (2, 3), 2), {}),
    "adaptive max": ("adaptive_max_pool", ((3, 2),), {}),
    "adaptive avg": ("adaptive_avg_pool", ((3, None),), {}),
    "adaptive smooth max": ("adaptive_smooth_max_pool", ((2, 3),), {"beta": 1.5}),
    "global max": ("global_max_pool", (), {}),
    "global lp": ("global_lp_pool", (2,), {"axes": (1, 3), "keepdims": False}),
    "global avg": ("global_avg_pool", (), {"keepdims": False, "axes": (0, -1)}),
}


def x() -> Tensor:
    return torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.parametrize("op", OPS)
def test_derivatives_of_first_and_second_order(way: str, op: str) -> None:
    name, args, kwargs = OPS[op]

    def f(z: Tensor) -> Tensor:
        return getattr(N, name)(z, *args, **kwargs)  # type: ignore[no-any-return]

    batched = {"check_batched_grad": True}
    assert gradcheck(f, x(), check_forward_ad=True, check_batched_forward_grad=True, **batched)
    assert gradgradcheck(f, x(), check_fwd_over_rev=True, **batched)


@pytest.mark.parametrize("op", ["smooth max", "lp 3.5", "max, all of ties", "min, split", "max", "avg"])
def test_what_moves_may_be_the_tangent_alone(way: str, op: str) -> None:
    """A jvp or a vjp at a fixed x is linear: it is its own derivative."""
    name, args, kwargs = OPS[op]
    z, moves = x().detach(), torch.func.jvp

    def f(z: Tensor) -> Tensor:
        return getattr(N, name)(z, *args, **kwargs)  # type: ignore[no-any-return]

    def ahead(t: Tensor) -> Tensor:
        return moves(f, (z,), (t,))[1]

    def back(g: Tensor) -> Tensor:
        return torch.func.vjp(f, z)[1](g)[0]

    for linear, at in ((ahead, z), (back, f(z))):
        along = at.flip(-1).sin()
        torch.testing.assert_close(moves(linear, (at,), (along,))[1], linear(along))


@pytest.mark.parametrize("shape", [(), (2, 1, 1)], ids=["one beta", "one a channel"])
def test_derivatives_in_beta(way: str, shape: tuple[int, ...]) -> None:
    beta = torch.full(shape, 1.3, dtype=torch.float64, requires_grad=True)

    def f(z: Tensor, b: Tensor) -> Tensor:
        return N.smooth_max_pool2d(z, 2, 1, 1, beta=b)  # type: ignore[no-any-return]

    assert gradcheck(f, (x(), beta), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, (x(), beta), check_fwd_over_rev=True)


def test_a_tensor_beta_is_the_float() -> None:
    z = x().detach()
    for b in (2.0, -0.75):
        got = N.smooth_max_pool(z, (3, 2), 1, 1, beta=torch.tensor(b, dtype=torch.float64))
        torch.testing.assert_close(got, N.smooth_max_pool(z, (3, 2), 1, 1, beta=b), rtol=1e-12, atol=1e-12)
    short = N.smooth_max_pool2d(z.bfloat16(), 2, beta=torch.tensor(2.0))
    assert torch.equal(short, N.smooth_max_pool2d(z.bfloat16(), 2, beta=2.0))


def test_beta_must_not_vary_under_a_window() -> None:
    with pytest.raises(RuntimeError, match=r"size 1 on axes \(-2, -1\)"):
        N.smooth_max_pool2d(torch.ones(1, 2, 4, 4), 3, 1, 1, beta=torch.ones(4, 4))


def test_beta_learns() -> None:
    pool = nn.SmoothMaxPoolNd((4,), beta=1.0, learnable=True)
    z, target = torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.tensor([[3.05]])
    step = torch.optim.SGD(pool.parameters(), lr=2.0)
    for _ in range(200):
        step.zero_grad()
        ((pool(z) - target) ** 2).sum().backward()
        step.step()
    torch.testing.assert_close(pool(z), target, rtol=1e-3, atol=0)
    assert pool.beta > 2  # 3.05 is far closer to the max than beta = 1 gives


TIES = {"first": [0, 1, 0, 0], "last": [0, 0, 0, 1], "all": [0, 1, 1, 1], "split": [0, 1 / 3, 1 / 3, 1 / 3]}


@pytest.mark.parametrize("ties", TIES)
def test_ties(way: str, ties: str) -> None:
    z = torch.tensor([[1.0, 2.0, 2.0, 2.0]], requires_grad=True)
    y = N.max_pool1d(z, 4, ties=ties)
    y.backward(torch.ones_like(y))
    assert z.grad is not None
    torch.testing.assert_close(z.grad[0], torch.tensor(TIES[ties], dtype=torch.float32))
    assert y.item() == 2.0


@pytest.mark.parametrize("ties", TIES)
def test_indices_are_those_of_the_first_of_shared_ties(way: str, ties: str) -> None:
    z = torch.tensor([[1.0, 2.0, 2.0, 2.0]])
    assert N.max_pool1d(z, 4, ties=ties, return_indices=True)[1].item() == (3 if ties == "last" else 1)


def test_lp_has_a_second_derivative_where_taps_are_zero(way: str) -> None:
    """y = |x|: y'' = (I - x x^T / y^2) / y, also along axes on which x is 0."""
    z = torch.tensor([[3.0, 0.0, -4.0, 0.0]], dtype=torch.float64)
    got = torch.func.hessian(lambda v: N.lp_pool1d(v, 2, 4).sum())(z)[0, :, 0]
    want = (torch.eye(4, dtype=torch.float64) - z.T @ z / 25) / 5
    torch.testing.assert_close(got, want)
    assert not torch.func.hessian(lambda v: N.lp_pool1d(v, 2, 4).sum())(0 * z).isnan().any()


def test_axes_of_nothing(way: str) -> None:
    z = torch.ones(2, 0, requires_grad=True)
    y = N.global_sum_pool(z, axes=(-1,))
    assert y.tolist() == [[0], [0]]
    assert N.max_pool(z, (2,), 1, padding=((1, 2),), return_indices=True)[1].tolist() == [[-1, -1], [-1, -1]]


def test_windows_that_read_nothing_are_rejected_where_torch_has_infinity(way: str) -> None:
    with pytest.raises(RuntimeError, match=r"max_pool1d: on axis 1, output \d reads nothing"):
        N.max_pool1d(torch.ones(1, 1), 2, 1, 1, dilation=2)


def test_windows_that_read_nothing(way: str) -> None:
    z = torch.ones(1, 3, requires_grad=True)
    y = N.max_pool(z, (2,), 1, padding=((3, 3),), empty="zero")
    assert y.tolist() == [[0, 0, 1, 1, 1, 1, 0, 0]]
    assert N.max_pool(z, (2,), 1, padding=((3, 3),), return_indices=True)[1].tolist() == [[-1, -1, 0, 0, 1, 2, -1, -1]]
    y.sum().backward()
    assert z.grad is not None
    assert z.grad.sum() == 4
