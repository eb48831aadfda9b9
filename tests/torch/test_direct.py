"""Calls that the extension does by itself, on the memory of tensors: which it takes, and what its results are like."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace as Namespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import ndpool
from ndpool import remembered
from ndpool.engines import native
from ndpool.torch import direct
from ndpool.torch import functional as N
from ndpool.torch.cpu import OnCPU

from .ops import CASES, QUIET

pytestmark = [*QUIET, pytest.mark.skipif(not native.available(), reason=native.reason())]
needs_extension = pytest.mark.skipif(not direct.in_extension, reason="this torch has no DLPack in C")

LARGE = (4, 64, 64, 64)  # inputs of 4 MB, of which results of a stride of 2 have 1 MB


@pytest.fixture(params=["extension", "python"])
def who(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who does a call: the extension, or Python where torch has no DLPack in C."""
    if request.param == "python":
        monkeypatch.setattr(direct, "in_extension", False)
        monkeypatch.setattr(direct, "pool", direct._none)
    elif not direct.in_extension:
        pytest.skip("this torch has no DLPack in C")
    remembered.forget()
    return str(request.param)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers without equals among few of them."""
    order = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(0))
    return (order.double() / 16 - 3).to(dtype).view(shape)


def refuse(*_: Any) -> None:
    pytest.fail("a call that the extension can do went through Python")


# -- which calls ------------------------------------------------------------------------------------------------------


@needs_extension
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["dense", "last"])
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
def test_the_extension_does_all_of_a_call(
    name: str, layout: torch.memory_format, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, large and small, with gradients that are dense or one number for all."""
    ours, theirs = getattr(N, name), getattr(F, name)
    for shape in ((2, 3, 8, 8), (2, 64, 34, 30)):
        x = values(*shape, dtype=dtype).to(memory_format=layout)
        ours(x, 2)
        with monkeypatch.context() as patch:
            for method in ("forward", "kept", "back"):
                patch.setattr(OnCPU, method, refuse)
            y, leaf, other = ours(x, 2), x.clone().requires_grad_(), x.double().requires_grad_()
            want = theirs(other, 2)
            torch.testing.assert_close(y, want.detach().to(dtype))
            assert y.stride() == theirs(x, 2).stride()
            assert y.dtype is dtype
            assert not y.requires_grad
            for g in (torch.ones(()).expand(y.shape), values(*y.shape).sin().to(memory_format=layout)):
                (got,) = torch.autograd.grad(ours(leaf, 2), leaf, g.to(dtype))
                torch.testing.assert_close(got, torch.autograd.grad(want, other, g.double(), True)[0].to(dtype))
                assert got.stride() == x.stride()


@pytest.mark.parametrize("case", CASES)
def test_both_ways_give_the_same(case: str, who: str) -> None:
    x = values(2, 3, 4, 4, dtype=torch.float64)
    for _ in range(2):
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, want = CASES[case].ours(leaf), CASES[case].theirs(other)
        torch.testing.assert_close(y, want)
        g = values(*y.shape, dtype=torch.float64).cos()
        first, theirs = (torch.autograd.grad(a, b, g, create_graph=True)[0] for a, b in ((y, leaf), (want, other)))
        torch.testing.assert_close(first, theirs)
        with torch.no_grad():
            torch.testing.assert_close(CASES[case].ours(leaf), want)


def like(x: Tensor) -> dict[str, Tensor]:
    """Tensors of one shape that are told apart."""
    wide = torch.zeros(2, 3, 8, 16)
    wide[..., ::2] = x
    return {
        "dense": x,
        "every other": wide[..., ::2],
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.mT.contiguous().mT,
        "expanded": x[:, :1].expand(x.shape),
        "negated": torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag,
        "zeros": torch._efficientzerotensor(x.shape),
        "a part": torch.cat([x, x])[2:],
        "a parameter": torch.nn.Parameter(x.clone()),
        "an inference tensor": inference(x),
        "double": x.double(),
        "half": x.half(),
        "integers": x.long(),
        "bytes": x.to(torch.uint8),
        "bits": x > 0,
        "a subclass": x.as_subclass(Own),
    }


class Own(Tensor):
    """A user's tensors."""


def inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


