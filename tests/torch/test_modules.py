"""Modules, `convert` and `patched`: torch's in every respect but the engine; pickled, exported, forked, in threads."""

from __future__ import annotations

import inspect
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as tnn
from torch.utils.data import DataLoader, Dataset

import ndpool.torch
from ndpool.torch import functional as N
from ndpool.torch import nn

from .ops import QUIET

pytestmark = QUIET

# a module of torch's, and what it pools
TORCH: dict[str, tuple[Any, tuple[int, ...]]] = {
    "MaxPool1d": ((3, 2, 1), (2, 3, 9)),
    "MaxPool2d": ((3, 2, 1, 1, False, True), (2, 3, 9, 8)),
    "MaxPool3d": ((2,), (2, 3, 4, 5, 6)),
    "AvgPool1d": ((2, 1, 1), (2, 3, 9)),
    "AvgPool2d": ((3, 2, 1, True, False), (2, 3, 9, 8)),
    "AvgPool3d": ((2, 1, 0, False, True, 3), (2, 3, 4, 5, 6)),
    "LPPool1d": ((2, 3), (2, 3, 9)),
    "LPPool2d": ((2, 3, 1), (2, 3, 9, 8)),
    "LPPool3d": ((4, 2), (2, 3, 4, 5, 6)),
    "AdaptiveMaxPool1d": ((4,), (2, 3, 9)),
    "AdaptiveMaxPool2d": (((4, None), True), (2, 3, 9, 8)),
    "AdaptiveMaxPool3d": ((2,), (2, 3, 4, 5, 6)),
    "AdaptiveAvgPool1d": ((4,), (2, 3, 9)),
    "AdaptiveAvgPool2d": (((3, 5),), (2, 3, 9, 8)),
    "AdaptiveAvgPool3d": (((1, None, 2),), (2, 3, 4, 5, 6)),
}


def same(got: Any, want: Any) -> None:
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", TORCH)
def test_modules_are_torchs(name: str) -> None:
    args, shape = TORCH[name]
    ours, theirs = getattr(nn, name)(*args), getattr(tnn, name)(*args)
    x = torch.randn(shape)
    same(ours(x), theirs(x))
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, type(theirs))
    assert ours.state_dict() == theirs.state_dict()
    again = pickle.loads(pickle.dumps(ours))
    assert type(again) is type(ours)
    same(again(x), theirs(x))
    converted = getattr(tnn, name)(*args)
    assert ndpool.torch.convert(converted).replaced == (("", repr(theirs)),)
    assert type(converted) is type(ours)
    same(converted(x), theirs(x))


def test_every_torch_pooling_module_has_a_counterpart() -> None:
    theirs = {n for n in vars(tnn) if ("Pool" in n or "Unpool" in n) and not n.startswith("Fractional")}
    assert theirs <= set(nn.__all__)
    assert theirs == {kind.__name__ for kind in nn.TORCH}


def test_unpool_module() -> None:
    x = torch.randn(2, 3, 8, 8)
    y, places = nn.MaxPool2d(2, return_indices=True)(x)
    same(nn.MaxUnpool2d(2)(y, places), tnn.MaxUnpool2d(2)(y, places))
    same(nn.MaxUnpool2d(2)(y, places, output_size=[9, 9]), tnn.MaxUnpool2d(2)(y, places, output_size=[9, 9]))


def test_what_torch_lacks_is_in_the_repr_and_survives_a_pickle() -> None:
    pool = nn.MaxPool2d(2, ties="split", nan="ignore")
    assert "ties='split', nan='ignore'" in repr(pool)
    assert repr(pickle.loads(pickle.dumps(pool))) == repr(pool)
    own = nn.MinPoolNd((2, 2, 2), stride=1)
    assert repr(own) == "MinPoolNd(kernel_size=(2, 2, 2), stride=1)"
    same(pickle.loads(pickle.dumps(own))(torch.ones(2, 3, 4)), torch.ones(1, 2, 3))
    with pytest.raises(ndpool.PoolError, match="kernel_size"):
        nn.SumPool2d(0)


def test_a_learnable_beta_is_state() -> None:
    pool = nn.SmoothMaxPool2d(2, beta=torch.ones(3, 1, 1), learnable=True)
    assert [n for n, _ in pool.named_parameters()] == ["beta"]
    assert "beta of shape (3, 1, 1), learnable" in repr(pool)
    other = nn.SmoothMaxPool2d(2, beta=torch.full((3, 1, 1), 5.0), learnable=True)
    other.load_state_dict(pool.state_dict())
    x = torch.randn(2, 3, 4, 4)
    same(other(x), pool(x))
    assert not list(nn.SmoothMaxPool2d(2, beta=2.0).parameters())
    assert list(nn.SmoothMaxPool2d(2, beta=torch.tensor(2.0)).state_dict()) == ["beta"]


