"""`ndpool.torch` over the Triton engine, interpreted: tensors on the CPU take it as those on a GPU do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ndpool import remembered
from ndpool.engines.triton import plan as plans
from ndpool.torch import functional as N
from ndpool.torch import pooling, private, routing
from ndpool.torch.gpu import OnGPU

from ..torch.ops import QUIET

pytestmark = QUIET
OPS = {
    "max": lambda x: N.max_pool2d(x, 3, 2, 1),
    "max, split": lambda x: N.max_pool2d(x, 2, 1, ties="split"),
    "avg": lambda x: N.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "smooth max": lambda x: N.smooth_max_pool2d(x, 3, 2, 1, beta=-2.0),
    "lp": lambda x: N.lp_pool2d(x, 3, 2),
    "across channels": lambda x: N.max_pool(x, (3, 2), axes=(1, 3)),
    "adaptive": lambda x: N.adaptive_avg_pool2d(x, 3),
}


@pytest.fixture(autouse=True)
def _on_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans are made anew, of the other engine, and forgotten afterwards."""
    monkeypatch.setitem(pooling.BINDS, "cpu", OnGPU)
    monkeypatch.setattr(routing, "DIRECT", False)
    monkeypatch.setattr(routing, "CPU", ("cpu",))
    remembered.forget()
    yield
    remembered.forget()


def values(*shape: int) -> Tensor:
    order = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(0))
    return (order.double() / 16 - 3).view(shape)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["dense", "channels last"])
@pytest.mark.parametrize("op", OPS)
def test_values_derivatives_and_layout(op: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(2, 3, 7, 6).to(memory_format=layout)
    f = OPS[op]
    y, (dx,) = torch.func.vjp(f, x)[0], torch.func.vjp(f, x)[1](values(*f(x).shape))
    dy = torch.func.jvp(f, (x,), (values(*x.shape).sin(),))[1]
    monkeypatch.setattr(routing, "served", lambda *_: False)
    torch.testing.assert_close(y, f(x))
    torch.testing.assert_close(dx, torch.func.vjp(f, x)[1](values(*y.shape))[0])
    torch.testing.assert_close(dy, torch.func.jvp(f, (x,), (values(*x.shape).sin(),))[1])
    assert y.is_contiguous(memory_format=layout)
    assert dx.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("op", OPS)
def test_gradcheck(op: str) -> None:
    x = values(1, 3, 5, 4).requires_grad_()
    torch.autograd.gradcheck(OPS[op], x, check_forward_ad=True, check_undefined_grad=False, fast_mode=True)


def test_second_order() -> None:
    x = values(1, 1, 5, 4).requires_grad_()
    torch.autograd.gradgradcheck(OPS["smooth max"], x, check_undefined_grad=False, fast_mode=True)


def test_indices_and_strides_of_any_kind() -> None:
    x = values(2, 3, 6, 8)
    for given in (x, x[..., ::2], x.transpose(2, 3), x[:0], x.to(torch.int32), x > 0):
        y, places = N.max_pool2d(given, 2, return_indices=True)
        flat = given.flatten(-2)
        assert torch.equal(flat.gather(-1, places.flatten(-2)).view(y.shape), y)


class Broken:
    """A kernel that this release of Triton does not compile."""

    __name__ = "kernel"

    def __getitem__(self, grid: object) -> None:
        raise AttributeError("'str' object has no attribute 'type'")


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ("max", "gather"),
        ("max", "jvp_by_winner"),
        ("max", "scatter"),
        ("smooth max", "gather"),
        ("across channels", "scatter"),
    ],
)
def test_kernels_that_do_not_compile_beside_those_that_do(
    op: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch fails, the others are Triton's: what won is told in the same way by both."""
    x, f = values(2, 3, 7, 6), OPS[op]
    want = f(x), torch.func.vjp(f, x)[1](values(*f(x).shape))[0], torch.func.jvp(f, (x,), (x.sin(),))[1]
    remembered.forget()
    monkeypatch.setattr(private, "PROBLEMS", [])
    module = "gather" if hasattr(plans.gather, kernel) else "scatter"
    broken = SimpleNamespace(**{**vars(getattr(plans, module)), kernel: Broken()})
    monkeypatch.setattr(plans, module, broken)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", RuntimeWarning)
        got = f(x), torch.func.vjp(f, x)[1](values(*f(x).shape))[0], torch.func.jvp(f, (x,), (x.sin(),))[1]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    (told,) = [str(w.message) for w in seen if w.category is RuntimeWarning]
    assert "does not compile: AttributeError: 'str' object" in told
    assert private.PROBLEMS
