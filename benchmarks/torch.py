"""`ndpool.torch` beside torch itself: ratios of times (torch / ndpool: above 1 is faster) and of peak memory.

    python -m benchmarks.torch [--rounds N] [--threads N] [--only WORD]

Both run in turns, round after round, and the least of each counts; one thread is measured in CPU time. The models are
written here, with random weights: ResNet-18 and a small U-Net, batch 8, 224 x 224. The pooling part of a model is its
pooling modules alone, forward and backward, on the inputs that they have in it. Peak memory is that of a training step
in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ndpool.torch
from ndpool.torch import functional as N

from . import timing

Run = Callable[[], Any]
BATCH, SIDE = 8, 224
NOISE = 0.98  # what two runs of one program differ by
FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


class Row(NamedTuple):
    """The same work by ndpool and by torch, and the ratio torch / ndpool that is wanted."""

    name: str
    ours: Run
    theirs: Run
    wanted: float


# -- models ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        same = stride == 1 and inside == out
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.short(x))


def resnet18() -> nn.Module:
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class UNet(nn.Module):
    """Two levels down and up again."""

    def __init__(self, width: int = 16):
        super().__init__()

        def convs(a: int, b: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU())

        self.down = nn.ModuleList([convs(3, width), convs(width, 2 * width)])
        self.pool = nn.ModuleList([nn.MaxPool2d(2), nn.MaxPool2d(2)])
        self.middle = convs(2 * width, 4 * width)
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([convs(4 * width, 2 * width), convs(2 * width, width)])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for convs, pool in zip(self.down, self.pool, strict=True):
            x = convs(x)
            skips.append(x)
            x = pool(x)
        x = self.middle(x)
        for grow, convs, skip in zip(self.grow, self.up, reversed(skips), strict=True):
            x = convs(torch.cat([skip, grow(x)], 1))
        return self.head(x)  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {"ResNet-18": resnet18, "small U-Net": UNet}


def pair(make: Callable[[], nn.Module], memory: torch.memory_format) -> tuple[nn.Module, nn.Module, Tensor]:
    """The same model with ndpool's pooling and with torch's, and an input."""
    torch.manual_seed(0)
    theirs = make().to(memory_format=memory)
    ours = copy.deepcopy(theirs)
    report = ndpool.torch.convert(ours)
    assert report.replaced
    assert not report.left
    return ours, theirs, torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=memory)


def training_step(model: nn.Module, x: Tensor) -> None:
    model.train()
    model.zero_grad(set_to_none=True)
    (model(x) ** 2).mean().backward()


def inference_step(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    with torch.inference_mode():
        return model(x)  # type: ignore[no-any-return]


def pooling_part(model: nn.Module, x: Tensor) -> Run:
    """The pooling modules alone, on what they read in the model."""
    seen: list[tuple[nn.Module, Tensor]] = []
    pools = [m for m in model.modules() if "Pool" in type(m).__name__]
    hooks = [m.register_forward_hook(lambda m, given, _: seen.append((m, given[0].detach().clone()))) for m in pools]
    inference_step(model, x)
    for hook in hooks:
        hook.remove()
    work = [(m, read.clone().requires_grad_(), m(read.clone()).clone()) for m, read in seen]

    def run() -> None:
        for pool, read, dy in work:
            torch.autograd.grad(pool(read), read, dy)

    return run


# -- rows ------------------------------------------------------------------------------------------------------------


SMALL = {"max_pool2d": (3, 2, 1), "avg_pool2d": (3, 2, 1), "adaptive_avg_pool2d": (1,)}
MODULES = {"max_pool2d": "MaxPool2d", "avg_pool2d": "AvgPool2d", "adaptive_avg_pool2d": "AdaptiveAvgPool2d"}


def small_rows() -> Iterator[Row]:
    """Calls whose time is not that of the kernels."""
    for shape in ((1, 64, 14, 14), (1, 3, 8, 8)):
        x = torch.randn(shape)
        leaf = x.clone().requires_grad_()
        for name, arguments in SMALL.items():
            ours, theirs = (functools.partial(call_of, getattr(module, name), arguments) for module in (N, F))
            dy = torch.ones_like(theirs(x))
            modules = [getattr(module, MODULES[name])(*arguments) for module in (ndpool.torch.nn, nn)]

            def both(f: Callable[[Tensor], Tensor], leaf: Tensor = leaf, dy: Tensor = dy) -> Any:
                return torch.autograd.grad(f(leaf), leaf, dy)

            row = f"{shape} {name}"
            yield Row(f"{row}", functools.partial(ours, x), functools.partial(theirs, x), 1.0)
            yield Row(f"{row}, module", *[functools.partial(m, x) for m in modules], 1.0)
            yield Row(f"{row}, f+b", functools.partial(both, ours), functools.partial(both, theirs), 1 / 1.2)


def call_of(f: Callable[..., Tensor], arguments: tuple[int, ...], x: Tensor) -> Tensor:
    return f(x, *arguments)


def large_rows() -> Iterator[Row]:
    """Results that are larger than what the allocator keeps."""
    x = torch.randn(8, 96, 112, 112).requires_grad_()
    dy = torch.randn(8, 96, 1, 1)
    means = [f(x, 1) for f in (N.adaptive_avg_pool2d, F.adaptive_avg_pool2d)]
    runs = [functools.partial(torch.autograd.grad, y, x, dy, retain_graph=True) for y in means]
    yield Row("(8, 96, 112, 112) global average, vjp", *runs, 5.0)
    stem = torch.randn(32, 64, 112, 112)
    runs = [functools.partial(f, stem, 3, 2, 1) for f in (N.max_pool2d, F.max_pool2d)]
    yield Row("(32, 64, 112, 112) max 3x3 s2", *runs, 5.0)


def rows() -> Iterator[Row]:
    yield from small_rows()
    yield from large_rows()

    stem, moved = torch.randn(BATCH, 64, 112, 112), torch.randn(BATCH, 64, 112, 112)

    def jvp(f: Callable[..., Tensor]) -> Run:
        return lambda: torch.func.jvp(lambda z: f(z, 3, 2, 1), (stem,), (moved,))

    yield Row("ResNet stem pool, jvp", jvp(N.max_pool2d), jvp(F.max_pool2d), 5.0)
    for model, make in MODELS.items():
        for layout, memory in FORMATS.items():
            ours, theirs, image = pair(make, memory)
            wanted = 5.0 if layout == "contiguous" else 1.5
            yield Row(
                f"{model}, pooling part, {layout}", pooling_part(ours, image), pooling_part(theirs, image), wanted
            )
            # inference first: training moves the running means, and each model has its own number of steps
            for name, step in (("inference step", inference_step), ("training step", training_step)):
                yield Row(
                    f"{model}, {name}, {layout}",
                    lambda step=step, m=ours, x=image: step(m, x),  # type: ignore[misc]
                    lambda step=step, m=theirs, x=image: step(m, x),  # type: ignore[misc]
                    1.0,
                )


def agree(ours: Any, theirs: Any) -> bool:
    """Whether both gave the same, as far as they give anything."""
    if isinstance(ours, Tensor):
        return torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    return ours is None or all(agree(a, b) for a, b in zip(ours, theirs, strict=True))


def peak_mb(model: str, engine: str) -> float:
    """The most memory that a training step of a new process takes beyond its start: the least of a few."""
    command = [sys.executable, "-m", "benchmarks.torch", "--peak", model, engine]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(4))


def _measure_peak(model: str, engine: str) -> None:
    torch.set_num_threads(1)
    net, x = MODELS[model](), torch.randn(BATCH, 3, SIDE, SIDE)
    if engine == "ndpool":
        ndpool.torch.convert(net)
    start = _most_memory()
    training_step(net, x)
    print(_most_memory() - start)


def _most_memory() -> float:
    """The most that this process has held, in MB. (getrusage's would begin with what its parent held.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each pair (default 7)")
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default 1)")
    parser.add_argument("--only", default="", help="only rows whose name has this in it")
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "ENGINE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.peak:
        _measure_peak(*given.peak)
        return 0
    torch.set_num_threads(given.threads)
    ndpool.set_threads(given.threads)
    print(f"torch {torch.__version__}, ndpool {ndpool.__version__}, {given.threads} thread(s)")
    print(f"{'':<48}{'ndpool ms':>11}{'torch ms':>11}{'torch/ndpool':>14}{'wanted':>9}")
    short = 0
    for row in rows():
        if given.only not in row.name:
            continue
        assert agree(row.ours(), row.theirs()), row.name
        times = timing.measure({"ours": row.ours, "theirs": row.theirs}, given.rounds, given.threads)
        ours, theirs = times["ours"].min_ms, times["theirs"].min_ms
        short += theirs / ours < row.wanted * NOISE
        print(f"{row.name:<48}{ours:>11.4g}{theirs:>11.4g}{theirs / ours:>14.2f}{row.wanted:>9.2f}", flush=True)
    for model in MODELS:
        name = f"{model}, peak memory of a training step"
        if given.only in name:
            ours, theirs = peak_mb(model, "ndpool"), peak_mb(model, "torch")
            short += theirs / ours < NOISE
            print(f"{name:<48}{ours:>8.0f} MB{theirs:>8.0f} MB{theirs / ours:>14.2f}{1:>9.2f}")
    print(f"{short} rows fall short" if short else "every row is as wanted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
