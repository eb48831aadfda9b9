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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from ..arguments import integer
from ..engines.native import keeping_at_most
from ..errors import PoolError, PoolTypeError
from ..settings import bytes_in, on_one_thread, threads
from ..suggest import argument
from .journal import EVERY, Journal
from .progress import Progress, shown
from .progress import size as how_much
from .report import Report, Sweep
from .result import Result, resumed, unfinished
from .shared import Shared
from .store import Slices, Store, imported, remove
from .targets import Target
from .tiles import Grid, Plan, TooLittle, choose, measure
from .work import Work

MEMORY, MORE = 2 * 10**9, 10**9  # bytes that a process may hold, or beside what it holds, where nothing is said
SLACK = 24 << 20  # bytes that the interpreter and its libraries may grow by
AHEAD = 2  # tasks per worker of a cluster, so that none waits for the next one


class Options(TypedDict, total=False):
    """How work is done, whatever it makes."""

    memory: int | str | None  # the most that the process may hold, like 2GB (each worker of a cluster)
    threads: int | None
    overwrite: bool
    resume: bool
    dry_run: bool
    progress: bool | Callable[[int, int], Any]
    cluster: Any  # the address of a dask scheduler, or a Client


@dataclass(frozen=True)
class How:
    """`Options` with their defaults, checked."""

    memory: int | str | None = None
    threads: int | None = None
    overwrite: bool = False
    resume: bool = False
    dry_run: bool = False
    progress: bool | Callable[[int, int], Any] = False
    cluster: Any = None
    workers: tuple[int, ...] = ()  # how many threads each worker of the cluster has
    allowed: int = MEMORY  # bytes that `memory` says

    @staticmethod
    def of(options: Options) -> How:
        known = [*Options.__annotations__]
        for name in options:
            if name not in known:
                guess = argument(name, known)
                hint = f"did you mean {guess}?" if guess else f"use {', '.join(known)}"
                raise PoolTypeError(f"{name}= is no argument; {hint}")
        how = How(**options)
        if how.threads is not None:
            integer("threads", how.threads, 1)
        if how.cluster is not None:
            how = replace(how, workers=_cluster().threads_of(how.cluster))
        if how.memory is not None:
            return replace(how, allowed=bytes_in("memory", how.memory))
        return how if how.workers else replace(how, allowed=max(MEMORY, resident() + MORE))

    @property
    def room(self) -> int:
        """The bytes that there are for tiles."""
        return room(self.allowed)

    @property
    def most(self) -> int:
        """How many tiles one process may make at a time; a worker of a cluster does make as many as it has threads."""
        return max(self.workers, default=0) or self.threads or threads()


@dataclass(frozen=True)
class Job:
    """Work over stores that are made at `result`.

    `facts` say what is made of what: work that goes on must have the same. `works(numbers)` are the sweeps that make so
    many targets each, or where that is None as many as there is memory for. `stores(new)` makes the stores of all
    targets, in the order of the works, or opens them again. A work whose source is a target reads the last store of the
    work before it. `describe(folder)` says in the result what it is, once it is whole.
    """

    result: Result
    facts: dict[str, Any]
    works: Callable[[list[int] | None], Sequence[Work]]
    stores: Callable[[bool], Sequence[Store]]
    describe: Callable[[Path], None] = lambda folder: None


def carry_out(job: Job, how: How) -> Report:
    """Do all the work, or what is left of it."""
    began, result = time.monotonic(), job.result
    result.check_folder()
    with result.journal(make=not how.dry_run) as journal:
        if not how.resume:
            result.check(how.overwrite)
        before = resumed(journal, result, job.facts, how.overwrite, how.resume)
        done = len(journal.finished) if before else 0
        sweeps = before["sweeps"] if before and done else None
        works = job.works(sweeps and [number for number, _, _ in sweeps])
        _reach(works, how)
        grids = sweeps and [Grid(tuple(shape), tuple(tile)) for _, shape, tile in sweeps]
        report = _planned(result.place, works, how, grids)
        is_moving = done == report.tiles and before is not None and result.is_moving
        if not is_moving:
            result.check(how.overwrite)
            if done and not result.partial.exists():
                raise result.gone()
        if how.dry_run:
            return report
        try:
            if not is_moving:
                if not done:
                    _begin(job, report, journal)
                _make(job, works, report, journal, how)
                if time.monotonic() - began > EVERY:
                    journal.settle()  # what took so long is on the disk before it has its name
            _settle(job)
        except (Exception, KeyboardInterrupt) as error:
            if journal.finished:
                raise unfinished(error, len(journal.finished), report.tiles) from error
            remove(result.partial)  # nothing is lost, and nothing stays
            journal.remove()
            raise
        journal.remove()
    return replace(report, made=len(journal.finished) - done, seconds=time.monotonic() - began)


