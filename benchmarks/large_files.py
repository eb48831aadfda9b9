"""How each library spells the pooling of a zarr array to zarr arrays; each runs in a process of its own.

`Worker` starts such a process and asks it for one run after another; it says what a run took, and how much memory the
process held at most, beyond what it held when it was ready: all imported, and a small volume done. In this file: what
is to be done (`Task`), the spellings, and both ends of the pipe.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

AXES = ("z", "y", "x")
HALF = {"z": 2, "y": 2, "x": 2}
SMALL = (32, 32, 32)  # of the volume that is done before anything is measured
RECORDS = {"mean": "AvgPool", "max": "MaxPool"}


@dataclass(frozen=True)
class Task:
    """Who makes what: 2 x 2 x 2 windows of a volume, or with `levels` a copy of it and so many smaller ones."""

    who: str
    op: str
    levels: int
    chunks: tuple[int, ...]
    codec: str
    threads: int
    memory: str

    def chunks_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(c, n) for c, n in zip(self.chunks, shape, strict=True))


Run = Callable[[str, str], Any]  # of source and destination


def codec_of(task: Task) -> Any:
    from zarr.codecs import BloscCodec

    return BloscCodec(cname=task.codec, clevel=5, shuffle="shuffle")


def create(path: str, shape: tuple[int, ...], dtype: Any, task: Task) -> Any:
    """A new array of zarr's."""
    import zarr

    return zarr.create_array(
        path, shape=shape, dtype=dtype, chunks=task.chunks_of(shape), compressors=codec_of(task), fill_value=0,
        dimension_names=AXES,
    )  # fmt: skip


