"""Modes of images of labels beside tinybrain, and with --slow SciPy and scikit-image: one thread, in turns, ratios.

    python -m benchmarks.labels                    512^3, each dtype, order, factor and kind of labels
    python -m benchmarks.labels --size 128 --slow  with libraries that take minutes for more

Blobs are cells of some 24 positions, so that most windows are uniform; in noise hardly any two labels are equal.
Results are compared first where more than half of a window is one label (of equals each library takes its own): who
differs there is called wrong. tinybrain 1.7 is, of 2x2x2 in C order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

import ndpool

from .timing import measure, stream

Array = np.ndarray[Any, Any]
FACTORS = ((2, 2, 1), (2, 2, 2))


def blobs(n: int, dtype: Any, seed: int = 0) -> Array:
    """A volume of cells with crooked walls."""
    rng, at = np.random.default_rng(seed), np.arange(n)
    cells = max(2, n // 24)
    seeds = rng.integers(1, min(2000, np.iinfo(dtype).max), (cells,) * 3).astype(dtype)
    shape = [(-1, 1, 1), (1, -1, 1), (1, 1, -1)]
    waves = [(4 * np.sin(at / wide)).reshape(s) for wide, s in zip((9, 11, 7), shape, strict=True)]
    bent = [at.reshape(shape[a]) + waves[(a + 1) % 3] + waves[(a + 2) % 3] for a in range(3)]
    where = [np.clip(b * cells / n, 0, cells - 1).astype(np.int16) for b in bent]
    return np.asarray(seeds[tuple(where)])


def noise(n: int, dtype: Any) -> Array:
    """Labels drawn anew at every position."""
    return np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (n, n, n), dtype, endpoint=True)


def contenders(x: Array, factor: tuple[int, ...], slow: bool) -> dict[str, Callable[[], Array]]:
    """Calls by library; each makes its result afresh."""
    import tinybrain

    op = ndpool.ModePool(factor)
    one = x[..., None]  # tinybrain asks for channels
    found: dict[str, Callable[[], Array]] = {
        "ndpool": lambda: np.asarray(op(x)),
        "tinybrain": lambda: tinybrain.downsample_segmentation(one, factor, sparse=False)[0][..., 0],
    }
    if slow:
        from scipy import stats
        from skimage.measure import block_reduce

        found["scipy"] = lambda: stats.mode(blocks(x, factor), axis=-1).mode
        count = {"func": lambda taps, axis: stats.mode(taps.reshape(*taps.shape[:3], -1), axis=-1).mode}
        found["skimage"] = lambda: block_reduce(x, factor, **count)
    return found


def blocks(x: Array, factor: tuple[int, ...]) -> Array:
    """The taps of each window along the last axis."""
    outputs = [n // f for n, f in zip(x.shape, factor, strict=True)]
    split = x.reshape([size for pair in zip(outputs, factor, strict=True) for size in pair])
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(*outputs, -1)


def wrong(x: Array, factor: tuple[int, ...], runs: dict[str, Callable[[], Array]]) -> set[str]:
    """Who gives another label where one has more than half of a window."""
    taps = np.sort(blocks(x, factor), axis=-1)
    middle = taps[..., taps.shape[-1] // 2]  # a label that has more than half is in the middle
    clear = 2 * (taps == middle[..., None]).sum(-1) > taps.shape[-1]
    return {name for name, run in runs.items() if not np.array_equal(run()[clear], middle[clear])}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.labels", description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default="uint8,uint32,uint64")
    parser.add_argument("--slow", action="store_true")
    given = parser.parse_args(arguments)
    threads = ndpool.threads()
    ndpool.set_threads(1)
    for make, dtype in product((blobs, noise), given.dtypes.split(",")):
        small, large = make(16, dtype), make(given.size, dtype)
        for order, factor in product("CF", FACTORS):
            few, x = np.array(small, order=order), np.array(large, order=order)
            bad = wrong(few, factor, contenders(few, factor, given.slow))
            moved, written = x.reshape(-1, order="A").view(np.uint8), x.nbytes // int(np.prod(factor))
            runs: dict[str, Callable[[], Any]] = dict(contenders(x, factor, given.slow))
            runs["floor"] = lambda moved=moved, written=written: stream(moved, np.empty(written, np.uint8), 1)
            times = measure(runs, given.rounds, 1)
            ours = times["ndpool"].min_ms
            others = "  ".join(
                f"{name}{' (wrong)' * (name in bad)} {t.min_ms / ours:7.2f}x"
                for name, t in times.items()
                if name != "ndpool" or bad & {"ndpool"}
            )
            size = "x".join(map(str, factor))
            print(f"{make.__name__:6} {dtype:7} {order} {size}  ndpool {ours:8.2f} ms  {others}", flush=True)
    ndpool.set_threads(threads)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
