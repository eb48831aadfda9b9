"""Every transform on every op, one table: what holds for torch's op, or for torch's own words, holds for ours.

A transform is a function of the op; both sides go through it and the results must agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from .ops import CASES, QUIET, Run, use

pytestmark = QUIET
Transform = Callable[[Run], Any]


def tensor(seed: int, *shape: int) -> Tensor:
    """Values without ties, and none near 0."""
    values = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(seed))
    return ((values + 1) / 10 * torch.where(values % 2 == 0, 1, -1)).double().reshape(shape)


X, DX, ONE = tensor(0, 2, 2, 4, 4), tensor(1, 2, 2, 4, 4), tensor(2, 2, 4, 4)


def cubed(f: Run) -> Run:
    """A number that bends with every output."""
    return lambda x: (f(x) ** 3 / 7).sum()


def gradient(f: Run, x: Tensor = X) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(cubed(f)(x), x)[0]


def double_backward(f: Run) -> Tensor:
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(cubed(f)(x), x, create_graph=True)
    return torch.autograd.grad((g * DX).sum(), x)[0]


def double_backward_in_the_cotangent(f: Run) -> Tensor:
    x = X.clone().requires_grad_()
    y = f(x)
    v = torch.ones_like(y, requires_grad=True)
    (g,) = torch.autograd.grad(y, x, v, create_graph=True)
    return torch.autograd.grad((g * DX).sum(), v)[0]


def strided_cotangent(f: Run) -> Tensor:
    """A gradient that is one number expanded, and one that lies transposed."""
    x = X.clone().requires_grad_()
    y = f(x)
    g = torch.arange(float(y.numel()), dtype=y.dtype).reshape(y.mT.shape).mT
    return torch.stack([*torch.autograd.grad(y.sum(), x, retain_graph=True), *torch.autograd.grad(y, x, g)])


def dual(f: Run) -> Tensor:
    with fw.dual_level():
        return fw.unpack_dual(f(fw.make_dual(X, DX))).tangent


def forward_over_reverse(f: Run) -> Tensor:
    with fw.dual_level():
        x = fw.make_dual(X.clone().requires_grad_(), DX)
        (g,) = torch.autograd.grad(cubed(f)(x), x, create_graph=True)
        return fw.unpack_dual(g).tangent


def no_grad_inside(f: Run) -> Tensor:
    def h(x: Tensor) -> Tensor:
        with torch.no_grad():
            a = f(x)
        return (a * f(x)).sum()

    return grad(h)(X)


def no_grad_outside(f: Run) -> Tensor:
    with torch.no_grad():
        return grad(cubed(f))(X)


def inference(f: Run) -> Tensor:
    with torch.inference_mode():
        return f(X * 1).clone()


def parameter(f: Run) -> Tensor:
    """A leaf that wants a gradient, where none is taken."""
    x = torch.nn.Parameter(X.clone())
    with torch.no_grad():
        y = f(x)
    assert not y.requires_grad
    return y


def autocast(f: Run) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return f(X.float())


def fake(f: Run) -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        y = f(torch.empty_strided((2, 3, 4, 5), (60, 1, 15, 3)))
        return tuple(y.shape), y.dtype


def empty_batch(f: Run) -> Any:
    x = X[:0].clone().requires_grad_()
    y = f(x)
    y.sum().backward()
    assert x.grad is not None
    return tuple(y.shape), tuple(x.grad.shape)


EAGER: dict[str, Transform] = {
    "value": lambda f: f(X),
    "gradient": gradient,
    "double backward": double_backward,
    "double backward in the cotangent": double_backward_in_the_cotangent,
    "strided cotangents": strided_cotangent,
    "channels last": lambda f: torch.stack([gradient(f, X.to(memory_format=torch.channels_last)), gradient(f)]),
    "strided input": lambda f: gradient(f, X.repeat_interleave(2, -1)[..., ::2].mT),
    "dual numbers": dual,
    "forward over reverse": forward_over_reverse,
    "jvp": lambda f: jvp(f, (X,), (DX,))[1],
    "jacfwd": lambda f: jacfwd(f)(ONE),
    "grad": lambda f: grad(cubed(f))(X),
    "jacrev": lambda f: jacrev(f)(ONE),
    "jacrev in chunks": lambda f: jacrev(f, chunk_size=3)(ONE),
    "vjp": lambda f: (lambda y, pull: pull(y * y)[0])(*vjp(f, X)),
    "linearize": lambda f: linearize(f, X)[1](DX),
    "vmap": lambda f: vmap(f)(X),
    "vmap, batch in the middle": lambda f: vmap(f, in_dims=1, out_dims=-1)(X.transpose(0, 1)),
    "vmap of vmap": lambda f: vmap(vmap(f))(X[None] + DX[:, None]),
    "vmap of grad": lambda f: vmap(grad(cubed(f)))(X),
    "vmap of jvp": lambda f: vmap(lambda a, b: jvp(f, (a,), (b,))[1])(X, DX),
    "vmap of jvp, one tangent": lambda f: vmap(lambda a: jvp(f, (a,), (ONE,))[1])(X),
    "jvp of grad": lambda f: jvp(grad(cubed(f)), (X,), (DX,))[1],
    "grad of jvp": lambda f: grad(lambda x: jvp(cubed(f), (x,), (DX,))[1])(X),
    "grad of vmap": lambda f: grad(lambda x: (vmap(f)(x) ** 2).sum())(X),
    "hessian": lambda f: hessian(cubed(f))(ONE),
    "jacrev of jacrev": lambda f: jacrev(jacrev(cubed(f)))(ONE),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(cubed(f)))(ONE),
    "vmap of hessian": lambda f: vmap(hessian(cubed(f)))(X),
    "third derivative": lambda f: jvp(hessian(cubed(f)), (ONE,), (ONE,))[1],
    "batched gradients": lambda f: torch.autograd.functional.jacobian(f, X[:1], vectorize=True),
    "no grad inside": no_grad_inside,
    "no grad outside": no_grad_outside,
    "inference mode": inference,
    "a parameter without grad": parameter,
    "autocast": autocast,
    "FakeTensor": fake,
    "meta": lambda f: tuple(f(X.to("meta")).shape),
    "empty batch": empty_batch,
    "make_fx": lambda f: make_fx(f)(X)(X + DX),
    "make_fx of grad": lambda f: make_fx(grad(cubed(f)))(X)(X),
    "checkpoint": lambda f: gradient(lambda x: checkpoint(f, x, use_reentrant=False)),
}


def compiled(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(f, fullgraph=True, **{"backend": "aot_eager", **options})


class Module(torch.nn.Module):
    def __init__(self, f: Run):
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


def exported(f: Run) -> Run:
    """With any batch."""
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Module(f), (X,), dynamic_shapes=(batch,))

    def run(x: Tensor) -> Tensor:
        y = program.module()(x)
        assert torch.equal(program.run_decompositions().module()(x), y)
        return y  # type: ignore[no-any-return]

    return run


def dynamic(f: Run) -> Tensor:
    """One graph for two shapes."""
    run = compiled(lambda x: f(x * 1.0), dynamic=True)
    return torch.cat([gradient(run).flatten(), gradient(run, tensor(5, 3, 2, 5, 4)).flatten()])


TRACED: dict[str, Transform] = {
    "compile, training": lambda f: gradient(compiled(lambda x: f(x * 1.0))),
    "compile, dynamic shapes": dynamic,
    "compile of grad": lambda f: compiled(grad(cubed(f)))(X),
    "compile of jvp": lambda f: compiled(lambda a, b: jvp(f, (a,), (b,))[1])(X, DX),
    "compile of vmap of grad": lambda f: compiled(vmap(grad(cubed(f))))(X),
    "export": lambda f: exported(f)(X[:1]),
}
SLOW: dict[str, Transform] = {
    "compile of jacfwd": lambda f: compiled(jacfwd(f))(ONE),
    "compile of hessian": lambda f: compiled(hessian(cubed(f)))(ONE),
    "compile by inductor, training": lambda f: gradient(compiled(lambda x: f(x.sin()) * 2, backend="inductor")),
}
FEW = ("max", "smooth max")


LIKE_OTHERS = ("max with indices", "min", "sum", "adaptive avg", "global max", "global avg")  # to a tracer
MET_BY_ALL = ("compile, training", "export")  # by ops of every kind; the other transforms by FEW


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, Tensor):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)
    else:
        assert got == want


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("transform", EAGER)
def test_eager(way: str, transform: str, op: str) -> None:
    assert_same(*(EAGER[transform](run) for run in (CASES[op].ours, CASES[op].theirs)))


def check_traced(transform: Transform, op: str) -> None:
    """Theirs is run as it is: tracing must change nothing, and takes seconds."""
    torch._dynamo.reset()
    got = transform(CASES[op].ours)
    with patch.multiple(sys.modules[__name__], compiled=lambda f, **_: f, exported=lambda f: f):
        assert_same(got, transform(CASES[op].theirs))


def is_long(transform: str, op: str) -> bool:
    """Rows of seconds that say what others say."""
    dynamic = transform == "compile, dynamic shapes" and op in ("adaptive max", "unpool")
    return op not in FEW and not dynamic and (op in LIKE_OTHERS or transform not in MET_BY_ALL)


ROWS = [
    pytest.param(way, transform, op, marks=[pytest.mark.long] * is_long(transform, op))
    for way in ("operators", "composite")
    for transform in TRACED
    for op in (FEW if (way, transform) == ("composite", "compile, dynamic shapes") else CASES)  # seconds each
]


@pytest.mark.parametrize(("way", "transform", "op"), ROWS, indirect=["way"])
def test_traced(way: str, transform: str, op: str) -> None:
    check_traced(TRACED[transform], op)


@pytest.mark.parametrize("op", FEW)
@pytest.mark.parametrize("transform", SLOW)
def test_traced_slowly(transform: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use("operators", monkeypatch)
    check_traced(SLOW[transform], op)
