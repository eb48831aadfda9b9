"""Work that ends before its end goes on where it was, and says why it ended; what has a result's name is whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool import PoolError
from ndpool.large import mapped, ome, pool, pyramid, run
from ndpool.large.journal import Journal
from ndpool.large.result import Interrupted
from ndpool.large.store import open_store

from . import killing
from .made import Counting, assert_bits, held, in_tiles, left, put

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).integers(0, 60000, killing.SHAPE).astype("u2")
OP = killing.OP


@pytest.fixture(autouse=True)
def _in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "choose", in_tiles(20))


class Failing(Counting):
    """A source whose reads fail from some read on, until it is mended."""

    def __init__(self, array: Any, reads: int, error: BaseException | None = None) -> None:
        super().__init__(array, before=self.count)
        self.left, self.error = reads, error or OSError("the cable is out")

    def count(self, part: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error


def interrupted(folder: Path, reads: int = 9, op: Any = OP, **how: Any) -> Failing:
    """Work into y.npy or y.zarr that ended after some tiles; its source, mended."""
    source = Failing(X, reads)
    with pytest.raises(Interrupted, match=f"the cable is out; {reads} of [0-9]+ tiles are finished.*resume=True"):
        pool(source, folder / how.pop("to", "y.npy"), op, **{"threads": 1, **how})
    source.left = 10**9
    source.parts.clear()
    return source


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with X as x.npy, x.zarr, and as level 0 of image.zarr."""
    np.save(tmp_path / "x.npy", X)
    put(tmp_path / "x.zarr", X, killing.CHUNKS)
    ome.create_group(tmp_path / "image.zarr", 3)
    put(tmp_path / "image.zarr" / "0", X, killing.CHUNKS)
    levels = ome.multiscales(ome.plain("zyx", "image"), ["0"], [(1, 1, 1)], "mean", 3)
    ome.describe(tmp_path / "image.zarr", levels)
    return tmp_path


def kill(what: str, kind: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.large.killing", what, kind, str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", killing.DESTINATIONS)
def test_killed_again_and_again(kind: str, sources: Path) -> None:
    before = left(sources)
    kill("tiles", kind, sources)
    place = sources / killing.DESTINATIONS[kind]
    assert left(sources) == sorted({*before, "log", place.name})
    if kind in ("npy", "zarr"):
        assert_bits(held(open_store(place)), OP(X))
        return
    level = X
    for name in "0123":
        assert_bits(held(open_store(place / name)), level)
        level = ndpool.AvgPool(2, ceil_mode=True, axes=(0, 1, 2))(level)


@pytest.mark.parametrize("what", ["steps", "steps after others"])
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_killed_while_it_takes_its_place(what: str, kind: str, tmp_path: Path) -> None:
    """The old result is there, or set aside, until the new one is; afterwards there is nothing but that."""
    kill(what, kind, tmp_path)


# -- ended by an error -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "chunks"), [("y.npy", None), ("y.zarr", killing.CHUNKS), ("y.raw", None)])
def test_an_error_keeps_what_is_finished(to: str, chunks: Any, tmp_path: Path) -> None:
    source = interrupted(tmp_path, to=to, chunks=chunks)
    assert left(tmp_path) == [f"unfinished-{to}", f"unfinished-{to}.journal"]
    report = pool(source, tmp_path / to, OP, chunks=chunks, threads=1, resume=True)
    assert report.made == report.tiles - 9 == len(source.parts)
    assert left(tmp_path) == [to]
    unsaid = {"shape": OP(X).shape, "dtype": "u2"} if to == "y.raw" else {}
    assert_bits(held(open_store(tmp_path / to, **unsaid)), OP(X))


@pytest.mark.parametrize("again", [{"memory": 10**10}, {"threads": 3}])
def test_work_goes_on_with_other_memory_and_threads(again: Any, tmp_path: Path) -> None:
    source = interrupted(tmp_path)
    report = pool(source, tmp_path / "y.npy", OP, **{"threads": 1, "resume": True, **again})
    assert report.made == report.tiles - 9
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))