def _begin(job: Job, report: Report, journal: Journal) -> None:
    """A new journal. Killed at any moment, this leaves no journal that says more than there is."""
    journal.forget()
    remove(job.result.partial)
    sweeps = [(len(one.targets), one.plan.grid.shape, one.plan.grid.tile) for one in report.sweeps]
    journal.begin({**job.facts, "sweeps": sweeps})


def _settle(job: Job) -> None:
    """The result to its place. What is a result of its own is described before it has its name."""
    if not job.result.parts and job.result.partial.exists():
        job.describe(job.result.partial)
    job.result.move()
    if job.result.parts:
        job.describe(job.result.place)


# -- planning ----------------------------------------------------------------------------------------------------------


def _planned(place: Path, works: Sequence[Work], how: How, grids: list[Grid] | None) -> Report:
    """Every sweep's plan, on these grids if there are some from before, and what all of it takes."""
    memory, free = how.allowed, how.room
    held, sweeps = memory - free, []
    for i, work in enumerate(works):
        try:
            plan = _plan(work, grids[i] if grids else None, free, how)
        except TooLittle as error:
            together = how.most if how.workers else 1
            least = -(-(held + together * error.needed) >> 20)
            also = f"each worker makes {together} at a time, " if how.workers else ""
            raise PoolError(
                f"memory={how.memory or how_much(memory)} is too little: the smallest tile needs "
                f"{how_much(error.needed)}, {also}and this process holds {how_much(held)}; use memory={least}MiB or "
                "more, or smaller chunks"
            ) from None
        sweeps.append(Sweep(plan, work.sources, work.targets))
    peak = held + max(one.plan.bytes for one in sweeps)
    tiles = sum(len(one.plan.grid) for one in sweeps)
    return Report(str(place), tuple(sweeps), memory, peak, tiles, 0)


def _plan(work: Work, grid: Grid | None, free: int, how: How) -> Plan:
    """The plan of a sweep, on this grid if there is one from before."""
    if not how.workers:
        if grid is None:
            return choose(work.shape, work.unit, work.needs, free, how.most)
        return measure(grid, work.needs, free, how.most)
    share = free // how.most  # of a worker's memory, as all its threads are at work
    if grid is not None:
        plan = measure(grid, work.needs, share, 1, False)
    else:
        for some in (sum(how.workers), 1):  # a tile for each, or if those are too large, the best that is not
            plan = choose(work.shape, work.unit, work.needs, share * some, some, False)
            if plan.tile_bytes <= share:
                break
    return replace(plan, at_a_time=max(1, min(how.most, len(plan.grid))))


def _reach(works: Sequence[Work], how: How) -> None:
    """Raise if workers of a cluster have to read what is in no file: each tile would take all of it along."""
    for source in works[0].sources if how.workers else ():
        if isinstance(source, Store) and source.path is None:
            raise PoolError(
                f"cluster={how.cluster!r}: {source.name} is in no file, and workers read files; save it as .npy or "
                ".zarr, or leave cluster out"
            )


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


