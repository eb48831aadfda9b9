"""`ndpool.torch` on a GPU is `ndpool.torch` in torch's own operations, at shapes that fill more than a block."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ndpool
from ndpool import remembered
from ndpool.engines import triton
from ndpool.torch import functional as N
from ndpool.torch import pooling, private, routing

OPS = {
    "max": lambda x: N.max_pool2d(x, 3, 2, 1),
    "max, no overlap": lambda x: N.max_pool2d(x, 2),
    "max, stride 1": lambda x: N.max_pool2d(x, 3, 1, 1),
    "max, last of equals": lambda x: N.max_pool2d(x, 3, 1, 1, ties="last"),
    "max, dilated": lambda x: N.max_pool2d(x, 3, 2, 1, dilation=2),
    "max, ceil": lambda x: N.max_pool2d(x, 3, 2, ceil_mode=True),
    "max, all": lambda x: N.max_pool2d(x, 3, 2, 1, ties="all"),
    "max, split": lambda x: N.max_pool2d(x, 3, 2, 1, ties="split"),
    "max, large": lambda x: N.max_pool2d(x, 15, 1, 7),
    "max, large, strided": lambda x: N.max_pool2d(x, (9, 11), (2, 3), (4, 5)),
    "min": lambda x: N.min_pool2d(x, 2, 1),
    "avg": lambda x: N.avg_pool2d(x, 3, 2, 1),
    "avg, not counting": lambda x: N.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "avg, large": lambda x: N.avg_pool2d(x, 15, 1, 7),
    "avg, large, not counting": lambda x: N.avg_pool2d(x, 13, 2, 6, count_include_pad=False),
    "sum, volumes": lambda x: N.sum_pool3d(x, 3, 1),
    "max, volumes": lambda x: N.max_pool3d(x, 3, 1, 1),
    "max, lines": lambda x: N.max_pool(x, 5, 1, 2),
    "adaptive max": lambda x: N.adaptive_max_pool2d(x, 5),
    "adaptive avg": lambda x: N.adaptive_avg_pool2d(x, (7, 3)),
    "global max": lambda x: N.adaptive_max_pool2d(x, 1),
    "global avg": lambda x: N.global_avg_pool(x, axes=(-2, -1)),
    "global smooth max": lambda x: N.global_smooth_max_pool(x, axes=(-2, -1)),
    "smooth max": lambda x: N.smooth_max_pool2d(x, 3, 2, 1, beta=2.0),
    "smooth max, sharp": lambda x: N.smooth_max_pool2d(x, 3, 2, 1, beta=50.0),
    "smooth min": lambda x: N.smooth_max_pool2d(x, 3, 1, 1, beta=-2.0),
    "smooth max, large": lambda x: N.smooth_max_pool2d(x, 11, 1, 5),
    "lp": lambda x: N.lp_pool2d(x, 3, 3, 2),
    "across channels": lambda x: N.max_pool(x, (3, 2), axes=(1, 3)),
}
SHAPE = (2, 12, 40, 37)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def quarters(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers with many ties."""
    return (torch.randint(-12, 12, shape, generator=torch.Generator().manual_seed(len(shape))) / 4).to(dtype)


