"""Work that is killed, goes on, and is killed again: `python -m tests.large.killing WHAT KIND FOLDER`.

The work is done in forks, which SIGKILL ends: `tiles`, some tiles after they began, until all are made; `steps` and
`steps after others`, at each change of a file's name or length while a result takes the place of an older one.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import ndpool
from ndpool.large import npy, ome, pool, pyramid, run, work, zarr  # noqa: F401, in time: no fork imports
from ndpool.large.journal import Journal
from ndpool.large.store import whole

from .made import in_tiles

levels = importlib.import_module("ndpool.large.pyramid")  # `pyramid` is its function

SHAPE = (160, 8, 6)
CHUNKS = (2, 4, 6)
OP = ndpool.MaxPool((3, 2), stride=(1, 2), padding=(1, 0), axes=(0, 1))
TILES = 20
DESTINATIONS = {"npy": "y.npy", "zarr": "y.zarr", "pyramid": "y.ome.zarr", "in place": "image.zarr"}


def forked(do: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """The number of a process that does this, and nothing else."""
    child = os.fork()
    if child:
        return child
    try:
        do(*args, **kwargs)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)


def wait(child: int) -> int:
    return os.waitpid(child, 0)[1]


def with_tiles(number: int, make: Callable[[Any, Any, Any], Any]) -> None:
    """From now on in this process: there are so many tiles, and this makes one."""
    run.choose = levels.choose = in_tiles(number)
    work.Pooling.make = make  # type: ignore[method-assign]


# -- killed some tiles after it began ----------------------------------------------------------------------------------


def attempt(kind: str, folder: Path) -> None:
    """All the work, or the rest of it; each tile that is begun is written down."""
    make = work.Pooling.make
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def slow(self: Any, tile: Any, stores: Any) -> None:
        os.write(log, f"{[(one.start, one.stop) for one in tile]} of {self.shape}\n".encode())
        time.sleep(0.002)
        make(self, tile, stores)

    with_tiles(TILES, slow)
    destination, how = folder / DESTINATIONS[kind], {"resume": True, "threads": 2}
    if kind in ("npy", "zarr"):
        pool(folder / "x.npy", destination, OP, chunks=CHUNKS if kind == "zarr" else None, **how)
    elif kind == "pyramid":
        pyramid(folder / "x.zarr", destination, levels=3, **how)
    else:
        pyramid(destination, levels=3, **how)


def begun(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def finished(folder: Path) -> set[str]:
    """What the journal says, as the log has it."""
    found = set()
    for path in folder.glob("*.journal"):
        with Journal(path) as journal:
            for sweep, tile in journal.finished:
                _, shape, size = (journal.header or {})["sweeps"][sweep]
                where = run.Grid(tuple(shape), tuple(size))[tile]
                found.add(f"{[(one.start, one.stop) for one in where]} of {tuple(shape)}")
    return found


def is_there(kind: str, folder: Path) -> bool:
    """Whether there is something of the result's name; what an image lists is there in whole."""
    place = folder / DESTINATIONS[kind]
    if kind == "in place":
        assert listed(place) == 1 or all((place / level / "zarr.json").is_file() for level in "123")
        return listed(place) > 1
    assert kind != "pyramid" or not place.exists() or listed(place) == 4
    return place.exists()


def listed(image: Path) -> int:
    """How many levels an image says that it has."""
    attributes = json.loads((image / "zarr.json").read_text())["attributes"]
    return len(attributes["ome"]["multiscales"][0]["datasets"])


def killed(child: int, folder: Path, lines: int, later: float) -> int:
    """The status of a child that was killed a moment after the log had so many lines, or had ended before."""
    while len(begun(folder)) < lines:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return status
        time.sleep(0.001)
    time.sleep(later)
    os.kill(child, signal.SIGKILL)
    return wait(child)


def until_done(kind: str, folder: Path) -> None:
    rng, kills = random.Random(1), 0
    while not is_there(kind, folder) or list(folder.glob("*.journal")):
        made, before = finished(folder), len(begun(folder))
        status = killed(forked(attempt, kind, folder), folder, before + rng.randrange(8), rng.uniform(0, 0.01))
        assert os.WIFSIGNALED(status) or status == 0
        again = made & {*begun(folder)[before:]}
        assert not again, f"made again: {again}"
        kills += os.WIFSIGNALED(status)
    tiles = begun(folder)
    assert len(tiles) <= len({*tiles}) + 2 * kills, "a kill loses the tiles that are in work alone"
    print(f"{kills} kills, {len({*tiles})} tiles, {len(tiles)} begun")


# -- killed at each change of a name -----------------------------------------------------------------------------------

OLD, NEW = ndpool.MaxPool(2, axes=0), ndpool.MinPool(2, axes=0)
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.truncate")


def overwrite(place: Path, op: ndpool.Op, **how: Any) -> None:
    chunks = (20, 8, 6) if place.suffix == ".zarr" else None
    pool(place.with_name("x.npy"), place, op, overwrite=True, chunks=chunks, **how)


def interrupt(place: Path) -> None:
    """Be killed at the fourth tile of OLD."""
    make, tiles = work.Pooling.make, count()

    def dying(self: Any, tile: Any, stores: Any) -> None:
        if next(tiles) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        make(self, tile, stores)

    with_tiles(4, dying)
    overwrite(place, OLD, threads=1)


def die_at(step: int, place: Path) -> None:
    """Make NEW, but be killed before that many changes that this thread makes of names and lengths of files."""
    counter = count()

    def hook(event: str, _: Any) -> None:
        if event in CHANGES and threading.current_thread() is threading.main_thread() and next(counter) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    overwrite(place, NEW)


def holds(place: Path, *ops: ndpool.Op) -> None:
    """What lies there, whatever its name is now, is what one of these records makes."""
    store = (npy if place.is_file() else zarr).open(os.fspath(place), {})
    got, x = store.read(whole(store.shape)), np.load(place.with_name("x.npy"))
    assert any(np.array_equal(got, op(x)) for op in ops), place


def each_step(kind: str, folder: Path, after_others: bool) -> None:
    for step in count():
        home = folder / str(step)
        home.mkdir()
        np.save(home / "x.npy", np.random.default_rng(0).integers(0, 60000, SHAPE).astype("u2"))
        place = home / f"y.{kind}"
        assert wait(forked(overwrite, place, OLD)) == 0
        assert not after_others or os.WIFSIGNALED(wait(forked(interrupt, place)))
        status = wait(forked(die_at, step, place))
        there = place if place.exists() else home / f"unfinished-{place.name}.replaced"
        assert wait(forked(holds, there, OLD, NEW)) == 0, step
        if status == 0:
            break
        assert os.WIFSIGNALED(status)
        went_on = wait(forked(overwrite, place, NEW, resume=True))
        assert after_others or went_on == 0, step
        assert went_on == 0 or wait(forked(overwrite, place, NEW)) == 0, step
        assert wait(forked(holds, place, NEW)) == 0, step
        assert sorted(path.name for path in home.iterdir()) == ["x.npy", place.name], step
    print(f"{step} steps")


def main(what: str, kind: str, folder: str) -> None:
    if what == "tiles":
        until_done(kind, Path(folder))
    else:
        each_step(kind, Path(folder), what == "steps after others")


if __name__ == "__main__":
    main(*sys.argv[1:])
