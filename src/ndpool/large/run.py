"""How work is done: plan, check, make tile after tile, write down what is finished, put the result in its place.

`carry_out` is the whole way. The tiles of a sweep are made by threads, or by the workers of a dask cluster; this thread
hands them out, at most as many as the memory is planned for, and writes each that is finished into the journal.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from ..engines.native import keeping_at_most
from ..errors import PoolError
from ..settings import bytes_in, on_one_thread, threads
from .journal import Journal
from .progress import Progress, shown
from .progress import size as how_much
from .report import Report, Sweep
from .result import Result, resumed, unfinished
from .shared import Shared
from .store import Slices, Store, remove
from .targets import Target
from .tiles import Grid, Plan, TooLittle, choose, measure
from .work import Work

MEMORY = "2GB"
SLACK = 24 << 20  # bytes that the interpreter and its libraries may grow by
AHEAD = 2  # tasks per worker of a cluster, so that none waits for the next one


class Options(TypedDict, total=False):
    """How work is done, whatever it makes."""

    memory: int | str  # the most that the process may hold, like 2GB (each worker of a cluster)
    threads: int | None
    overwrite: bool
    resume: bool
    dry_run: bool
    progress: bool | Callable[[int, int], Any]
    cluster: Any  # the address of a dask scheduler, or a Client


@dataclass(frozen=True)
class How:
    """`Options` with their defaults, checked."""

    memory: int | str = MEMORY
    threads: int | None = None
    overwrite: bool = False
    resume: bool = False
    dry_run: bool = False
    progress: bool | Callable[[int, int], Any] = False
    cluster: Any = None


@dataclass(frozen=True)
class Job:
    """Work over stores that are made at `result`.

    `facts` say what is made of what: work that goes on must have the same. `works(numbers)` are the sweeps that make so
    many targets each, or where that is None as many as there is memory for. `stores(new)` makes the stores of all
    targets, in the order of the works, or opens them again. A work whose source is a target reads the last store of the
    work before it. `publish` says what there is, once it is in its place.
    """

    result: Result
    facts: dict[str, Any]
    works: Callable[[list[int] | None], Sequence[Work]]
    stores: Callable[[bool], Sequence[Store]]
    publish: Callable[[], None] = lambda: None


def carry_out(job: Job, how: How) -> Report:
    """Do all the work, or what is left of it."""
    began = time.monotonic()
    memory, most = bytes_in("memory", how.memory), how.threads or threads()
    job.result.check(how.overwrite or how.resume)
    with job.result.journal() as journal:
        before = resumed(journal, job.result, job.facts, how.overwrite, how.resume)
        if before is None:
            job.result.check(how.overwrite)
        grids = None if before is None else [Grid(tuple(shape), tuple(tile)) for _, shape, tile in before["sweeps"]]
        works = job.works(None if before is None else [number for number, _, _ in before["sweeps"]])
        report = _planned(job.result.place, works, memory, most, grids, how.cluster is None)
        total = report.tiles
        if how.dry_run:
            return replace(report, made=0)
        moved = before is not None and len(journal.finished) == total and not job.result.partial.exists()
        if not moved:
            if not journal.finished:  # else what was written stays
                remove(job.result.partial)
                sweeps = [(len(one.targets), one.plan.grid.shape, one.plan.grid.tile) for one in report.sweeps]
                journal.begin({**job.facts, "sweeps": sweeps})
            made = _make(job, works, report, journal, how)
            report = replace(report, made=made)
        job.result.move()
        job.publish()
        journal.remove()
    return replace(report, seconds=time.monotonic() - began)


# -- planning ----------------------------------------------------------------------------------------------------------


def _planned(
    place: Path, works: Sequence[Work], memory: int, most: int, grids: list[Grid] | None, shares: bool
) -> Report:
    """Every sweep's plan, on these grids if there are some from before, and what all of it takes."""
    free = room(memory)
    held, sweeps = memory - free, []
    for i, work in enumerate(works):
        try:
            if grids is None:
                plan = choose(work.shape, work.unit, work.needs, free, most, shares)
            else:
                plan = measure(grids[i], work.needs, free, most, shares)
        except TooLittle as error:
            least = -(-(held + error.needed) >> 20)
            raise PoolError(
                f"memory={how_much(memory)} is too little: the smallest tile needs {how_much(error.needed)}, and this "
                f"process holds {how_much(held)}; use memory={least}MiB or more, or smaller chunks"
            ) from None
        sweeps.append(Sweep(plan, work.sources, work.targets))
    peak = held + max(one.plan.bytes for one in sweeps)
    tiles = sum(len(one.plan.grid) for one in sweeps)
    return Report(str(place), tuple(sweeps), memory, peak, tiles, 0)