def test_too_little_memory_for_tiles_that_were_begun(tmp_path: Path) -> None:
    source = interrupted(tmp_path)
    with pytest.raises(PoolError, match=r"memory=10000 is too little.*use memory=[0-9]+MiB or more"):
        pool(source, tmp_path / "y.npy", OP, memory=10000, resume=True)
    pool(source, tmp_path / "y.npy", OP, resume=True)
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))


def test_an_error_before_anything_is_finished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^the cable is out$"):
        pool(Failing(X, 0), tmp_path / "y.npy", OP)
    with pytest.raises(PoolError, match=r"codec='zip' is not one of"):
        pool(X, tmp_path / "y.zarr", OP, options={"codec": "zip"})
    with pytest.raises(OSError, match=r"cable"):
        pyramid(Failing(X, 0), tmp_path / "y.ome.zarr", threads=1)
    assert left(tmp_path) == []


def test_an_error_in_the_last_tile_is_one_inside_an_except_block_too(tmp_path: Path) -> None:
    tiles = pool(X, tmp_path / "y.npy", OP, threads=1, dry_run=True).tiles
    try:
        raise KeyError
    except KeyError:
        with pytest.raises(Interrupted, match=r"the cable is out"):
            pool(Failing(X, tiles - 1), tmp_path / "y.npy", OP, threads=1)
    assert left(tmp_path) == ["unfinished-y.npy", "unfinished-y.npy.journal"]


def test_tiles_that_were_in_work_beside_one_that_fails_count(tmp_path: Path) -> None:
    """Two at a time: the first waits until the other has failed."""
    failed = threading.Event()

    class Source(Counting):
        def read(self, part: Any, out: Any = None) -> Any:
            if not any(one.start for one in part):
                assert failed.wait(30)
            elif not failed.is_set():
                failed.set()
                raise OSError("the cable is out")
            return super().read(part)

    source = Source(X)
    with pytest.raises(Interrupted, match=r"1 of"):
        pool(source, tmp_path / "y.npy", OP, threads=2)
    with Journal(tmp_path / "unfinished-y.npy.journal") as journal:
        assert journal.finished == {(0, 0)}


@pytest.mark.parametrize("error", [MemoryError(), KeyError("x")])
def test_errors_without_words_are_named(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=type(error).__name__):
        pool(Failing(X, 3, error), tmp_path / "y.npy", OP, threads=1)


# -- work that cannot go on --------------------------------------------------------------------------------------------


def test_other_work_is_named(tmp_path: Path) -> None:
    source = interrupted(tmp_path, to="y.zarr", chunks=killing.CHUNKS)
    again: dict[str, Any] = {"resume": True, "chunks": killing.CHUNKS}
    to = tmp_path / "y.zarr"
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("the op was MaxPool.* and is MinPool", source, ndpool.MinPool(2, axes=0), {}),
        ("the op was .* and is .*dtype=.float32", source, replace(OP, dtype="float32"), {}),
        ("chunks was .*4, 6.* and is .*4, 5", source, OP, {"chunks": (2, 4, 5)}),
        ("shards was .*null.* and is .*8, 6", source, OP, {"shards": (4, 8, 6)}),
        ("options was .* and is .*gzip", source, OP, {"options": {"codec": "gzip"}}),
        ("the state of the source .* was checksum .* and is checksum", X + 1, OP, {}),
        ("the array of the source was uint16 .160.* and is uint16 .159", X[1:], OP, {}),
    ]  # fmt: skip
    for text, x, op, more in cases:
        with pytest.raises(PoolError, match=rf"unfinished-y.zarr cannot go on: {text}.*begin anew"):
            pool(x, to, op, **{**again, **more})
    with pytest.raises(PoolError, match=r"cannot go on: the work was pool and is pyramid"):
        pyramid(source, to, resume=True)
    pool(source, to, OP, **again)
    assert_bits(held(open_store(to)), OP(X))


