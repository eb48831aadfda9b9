"""Volumes in memory and in zarr, beside their peers: `python -m benchmarks.large [--quick] [--only PART] [--size N]`.

    memory    one call on a volume of N^3 in memory: means, maxima and majorities of labels, in C and Fortran order
    files     a zarr array to a zarr array, `large.pool` by windows of 2 x 2 x 2
    pyramid   a zarr array to a copy of it and three smaller levels, `large.pyramid`

All contenders of a line run in turns, round after round; the least counts, in seconds of CPU time, which a busy machine
disturbs least. In memory all are in one process, beside the stream, which only reads and writes as many bytes. With
files each is in a process of its own (`large_files`), beside a copy: zarr-python decodes and encodes every chunk and
does nothing else. Everyone gets as many threads as `--threads` says, and the same codec and chunks.

Figures are ratios: how many times as long the others take. A `MISS` is a goal that is not met. Results are compared
before anything is timed, on a small volume in memory, and level by level with files; a peer that differs is named and
left out. Means of integers may differ by 1, and by 1 more at each level, since libraries round them differently.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ndpool

from . import large_files, timing
from .cpu import limit_threads, machine
from .large_files import COPY, OURS, SPELLERS, Taken, Task, Worker
from .large_memory import OPS, PEERS, Cell, case_of, disagreement, spell_ndpool
from .volumes import blobs

SMALL = 60  # the edge of volumes on which results are compared
LEVELS = 3
STREAM = 0.8  # goals: the fraction of the stream,
COPIES = {"files": 1.15, "pyramid": 1.35}  # times a copy,
FASTER = 2.0  # and times as fast as any peer with files
KERNELS = ((2, 2, 2), (2, 2, 1), (3, 3, 3), (4, 4, 4))
CELLS = [
    Cell(op, k, dtype, order)
    for op in ("mean", "max")
    for k in KERNELS
    for dtype in ("uint8", "float32")
    for order in "CF"
]
CELLS += [Cell("mode", (2, 2, 2), dtype, order) for dtype in ("uint8", "uint32", "uint64") for order in "CF"]
CHUNK_BYTES = 64 << 20
DTYPE = "uint16"  # of the volume in files


@dataclass(frozen=True)
class Line:
    """What one line of a table says: seconds of each contender, and why some are left out."""

    part: str
    name: str
    cpu: dict[str, float]
    wall: dict[str, float]
    peak: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    def times(self, who: str) -> float:
        """How many times as long as ours."""
        return self.cpu[who] / self.cpu[OURS]

    @property
    def stream(self) -> float:
        """The fraction of its speed that ours has, whether it writes to fresh memory or to some that it keeps."""
        return min(self.times(who) for who in self.cpu if who.startswith("floor"))

    @property
    def rivals(self) -> list[str]:
        return [who for who in self.cpu if who not in (OURS, COPY) and not who.startswith("floor")]

    @property
    def best(self) -> str | None:
        return min(self.rivals, key=lambda who: self.cpu[who], default=None)

    def missed(self) -> Iterator[str]:
        """The goals that are not met."""
        faster = 1.0 if self.part == "memory" else FASTER
        if self.best and self.times(self.best) < faster:
            yield f"{self.times(self.best):.2f} times as fast as {self.best}, not {faster:g}"
        if self.part == "memory" and "2x2x2" in self.name and "mode" not in self.name and self.stream < STREAM:
            yield f"{self.stream:.2f} of the stream, not {STREAM:g}"
        if COPY in self.cpu and 1 / self.times(COPY) > COPIES[self.part]:
            yield f"{1 / self.times(COPY):.2f} of a copy, not {COPIES[self.part]:g}"


# -- in memory ---------------------------------------------------------------------------------------------------------


def memory(given: argparse.Namespace) -> Iterator[Line]:
    cells = [cell for cell in CELLS if hasattr(ndpool, OPS[cell.op]) and given.rows in cell.name]
    found = [name for name, (module, _) in PEERS.items() if _is_there(module) and _is_wanted(name, given)]
    print(f"{'in memory':24} {'ms':>8} {'stream':>7} " + " ".join(f"{peer:>12}" for peer in found))
    for cell in cells:
        if cell.kernel == KERNELS[0] or not given.quick:
            line = _in_memory(cell, found, given)
            print(_memory_line(line, found), flush=True)
            yield line


def _in_memory(cell: Cell, found: list[str], given: argparse.Namespace) -> Line:
    small = case_of(cell, SMALL)
    (ours,) = spell_ndpool(small)
    want, agreed, dropped = np.asarray(ours.run()), {OURS}, {}
    for peer in found:
        try:
            for contender in PEERS[peer][1](small):
                problem = disagreement(small, np.asarray(contender.run()), want)
                agreed |= set() if problem else {contender.name}
                dropped |= {contender.name: problem} if problem else {}
        except Exception as error:  # a peer may lack the dtype, and says so in its own way
            dropped[peer] = f"{type(error).__name__}: {str(error)[:100]}"
    case = case_of(cell, given.size)
    contenders = [*spell_ndpool(case), *(one for peer in found if peer not in dropped for one in PEERS[peer][1](case))]
    runs = {one.name: one.run for one in contenders if one.name in agreed}
    made = case.x.nbytes // int(np.prod(case.kernel))
    times = timing.measure(runs | timing.floors((case.x.nbytes, made), 1), given.rounds, 1)
    seconds = {name: t.min_ms / 1e3 for name, t in times.items()}
    return Line(
        "memory", case.name, seconds, {name: t.min_ms / 1e3 / t.cores for name, t in times.items()}, {}, dropped
    )


def _memory_line(line: Line, found: list[str]) -> str:
    ratios = []
    for peer in found:  # the best of its spellings
        own = [line.times(name) for name in line.rivals if name.startswith(peer)]
        ratios.append(f"{min(own):11.1f}x" if own else f"{'-':>12}")
    start = f"{line.name:24} {line.cpu[OURS] * 1e3:8.2f} {line.stream:7.2f} "
    return start + " ".join(ratios) + _misses(line)


# -- with files --------------------------------------------------------------------------------------------------------


def with_files(part: str, given: argparse.Namespace) -> Iterator[Line]:
    shape = (given.size,) * 3
    volume = blobs(shape, DTYPE)
    large = _chunks_of_bytes(shape)
    sizes = {f"{CHUNK_BYTES >> 20} MiB": large} if given.size > 256 else {}
    sizes["128^3" if given.size > 128 else "64^3"] = (128,) * 3 if given.size > 128 else (64,) * 3
    for label, chunks in sizes.items():
        for codec in ("lz4",) if given.quick else ("lz4", "zstd"):
            for op in ("mean",) if part == "pyramid" else ("mean", "max"):
                name = f"{op}, chunks of {label}, blosc {codec}"
                if given.rows in name:
                    line = _from_files(
                        part,
                        name,
                        volume,
                        Task("", op, LEVELS * (part == "pyramid"), chunks, codec, given.threads, given.memory),
                        given,
                    )
                    print(_files_table(line), flush=True)
                    yield line


def _chunks_of_bytes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The volume halved along its longest axis, the first of equals, until a piece has CHUNK_BYTES."""
    chunks = list(shape)
    while np.prod(chunks) * np.dtype(DTYPE).itemsize > CHUNK_BYTES:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def _from_files(part: str, name: str, volume: Any, task: Task, given: argparse.Namespace) -> Line:
    want, dropped, taken = _levels(volume, task), {}, {}
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        source = f"{folder}/source.zarr"
        large_files.create(source, volume.shape, volume.dtype, task)[...] = volume
        for who, speller in SPELLERS.items():
            has = speller.pyramids if task.levels else speller.pools
            if task.op not in has or not _is_there(speller.module) or not _is_wanted(who, given):
                continue
            try:
                workers[who] = Worker(_by(task, who))
                taken[who] = [workers[who].run(source, f"{folder}/checked.zarr")]
                problem = None if who == COPY else _differs(f"{folder}/checked.zarr", want, task)
            except RuntimeError as error:
                problem = str(error)
            shutil.rmtree(f"{folder}/checked.zarr", ignore_errors=True)
            if problem:
                assert who != OURS, problem
                dropped[who] = problem
                taken.pop(who, None)
        for _ in range(given.rounds):
            for who, runs in taken.items():
                runs.append(workers[who].run(source, f"{folder}/made.zarr"))
                shutil.rmtree(f"{folder}/made.zarr")
        for worker in workers.values():
            worker.close()

    def least(pick: Callable[[Taken], float]) -> dict[str, Any]:
        return {who: min(map(pick, runs)) for who, runs in taken.items()}

    peaks = {who: max(one.peak for one in runs) for who, runs in taken.items()}
    return Line(part, name, least(lambda one: one.cpu), least(lambda one: one.wall), peaks, dropped)


