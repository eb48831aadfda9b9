"""`ndpool.jax` on a GPU beside jax.lax.reduce_window, and beside the Triton engine as torch calls it.

    PYTHONPATH=src python3 -m benchmarks.jax_gpu [--rows max] [--dtypes float32,bfloat16] [--json FILE]

Each row is a pooling, jitted, in two passes: `forward`, and `both` (the values, and the cotangent of x that one of the
values gives). Calls are sent off one after another and waited for together, as in a training step; the least time per
call of several rounds counts, and contenders take turns. The floor is the bytes that must be read and written over the
speed of a copy. The arrays are larger than the GPU's cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ndpool

from .jax import rival, slide_of

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch wants memory, too

Call = Callable[[], Any]

IMAGE, PLANE, VOLUME, LARGE = (64, 64, 112, 112), (256, 2048, 7, 7), (8, 32, 64, 64, 64), (8, 16, 512, 512)
ROWS: dict[str, tuple[ndpool.Op, tuple[int, ...]]] = {
    "max 2x2 s2": (ndpool.MaxPool(2), IMAGE),
    "max 3x3 s2 p1": (ndpool.MaxPool(3, 2, 1), IMAGE),
    "avg 2x2 s2": (ndpool.AvgPool(2), IMAGE),
    "avg 3x3 s1 p1": (ndpool.AvgPool(3, 1, 1), (64, 64, 56, 56)),
    "global avg 7x7": (ndpool.GlobalAvgPool(axes=(-2, -1)), PLANE),
    "global max 7x7": (ndpool.GlobalMaxPool(axes=(-2, -1), ties="first"), PLANE),
    "max3d 2 s2": (ndpool.MaxPool((2, 2, 2)), VOLUME),
    "max3d 3 s1 p1": (ndpool.MaxPool((3, 3, 3), 1, 1), VOLUME),
    "max 31x31 s1": (ndpool.MaxPool(31, 1, 15), LARGE),
    "avg 31x31 s1": (ndpool.AvgPool(31, 1, 15), LARGE),
    "max1d 5 s1 p2": (ndpool.MaxPool((5,), 1, 2), (64, 256, 8192)),
    "adaptive avg 224->7": (ndpool.AdaptiveAvgPool((7, 7)), (32, 64, 224, 224)),
    "smooth max 3x3 s2 p1": (ndpool.SmoothMaxPool((3, 3), 2, 1), (16, 64, 112, 112)),
}
PASSES = ("forward", "both")


@dataclass(frozen=True)
class Line:
    row: str
    dtype: str
    step: str
    floor_ms: float
    ms: dict[str, float]
    failed: dict[str, str]

    def __str__(self) -> str:
        ours = self.ms.get("ndpool.jax", math.nan)
        times = "".join(f"{self.ms.get(name, math.nan):14.3f}" for name in NAMES)
        ratios = "".join(f"{self.ms.get(name, math.nan) / ours:9.2f}" for name in NAMES[1:])
        return f"{self.row:22}{self.dtype:10}{self.step:8}{self.floor_ms:8.3f}{times}{ratios}"


NAMES = ("ndpool.jax", "reduce_window", "ndpool.torch")


def in_jax(f: Callable[[Any], Any], step: str, x: Any, dy: Any) -> tuple[Call, Any]:
    """The call that sends the work off, and its result."""
    import jax

    def both(x: Any, dy: Any) -> Any:
        y, back = jax.vjp(f, x)
        return y, back(dy)[0]

    g = jax.jit(f) if step == "forward" else jax.jit(both)
    arguments = (x,) if step == "forward" else (x, dy)
    return lambda: g(*arguments), g(*arguments)


def in_torch(op: ndpool.Op, step: str, x: Any, dy: Any) -> tuple[Call, Any]:
    import torch

    def both() -> Any:
        leaf = x.detach().requires_grad_()
        y = op(leaf)
        return y, torch.autograd.grad(y, leaf, dy)[0]

    run = both if step == "both" else lambda: op(x)
    return run, run()


def least(calls: dict[str, tuple[Call, Call]], rounds: int, seconds: float = 0.02) -> dict[str, float]:
    """Milliseconds per call: each is one that sends work off, and one that waits for all of it."""
    found = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, (send, wait) in calls.items():
            n = max(3, min(200, int(seconds / found[name] * 1e3))) if found[name] < math.inf else 3
            wait()
            start = time.perf_counter()
            for _ in range(n):
                send()
            wait()
            found[name] = min(found[name], (time.perf_counter() - start) / n * 1e3)
    return found


def waits(send: Call) -> Call:
    """Wait for what JAX was sent: one stream does one thing after another."""
    import jax

    return lambda: jax.block_until_ready(send())


def measured(row: str, dtype: str, step: str, bandwidth: float, rounds: int) -> Line:
    import jax
    import jax.numpy as jnp
    import torch

    import ndpool.jax as npx

    op, shape = ROWS[row]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    dy = rng.standard_normal(op.out_shape(shape), np.float32)
    here = [jnp.asarray(a, dtype) for a in (x, dy)]
    there = [torch.tensor(a, device="cuda").to(getattr(torch, dtype)) for a in (x, dy)]
    calls: dict[str, tuple[Call, Call]] = {}
    results, failed = {}, {}
    slide = slide_of(op, shape)
    theirs = rival(op, slide, shape, False) if slide else None
    for name, f in (("ndpool.jax", partial(npx.apply, op)), ("reduce_window", theirs)):
        if f is None:
            continue
        try:
            send, result = in_jax(f, step, *here)
            calls[name] = send, waits(send)
            results[name] = [np.asarray(a, np.float32) for a in jax.tree.leaves(result)]
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
    send, result = in_torch(op, step, *there)
    calls["ndpool.torch"] = send, torch.cuda.synchronize
    results["ndpool.torch"] = [
        a.detach().float().cpu().numpy() for a in (result if isinstance(result, tuple) else (result,))
    ]
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-3
    for name, found in results.items():
        for got, want in zip(found, results["ndpool.torch"], strict=True):
            off = np.abs(got - want) > tolerance * (1 + np.abs(want))
            if off.mean() > (0 if dtype == "float32" else 1e-3):
                failed[name] = f"differs from ndpool.torch in {off.mean():.2%} of the elements"
    moved = (x.size + dy.size) * there[0].element_size() * (1 if step == "forward" else 2)
    return Line(row, dtype, step, moved / bandwidth, least(calls, rounds), failed)


def copy_bandwidth() -> float:
    """Bytes read and written per millisecond."""
    import torch

    a = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    ms = least({"copy": (lambda: b.copy_(a), torch.cuda.synchronize)}, 5)["copy"]
    return 2 * a.numel() / ms


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows with this in their name; several by commas")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default="")
    given = parser.parse_args(arguments)
    import jax
    import torch

    bandwidth = copy_bandwidth()
    print(
        f"JAX {jax.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}, {bandwidth / 1e9:.2f} TB/s"
    )
    heads = "".join(f"{name:>14}" for name in NAMES) + "".join(f"{name[:8]:>9}" for name in NAMES[1:])
    print(f"{'':40}{'floor':>8}{heads}   (ms; the others' time over ndpool.jax's)")
    lines = []
    for row in ROWS:
        if any(name in row for name in given.rows.split(",")):
            for dtype in given.dtypes.split(","):
                for step in PASSES:
                    line = measured(row, dtype, step, bandwidth, given.rounds)
                    lines.append(line)
                    print(line, *(f"\n    {name}: {why}" for name, why in line.failed.items()), flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps([vars(line) for line in lines], indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