def test_a_source_that_has_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "x.npy"
    np.save(source, X)
    count = iter(range(9))
    write = mapped.Mapped.write

    def failing(*args: Any) -> None:
        if next(count, None) is None:
            raise OSError("the cable is out")
        write(*args)

    monkeypatch.setattr(mapped.Mapped, "memory", lambda self, part: None)
    monkeypatch.setattr(mapped.Mapped, "write", failing)
    with pytest.raises(Interrupted):
        pool(source, tmp_path / "y.npy", OP, threads=1)
    monkeypatch.setattr(mapped.Mapped, "write", write)
    before = os.stat(source)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(PoolError, match=f"the state of the source .* was {before.st_size} bytes of [0-9]+ and is"):
        pool(source, tmp_path / "y.npy", OP, resume=True)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.move(source, tmp_path / "z.npy")
    with pytest.raises(PoolError, match=r"the source was .*x.npy and is .*z.npy"):
        pool(tmp_path / "z.npy", tmp_path / "y.npy", OP, resume=True)
    shutil.move(tmp_path / "z.npy", source)
    monkeypatch.chdir(tmp_path)
    pool("x.npy", "y.npy", OP, resume=True)
    assert_bits(np.load("y.npy"), OP(X))


def test_of_long_values_the_difference_is_shown() -> None:
    from ndpool.large.result import _apart

    was, now = _apart("a" * 300 + "b" * 300, "a" * 300 + "c" * 300)
    assert was == "..." + "a" * 40 + "b" * 60 + "..."
    assert now == "..." + "a" * 40 + "c" * 60 + "..."


def test_begun_anew_nothing_of_the_old_work_stays(tmp_path: Path) -> None:
    """With the same tiles and another record: what was finished is not."""
    interrupted(tmp_path, op=ndpool.MinPool((3, 2), stride=(1, 2), padding=(1, 0), axes=(0, 1)))
    report = pool(X, tmp_path / "y.npy", OP, threads=1, overwrite=True)
    assert report.made == report.tiles
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))
    assert left(tmp_path) == ["y.npy"]


def test_neither_going_on_nor_beginning_anew_is_asked_for(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(PoolError, match=r"is there from work that was interrupted; go on with it \(resume=True, --re"):
        pool(X, tmp_path / "y.npy", OP)


def test_nothing_to_go_on_with_is_a_beginning(tmp_path: Path) -> None:
    pool(X, tmp_path / "y.npy", OP, resume=True)
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))
    with pytest.raises(PoolError, match=r"y.npy is there already"):
        pool(X, tmp_path / "y.npy", OP, resume=True)


def test_what_came_between_is_not_overwritten(tmp_path: Path) -> None:
    source = interrupted(tmp_path)
    np.save(tmp_path / "y.npy", np.zeros(3))
    with pytest.raises(PoolError, match=r"y.npy is there already"):
        pool(source, tmp_path / "y.npy", OP, resume=True)
    assert np.load(tmp_path / "y.npy").shape == (3,)
    pool(source, tmp_path / "y.npy", OP, resume=True, overwrite=True)
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))


def test_a_damaged_journal(tmp_path: Path) -> None:
    source = interrupted(tmp_path)
    journal = tmp_path / "unfinished-y.npy.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b"0 7 00000000\n", *lines[3:]]))
    for resume in (True, False):
        with pytest.raises(PoolError, match=r"journal is damaged; begin anew .overwrite=True"):
            pool(source, tmp_path / "y.npy", OP, resume=resume)
    pool(source, tmp_path / "y.npy", OP, overwrite=True)
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))
    assert left(tmp_path) == ["y.npy"]


def test_a_torn_last_line_is_a_tile_to_make(tmp_path: Path) -> None:
    source = interrupted(tmp_path)
    journal = tmp_path / "unfinished-y.npy.journal"
    journal.write_bytes(journal.read_bytes()[:-4])
    report = pool(source, tmp_path / "y.npy", OP, resume=True)
    assert report.made == report.tiles - 8
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))


def test_what_is_in_the_way_is_not_taken(tmp_path: Path) -> None:
    for resume in (False, True):
        (tmp_path / "unfinished-y.npy").write_text("mine")
        with pytest.raises(PoolError, match=r"unfinished-y.npy is in the way and has no journal; remove it"):
            pool(X, tmp_path / "y.npy", OP, resume=resume)
        assert left(tmp_path) == ["unfinished-y.npy"]