@pytest.mark.parametrize("kind", like(torch.zeros(2, 3, 8, 8)))
def test_tensors_that_are_alike_in_shape_alone(kind: str, who: str) -> None:
    """None is taken for another, whichever came first."""
    x = values(2, 3, 8, 8)
    for name, z in {"dense": x, kind: like(x)[kind], **like(x)}.items():
        for _ in range(2):
            y = N.max_pool2d(z, 3, 2, 1)
            want = F.max_pool2d(z.double(), 3, 2, 1).to(z.dtype)
            assert torch.equal(y, want), name
            assert type(y) is (Own if name == "a subclass" else Tensor), name


@pytest.mark.parametrize(
    "kind", ["dense", "expanded", "every other", "channels last", "negated", "zeros", "double derivative", "batched"]
)
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_gradients_of_any_kind(name: str, kind: str, who: str) -> None:
    ours, theirs = getattr(N, name), getattr(F, name)
    x = values(2, 3, 16, 16)
    dy = values(2, 3, 8, 8).sin()
    for _ in range(2):
        leaf, other = (x.clone().requires_grad_() for _ in range(2))
        pairs = (ours(leaf, 2), leaf), (theirs(other, 2), other)
        if kind == "double derivative":
            g = dy.clone().requires_grad_()
            firsts = [torch.autograd.grad(y, at, g, create_graph=True)[0] for y, at in pairs]
            got, want = (torch.autograd.grad(d, g, d.detach().cos())[0] for d in firsts)
        elif kind == "batched":
            g = torch.stack([dy, 2 * dy])
            got, want = (torch.autograd.grad(y, at, g, is_grads_batched=True)[0] for y, at in pairs)
        else:
            g = like(dy)[kind]
            got, want = (torch.autograd.grad(y, at, g)[0] for y, at in pairs)
        torch.testing.assert_close(got, want)


