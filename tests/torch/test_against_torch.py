"""Values, indices, first and second derivatives equal to torch's on random geometries, both ways a tensor can take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ndpool.torch
from ndpool.torch import functional as N
from tests import cases  # noqa: F401  # its profile of hypothesis

from .. import examples
from .ops import QUIET, Run, use

pytestmark = QUIET
LARGEST = {1: 14, 2: 7, 3: 5}


def values(seed: int, shape: tuple[int, ...], ties: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if ties:
        return torch.randint(-3, 4, shape, generator=generator).double() / 2
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@st.composite
def sliding(draw: st.DrawFn, dilated: bool) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """A rank, a shape, and arguments that torch takes."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    k, s, d = each(1, 3), each(1, 3), each(1, 2) if dilated else (1,) * rank
    p = tuple(draw(st.integers(0, kk // 2)) for kk in k)
    least = [dd * (kk - 1) + 1 for kk, dd in zip(k, d, strict=True)]
    n = [draw(st.integers(low, low + LARGEST[rank])) for low in least]
    arguments = {"kernel_size": k, "stride": s, "padding": p, "ceil_mode": draw(st.booleans())}
    shape = (*(draw(st.integers(1, 2)) for _ in range(draw(st.integers(1, 2)))), *n)
    return rank, shape, arguments | ({"dilation": d} if dilated else {})


@st.composite
def lies(draw: st.DrawFn, x: Tensor) -> Tensor:
    """x, lying in some order of its axes."""
    order = draw(st.permutations(range(x.ndim)))
    return x.permute(order).contiguous().permute([order.index(i) for i in range(x.ndim)])


def products(f: Run, x: Tensor, seed: int) -> list[Tensor]:
    """The value, and first and second derivatives in random directions."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = f(x)
    v, w = values(seed, tuple(y.shape), False), values(seed + 1, tuple(x.shape), False)
    (g,) = torch.autograd.grad((y * y * v).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * w).sum(), x)
    return [y.detach(), g.detach(), torch.func.jvp(f, (x.detach(),), (w,))[1], h]


def compare(ours: Run, theirs: Run, x: Tensor, seed: int, exact: bool) -> None:
    got, want = products(ours, x, seed), products(theirs, x, seed)
    if exact:
        assert torch.equal(got[0], want[0])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def reads_input(arguments: dict[str, Any], y: Tensor) -> bool:
    """A dilated window may read padding alone: torch gives -inf, ndpool rejects it."""
    return bool(torch.isfinite(y).all())


@settings(max_examples=examples(40))
@given(data=st.data())
def test_max_pool(way: str, data: st.DataObject) -> None:
    rank, shape, arguments = data.draw(sliding(dilated=True))
    seed = data.draw(st.integers(0, 2**16))
    x = data.draw(lies(values(seed, shape, ties=True)))
    ours, theirs = (getattr(module, f"max_pool{rank}d") for module in (N, F))
    y, places = theirs(x, return_indices=True, **arguments)
    if not reads_input(arguments, y):
        with pytest.raises(RuntimeError, match="reads nothing"):
            ours(x, **arguments)
        return
    got, found = ours(x, return_indices=True, **arguments)
    assert torch.equal(got, y)
    assert torch.equal(found, places)
    assert found.dtype is torch.int64
    compare(lambda z: ours(z, **arguments), lambda z: theirs(z, **arguments), x, seed, exact=True)


@settings(max_examples=examples(40))
@given(data=st.data())
def test_avg_pool(way: str, data: st.DataObject) -> None:
    rank, shape, arguments = data.draw(sliding(dilated=False))
    arguments["count_include_pad"] = data.draw(st.booleans())
    if rank > 1:
        arguments["divisor_override"] = data.draw(st.none() | st.integers(1, 9))
    seed = data.draw(st.integers(0, 2**16))
    x = data.draw(lies(values(seed, shape, ties=False)))
    ours, theirs = (getattr(module, f"avg_pool{rank}d") for module in (N, F))
    compare(lambda z: ours(z, **arguments), lambda z: theirs(z, **arguments), x, seed, exact=False)


@settings(max_examples=examples(30))
@given(data=st.data())
@pytest.mark.parametrize("law", ["max", "avg"])
def test_adaptive_pool(way: str, law: str, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, LARGEST[rank])) for _ in range(rank + 2))
    size = tuple(data.draw(st.integers(1, LARGEST[rank]) | st.none()) for _ in range(rank))
    size = size if rank > 1 else (size[0] or 1)  # type: ignore[assignment]  # of one axis torch takes a number
    seed = data.draw(st.integers(0, 2**16))
    x = data.draw(lies(values(seed, shape, ties=law == "max")))
    ours, theirs = (getattr(module, f"adaptive_{law}_pool{rank}d") for module in (N, F))
    if law == "max":
        got, want = ours(x, size, return_indices=True), theirs(x, size, return_indices=True)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
    compare(lambda z: ours(z, size), lambda z: theirs(z, size), x, seed, law == "max")


@settings(max_examples=examples(30))
@given(data=st.data())
def test_lp_pool(way: str, data: st.DataObject) -> None:
    """Of even p, where torch's x^p is |x|^p, in whole windows, and away from 0, where torch's gradient is NaN."""
    rank, shape, arguments = data.draw(sliding(dilated=False))
    p, k, s = data.draw(st.sampled_from([2.0, 4.0])), arguments["kernel_size"], arguments["stride"]
    k, s = (k, s) if rank > 1 else (k[0], s[0])
    seed = data.draw(st.integers(0, 2**16))
    x = values(seed, shape, ties=False)
    x = x + 2 * x.sign()
    ours, theirs = (getattr(module, f"lp_pool{rank}d") for module in (N, F))
    compare(lambda z: ours(z, p, k, s), lambda z: theirs(z, p, k, s), x, seed, exact=False)


@settings(max_examples=examples(40))
@given(data=st.data())
def test_max_unpool(way: str, data: st.DataObject) -> None:
    """On windows that overlap, too, where torch's value is the last one put."""
    rank, shape, arguments = data.draw(sliding(dilated=False))
    arguments.pop("ceil_mode")
    seed = data.draw(st.integers(0, 2**16))
    y, places = getattr(F, f"max_pool{rank}d")(values(seed, shape, ties=False), return_indices=True, **arguments)
    size = shape[-rank:]
    try:
        want = getattr(F, f"max_unpool{rank}d")(y, places, output_size=size, **arguments)
    except ValueError:
        with pytest.raises(ValueError, match="output_size"):
            getattr(N, f"max_unpool{rank}d")(y, places, output_size=size, **arguments)
        return
    assert torch.equal(getattr(N, f"max_unpool{rank}d")(y, places, output_size=size, **arguments), want)
    back = N.max_unpool(y, places, arguments["kernel_size"], arguments["stride"], output_size=size, duplicates="sum")
    pulled = torch.func.vjp(lambda z: getattr(F, f"max_pool{rank}d")(z, **arguments), values(seed, shape, False))[1](y)
    torch.testing.assert_close(back, pulled[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_max_pool_of_every_dtype(way: str, dtype: torch.dtype) -> None:
    x = (values(3, (2, 3, 9, 8), ties=True) * 2 + 8).to(dtype)
    for memory in (torch.contiguous_format, torch.channels_last):
        y, places = N.max_pool2d(x.to(memory_format=memory), 3, 2, 1, return_indices=True)
        want = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        assert torch.equal(y, want[0])
        assert torch.equal(places, want[1])
        assert torch.equal(N.max_pool2d(x.to(memory_format=memory), 3, 2, 1), want[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [8, 40])  # small tensors and others take different memory
def test_gradients_of_short_floats(way: str, dtype: torch.dtype, size: int) -> None:
    for name in ("max_pool2d", "avg_pool2d"):
        for memory in (torch.contiguous_format, torch.channels_last):
            x = values(4, (2, 3, size, size), ties=False).to(dtype).to(memory_format=memory)
            got, want = x.clone().requires_grad_(), x.clone().requires_grad_()
            g = values(5, (2, 3, size // 2, size // 2), ties=False).to(dtype)
            getattr(N, name)(got, 3, 2, 1).backward(g)
            getattr(F, name)(want, 3, 2, 1).backward(g)
            assert got.grad is not None
            assert want.grad is not None
            if way == "operators":
                assert got.grad.stride() == want.grad.stride()
            # torch sums gradients of short floats in short floats, ndpool in float32
            close = {"rtol": 1e-6, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.02}
            torch.testing.assert_close(got.grad, want.grad, **close)


def test_one_nan_wins_as_in_torch(way: str) -> None:
    x = values(6, (1, 2, 7, 7), ties=False)
    x[0, 1, 3, 4] = torch.nan
    for got, want in zip(
        N.max_pool2d(x, 3, 1, return_indices=True), F.max_pool2d(x, 3, 1, return_indices=True), strict=True
    ):
        torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)
    assert not N.max_pool2d(x, 3, 1, nan="ignore").isnan().any()


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_channels_stay_last(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use("operators", monkeypatch)
    for rank, memory in ((2, torch.channels_last), (3, torch.channels_last_3d)):
        for shape in ((2, 3, 6, 6), (2, 1, 6, 6), (2, 3, 4, 6)):
            x = values(7, (*shape[:2], *[6] * (rank - 2), *shape[2:]), ties=False).to(memory_format=memory)
            for z in (x, x[1:], x[..., ::2], x[:, :, ::2]):
                got, want = (getattr(module, f"{name}{rank}d")(z, 2, 1) for module in (N, F))
                if (name, rank) == ("avg_pool", 3):  # torch forgets it there
                    assert got.is_contiguous(memory_format=memory)
                else:
                    assert got.stride() == want.stride(), (z.shape, z.stride())


@pytest.mark.parametrize("duplicates", ["last", "sum"])
def test_unpooled_tensors_lie_as_torchs(duplicates: str) -> None:
    for rank, memories in (
        (1, ["contiguous_format"]),
        (2, ["contiguous_format", "channels_last"]),
        (3, ["channels_last_3d"]),
    ):
        for memory in memories:
            x = values(7, (2, 3, *[6] * rank), ties=False).to(memory_format=getattr(torch, memory))
            for z in (x, x[0], x[:, :, ::2]):
                y, at = getattr(F, f"max_pool{rank}d")(z, 2, return_indices=True)
                got, want = (getattr(module, f"max_unpool{rank}d")(y, at, 2) for module in (N, F))
                assert torch.equal(got, want)
                assert got.stride() == want.stride(), (z.shape, z.stride())
    y, at = F.max_pool2d(x[0], 2, return_indices=True)
    N.max_unpool2d(y, at, 2, duplicates=duplicates).view(-1)
    nothing = torch.full_like(at, -1)
    assert not N.max_unpool2d(y, nothing, 2, duplicates=duplicates).any()


@pytest.mark.parametrize("name", ["avg_pool2d", "avg_pool3d"])
def test_a_negative_divisor(way: str, name: str) -> None:
    x = values(7, (2, 3, 6, 6, 6)[: 2 + int(name[-2])], ties=False).requires_grad_()
    for arguments in ((2, 2, 0, False, True, -3), (2, 1, 1, True, False, -1)):
        got, want = (getattr(module, name)(x, *arguments) for module in (N, F))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad((y**2).sum(), x)[0] for y in (got, want)))
    module = torch.nn.AvgPool2d(2, divisor_override=-3)
    want = module(x.detach()[..., 0, :, :] if x.ndim == 5 else x.detach())
    assert len(ndpool.torch.convert(module).replaced) == 1
    torch.testing.assert_close(module(x.detach()[..., 0, :, :] if x.ndim == 5 else x.detach()), want)


def test_where_layouts_differ_from_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/torch.md lists them: channels stay last in 3-D, but not without a batch."""
    use("operators", monkeypatch)
    last = torch.channels_last_3d
    x = values(7, (2, 3, 6, 6, 6), ties=False).to(memory_format=last)
    calls = {"avg_pool3d": (2,), "lp_pool3d": (2, 2), "adaptive_max_pool3d": (3,), "adaptive_avg_pool3d": (3,)}
    for name, arguments in calls.items():
        got, want = (getattr(module, name)(x, *arguments) for module in (N, F))
        torch.testing.assert_close(got, want)
        assert got.is_contiguous(memory_format=last)
        assert want.is_contiguous()
    one, theirs = (module.max_pool3d(x[0], 2) for module in (N, F))
    assert one.is_contiguous()
    assert theirs[None].is_contiguous(memory_format=last)
    leaf = values(7, (2, 3, 6, 6), ties=False).to(memory_format=torch.channels_last).requires_grad_()
    got, want = (torch.autograd.grad(module.adaptive_avg_pool2d(leaf, 1).sum(), leaf)[0] for module in (N, F))
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert want.is_contiguous()
