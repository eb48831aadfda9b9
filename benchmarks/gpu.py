"""The Triton engine beside torch's own kernels, eager and compiled, on one GPU: `python3 benchmarks/gpu.py`.

Copy bandwidth is measured first. A row's floor is the bytes that must be read and written over that bandwidth; floor/ms
is how near it a run comes. Every call is timed on the device between two events, with the cache flushed before it, and
while the device is kept busy for twice as long as the host takes, so that no launch is waited for; the median counts. A
jvp gives value and tangent. Rows named "last" have channels that lie last.

    --rows max --dtypes float32 --peers eager      a part of the table
    --sweep                                        launch shapes beside those of the engine's table
    --json FILE                                    where the figures go
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
# as a script, without being installed; this folder has a torch.py, which is not torch
sys.path[:] = [str(HERE.parent / "src"), *(p for p in sys.path if Path(p).resolve() != HERE)]

# ruff: noqa: E402
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from ndpool.torch import functional as N

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """A function on tensors of one shape, the same in torch's words, and the goal of floor/ms of a float32 forward."""

    shape: tuple[int, ...]
    ours: Run
    theirs: Run
    goal: float
    layout: torch.memory_format = torch.contiguous_format

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        """An input and a tangent."""
        torch.manual_seed(0)
        return [torch.randn(self.shape, device="cuda").to(dtype).to(memory_format=self.layout) for _ in range(2)]


def smooth(x: Tensor) -> Tensor:
    """Smooth max of 3 x 3, stride 2, with one zero around, in torch's words."""
    return F.pad(x, (1, 1, 1, 1)).unfold(-2, 3, 2).unfold(-2, 3, 2).flatten(-2).logsumexp(-1)


IMAGE, PLANE, VOLUME, LARGE = (64, 64, 112, 112), (256, 2048, 7, 7), (8, 32, 64, 64, 64), (8, 16, 512, 512)
ROWS = {
    "max 2x2 s2": Row(IMAGE, lambda x: N.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), 0.9),
    "max 3x3 s2 p1": Row(IMAGE, lambda x: N.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), 0.85),
    "avg 2x2 s2": Row(IMAGE, lambda x: N.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), 0.9),
    "avg 3x3 s1 p1": Row(
        (64, 64, 56, 56), lambda x: N.avg_pool2d(x, 3, 1, 1), lambda x: F.avg_pool2d(x, 3, 1, 1), 0.75
    ),
    "global avg 7x7": Row(PLANE, lambda x: N.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, 1), 0.8),
    "global max 7x7": Row(PLANE, lambda x: N.adaptive_max_pool2d(x, 1), lambda x: F.adaptive_max_pool2d(x, 1), 0.8),
    "max3d 2 s2": Row(VOLUME, lambda x: N.max_pool3d(x, 2), lambda x: F.max_pool3d(x, 2), 0.9),
    "max3d 3 s1 p1": Row(VOLUME, lambda x: N.max_pool3d(x, 3, 1, 1), lambda x: F.max_pool3d(x, 3, 1, 1), 0.6),
    "max 31x31 s1": Row(LARGE, lambda x: N.max_pool2d(x, 31, 1, 15), lambda x: F.max_pool2d(x, 31, 1, 15), 0.25),
    "avg 31x31 s1": Row(LARGE, lambda x: N.avg_pool2d(x, 31, 1, 15), lambda x: F.avg_pool2d(x, 31, 1, 15), 0.3),
    "max1d 5 s1 p2": Row((64, 256, 8192), lambda x: N.max_pool1d(x, 5, 1, 2), lambda x: F.max_pool1d(x, 5, 1, 2), 0.9),
    "adaptive avg 224->7": Row(
        (32, 64, 224, 224), lambda x: N.adaptive_avg_pool2d(x, 7), lambda x: F.adaptive_avg_pool2d(x, 7), 0.9
    ),
    "adaptive max 224->7": Row(
        (32, 64, 224, 224), lambda x: N.adaptive_max_pool2d(x, 7), lambda x: F.adaptive_max_pool2d(x, 7), 0.9
    ),
    "smooth max 3x3 s2": Row((16, 64, 112, 112), lambda x: N.smooth_max_pool2d(x, 3, 2, 1), smooth, 0.6),
}
ROWS |= {
    f"{name}, last": replace(ROWS[name], layout=torch.channels_last)
    for name in ("max 2x2 s2", "max 3x3 s2 p1", "avg 3x3 s1 p1")
}


class Clock:
    """Times of calls on the device, in ms."""

    def __init__(self, repeats: int):
        self.repeats = repeats
        self.flushed = torch.empty(2**28, dtype=torch.uint8, device="cuda")

    def __call__(self, call: Callable[[], Any]) -> float:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        start_host = time.perf_counter()
        call()
        host = time.perf_counter() - start_host
        torch.cuda.synchronize()
        busy = int(1_000_000 + 4e9 * host)  # cycles, of less than half a ns
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.repeats)]
        for start, stop in pairs:
            self.flushed.zero_()
            torch.cuda._sleep(busy)  # while the host gets ahead
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(stop) for start, stop in pairs)