class Net(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = tnn.Conv2d(3, 4, 3)
        self.pool = self.again = tnn.MaxPool2d(2)
        self.rest = tnn.Sequential(tnn.AvgPool2d(2), tnn.AdaptiveAvgPool2d(1), tnn.LPPool2d(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.again(self.pool(self.conv(x))))  # type: ignore[no-any-return]


def test_convert_says_what_it_did_and_keeps_everything_else() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 22, 22)
    seen: list[str] = []
    net.pool.register_forward_hook(lambda *_: seen.append("hook"))
    want = net(x)
    keys = list(net.state_dict())
    report = ndpool.torch.convert(net)
    assert [name for name, _ in report.replaced] == ["pool", "rest.0", "rest.1"]
    assert [name for name, _, _ in report.left] == ["rest.2"]
    assert "left rest.2: LPPool2d" in str(report)
    assert "because torch sums x^p" in str(report)
    assert net.pool is net.again
    same(net(x), want)
    assert len(seen) == 4
    assert list(net.state_dict()) == keys
    assert not net.pool.training
    assert ndpool.torch.convert(net).replaced == ()  # nothing is left to replace


class Careful(tnn.MaxPool2d):
    pass


def test_convert_leaves_what_it_does_not_know() -> None:
    net = tnn.Sequential(Careful(2), tnn.FractionalMaxPool2d(2, output_size=2), nn.MaxPool2d(2))
    report = ndpool.torch.convert(net)
    assert report.replaced == ()
    assert [reason for _, _, reason in report.left] == [
        "Careful is a subclass, which may do otherwise",
        "ndpool has no fractional pooling",
    ]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
def test_patched_routes_functions_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    x, before = torch.randn(2, 3, 8, 8), F.max_pool2d
    want = Net()(torch.randn(1, 3, 22, 22)).shape
    calls: list[str] = []
    for name in ("max_pool2d", "adaptive_avg_pool2d", "lp_pool2d"):
        ours = getattr(N, name)
        monkeypatch.setattr(N, name, lambda *a, ours=ours, name=name, **k: (calls.append(name), ours(*a, **k))[1])
    with ndpool.torch.patched():
        assert Net()(torch.randn(1, 3, 22, 22)).shape == want
        y, places = F.max_pool2d_with_indices(x, 2)
        assert F.max_pool2d(x, kernel_size=2, return_indices=True)[1].equal(places)
        F.lp_pool2d(x, 2.0, 2)
        F.lp_pool2d(x, 3.0, 2)  # not the same sum: torch's own
        quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
        assert F.max_pool2d(quantized, 2).is_quantized
    assert calls == ["max_pool2d", "max_pool2d", "adaptive_avg_pool2d", "max_pool2d", "max_pool2d", "lp_pool2d"]
    assert F.max_pool2d is before
    same(y, F.max_pool2d(x, 2))


def test_patched_ends_with_an_error() -> None:
    before = F.avg_pool2d
    with pytest.raises(RuntimeError, match="stop"), ndpool.torch.patched():
        raise RuntimeError("stop")
    assert F.avg_pool2d is before


def fresh(code: str, *args: Any) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", inspect.cleandoc(code), *map(str, args)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_saved_models_load_in_a_fresh_process(tmp_path: Path) -> None:
    net, x = (
        tnn.Sequential(tnn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.SmoothMaxPool2d(2)),
        (torch.randn(2, 3, 20, 20)),
    )
    torch.save((net, x, net(x)), tmp_path / "net.pt")
    batch = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=(batch,)), tmp_path / "net.pt2")
    said = fresh(
        """
        import sys, torch
        net, x, y = torch.load(sys.argv[1], weights_only=False)   # its modules bring ndpool along
        assert torch.equal(net(x), y)
        program = torch.export.load(sys.argv[2])
        assert torch.equal(program.module()(x), y)
        assert torch.allclose(program.module()(x[:1]), y[:1])
        print([str(node.target) for node in program.graph.nodes if "ndpool" in str(node.target)])
        """,
        tmp_path / "net.pt", tmp_path / "net.pt2",
    )  # fmt: skip
    assert "ndpool" in said or not ndpool.torch.functional.routing.operators.AVAILABLE


WITHOUT = {
    "the extension": "import os; os.environ['NDPOOL_ENGINE'] = 'portable'",
    "a private name of torch": "import torch; del torch._C._AutoDispatchBelowAutograd",
}


@pytest.mark.parametrize("what", WITHOUT)
def test_without_it_everything_runs_on_torchs_operations(what: str) -> None:
    said = fresh(
        WITHOUT[what]
        + """
        import torch, torch.nn.functional as F
        from ndpool.torch import functional as N, operators, routing
        assert not operators.AVAILABLE and not routing.DIRECT
        x = torch.randn(2, 3, 8, 8, requires_grad=True)
        (N.max_pool2d(x, 3, 2, 1) ** 2).sum().backward()
        g, x.grad = x.grad, None
        (F.max_pool2d(x, 3, 2, 1) ** 2).sum().backward()
        assert torch.equal(g, x.grad)
        print(N.smooth_max_pool2d(x, 2).shape)
        """
    )
    assert "2, 3, 4, 4" in said