def _by(task: Task, who: str) -> Task:
    return Task(**{**asdict(task), "who": who, "chunks": task.chunks})


def _levels(volume: Any, task: Task) -> list[Any]:
    """What is to be made, by ndpool in memory."""
    record, found = getattr(ndpool, large_files.RECORDS[task.op])((2, 2, 2)), [volume]
    for _ in range(max(1, task.levels)):
        found.append(record(found[-1]))
    return found if task.levels else found[1:]


def _differs(path: str, want: list[Any], task: Task) -> str | None:
    import zarr

    files = (file for file in Path(path).rglob("zarr.json") if json.loads(file.read_text())["node_type"] == "array")
    arrays = [zarr.open_array(file.parent, mode="r") for file in files]
    arrays.sort(key=lambda one: -one.size)
    if [one.shape for one in arrays] != [one.shape for one in want]:
        return f"made {[one.shape for one in arrays]}, not {[one.shape for one in want]}"
    for level, (got, right) in enumerate(zip(arrays, want, strict=True)):
        if got.dtype != right.dtype:
            return f"made {got.dtype} at level {level}"
        most = int(np.abs(got[...].astype(np.int32) - right).max())
        if most > (0 if task.op == "max" else level if task.levels else 1):
            return f"differs by {most} at level {level}"
    return None


