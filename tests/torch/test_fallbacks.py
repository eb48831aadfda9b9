"""Where torch or Triton is not as the adapter needs it, results and derivatives stay right; one warning tells it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, jvp, vjp

from ndpool import remembered
from ndpool.engines import native, triton
from ndpool.torch import functional as N
from ndpool.torch import operators, pooling, private, routing
from ndpool.torch.gpu import OnGPU

from .ops import QUIET

pytestmark = QUIET
needs_operators = pytest.mark.skipif(not operators.AVAILABLE, reason=f"no operators: {native.reason()}")

# A name is missing where its module is a copy without it; torch itself still has it. A child for each, because
# operators can be defined once in a process.
WITHOUT_A_NAME = """
import importlib, os, sys, traceback, types, warnings
import torch, torch.nn.functional as F
from torch.func import grad, jvp, vmap
warnings.simplefilter("ignore")
jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))
TRANSFORMS = [
    lambda f: f(X), lambda f: grad(f)(X), lambda f: vmap(grad(f))(X), lambda f: jvp(f, (X,), (DX,))[1],
    lambda f: jvp(grad(f), (X,), (DX,))[1], lambda f: torch.autograd.grad(f(LEAF), LEAF)[0],
]
X, DX, LEAF = (torch.randn(2, 3, 6, 6, dtype=torch.float64) for _ in range(3))
LEAF.requires_grad_()

def check(place):
    module, _, names = place.partition(":")
    first, _, rest = names.partition(".")
    real = importlib.import_module(module)
    copy = types.ModuleType(module)
    vars(copy).update(vars(real))
    if rest:
        setattr(copy, first, None)
    else:
        delattr(copy, first)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", RuntimeWarning)
        sys.modules[module] = copy
        from ndpool.torch import functional as N, private
        sys.modules[module] = real
        for h in TRANSFORMS:
            got, want = (h(lambda x: (f.max_pool2d(x, 3, 2, 1) ** 2).sum()) for f in (N, F))
            torch.testing.assert_close(got, want)
        y, at = F.max_pool2d(X, 2, return_indices=True)
        torch.testing.assert_close(N.max_unpool2d(y, at, 2), F.max_unpool2d(y, at, 2))
    (told,) = [str(w.message) for w in seen if w.category is RuntimeWarning]
    assert torch.__version__ in told and place.replace(":", ".") in told, told
    assert len(private.PROBLEMS) == 1