def _make(job: Job, works: Sequence[Work], report: Report, journal: Journal, how: How) -> None:
    """Make the tiles that are not finished."""
    stores = job.stores(not journal.finished)
    kept = max(_kept(work, sweep.plan) for work, sweep in zip(works, report.sweeps, strict=True))
    with _bar(shown(how.progress), report, journal) as progress, keeping_at_most(kept):
        made = 0
        for number, (work, sweep) in enumerate(zip(works, report.sweeps, strict=True)):
            if isinstance(work.sources[0], Target):
                work = work.on(stores[made - 1])
            own = stores[made : made + len(work.targets)]
            _sweep(number, work, sweep.plan, own, journal, progress, how)
            made += len(own)
    for store in stores:
        store.finish()


def _kept(work: Work, plan: Plan) -> int:
    """The memory that the engine may keep for the next tiles: what these are made in, and of."""
    return plan.at_a_time * sum(need.held(plan.grid[0]) for need in work.needs if not need.read) if plan.grid else 0


@contextmanager
def _bar(progress: Progress, report: Report, journal: Journal) -> Iterator[Progress]:
    total = sum(_weight(sweep.plan, len(sweep.plan.grid)) for sweep in report.sweeps)
    done = [0] * len(report.sweeps)
    for number, _ in journal.finished:
        done[number] += 1
    progress.begin(total, sum(_weight(sweep.plan, n) for sweep, n in zip(report.sweeps, done, strict=True)))
    try:
        yield progress
    finally:
        progress.end()


def _weight(plan: Plan, tiles: int) -> int:
    """What so many tiles of the plan read, in bytes: each as much as the others, rounded, so that they add up."""
    return round(plan.bytes_read / max(1, len(plan.grid))) * tiles


def _sweep(
    number: int, work: Work, plan: Plan, stores: Sequence[Store], journal: Journal, progress: Progress, how: How
) -> None:
    """All tiles of one sweep that are not in the journal, a few at a time."""
    if plan.shared_bytes:
        work = _sharing(work, plan, lambda tile: (number, tile) in journal.finished)
    left = [tile for tile in range(len(plan.grid)) if (number, tile) not in journal.finished]
    running: dict[Future[None], int] = {}

    def collect() -> None:
        """Wait for a tile or more, and count them; what failed raises its error."""
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            tile = running.pop(future)
            future.result()
            journal.add(number, tile)
            progress.step(_weight(plan, 1))

    with _workers(plan, how) as (workers, at_a_time):
        try:
            for tile in left:
                running[workers.submit(_tile, _read_by(tile, work), plan.grid[tile], stores)] = tile
                while len(running) >= at_a_time:
                    collect()
            while running:
                collect()
        except BaseException:  # or Ctrl-C: tiles that are in work are finished, and count
            while running:
                with suppress(Exception):
                    collect()
            raise


def _sharing(work: Work, plan: Plan, finished: Callable[[int], bool]) -> Work:
    """The same work, whose tiles keep pieces of the chunks they decode for one another."""
    read = [(need, room) for need, room in zip(work.needs, plan.shared, strict=True) if need.read]
    sources = [
        Shared(source, need, plan.grid, finished, room)
        for source, (need, room) in zip(work.sources, read, strict=True)
        if isinstance(source, Store)
    ]
    return work.on(*sources)


def _read_by(tile: int, work: Work) -> Work:
    """The work with sources that know which tile they are read for."""
    sources = [source.of(tile) if isinstance(source, Shared) else source for source in work.sources]
    return work.on(*sources) if any(isinstance(source, Shared) for source in sources) else work  # type: ignore[arg-type]


def _tile(work: Work, tile: Slices, stores: Sequence[Store]) -> None:
    with on_one_thread():  # tiles beside one another are threads enough, and each folds in the memory planned for one
        work.make(tile, stores)


@contextmanager
def _workers(plan: Plan, how: How) -> Iterator[tuple[Executor, int]]:
    """What makes tiles, and how many to hand out at a time."""
    if how.workers:
        with _cluster().workers(how.cluster) as executor:
            yield executor, AHEAD * sum(how.workers)
    else:
        with ThreadPoolExecutor(plan.at_a_time, "ndpool-tile") as executor:
            yield executor, plan.at_a_time


def _cluster() -> Any:
    """What knows dask's clusters."""
    return imported("cluster", "cluster=", "large")