def copy_bandwidth(clock: Clock) -> float:
    """Bytes read and written in a ms by a copy of 1 GiB."""
    a = torch.randn(2**28, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / clock(lambda: b.copy_(a))


def floors(x: Tensor, y: Tensor, law: str, bandwidth: float) -> dict[str, float]:
    """ms that the bytes of each mode take: a choice keeps a byte an output for its vjp, a smooth max its input."""
    size = x.element_size()
    read, written = x.numel() * size, y.numel() * size
    kept = {"max": y.numel(), "avg": 0, "smooth": read}[law]
    moved = {"forward": read + written, "vjp": written + kept + read, "jvp": 2 * (read + written)}
    return {mode: n / bandwidth for mode, n in moved.items()}


def modes(f: Run, x: Tensor, dx: Tensor, forward_mode: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls to time."""
    yield "forward", lambda: f(x)
    inputs = x.detach().clone().requires_grad_()
    y = f(inputs)
    g = torch.randn_like(y)
    yield "vjp", lambda: torch.autograd.grad(y, inputs, g, retain_graph=True)
    if forward_mode:

        def jvp() -> None:
            with forward_ad.dual_level():
                f(forward_ad.make_dual(x, dx))

        yield "jvp", jvp


def measure(f: Run, x: Tensor, dx: Tensor, clock: Clock, forward_mode: bool = True) -> dict[str, float]:
    times = {}
    try:
        for mode, call in modes(f, x, dx, forward_mode):
            times[mode] = clock(call)
    except (RuntimeError, NotImplementedError) as error:
        print(f"  not measured: {str(error).splitlines()[0][:100]}", file=sys.stderr)
    return times


def sweep(name: str, row: Row, dtype: torch.dtype, clock: Clock) -> None:
    """Other launch shapes of one row, beside those of the engine's table."""
    from ndpool.engines.triton import plan as plans

    x, dx = row.tensors(dtype)
    usual = measure(row.ours, x, dx, clock)
    print(f"{name:<22}{str(dtype)[6:]:<9} usual   " + "  ".join(f"{m} {t:.4f}" for m, t in usual.items()), flush=True)
    found: list[tuple[dict[str, float], str]] = []
    for rows, block, warps in product((1, 2), (1, 2, 4), (4,)):

        def tiles(plan: Any, mode: str, rows: int = rows, block: float = block, warps: int = warps) -> Any:
            tile = plans.usual_tiles(plan, mode)
            cells = tuple(n * rows if a == 0 < len(tile.cells) - 1 else n for a, n in enumerate(tile.cells))
            return replace(tile, cells=cells, block=max(1, int(tile.block * block)), warps=warps)

        with patch.object(plans, "tiles", tiles):
            found.append((measure(row.ours, x, dx, clock), f"rows x{rows} block x{block} warps {warps}"))
    for mode in usual:
        best = sorted((times[mode], shape) for times, shape in found if mode in times)[:3]
        print(f"  {mode:<8}" + "   ".join(f"{t:.4f} {shape}" for t, shape in best), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", default="", help="only rows with this in their name; several by commas")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--peers", default="eager,compile")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", default="gpu.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU here: torch.cuda.is_available() is False")
    clock = Clock(args.repeats)
    bandwidth = copy_bandwidth(clock)
    name = torch.cuda.get_device_name()
    print(f"{name}: copies {bandwidth / 1e9:.2f} TB/s; torch {torch.__version__}")
    chosen = {n: r for n, r in ROWS.items() if any(part in n for part in args.rows.split(","))}
    dtypes = [getattr(torch, d) for d in args.dtypes.split(",")]
    if args.sweep:
        for row_name, row in chosen.items():
            for dtype in dtypes:
                sweep(row_name, row, dtype, clock)
        return
    peers = [p for p in args.peers.split(",") if p]
    head = "".join(f"{'/ ' + p:>11}" for p in peers)
    print(f"{'row':<21}{'dtype':<10}{'mode':<9}{'floor':>8}{'ms':>9}{'floor/ms':>10}{'goal':>6}{head}")
    figures = []
    for row_name, row in chosen.items():
        for dtype in dtypes:
            x, dx = row.tensors(dtype)
            times = {"ours": measure(row.ours, x, dx, clock)}
            if "eager" in peers:
                times["eager"] = measure(row.theirs, x, dx, clock)
            if "compile" in peers:
                torch.compiler.reset()
                times["compile"] = measure(torch.compile(row.theirs), x, dx, clock, forward_mode=False)
            law = "smooth" if "smooth" in row_name else "max" if "max" in row_name else "avg"
            for mode, floor in floors(x, row.ours(x), law, bandwidth).items():
                ours = times["ours"].get(mode, float("nan"))
                small = 0.2 if "31x31" in row_name else 0.7
                goal = (row.goal if mode == "forward" else small) * (0.75 if dtype is torch.bfloat16 else 1)
                ratios = "".join(
                    f"{times[p][mode] / ours:>10.1f}x" if mode in times[p] else f"{'-':>11}" for p in peers
                )
                print(
                    f"{row_name:<21}{str(dtype)[6:]:<10}{mode:<9}{floor:>8.4f}{ours:>9.4f}"
                    f"{floor / ours:>10.2f}{goal:>6.2f}{ratios}",
                    flush=True,
                )
                figures.append(
                    {"row": row_name, "dtype": str(dtype)[6:], "mode": mode, "floor": floor, "goal": goal}
                    | {peer: t.get(mode) for peer, t in times.items()}
                )
    found = {"device": name, "bandwidth": bandwidth * 1e3, "torch": torch.__version__, "unit": "ms", "rows": figures}
    Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