def test_what_was_written_is_gone(tmp_path: Path) -> None:
    source = interrupted(tmp_path)
    (tmp_path / "unfinished-y.npy").unlink()
    with pytest.raises(PoolError, match=r"unfinished-y.npy is gone, but its journal is there; begin anew"):
        pool(source, tmp_path / "y.npy", OP, resume=True)


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    np.save(tmp_path / "unfinished-y.npy", X)
    put(tmp_path / "x.zarr", X, killing.CHUNKS)
    for source, to in (("unfinished-y.npy", "y.npy"), ("x.zarr", "x.zarr"), ("x.zarr", "x.zarr/y.npy")):
        with pytest.raises(PoolError, match=r"lie in one another; write to another place"):
            pool(tmp_path / source, tmp_path / to, OP, overwrite=True)
    assert_bits(np.load(tmp_path / "unfinished-y.npy"), X)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_result_replaces_what_is_there_whatever_it_is(kind: str, tmp_path: Path) -> None:
    for to in ("y.npy", "y.zarr"):
        if kind == "file":
            (tmp_path / to).write_text("old")
        else:
            (tmp_path / to / "deep").mkdir(parents=True)
        (tmp_path / f"{to}.old").write_text("mine")
        pool(X, tmp_path / to, OP, overwrite=True)
        assert_bits(held(open_store(tmp_path / to)), OP(X))
    assert left(tmp_path) == ["y.npy", "y.npy.old", "y.zarr", "y.zarr.old"]


# -- two at once, full disks, broken chunks, Ctrl-C --------------------------------------------------------------------


def test_two_on_one_result(tmp_path: Path) -> None:
    go, wait = threading.Event(), threading.Event()
    source = Counting(X, before=lambda part: (go.set(), wait.wait(30)))
    first = threading.Thread(target=pool, args=(source, tmp_path / "y.npy", OP), kwargs={"threads": 1})
    first.start()
    try:
        assert go.wait(30)
        for how in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(PoolError, match=r"another process is working on .*unfinished-y\.npy; wait for it"):
                pool(X, tmp_path / "y.npy", OP, **how)
    finally:
        wait.set()
        first.join()
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("no disk can be mounted here: this is not root, or has no `mount`")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here: `mount` refuses")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_before_the_first_tile(disk: Path) -> None:
    with pytest.raises(OSError, match=r"No space left"):
        pool(np.zeros((1024, 1024), np.uint8), disk / "y.npy", ndpool.MaxPool(1, axes=0))
    assert left(disk) == []


def test_a_full_disk_in_the_middle(disk: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (512, 1024), np.uint8)
    op, to, how = ndpool.MaxPool(1, axes=0), disk / "y.zarr", {"chunks": (64, 1024), "threads": 1}
    (disk / "other").write_bytes(bytes(200_000))
    with pytest.raises(Interrupted, match=r"No space left.*tiles are finished, and the work can go on"):
        pool(x, to, op, **how)
    assert left(disk) == ["other", "unfinished-y.zarr", "unfinished-y.zarr.journal"]
    with pytest.raises(Interrupted, match=r"No space left"):
        pool(x, to, op, resume=True, **how)
    (disk / "other").unlink()
    subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
    report = pool(x, to, op, resume=True, **how)
    assert 0 < report.made < report.tiles
    assert_bits(held(open_store(to)), x)


def test_a_chunk_that_cannot_be_read(tmp_path: Path) -> None:
    source = put(tmp_path / "x.zarr", X, (10, 8, 6), codec="zstd")
    chunk = source / "c" / "7" / "0" / "0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    to, how = tmp_path / "y.zarr", {"threads": 1, "chunks": (10, 8, 6)}
    with pytest.raises(Interrupted, match=r"x\.zarr/c/7/0/0: the chunk cannot be decoded.*tiles are finished"):
        pool(source, to, OP, **how)
    chunk.write_bytes(whole)
    with pytest.raises(PoolError, match=r"the state of the source"):
        pool(source, to, OP, resume=True, **how)


def test_ctrl_c(tmp_path: Path) -> None:
    source = Counting(X, before=lambda part: len(source.parts) == 5 and os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(
        KeyboardInterrupt, match=r"interrupted; [0-9]+ of [0-9]+ tiles are finished, and the work can go"
    ):
        pool(source, tmp_path / "y.npy", OP, threads=1)
    assert left(tmp_path) == ["unfinished-y.npy", "unfinished-y.npy.journal"]
    pool(X, tmp_path / "y.npy", OP, resume=True)
    assert_bits(np.load(tmp_path / "y.npy"), OP(X))