def through(f: object, x: Tensor, g: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = f(x)  # type: ignore[operator]
    g = torch.linspace(-1, 1, y.numel(), device=y.device, dtype=torch.float64).view(y.shape).to(y.dtype)
    (dx,) = torch.autograd.grad(y, x, g)
    tangent = torch.linspace(-2, 2, x.numel(), device=x.device, dtype=torch.float64).view(x.shape).to(x.dtype)
    _, dy = torch.func.jvp(f, (x.detach(),), (tangent,))  # type: ignore[arg-type]
    return y.detach(), dx, dy


DENSE, LAST = torch.contiguous_format, torch.channels_last
ELEMENTS = {  # not every dtype in every layout: each is compiled anew
    "float32": (torch.float32, DENSE),
    "float32, channels last": (torch.float32, LAST),
    "bfloat16": (torch.bfloat16, DENSE),
    "float16, channels last": (torch.float16, LAST),
    "float64": (torch.float64, DENSE),
}


@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("op", OPS)
def test_values_and_derivatives_are_those_of_the_composite(
    op: str, elements: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, layout = ELEMENTS[elements]
    x = quarters(*SHAPE, dtype=dtype).cuda().to(memory_format=layout)
    assert routing.served(x, pooling.of(ndpool.MaxPool(2), x.ndim))
    got = through(OPS[op], x)
    monkeypatch.setattr(routing, "served", lambda *_: False)
    monkeypatch.setattr(routing, "DIRECT", False)
    want = through(OPS[op], x.double() if dtype in (torch.float16, torch.bfloat16) else x)
    assert got[0].is_contiguous(memory_format=layout) or op == "across channels"
    for a, b, what in zip(got, want, ("value", "vjp", "jvp"), strict=True):
        tolerance = TOLERANCE[dtype] * max(1.0, float(b.abs().max()))
        assert torch.allclose(a.double(), b.double(), rtol=TOLERANCE[dtype], atol=tolerance), what


@pytest.mark.parametrize("op", ["max", "avg", "smooth max", "max, large"])
def test_same_bits_every_run(op: str) -> None:
    x = torch.randn(8, 16, 65, 63, device="cuda")
    first = through(OPS[op], x)
    for _ in range(100):
        for a, b in zip(first, through(OPS[op], x), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool], ids=str)
def test_integers_are_exact(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2 if dtype is torch.bool else 100, (3, 4, 21, 22)).to(dtype)
    for f in (N.max_pool2d, N.min_pool2d):
        assert torch.equal(f(x.cuda(), 3, 2, 1).cpu(), f(x, 3, 2, 1))
    if dtype in (torch.int32, torch.int64):
        big = x + 2 ** (torch.iinfo(dtype).bits - 4)
        assert torch.equal(N.sum_pool2d(big.cuda(), 2).cpu(), N.sum_pool2d(big, 2))


def test_the_first_of_zeros_wins() -> None:
    """The sign of a zero says which of equals won; the CPU's engine knows."""
    zeros = torch.tensor([0.0, -0.0, -1.0])[torch.randint(0, 3, (2, 8, 12, 40, 40))]
    for f in (
        lambda x: N.max_pool3d(x, 3, 1, 1),
        lambda x: N.max_pool2d(x[0], 3, 2, 1),
        lambda x: N.max_pool2d(x[0], 20),
    ):
        got, want = f(zeros.cuda()).cpu(), f(zeros)
        assert torch.equal(got, want)
        assert torch.equal(got.signbit(), want.signbit())


def test_indices_are_those_of_torch() -> None:
    x = torch.randn(4, 8, 33, 31, device="cuda")
    for args in ((2,), (3, 2, 1), (9, 1, 4)):
        y, places = N.max_pool2d(x, *args, return_indices=True)
        want_y, want_places = F.max_pool2d(x, *args, return_indices=True)
        assert torch.equal(y, want_y)
        assert torch.equal(places, want_places)


@pytest.mark.parametrize("op", ["max, no overlap", "avg", "smooth max"])
def test_other_streams(op: str) -> None:
    x = torch.randn(16, 64, 64, 64, device="cuda")
    want = OPS[op](x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # a launch on another stream would be early
        x.mul_(2)
        got = OPS[op](x)
    stream.synchronize()
    assert torch.equal(OPS[op](x), got)
    assert not torch.equal(want, got)


@pytest.mark.parametrize("op", ["max", "avg", "smooth max", "max, large", "global max"])
def test_cuda_graphs(op: str) -> None:
    x = torch.randn(*SHAPE, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        through(OPS[op], x)  # compiled before it is captured
        torch.autograd.grad(OPS[op](x).sum(), x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = OPS[op](x)
        (dx,) = torch.autograd.grad(y.sum(), x)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    want = OPS[op](x)
    torch.testing.assert_close(y, want, rtol=0, atol=0)
    torch.testing.assert_close(dx, torch.autograd.grad(want.sum(), x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("op", ["max, no overlap", "avg", "global max", "smooth max"])
def test_nothing_waits_for_the_device(op: str) -> None:
    x = torch.randn(*SHAPE, device="cuda", requires_grad=True)
    OPS[op](x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        OPS[op](x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_more_than_2_to_the_31_elements() -> None:
    x = torch.empty(2**21 + 3, 4, 16, 17, dtype=torch.uint8, device="cuda").random_(0, 250)
    assert x.numel() > 2**31
    y = N.max_pool2d(x, 2)
    assert torch.equal(y[-3:], N.max_pool2d(x[-3:].clone(), 2))
    assert torch.equal(y[:3], N.max_pool2d(x[:3].clone(), 2))
    x = torch.randn(2**15, 4, 128, 129, dtype=torch.bfloat16, device="cuda")
    x.requires_grad_()
    y = N.max_pool2d(x, 3, 2, 1)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    few = x[-2:].detach().clone().requires_grad_()
    (want,) = torch.autograd.grad(N.max_pool2d(few, 3, 2, 1).sum(), few)
    assert torch.equal(dx[-2:], want)


@pytest.mark.parametrize("op", OPS)
def test_gradcheck(op: str) -> None:
    values = torch.randperm(2 * 3 * 8 * 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (values.view(2, 3, 8, 7) / 40 - 1).cuda().requires_grad_()
    if "large" in op:
        pytest.skip("larger than the input that gradcheck takes")
    torch.autograd.gradcheck(OPS[op], x, check_forward_ad=True, check_undefined_grad=False, fast_mode=True)


@pytest.mark.parametrize("op", ["max", "avg", "smooth max", "lp", "max, split"])
def test_compiles_whole(op: str) -> None:
    x = quarters(*SHAPE).cuda().requires_grad_()
    compiled = torch.compile(OPS[op], fullgraph=True)
    y, want = compiled(x), OPS[op](x)
    torch.testing.assert_close(y, want, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), x)[0] for v in (y, want)), rtol=0, atol=0)


def test_vmap_and_second_order() -> None:
    x = torch.randn(3, 2, 9, 8, device="cuda", dtype=torch.float64)
    f = OPS["smooth max"]
    torch.testing.assert_close(torch.vmap(f)(x[:, None])[:, 0], f(x))
    torch.autograd.gradgradcheck(f, x[:1, :1].clone().requires_grad_(), check_undefined_grad=False, fast_mode=True)


@pytest.mark.filterwarnings("ignore:ndpool on torch")
@pytest.mark.parametrize("op", ["max", "max, all", "avg", "smooth max"])
def test_a_backward_where_no_kernel_compiles(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd's one thread per GPU must not wait for itself."""
    x = quarters(3, 5, 17, 19).cuda()
    want = through(OPS[op], x)

    def bind(*_: object) -> None:
        raise triton.NotCompiledError("no luck")

    monkeypatch.setattr(triton, "bind", bind)
    monkeypatch.setattr(private, "PROBLEMS", [])
    remembered.forget()
    try:
        got = through(OPS[op], x)
        assert private.PROBLEMS == ["no luck, so torch's own operations pool there"]
    finally:
        remembered.forget()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