def _files_table(line: Line) -> str:
    rows = [
        f"\n{line.part + ': ' + line.name:48} {'CPU s':>8} {'wall s':>8} {'x ours':>8} {'x copy':>8} {'MiB held':>9}"
    ]
    for who in sorted(line.cpu, key=lambda who: line.cpu[who]):
        copies = f"{line.cpu[who] / line.cpu[COPY]:8.2f}" if COPY in line.cpu else f"{'-':>8}"
        rows.append(
            f"  {who:46} {line.cpu[who]:8.3f} {line.wall[who]:8.3f} {line.times(who):8.2f} {copies} "
            f"{line.peak[who] / 2**20:9.0f}"
        )
    return "\n".join(rows) + _misses(line)


# -- the command -------------------------------------------------------------------------------------------------------


def _misses(line: Line) -> str:
    missed = "; ".join(line.missed())
    return f"  MISS: {missed}" if missed else ""


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def _is_wanted(who: str, given: argparse.Namespace) -> bool:
    return who in (OURS, COPY) or not given.peers or who in given.peers


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("memory", "files", "pyramid"), help="one part; default: all")
    parser.add_argument("--rows", default="", metavar="TEXT", help="lines whose name contains this")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help=f"some of {', '.join(PEERS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a small volume, one kernel, one codec")
    parser.add_argument("--size", type=int, metavar="N", help="the edge of the volumes (default: 512, quick: 128)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="with files; in memory it is one")
    parser.add_argument("--memory", default="2GB", help="of ndpool.large")
    parser.add_argument("--folder", metavar="FOLDER", help="where the files are made (default: the system's temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    found = parser.parse_args(given)
    found.size = found.size or (128 if found.quick else 512)
    return found


def main(arguments_given: list[str] | None = None) -> int:
    given = arguments(arguments_given)
    warnings.simplefilter("ignore")  # peers warn about their own internals
    limit_threads(1)
    ndpool.set_threads(1)
    facts = machine()
    absent = [name for name, (module, _) in PEERS.items() if not _is_there(module)]
    print(
        f"{facts['cpu']}, load {facts['load'][0]:.1f}; volumes of {given.size}^3; absent: {', '.join(absent) or 'none'}"
    )
    lines: list[Line] = []
    if given.only in (None, "memory"):
        lines += memory(given)
    for part in ("files", "pyramid"):
        if given.only in (None, part):
            lines += with_files(part, given)
    for line in lines:
        for who, why in line.dropped.items():
            print(f"left out: {line.name}: {who} {why}")
    print(f"\n{sum(any(line.missed()) for line in lines)} of {len(lines)} lines miss a goal")
    if given.json:
        versions = {"ndpool": ndpool.__version__, "numpy": np.__version__}
        everything = {
            "machine": facts,
            "versions": versions,
            "size": given.size,
            "lines": [asdict(one) for one in lines],
        }
        given.json.write_text(json.dumps(everything, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