def test_what_watches_is_not_passed_by(who: str) -> None:
    """Modes and tracers see an operator, also of a tensor that has a plan."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = values(2, 3, 8, 8)
    want = N.max_pool2d(x, 2)
    with Watch():
        assert torch.equal(N.max_pool2d(x, 2), want)
    assert any("ndpool" in name for name in seen)
    traced = torch.jit.trace(lambda x: N.max_pool2d(x, 2), (x,))
    assert torch.equal(traced(x + 1), want + 1)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: N.max_pool2d(x, 2))(x)
    assert torch.equal(graph(x + 1), want + 1)


def test_sums_that_do_not_fit(who: str) -> None:
    x = torch.full((1, 1, 2, 2), 100, dtype=torch.int8)
    for _ in range(2):
        with pytest.raises(ndpool.PoolError, match="a sum does not fit int8; convert x to a wider type"):
            N.sum_pool2d(x, 2)


@needs_extension
def test_what_the_extension_is_given_is_checked() -> None:
    from ndpool import _native

    x = values(1, 1, 4, 4)
    y = N.max_pool2d(x, 2)
    plan = next(iter(N.MADE["max_pool2d"](2).plans.values()))
    for call, error in (
        (lambda: _native.pool([], x), TypeError),  # type: ignore[arg-type]
        (lambda: _native.pool({_native.tensor_key(x): 1}, x), TypeError),
        (lambda: _native.backward(y), TypeError),  # type: ignore[call-arg]
        (lambda: _native.backward(y, y), AttributeError),
        (lambda: _native.backward(Namespace(plan=y), y), TypeError),
        (lambda: _native.backward(Namespace(plan=plan, saved_tensors=()), y), IndexError),
        (lambda: _native.apply_of(y), TypeError),  # type: ignore[arg-type]
        (lambda: _native.linearize(None, 3, plan), ValueError),
        (lambda: _native.linearize(None, x, plan), AttributeError),
        (lambda: _native.tensor_plan(x, *[None] * 9), TypeError),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            call()
    assert _native.use_torch(*[None] * 11) is False  # type: ignore[arg-type]
    assert _native.pool({}, x) is None
    assert _native.pool({}, 3) is None
    assert _native.tensor_key(torch.zeros(2, 2, device="meta")) is None
    assert _native.tensor_key(torch.zeros(2, 2).to_sparse()) is None


# -- what is saved for the derivative ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [lambda t: t.clone(), lambda t: t.mT.contiguous().mT, lambda t: torch.nn.Parameter(t, requires_grad=False)],
    ids=["a copy", "other strides", "a parameter"],
)
def test_hooks_may_put_another_tensor_in_its_place(change: Callable[[Tensor], Tensor], who: str) -> None:
    x = values(2, 3, 8, 8)
    N.max_pool2d(x, 2)
    leaf = x.clone().requires_grad_()
    with saved_tensors_hooks(lambda t: t, change):
        y = N.max_pool2d(leaf, 2)
    y.sum().backward()
    other = x.clone().requires_grad_()
    F.max_pool2d(other, 2).sum().backward()
    assert torch.equal(leaf.grad, other.grad)  # type: ignore[arg-type]


def test_a_graph_is_gone_through_once_or_kept(who: str) -> None:
    """Once more only if it is kept, or if nothing is: a global average needs no more than the gradient, as in torch."""
    leaf = values(2, 3, 8, 8).requires_grad_()
    for _ in range(2):
        y, z = N.max_pool2d(leaf, 2), N.adaptive_avg_pool2d(leaf, 1)
        y.sum().backward(retain_graph=True)
        for _ in range(2):
            z.sum().backward()
        y.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()


def test_checkpoints(who: str) -> None:
    leaf, other = (values(2, 3, 16, 16).requires_grad_() for _ in range(2))
    checkpoint(lambda x: N.max_pool2d(N.avg_pool2d(x, 3, 1, 1) ** 2, 2), leaf, use_reentrant=False).sum().backward()
    F.max_pool2d(F.avg_pool2d(other, 3, 1, 1) ** 2, 2).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


# -- what results are like ---------------------------------------------------------------------------------------------


def result(*shape: int) -> Tensor:
    x = torch.ones(shape)
    N.avg_pool2d(x, 2)
    return N.avg_pool2d(x, 2)


@needs_extension
@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 64, 62, 66), LARGE], ids=["small", "0.5 MB", "large"])
class TestResults:
    """Memory that the extension made does what torch's own does; but it cannot grow."""

    def test_they_begin_at_a_cache_line(self, shape: tuple[int, ...]) -> None:
        y = result(*shape)
        assert y.data_ptr() % 64 == 0
        assert y.untyped_storage().nbytes() == y.numel() * 4
        assert (y._version, y.is_leaf, y.requires_grad, y.storage_offset()) == (0, True, False, 0)

    def test_they_are_written_and_read_again(self, shape: tuple[int, ...]) -> None:
        y = result(*shape)
        for f in (copy.deepcopy, copy.copy, lambda t: pickle.loads(pickle.dumps(t)), torch.from_dlpack, loaded):
            assert torch.equal(f(y), y)
        assert torch.equal(torch.from_numpy(y.numpy()), y)

    def test_they_change_in_place(self, shape: tuple[int, ...]) -> None:
        leaf = torch.ones(shape, requires_grad=True)
        y = N.avg_pool2d(leaf, 2)
        y.mul_(3)
        y[:, :1] = 0
        assert y._version == 2
        y.sum().backward()
        assert leaf.grad[0, :, 0, 0].tolist() == [0, *[0.75] * (shape[1] - 1)]  # type: ignore[index]
        z = result(*shape)
        torch.add(z, 1, out=z)
        assert bool((z == 2).all())

    def test_a_change_is_seen_by_what_saved_them(self, shape: tuple[int, ...]) -> None:
        y = N.avg_pool2d(torch.ones(shape, requires_grad=True), 2)
        z = y.exp()
        z.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()

    def test_they_shrink_and_are_replaced(self, shape: tuple[int, ...]) -> None:
        y = result(*shape)
        assert y.resize_(3).tolist() == [1, 1, 1]
        with pytest.raises(RuntimeError, match="not resizable"):
            y.resize_(shape)
        y.set_(torch.zeros(100))  # type: ignore[call-overload]
        assert y.resize_(300).shape == (300,)
        z = result(*shape)
        z.data = torch.zeros(2)
        assert z.tolist() == [0, 0]

    def test_they_are_shared_with_other_processes(self, shape: tuple[int, ...]) -> None:
        y = result(*shape)
        y.share_memory_()
        assert y.is_shared()
        assert bool((y == 1).all())
        child = os.fork()
        if not child:
            y.fill_(5)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bool((y == 5).all())

    def test_a_fork_has_its_own(self, shape: tuple[int, ...]) -> None:
        y = result(*shape)
        child = os.fork()
        if not child:
            y.fill_(7)
            fine = bool((result(*shape) == 1).all()) and bool((y == 7).all())
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert bool((y == 1).all())

    def test_views_keep_them(self, shape: tuple[int, ...]) -> None:
        views = [result(*shape)[:, 1], result(*shape).flatten(), result(*shape).untyped_storage()]
        array = result(*shape).numpy()
        gc.collect()
        others = [result(*shape).fill_(9) for _ in range(4)]
        assert all(bool((v == 1).all()) for v in views[:2])
        assert array.min() == array.max() == 1
        assert bytes(views[2])[:4] == b"\0\0\x80?"
        assert all(bool((o == 9).all()) for o in others)


