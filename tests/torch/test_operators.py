"""The operators keep torch's contracts (opcheck), give the same bits as the records, and hold what they need."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import ndpool
from ndpool import remembered
from ndpool.engines import native
from ndpool.record_text import NAMED
from ndpool.torch import cpu, operators, private
from ndpool.torch import functional as N
from ndpool.torch.pooling import of, read

from .ops import QUIET

pytestmark = [
    *QUIET,
    pytest.mark.skipif(not operators.AVAILABLE, reason=f"no operators: {private.MISSING or native.reason()}"),
]


def x(*shape: int, last: bool = False) -> Tensor:
    z = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (z.to(memory_format=torch.channels_last) if last else z).requires_grad_()


MAX = "MaxPool(kernel_size=3, stride=2, padding=1, axes=(-2, -1))"
SMOOTH = "SmoothMaxPool(kernel_size=2, beta=1.5, axes=(-2, -1))"
MEAN = "AdaptiveAvgPool(output_size=(3, 2), axes=(-2, -1))"


def samples(last: bool) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    a, dy = x(2, 3, 6, 4, last=last), x(2, 3, 3, 2, last=last)
    residual = operators.winners(a.detach(), MAX)[1]
    back = [6, 4], last
    return {
        "forward": (operators.forward, (a, SMOOTH)),
        "forward, linear": (operators.forward, (a, MEAN)),
        "winners": (operators.winners, (a, MAX)),
        "jvp": (operators.jvp, (a, x(2, 3, 6, 4), SMOOTH)),
        "vjp": (operators.vjp, (a, dy, SMOOTH, *back)),
        "vjp, linear": (operators.vjp, (None, dy, MEAN, *back)),
        "jvp_by_winner": (operators.jvp_by_winner, (residual, a, MAX)),
        "vjp_by_winner": (operators.vjp_by_winner, (residual, dy, MAX, *back)),
        "positions": (operators.positions, (residual, MAX, *back)),
    }


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", samples(False) if operators.AVAILABLE else [])
def test_opcheck(name: str, last: bool) -> None:
    operator, args = samples(last)[name]
    assert set(opcheck(operator, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("taps", [255, 256, 257, 65536, 65537])
def test_residuals_are_as_short_as_they_can_be(taps: int) -> None:
    z = torch.arange(float(taps + 1), requires_grad=True)
    y, residual = operators.winners(z, f"MaxPool(kernel_size=({taps},), stride=1, axes=(-1,))")
    assert residual.element_size() == (1 if taps <= 256 else 2 if taps <= 65536 else 4)
    fake = operators.winners(z.to("meta"), f"MaxPool(kernel_size=({taps},), stride=1, axes=(-1,))")[1]
    assert fake.dtype == residual.dtype
    assert torch.equal(torch.autograd.grad(y.sum(), z)[0].nonzero().ravel(), torch.tensor([taps - 1, taps]))


@pytest.mark.parametrize("n", [1, 5, 255, 256, 257, 511, 512, 513, 1000])
@pytest.mark.parametrize("out", [1, 2, 3])
def test_shapes_name_the_residual_as_plans_do(n: int, out: int) -> None:
    text = f"AdaptiveMaxPool(output_size=({out},), axes=(-1,))"
    real, fake = (operators.winners(torch.zeros(2, n, device=device), text)[1] for device in ("cpu", "meta"))
    assert real.dtype == fake.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_a_tensor_has_the_bits_of_the_array(dtype: torch.dtype) -> None:
    """Small tensors, large ones, with a gradient wanted or not, through an operator or not."""
    for shape in ((2, 3, 9, 9), (2, 3, 90, 90)):
        z = (torch.randn(shape) * 50).to(dtype)
        for name in ("MaxPool", "SumPool", "LpPool") if dtype.is_floating_point else ("MaxPool", "SumPool"):
            args = (2, 3, 2) if name == "LpPool" else (3, 2)
            want = getattr(ndpool, f"{name}2d")(*args)(z.numpy())
            function = getattr(N, ndpool.op.function_name(name) + "2d")
            text = of(getattr(ndpool, f"{name}2d")(*args), 4).text
            for got in (function(z, *args), operators.forward(z, text)):
                assert np.array_equal(got.numpy(), want)
            if dtype.is_floating_point:
                assert np.array_equal(function(z.clone().requires_grad_(), *args).detach().numpy(), want)


def test_text_is_read_as_data() -> None:
    assert read(MAX).text == MAX
    for hostile in ("__import__('os')", "MaxPool(kernel_size=print())", "Law()", "MaxPool(", "max_pool(kernel_size=2)"):
        with pytest.raises(ndpool.PoolError, match="not an op of ndpool"):
            read(hostile)


def test_records_are_all_there() -> None:
    own = {"Pool", "AdaptivePool", "GlobalPool"}  # laws of the user's own have no kernels
    public = {n for n in ndpool.__all__ if n.endswith("Pool")}
    assert set(NAMED) == public - own


def test_a_training_step_keeps_bytes() -> None:
    """Between forward and backward a max pool holds a byte an output, and the input is free to go."""
    z = torch.randn(1, 4, 64, 64, requires_grad=True)
    h = z * 1
    alive, y = weakref.ref(h), N.max_pool2d(h, 2)
    saved = y.grad_fn.saved_tensors
    assert [(t.dtype, t.shape) for t in saved] == [(torch.uint8, y.shape)]
    del h
    gc.collect()
    assert alive() is None
    y.sum().backward()


def test_what_is_kept_is_freed_with_the_graph() -> None:
    z = torch.randn(1, 4, 64, 64, requires_grad=True)
    y = N.max_pool2d(z, 2)
    kept = weakref.ref(y.grad_fn.saved_tensors[0].untyped_storage())
    del y
    assert kept() is None


def test_tensors_that_are_not_what_their_memory_says() -> None:
    """A negated view, and zeros that have no memory at all."""
    z = torch.randn(1, 2, 4, 4, dtype=torch.complex64).conj().imag
    assert z.is_neg()
    N.max_pool2d(z.resolve_neg(), 2)  # the plan is there
    assert torch.equal(N.max_pool2d(z, 2), N.max_pool2d(z.resolve_neg(), 2))
    none = torch._efficientzerotensor(1, 2, 4, 4)
    N.max_pool2d(torch.zeros(1, 2, 4, 4), 2)
    assert torch.equal(N.max_pool2d(none, 2), torch.zeros(1, 2, 2, 2))


@pytest.mark.parametrize("side", [8, 80])
def test_results_are_where_the_input_is_whatever_the_default_device(side: int) -> None:
    z = torch.randn(1, 2, side, side, requires_grad=True)
    with torch.device("meta"):
        y = N.max_pool2d(z, 2)
        (g,) = torch.autograd.grad(y, z, y.detach())
    assert y.device.type == g.device.type == "cpu"


def test_plans_are_remembered_within_bounds() -> None:
    for n in range(cpu.SMALL // 8, cpu.SMALL // 8 + remembered.MOST // 2 + 99):
        N.sum_pool(torch.ones(n), (2,))
    kept = len(of(ndpool.SumPool((2,)), 1).plans) + len(N.MADE["sum_pool"]((2,)).plans)
    assert kept <= len(remembered._order) == remembered.MOST
