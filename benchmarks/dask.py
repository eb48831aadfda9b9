"""ndpool on dask's arrays beside dask.array.coarsen, xarray's coarsen, and map_overlap: `python -m benchmarks.dask`.

An array of 1024 x 1024 x 256 in blocks of 128 a side lies in memory, and dask's threads pool it. Each contender has a
process of its own; these take turns, round after round, and the least of each figure counts:

    graph    seconds to say what is wanted, and the tasks of the optimized graph
    CPU      seconds of all threads of the process while it computes
    wall     seconds until the result is there
    memory   the most that the process had while it computed, above what it had at first: the blocks of the result and
             the whole that dask makes of them are in it

coarsen and xarray give the mean of uint8 as float64, and xarray leaves NaN out; map_blocks and map_overlap run NumPy on
slices.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import ndpool

SHAPE, BLOCK = (1024, 1024, 256), 128
OURS = "ndpool"
WORDS = {"mean": ndpool.AvgPool, "max": ndpool.MaxPool}


@dataclass(frozen=True)
class Figures:
    """What one round of one contender cost."""

    graph: float
    tasks: int
    cpu: float
    wall: float
    memory: int

    def least(self, other: Figures) -> Figures:
        return Figures(*map(min, vars(self).values(), vars(other).values()))


# -- contenders: what each makes of a dask array -----------------------------------------------------------------------


def ours(x: Any, word: str, window: str) -> Any:
    op = WORDS[word](2, axes=(0, 1, 2)) if window == "2 x 2 x 2" else WORDS[word](3, 1, 1, axes=(0, 1, 2))
    return op(x)


def coarsen(x: Any, word: str, window: str) -> Any:
    import dask.array

    return dask.array.coarsen(getattr(np, word), x, {0: 2, 1: 2, 2: 2})


def xarray_coarsen(x: Any, word: str, window: str) -> Any:
    import xarray

    return getattr(xarray.DataArray(x, dims=("z", "y", "x")).coarsen(z=2, y=2, x=2), word)().data


def of_blocks(x: Any, word: str, window: str) -> Any:
    return x.map_blocks(tiled, word, dtype=x.dtype, chunks=tuple(tuple(n // 2 for n in c) for c in x.chunks))


def of_overlaps(x: Any, word: str, window: str) -> Any:
    import dask.array

    return dask.array.map_overlap(slid, x, depth=1, boundary=0, trim=False, word=word, dtype=x.dtype, chunks=x.chunks)


def tiled(block: Any, word: str) -> Any:
    """Eight slices of every other element, met one by one."""
    parts = [block[i::2, j::2, k::2] for i, j, k in product(range(2), repeat=3)]
    return _met(parts, word, block.dtype, 8)


def slid(block: Any, word: str) -> Any:
    """Three shifted slices, axis by axis."""
    wide = block.astype(np.uint16) if word == "mean" and block.dtype == np.uint8 else block
    for axis in range(3):
        n = wide.shape[axis] - 2
        parts = [np.moveaxis(wide, axis, 0)[i : i + n] for i in range(3)]
        wide = np.moveaxis(_met(parts, word, wide.dtype, 1), 0, axis)
    return wide if word == "max" else (wide / 27).astype(block.dtype)


def _met(parts: list[Any], word: str, dtype: Any, count: int) -> Any:
    found = parts[0].astype(np.uint16) if word == "mean" and dtype == np.uint8 else parts[0].copy()
    for part in parts[1:]:
        (np.maximum if word == "max" else np.add)(found, part, out=found)
    return found if word == "max" or count == 1 else (found / count).astype(dtype)


RIVALS: dict[str, dict[str, Callable[..., Any]]] = {
    "2 x 2 x 2": {OURS: ours, "dask coarsen": coarsen, "xarray coarsen": xarray_coarsen, "map_blocks": of_blocks},
    "3 x 3 x 3, stride 1": {OURS: ours, "map_overlap": of_overlaps},
}


# -- one round ---------------------------------------------------------------------------------------------------------


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def serve(pipe: Any, path: str, dtype: str, word: str, window: str, rival: str) -> None:
    """A contender's process: a round for each message."""
    import dask
    import dask.array

    held = np.load(path, mmap_mode="r")
    held.max()  # its pages are there from now on
    x = dask.array.from_array(held, chunks=BLOCK, name="x")
    had = status("VmRSS")
    while pipe.recv():
        before = time.perf_counter()
        y = RIVALS[window][rival](x, word, window)
        graph = time.perf_counter() - before
        tasks = sum(hasattr(task, "func") for task in dict(dask.optimize(y)[0].dask).values())  # no data, no aliases
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        wall, cpu = time.perf_counter(), time.process_time()
        result = y.compute(scheduler="threads", num_workers=os.cpu_count())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        pipe.send((Figures(graph, tasks, cpu, wall, status("VmHWM") - had), np.asarray(result[:9, :9, :9], float)))
        del result, y


def rounds(path: str, dtype: str, word: str, window: str, count: int) -> dict[str, Figures]:
    """The least figures of all contenders in turns."""
    start, pipes = multiprocessing.get_context("spawn"), {}
    for rival in RIVALS[window]:
        pipes[rival], theirs = start.Pipe()
        start.Process(target=serve, args=(theirs, path, dtype, word, window, rival), daemon=True).start()
    found: dict[str, Figures] = {}
    for _ in range(count):
        corners = {}
        for rival, pipe in pipes.items():
            pipe.send(True)
            figures, corners[rival] = pipe.recv()
            found[rival] = figures.least(found.get(rival, figures))
        for rival, corner in corners.items():  # those who give floats, or cut them off, are not off by one
            np.testing.assert_allclose(corner, corners[OURS], atol=1 if dtype == "uint8" else 1e-5, err_msg=rival)
    for pipe in pipes.values():
        pipe.send(False)
    return found


def lines(found: dict[str, Figures]) -> Iterator[str]:
    mine = found[OURS]
    for rival, f in found.items():
        yield (
            f"  {rival:<16}{f.graph * 1e3:>8.1f} ms{f.tasks:>8}{f.cpu:>9.2f} s{f.cpu / mine.cpu:>7.1f} x"
            f"{f.wall:>8.2f} s{f.wall / mine.wall:>7.1f} x{f.memory >> 20:>8} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    count = parser.parse_args().rounds
    block = np.random.default_rng(0).integers(0, 256, (BLOCK,) * 3)
    print(f"{'':18}{'graph':>11}{'tasks':>8}{'CPU':>11}{'':9}{'wall':>10}{'':9}{'memory':>12}")
    for dtype in ("uint8", "float32"):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            path = f"{folder}/x.npy"
            held = np.lib.format.open_memmap(path, "w+", dtype, SHAPE)
            for corner in product(*(range(0, n, BLOCK) for n in SHAPE)):
                held[tuple(slice(i, i + BLOCK) for i in corner)] = block
            del held
            for window, word in product(RIVALS, WORDS):
                print(
                    f"{dtype}, {word}, {window}", *lines(rounds(path, dtype, word, window, count)), sep="\n", flush=True
                )


if __name__ == "__main__":
    main()