def test_importing_ndpool_does_not_import_torch_nor_the_adapter_its_compiler() -> None:
    said = fresh(
        """
        import sys, ndpool
        assert "torch" not in sys.modules
        import ndpool.torch
        print("torch._dynamo" in sys.modules)
        """
    )
    assert said == "False\n"


class Pooled(Dataset[Tensor]):
    """Pools in the worker, on more than one thread's worth of elements."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Tensor:
        return N.max_pool2d(torch.full((8, 64, 64), float(i)) + torch.arange(64.0), 2)  # type: ignore[no-any-return]


def test_dataloader_workers_pool_after_a_fork() -> None:
    data = Pooled()
    want = [data[i] for i in range(len(data))]  # the parent's threads are there before the fork
    for got in zip(DataLoader(data, num_workers=2, multiprocessing_context="fork"), want, strict=True):
        same(got[0][0], got[1])


def test_two_threads() -> None:
    x = torch.randn(4, 8, 40, 40)
    wants = {k: torch.autograd.functional.vjp(lambda z, k=k: F.max_pool2d(z, k), x, F.max_pool2d(x, k)) for k in (2, 3)}

    def step(k: int) -> bool:
        z = x.clone().requires_grad_()
        y = N.max_pool2d(z, k)
        y.backward(y.detach())
        return z.grad is not None and torch.equal(y, wants[k][0]) and torch.allclose(z.grad, wants[k][1])

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(step, [2, 3] * 20))


class Marked(Tensor):
    """A subclass that sees every operation, as torch's own wrappers do."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclasses_see_torchs_operations() -> None:
    x = torch.randn(1, 2, 6, 6)
    marked = x.as_subclass(Marked)
    Marked.seen.clear()
    y = N.max_pool2d(marked, 2)
    assert type(y) is Marked
    assert "gather" in Marked.seen
    same(y.as_subclass(Tensor), F.max_pool2d(x, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_jit_trace_records_the_operation() -> None:
    """The short way must not bake its result into a trace."""
    x = torch.randn(1, 2, 6, 6)
    N.max_pool2d(x, 2)
    traced = torch.jit.trace(lambda z: N.max_pool2d(z, 2), x)
    same(traced(x + 1), F.max_pool2d(x + 1, 2))


def test_modules_compile_and_are_written_whole() -> None:
    net = tnn.Sequential(nn.MaxPool2d(2), nn.SmoothMaxPoolNd((2, 2), beta=3.0, learnable=True), nn.GlobalAvgPoolNd())
    x = torch.randn(2, 3, 8, 8)
    same(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x))
    stream = io.BytesIO()
    torch.save(net.state_dict(), stream)
    stream.seek(0)
    assert list(torch.load(stream)) == ["1.beta"]


def test_a_window_of_padding_alone_is_left_to_torch() -> None:
    """torch gives -inf there, on short inputs; ndpool an error. Other padded and dilated windows are taken."""
    model = tnn.Sequential(tnn.MaxPool1d(2, None, 1, 2), tnn.MaxPool2d((3, 2), 1, (2, 1), 2), tnn.MaxPool2d(3, 1, 2, 2))
    report = ndpool.torch.convert(model)
    assert [name for name, _ in report.replaced] == ["2"]
    assert {reason for *_, reason in report.left} == {
        "on an axis of size 1 a window reads padding alone, where torch gives -inf"
    }
    x = torch.ones(2, 3, 1)
    assert model[0](x).isneginf().all()
    with ndpool.torch.patched():
        assert F.max_pool1d(x, 2, None, 1, 2).isneginf().all()
        assert F.max_pool1d(x, kernel_size=[2], padding=1, dilation=[2]).isneginf().all()
        assert F.max_pool2d(x[None], (2, 1), 1, 0).shape == (1, 2, 2, 1)


def test_left_to_torch_by_the_windows_that_there_are() -> None:
    """`convert` says that a window may read nothing if and only if torch gives -inf on some size."""
    from ndpool.torch.convert import _max_differs

    for k, s, d, ceil_mode in [
        (k, s, d, c) for k in (1, 2, 3) for s in (1, 3) for d in (1, 2, 3) for c in (True, False)
    ]:
        for p in range((d * (k - 1) + 1) // 2 + 1):
            alone = []
            for n in range(1, 12):
                with suppress(RuntimeError):
                    y = F.max_pool2d(torch.ones(1, n, 1), (k, 1), (s, 1), (p, 0), (d, 1), ceil_mode)
                    alone.append(bool(y.isneginf().any()))
            if alone:  # else torch takes no input with this padding
                assert bool(_max_differs(k, s, p, d, ceil_mode)) == any(alone), (k, s, p, d, ceil_mode)