def room(memory: int) -> int:
    """What is left of that much memory for tiles."""
    return memory - resident() - SLACK


def resident() -> int:
    """Bytes of memory that this process holds now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the most that it has held
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# -- making ------------------------------------------------------------------------------------------------------------


def _make(job: Job, works: Sequence[Work], report: Report, journal: Journal, how: How) -> int:
    """Make the tiles that are not finished; how many they were."""
    progress, total = shown(how.progress), report.tiles
    before = len(journal.finished)
    try:
        stores = job.stores(not before)
        kept = max(_kept(work, sweep.plan) for work, sweep in zip(works, report.sweeps, strict=True))
        with _bar(progress, report, journal), keeping_at_most(kept):
            made = 0
            for number, (work, sweep) in enumerate(zip(works, report.sweeps, strict=True)):
                if isinstance(work.sources[0], Target):
                    work = work.on(stores[made - 1])
                own = stores[made : made + len(work.targets)]
                _sweep(number, work, sweep.plan, own, journal, progress, how)
                made += len(own)
        for store in stores:
            store.finish()
    except Exception as error:
        if not journal.finished:  # nothing is lost, and nothing stays
            remove(job.result.partial)
            journal.remove()
            raise
        raise unfinished(error, len(journal.finished), total) from error
    return len(journal.finished) - before


def _kept(work: Work, plan: Plan) -> int:
    """The memory that the engine may keep for the next tiles: what these are made in, and of."""
    return plan.at_a_time * sum(need.held(plan.grid[0]) for need in work.needs if not need.read) if plan.grid else 0


@contextmanager
def _bar(progress: Progress, report: Report, journal: Journal) -> Iterator[None]:
    total = sum(_weight(sweep.plan, len(sweep.plan.grid)) for sweep in report.sweeps)
    done = [0] * len(report.sweeps)
    for number, _ in journal.finished:
        done[number] += 1
    progress.begin(total, sum(_weight(sweep.plan, n) for sweep, n in zip(report.sweeps, done, strict=True)))
    try:
        yield
    finally:
        progress.end()


def _weight(plan: Plan, tiles: int) -> int:
    """The bytes that so many tiles of the plan read."""
    return plan.bytes_read * tiles // max(1, len(plan.grid))


def _sweep(
    number: int, work: Work, plan: Plan, stores: Sequence[Store], journal: Journal, progress: Progress, how: How
) -> None:
    """All tiles of one sweep that are not in the journal, a few at a time."""
    if plan.shared_bytes:
        work = _sharing(work, plan, lambda tile: (number, tile) in journal.finished)
    left = (tile for tile in range(len(plan.grid)) if (number, tile) not in journal.finished)
    running: dict[Future[None], int] = {}
    with _workers(plan, how) as (workers, at_a_time):
        try:
            for tile in left:
                running[workers.submit(_tile, work, plan.grid[tile], stores)] = tile
                if len(running) >= at_a_time:
                    _collect(running, number, plan, journal, progress)
        finally:  # after an error or Ctrl-C, too: tiles that are in work are finished and counted
            failed = sys.exc_info()[0] is not None
            while running:
                _collect(running, number, plan, journal, progress, failed)


def _sharing(work: Work, plan: Plan, finished: Callable[[int], bool]) -> Work:
    """The same work, whose tiles keep pieces of the chunks they decode for one another."""
    sources = [
        Shared(source, need, plan.grid, finished, plan.shared_bytes // len(work.sources))
        for source, need in zip(work.sources, [need for need in work.needs if need.read], strict=True)
        if isinstance(source, Store)
    ]
    return work.on(*sources)


def _tile(work: Work, tile: Slices, stores: Sequence[Store]) -> None:
    with on_one_thread():  # tiles beside one another are threads enough, and each folds in the memory planned for one
        work.make(tile, stores)


def _collect(
    running: dict[Future[None], int],
    number: int,
    plan: Plan,
    journal: Journal,
    progress: Progress,
    failed: bool = False,
) -> None:
    """Wait for a tile or more; what failed raises its error, unless another has."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        tile = running.pop(future)
        if not future.exception():
            journal.add(number, tile)
            progress.step(_weight(plan, 1))
        elif not failed:
            future.result()


@contextmanager
def _workers(plan: Plan, how: How) -> Iterator[tuple[Executor, int]]:
    """What makes tiles, and how many to hand out at a time."""
    if how.cluster is not None:
        from .cluster import workers

        with workers(how.cluster) as (executor, number):
            yield executor, AHEAD * number
    else:
        with ThreadPoolExecutor(plan.at_a_time, "ndpool-tile") as executor:
            yield executor, plan.at_a_time