def halves(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n // 2 for n in shape)


# -- the spellings -----------------------------------------------------------------------------------------------------


def _copy(task: Task) -> Run:
    """zarr-python decodes and encodes every chunk, and nothing else is done: what others are measured against."""
    import zarr

    def run(source: str, destination: str) -> None:
        x = zarr.open_array(source, mode="r")
        y = create(destination, x.shape, x.dtype, task)
        for corner in product(*(range(0, n, c) for n, c in zip(x.shape, x.chunks, strict=True))):
            part = tuple(slice(begin, begin + c) for begin, c in zip(corner, x.chunks, strict=True))
            y[part] = x[part]

    return run


def _ndpool(task: Task) -> Run:
    import ndpool
    from ndpool import large

    ndpool.set_threads(task.threads)
    how = {"memory": task.memory, "threads": task.threads}
    if task.levels:
        return lambda source, destination: large.pyramid(
            source, destination, op=task.op, levels=task.levels, chunks=task.chunks, **how
        )
    record = getattr(ndpool, RECORDS[task.op])((2, 2, 2))
    return lambda source, destination: large.pool(source, destination, record, **how)


def _tensorstore(task: Task) -> Run:
    import tensorstore as ts

    limit = {"limit": task.threads}
    context = ts.Context({"data_copy_concurrency": limit, "file_io_concurrency": limit})

    def opened(path: str, **more: Any) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
        return ts.open(spec, context=context, **more).result()

    def new(path: str, x: Any) -> Any:
        blosc = {"cname": task.codec, "clevel": 5, "shuffle": "shuffle"}
        codec = ts.CodecSpec({"driver": "zarr3", "codecs": [{"name": "blosc", "configuration": blosc}]})
        layout = ts.ChunkLayout(chunk_shape=task.chunks_of(tuple(x.shape)))
        return opened(path, create=True, dtype=x.dtype, shape=x.shape, chunk_layout=layout, codec=codec)

    def run(source: str, destination: str) -> None:
        x = opened(source, open=True)
        if task.levels:
            base = new(f"{destination}/0", x)
            base.write(x).result()
            x = base
        for level in range(1, max(1, task.levels) + 1):
            smaller = ts.downsample(x, [2, 2, 2], task.op)
            x = new(f"{destination}/{level}" if task.levels else destination, smaller)
            x.write(smaller).result()

    return run


def _dask(task: Task) -> Run:
    import dask
    import dask.array

    reduced = {"mean": np.mean, "max": np.max}[task.op]

    def smaller(x: Any) -> Any:
        y = dask.array.coarsen(reduced, x, dict.fromkeys(range(3), 2))
        return _as(x.dtype, y, dask.array.rint).rechunk(task.chunks_of(y.shape))

    def run(source: str, destination: str) -> None:
        levels = [dask.array.from_zarr(source)]
        for _ in range(max(1, task.levels)):
            levels.append(smaller(levels[-1]))
        targets = {f"{destination}/{i}": x for i, x in enumerate(levels)} if task.levels else {destination: levels[1]}
        stores = [create(path, x.shape, x.dtype, task) for path, x in targets.items()]
        dask.array.store(list(targets.values()), stores, lock=False, **_scheduler(task))

    return run


def _xarray(task: Task) -> Run:
    import dask
    import dask.array
    import xarray

    def smaller(x: Any) -> Any:
        y = _as(x.dtype, getattr(x.coarsen(HALF), task.op)(), np.rint)
        return y.chunk(dict(zip(AXES, task.chunks_of(y.shape), strict=True)))

    def run(source: str, destination: str) -> None:
        levels = [xarray.DataArray(dask.array.from_zarr(source), dims=AXES, name="image")]
        for _ in range(max(1, task.levels)):
            levels.append(smaller(levels[-1]))
        written = []
        for i, x in enumerate(levels):
            if i or task.levels:
                settings = {"image": {"chunks": task.chunks_of(x.shape), "compressors": codec_of(task)}}
                options = {"encoding": settings, "zarr_format": 3, "consolidated": False, "compute": False}
                written.append(x.to_dataset().to_zarr(destination, group=str(i), **options))
        dask.compute(written, **_scheduler(task))

    return run


def _ome_zarr(task: Task) -> Run:
    import dask
    import dask.array
    from ome_zarr.scale import Methods
    from ome_zarr.writer import write_image

    def run(source: str, destination: str) -> None:
        x = dask.array.from_zarr(source)
        factors = [dict.fromkeys(AXES, 2**level) for level in range(1, task.levels + 1)]
        shapes, options = [x.shape], []
        for _ in factors:
            shapes.append(halves(shapes[-1]))
        for shape in shapes:
            options.append({"chunks": task.chunks_of(shape), "compressors": [codec_of(task)]})
        with dask.config.set(**_scheduler(task)):
            write_image(
                x, destination, scale_factors=factors, method=Methods.LOCAL_MEAN, axes=list(AXES),
                storage_options=options,
            )  # fmt: skip

    return run


def _ngff_zarr(task: Task) -> Run:
    import dask
    import dask.array
    import ngff_zarr

    blosc = {"cname": task.codec, "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}

    def run(source: str, destination: str) -> None:
        image = ngff_zarr.to_ngff_image(dask.array.from_zarr(source), dims=AXES)
        factors = [2**level for level in range(1, task.levels + 1)]
        with dask.config.set(**_scheduler(task)):
            scales = ngff_zarr.to_multiscales(
                image, factors, ngff_zarr.Methods.DASK_BIN_SHRINK, chunks=dict(zip(AXES, task.chunks, strict=True)),
                cache=False,
            )  # fmt: skip
            ngff_zarr.to_ome_zarr(destination, scales, compressors=[{"name": "blosc", "configuration": blosc}])

    return run


def _as(dtype: Any, y: Any, rounded: Callable[[Any], Any]) -> Any:
    return y if y.dtype == dtype else rounded(y).astype(dtype)


def _scheduler(task: Task) -> dict[str, Any]:
    one = {"scheduler": "synchronous"}
    return one if task.threads == 1 else {"scheduler": "threads", "num_workers": task.threads}


@dataclass(frozen=True)
class Speller:
    """Which module it needs, how it is spelled, and which operations it has, for one level and for pyramids."""

    module: str
    spell: Callable[[Task], Run]
    pools: tuple[str, ...] = ("mean", "max")
    pyramids: tuple[str, ...] = ("mean",)


COPY, OURS = "copy by zarr", "ndpool"
SPELLERS = {
    COPY: Speller("zarr", _copy),
    OURS: Speller("ndpool", _ndpool),
    "tensorstore": Speller("tensorstore", _tensorstore),
    "dask": Speller("dask.array", _dask),
    "xarray": Speller("xarray", _xarray),
    "ome-zarr": Speller("ome_zarr", _ome_zarr, ()),
    "ngff-zarr": Speller("ngff_zarr", _ngff_zarr, ()),
}


# -- the process of its own --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """Seconds of one run, and bytes that the process held at most since it was ready, beyond what it held then."""

    cpu: float
    wall: float
    peak: int


class Worker:
    """A process that does one task, as often as it is told."""

    def __init__(self, task: Task):
        threads = str(task.threads)
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), threads)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, json.dumps(asdict(task))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | limits,
        )  # fmt: skip
        self._answer()

    def run(self, source: str, destination: str) -> Taken:
        assert self._process.stdin is not None
        print(json.dumps([source, destination]), file=self._process.stdin, flush=True)
        return Taken(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, error = self._process.communicate()
            raise RuntimeError((error.strip().splitlines() or ["ended without a word"])[-1][:200])
        return dict(json.loads(line))

    def close(self) -> None:
        self._process.communicate()


def most_held() -> int:
    """The most bytes of memory that this process has held. (What `getrusage` says begins with what the parent held.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def answers(task: Task) -> Iterator[dict[str, Any]]:
    """Ready, then an answer for each line that is read."""
    import numcodecs.blosc
    import zarr

    numcodecs.blosc.set_nthreads(task.threads)
    zarr.config.set({"threading.max_workers": task.threads, "async.concurrency": task.threads})
    run = SPELLERS[task.who].spell(task)
    with tempfile.TemporaryDirectory() as folder:
        create(f"{folder}/x.zarr", SMALL, "uint16", task)[...] = 1
        run(f"{folder}/x.zarr", f"{folder}/y.zarr")
    before = most_held()
    yield {}
    for line in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        run(*json.loads(line))
        yield {
            "cpu": time.process_time() - cpu,
            "wall": time.perf_counter() - wall,
            "peak": most_held() - before,
        }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for answer in answers(Task(**{**given, "chunks": tuple(given["chunks"])})):
        print(json.dumps(answer), file=out, flush=True)
