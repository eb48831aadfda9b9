"""What the portable engine costs on NumPy: `python -m benchmarks.portable`.

Two tables, in process CPU time, best of a few rounds: ops on a batch of images, and how the time grows from a 15x15 to
a 63x63 window, which it should hardly do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ndpool


def best(run: Callable[[], Any], rounds: int = 7) -> float:
    """The least CPU time of one call, in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def costs(op: ndpool.Op, x: Any) -> list[float]:
    """Forward, jvp and vjp, the last two after one linearization."""
    at = op.linearize(x)
    dy = np.ones_like(at.y)
    return [best(lambda: op(x)), best(lambda: at.jvp(x)), best(lambda: at.vjp(dy))]


def main() -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((8, 64, 112, 112), dtype=np.float32)
    print(f"{'ms on (8, 64, 112, 112) float32':62}  forward      jvp      vjp")
    for op in (
        ndpool.MaxPool(3, 2),
        ndpool.MaxPool(3, 2, 1),
        ndpool.AvgPool(3, 2, 1),
        ndpool.SmoothMaxPool(3, 2, 1, beta=5.0),
        ndpool.GlobalAvgPool(),
    ):
        print(f"{op!r:62}", *(f"{ms:8.1f}" for ms in costs(op, images)))
    planes = rng.standard_normal((1, 8, 256, 256), dtype=np.float32)
    print(f"\n{'63x63 over 15x15 on (1, 8, 256, 256) float32':62}  forward      jvp      vjp")
    for record, options in ((ndpool.MaxPool, {}), (ndpool.AvgPool, {}), (ndpool.SmoothMaxPool, {"beta": 2.0})):
        for padded in (False, True):
            short, long = (costs(record(k, 1, k // 2 * padded, **options), planes) for k in (15, 63))
            name = f"{record.__name__}{', padded to the same size' if padded else ''}"
            print(f"{name:62}", *(f"{b / a:8.2f}" for a, b in zip(short, long, strict=True)))


if __name__ == "__main__":
    main()