def loaded(y: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    return torch.load(file)  # type: ignore[no-any-return]


def _sum(y: Tensor, queue: Any) -> None:
    queue.put(float(y.sum()))


@needs_extension
def test_results_go_to_another_process() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    y = result(*LARGE)
    child = context.Process(target=_sum, args=(y, queue))
    child.start()
    assert queue.get() == y.numel()
    child.join()


@needs_extension
def test_memory_of_large_results_is_kept() -> None:
    """Up to the limit, for the next result of the size, whoever makes it; 0 keeps nothing."""
    try:
        ndpool.set_kept_memory(0)
        ndpool.set_kept_memory(3 << 20)
        y = result(*LARGE)
        at = y.data_ptr()
        del y
        assert ndpool.kept_memory() >= 1 << 20
        y = result(*LARGE)
        assert y.data_ptr() == at
        del y
        many = [result(*LARGE) for _ in range(6)]
        del many
        assert 2 << 20 <= ndpool.kept_memory() <= 3 << 20
        ndpool.set_kept_memory(0)
        assert ndpool.kept_memory() == 0
        y = result(*LARGE)
        del y
        assert ndpool.kept_memory() == 0
    finally:
        ndpool.set_kept_memory(256 << 20)


@needs_extension
def test_plans_are_forgotten_and_made_again() -> None:
    x = values(1, 3, 8, 8)
    want = N.max_pool2d(x, 2)
    remembered.forget()
    assert torch.equal(N.max_pool2d(x, 2), want)
    call = N.MADE["max_pool2d"](2)
    for size in range(4, 4 + remembered.MOST // 2 + 50):
        N.max_pool2d(torch.zeros(1, 1, 2, size), 2)
    assert len(call.plans) <= remembered.MOST
    assert torch.equal(N.max_pool2d(x, 2), want)


THREADS = """
import sys, ndpool, torch
from ndpool import _native
from ndpool.torch import functional as N
threads, torchs = map(int, sys.argv[1:])
ndpool.set_threads(threads)
torch.set_num_threads(torchs)
for _ in range(2):
    N.max_pool2d(torch.zeros(4, 64, 128, 128), 2)
print(_native.workers())
"""


@pytest.mark.parametrize(("ndpools", "torchs", "workers"), [(1, 3, 0), (3, 1, 0), (3, 3, 2)])
def test_no_more_threads_than_either_may_use(ndpools: int, torchs: int, workers: int) -> None:
    command = [sys.executable, "-c", THREADS, str(ndpools), str(torchs)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{workers}\n"


def test_many_threads(who: str) -> None:
    """Forward and backward from many callers at once, small and large."""
    inputs = [values(*shape) for shape in ((1, 3, 8, 8), (1, 64, 14, 14), (2, 64, 65, 64))]
    wants = []
    for x in inputs:
        leaf = x.clone().requires_grad_()
        F.max_pool2d(F.avg_pool2d(leaf, 3, 1, 1), 3, 2, 1).sum().backward()
        wants.append(leaf.grad)
    go = threading.Barrier(8)

    def work(_: int) -> bool:
        go.wait()
        fine = True
        for _ in range(5):
            for x, want in zip(inputs, wants, strict=True):
                leaf = x.clone().requires_grad_()
                N.max_pool2d(N.avg_pool2d(leaf, 3, 1, 1), 3, 2, 1).sum().backward()
                fine = fine and torch.allclose(leaf.grad, want, atol=1e-5)  # type: ignore[arg-type]
        return fine

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
