"""`ndpool.max_pool(tensor)`: ndpool's functions and records on tensors, with autograd; and what `convert` found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d as pooled

import ndpool
import ndpool.torch
from ndpool import ops
from ndpool.ops import RECORDS

from ..cases import ENERGY
from .ops import QUIET

pytestmark = QUIET
OWN = {"kernel_size": 2, "output_size": 2, "norm_type": 2}
OPS = [
    record(**{name: value for name, value in OWN.items() if name in record.__dataclass_fields__})
    for record in RECORDS
    if "law" not in record.__dataclass_fields__ and not issubclass(record, ops._Mode)
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_autograd_goes_through_the_door(op: Any) -> None:
    """Values and gradients are NumPy's; and a vjp can be differentiated again."""
    a = np.random.default_rng(0).normal(size=(2, 4, 6))
    x = torch.from_numpy(a).requires_grad_()
    y = op(x)
    dy = torch.ones_like(y)
    y.backward(dy)
    np.testing.assert_allclose(y.detach(), op(a), rtol=1e-12)
    np.testing.assert_allclose(x.grad, op.vjp(a, np.ones(y.shape)), rtol=1e-9, atol=1e-12)
    again = op.vjp(x, dy)
    assert again.requires_grad or op.law.linear or op.law.winners
    np.testing.assert_allclose(again.detach(), x.grad)


def test_the_function_is_that_of_ndpool_torch() -> None:
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(ndpool.max_pool(x, 3, stride=2, padding=1), F.max_pool2d(x, 3, 2, 1))
    last = x.to(memory_format=torch.channels_last)
    assert ndpool.max_pool(last, 2).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(ndpool.max_pool(x, 2, layout="CNHW"), F.max_pool2d(x, 2))
    y, where = ndpool.max_pool(x, 2, return_indices=True)
    assert torch.equal(ndpool.max_unpool(y, where, 2), F.max_unpool2d(y, where, 2))
    assert ndpool.max_pool(nn.Parameter(x), 2).requires_grad
    assert ndpool.max_pool(x.to("meta"), 2).shape == (2, 3, 4, 4)
    got = torch.func.vmap(lambda t: ndpool.max_pool(t, 2))(x)
    assert torch.equal(got, F.max_pool2d(x, 2))


def test_a_dtype_on_tensors() -> None:
    x = torch.full((4, 4), 200, dtype=torch.uint8)
    for y in (
        ndpool.sum_pool(x, 2, dtype=torch.int32),
        ndpool.torch.functional.sum_pool(x, 2, dtype="int32"),
        ndpool.torch.functional.sum_pool2d(x[None], 2, dtype=torch.int32)[0],
    ):
        assert y.dtype == torch.int32
        assert y.tolist() == [[800, 800], [800, 800]]
    half = torch.ones(4, 4, dtype=torch.float16, requires_grad=True)
    ndpool.avg_pool(half, 2, dtype="float32").sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.float16
    with pytest.raises(ndpool.PoolTypeError, match="sum_pool: dtype='int32' cannot hold x's float32"):
        ndpool.sum_pool(torch.ones(4, 4), 2, dtype=torch.int32)


def test_global_ops_on_volumes_must_be_told() -> None:
    x = torch.ones(1, 2, 3, 4, 5)
    with pytest.raises(ndpool.PoolError, match="global_avg_pool: x has 5 axes, and nothing says which are pooled"):
        ndpool.torch.functional.global_avg_pool(x)
    assert ndpool.torch.functional.global_avg_pool(x, layout="NCDHW").shape == (1, 2, 1, 1, 1)
    assert ndpool.torch.functional.global_avg_pool3d(x).shape == (1, 2, 1, 1, 1)


# -- what convert finds ------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.pool(nn.functional.avg_pool2d(x, 2))

    def pool(self, x: Tensor) -> Tensor:
        return F.relu(torch.max_pool2d(x, 2))


class Net(Block):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Block(), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        max_pool2d = {"F": "F.max_pool2d(x)"}  # names that are no calls
        return pooled(F.adaptive_max_pool2d(self.inner(x), 4), len(max_pool2d))


def test_convert_lists_calls_that_it_cannot_change() -> None:
    report = ndpool.torch.convert(Net())
    found = {(call.owner, call.function, call.reached) for call in report.called}
    assert len(report.called) == len(found)
    assert found == {
        ("Net", "F.adaptive_max_pool2d", True),
        ("Net", "pooled", False),
        ("Block", "nn.functional.avg_pool2d", True),
        ("Block", "torch.max_pool2d", False),
    }
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    for call in report.called:
        assert call.file == "test_door.py"
        assert f"{call.function}(" in lines[call.line - 1]
    told = str(report)
    assert "Net calls F.adaptive_max_pool2d (test_door.py, line" in told
    assert "run it within ndpool.torch.patched()" in told
    assert "call ndpool.torch.functional there" in told


def test_code_that_cannot_be_read_is_passed_over() -> None:
    space: dict[str, Any] = {"nn": nn, "F": F, "__name__": __name__}
    exec("class Made(nn.Module):\n    def forward(self, x):\n        return F.max_pool2d(x, 2)", space)
    assert ndpool.torch.convert(space["Made"]()).called == ()
    assert ndpool.torch.convert(nn.Sequential(nn.MaxPool2d(2))).called == ()


# -- under torch.compile -----------------------------------------------------------------------------------------------

MAX, TWO = ndpool.MaxPool(3, 2, 1), ndpool.GlobalMinPool(keepdims=False, return_indices=True)
COMPILED = {
    "a function": lambda x: ndpool.smooth_max_pool(x, (2, 3), layout="NHWC", beta=2.0),
    "another spelling": lambda x: ndpool.avg_pool1d(x, 2),
    "a record": MAX,
    "a record of two results": lambda x: TWO(x)[0],
    "a dtype": lambda x: ndpool.sum_pool(x, 2, dtype="float64"),
    "unpooled": lambda x: ndpool.max_unpool(*ndpool.max_pool(x, 2, return_indices=True), 2),
}


@pytest.mark.parametrize("f", COMPILED.values(), ids=COMPILED)
def test_the_door_compiles_whole(f: Any) -> None:
    """Without a break in the graph, and with its gradient."""
    torch.compiler.reset()  # a limit on how often one piece of code is compiled counts these lambdas as one
    x = torch.randn(2, 3, 6, 8)
    found = []
    for run in (f, torch.compile(lambda x: f(x * 1.0), fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        (y**2).sum().backward()
        found.append((y.detach(), leaf.grad))
    torch.testing.assert_close(found[1], found[0])


OWN_LAW = ndpool.Pool(ENERGY, 2)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: ndpool.max_pool(x, 2, out=x), "out is for results that are NumPy arrays"),
        (lambda x: OWN_LAW(x + 1), "a law of your own runs on NumPy arrays"),
    ],
)
def test_what_the_door_refuses_while_it_compiles(f: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        torch.compile(f, fullgraph=True, backend="aot_eager")(torch.zeros(4, 4))