for place in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            check(place)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(place, os.waitpid(child, 0)[1])
"""


def test_without_a_private_name() -> None:
    places = [*private.OPERATORS.values(), *private.PLAIN.values()]
    command = [sys.executable, "-c", WITHOUT_A_NAME, *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{place} 0" for place in places], done.stderr


@contextmanager
def one_warning(*words: str) -> Iterator[None]:
    """All that goes wrong within is told once, with the versions."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RuntimeWarning)
        yield
    (told,) = [str(w.message) for w in seen if w.category is RuntimeWarning]
    for word in (torch.__version__, "Triton", *words):
        assert word in told


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not pooled yet."""
    monkeypatch.setattr(private, "PROBLEMS", [])
    monkeypatch.setattr(operators, "_PASSED", {})


def values(*shape: int) -> Tensor:
    order = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(0))
    return (order.double() / 16 - 3).view(shape)


def f(x: Tensor) -> Tensor:
    return (N.max_pool2d(x, 3, 2, 1) ** 2).sum()


def theirs(x: Tensor) -> Tensor:
    return (F.max_pool2d(x, 3, 2, 1) ** 2).sum()


@needs_operators
@pytest.mark.parametrize("fails", operators.TRIALS)
def test_a_trial_that_fails(fails: str, anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(g, x, dx):  # type: ignore[no-untyped-def]
        raise NotImplementedError("could not find kernel")

    x, dx = values(2, 3, 6, 6), values(2, 3, 6, 6).sin()
    monkeypatch.setattr(routing, "DIRECT", False)
    monkeypatch.setitem(operators.TRIALS, fails, broken)
    with one_warning(fails, "could not find kernel"):
        for _ in range(2):
            torch.testing.assert_close(grad(f)(x), grad(theirs)(x))
            torch.testing.assert_close(jvp(f, (x,), (dx,))[1], jvp(theirs, (x,), (dx,))[1])
            torch.testing.assert_close(jvp(grad(f), (x,), (dx,))[1], jvp(grad(theirs), (x,), (dx,))[1])
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(f(leaf), leaf)[0], grad(theirs)(x))
    assert operators._PASSED[fails] is False


@needs_operators
@pytest.mark.parametrize("factor", [2, 1 + 1e-9])
def test_a_trial_sees_wrong_numbers(factor: float, anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = operators.winners
    monkeypatch.setattr(operators, "winners", lambda x, text: (real(x, text)[0] * factor, None))
    with one_warning("torch.func.grad", "MaxPool(kernel_size=2"):
        assert not operators.passes("torch.func.grad")


@needs_operators
def test_trials_pass_here_whatever_is_about(anew: None) -> None:
    """Inside of transforms, modes and levels of forward mode, which a trial must not see."""
    from torch._subclasses import FakeTensorMode

    x = values(2, 3, 6, 6)
    with torch.device("meta"), torch.no_grad(), fw.dual_level():
        grad(f)(x)
    operators._PASSED.clear()
    with FakeTensorMode():
        assert operators.usable()
    operators._PASSED.clear()
    jvp(grad(f), (x,), (x,))
    assert dict.fromkeys(operators.TRIALS, True) == operators._PASSED
    assert private.PROBLEMS == []


OPS = {
    "max": lambda x: N.max_pool2d(x, 3, 2, 1),
    "max, across channels": lambda x: N.max_pool(x, (3, 2), stride=(1, 2), axes=(1, 3)),
    "min, last, dilated": lambda x: N.min_pool2d(x, 2, 1, 1, dilation=2, ties="last", empty="zero"),
    "max, split": lambda x: N.max_pool2d(x, 2, 1, ties="split"),
    "adaptive max": lambda x: N.adaptive_max_pool2d(x, (4, 3)),
    "avg": lambda x: N.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "smooth max": lambda x: N.smooth_max_pool2d(x, 3, 2, 1, beta=-2.0),
    "lp": lambda x: N.lp_pool2d(x, 3, 2),
}


@needs_operators
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["dense", "channels last"])
@pytest.mark.parametrize("op", OPS)
def test_kernels_that_do_not_compile(
    op: str, layout: torch.memory_format, anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors on the CPU take the way of those on a GPU, where no kernel compiles."""
    x, dx = values(2, 3, 7, 6).to(memory_format=layout), values(2, 3, 7, 6).sin()
    run = OPS[op]
    want = run(x), vjp(run, x)[1](run(x).sin())[0], jvp(run, (x,), (dx,))[1], hvp(run, x, dx)

    def bind(*_: object) -> None:
        raise triton.NotCompiledError("gather does not compile: no luck")

    monkeypatch.setattr(triton, "bind", bind)
    monkeypatch.setitem(pooling.BINDS, "cpu", OnGPU)
    monkeypatch.setattr(routing, "DIRECT", False)
    remembered.forget()
    try:
        with one_warning("gather does not compile: no luck"):
            got = run(x), vjp(run, x)[1](run(x).sin())[0], jvp(run, (x,), (dx,))[1], hvp(run, x, dx)
            if "max" in op and "smooth" not in op and "across" not in op:
                indices = N.max_pool2d(x, 3, 2, 1, return_indices=True)[1]
                assert torch.equal(indices, F.max_pool2d(x, 3, 2, 1, return_indices=True)[1])
    finally:
        remembered.forget()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def hvp(run, x: Tensor, dx: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    return jvp(grad(lambda x: (run(x) ** 3).sum()), (x,), (dx,))[1]
