"""`ndpool pool` and `ndpool pyramid`: what they write and print; what fails is one line, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool import cli
from ndpool.large import progress, run, work
from ndpool.large.store import open_store

from .made import assert_bits, held, in_tiles, left, put

X = np.random.default_rng(0).integers(0, 99, (12, 10, 9)).astype("u2")
MAX = ndpool.MaxPool((2, 2, 2))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with X as x.npy, x.zarr and x.raw."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    put(tmp_path / "x.zarr", X, (4, 4, 4))
    X.tofile("x.raw")
    return tmp_path


SOURCES = ["x.npy", "x.raw", "x.zarr"]


def fails(capsys: Any, *argv: str) -> str:
    """The one line of a command that fails; nothing but the sources is left."""
    before = left(Path())
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ndpool: ")
    assert err.count("\n") == 1
    assert "unfinished" not in err
    assert left(Path()) == before
    return str(err)


# -- what is written ---------------------------------------------------------------------------------------------------

POOL: dict[str, tuple[list[str], ndpool.Op]] = {
    "max": (["--kernel", "2,2,2"], MAX),
    "mean": (["--op", "mean", "--kernel", "2,3"], ndpool.AvgPool((2, 3))),
    "avg": (["--op", "avg", "--kernel", "3", "--axes", "0"], ndpool.AvgPool(3, axes=0)),
    "min": (["--op", "min", "--kernel", "3,3", "--stride", "2,2", "--padding", "1"], ndpool.MinPool((3, 3), 2, 1)),
    "sum": (["--op", "sum", "--kernel", "2,2", "--dtype", "float32"], ndpool.SumPool((2, 2), dtype="float32")),
    "mode": (["--op", "mode", "--kernel", "2,2", "--ceil"], ndpool.ModePool((2, 2), ceil_mode=True)),
    "a record": (["--op", "AdaptiveMaxPool((3, 4))"], ndpool.AdaptiveMaxPool((3, 4))),
}  # fmt: skip


@pytest.mark.parametrize("which", POOL)
def test_pool(which: str, capsys: Any) -> None:
    options, op = POOL[which]
    assert cli.main(["pool", "x.npy", "y.zarr", *options, "--chunks", "4,4,4", "--codec", "gzip"]) == 0
    out, _ = capsys.readouterr()
    assert re.match(r"wrote .*y\.zarr in 0 s\nread   2\.1 KiB in ", out), out
    assert re.search(r"\nspeed  .*B/s of source\n$", out)
    store = open_store("y.zarr")
    assert_bits(held(store), op(X))
    assert store.chunks == tuple(min(4, n) for n in op(X).shape)
    assert left(Path()) == [*SOURCES, "y.zarr"]


def test_pyramid(capsys: Any) -> None:
    options = ["--levels", "2", "--op", "max", "--factor", "2", "--chunks", "4,4,4", "--zarr-format", "2"]
    assert cli.main(["pyramid", "x.npy", *options]) == 0
    out, _ = capsys.readouterr()
    assert re.match(r"wrote .*x\.ome\.zarr in 0 s\n", out)
    assert [line.split()[-5:] for line in out.splitlines() if line.startswith("make")] == [
        ["12", "x", "10", "x", "9"], ["6", "x", "5", "x", "5"], ["3", "x", "3", "x", "3"],
    ]  # fmt: skip
    level = X
    for name in "012":
        assert_bits(held(open_store(f"x.ome.zarr/{name}")), level)
        level = ndpool.MaxPool(2, ceil_mode=True, axes=(0, 1, 2))(level)
    assert cli.main(["pyramid", "x.zarr", "z.ome.zarr", "--factor", "1,3,3", "--levels", "1", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert open_store("z.ome.zarr/1").shape == (12, 4, 3)


def test_raw(capsys: Any) -> None:
    raw = ["--raw-shape", "12,10,9", "--raw-dtype", "uint16"]
    assert cli.main(["pool", "x.raw", "y.npy", "--kernel", "2,2,2", *raw]) == 0
    assert_bits(np.load("y.npy"), MAX(X))
    assert cli.main(["pyramid", "x.raw", *raw, "--levels", "1"]) == 0
    assert_bits(held(open_store("x.ome.zarr/0")), X)


def test_raw_without_its_shape_or_with_a_wrong_one(capsys: Any) -> None:
    assert "x.raw: says nothing of itself" in fails(capsys, "pool", "x.raw", "y.npy", "--kernel", "2")
    wrong = fails(capsys, "pool", "x.raw", "y.npy", "--kernel", "2", "--raw-shape", "99,99", "--raw-dtype", "u2")
    assert "the file has 2160 bytes, but its array" in wrong


@pytest.mark.parametrize("command", ["pool", "pyramid"])
def test_a_dry_run_writes_nothing(command: str, capsys: Any) -> None:
    options = [command, "x.zarr", "y.ome.zarr", *(["--kernel", "2,2,2"] if command == "pool" else [])]
    assert cli.main([*options, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert (err, left(Path())) == ("", SOURCES)
    assert out.startswith("would write y.ome.zarr\nread ")
    assert re.search(r"\nhold   up to .* of the [0-9.]+ GiB that are allowed\n$", out)
    for option, typed, said in (("--codec", "zip", "codec='zip'"), ("--zarr-format", "5", "zarr_format=5 is not")):
        assert said in fails(capsys, *options, "--dry-run", option, typed)


# -- what is told ------------------------------------------------------------------------------------------------------


def test_plain_lines(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stderr is no terminal: a line now and then, and at the end."""
    monkeypatch.setattr(run, "choose", in_tiles(6))
    monkeypatch.setattr(progress, "EVERY", 0.0)
    assert cli.main(["pool", "x.npy", "y.npy", "--kernel", "2,2,2", "--threads", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["16 %", "33 %", "50 %", "66 %", "83 %", "100 %", "100 %"]
    assert re.fullmatch(r"16 %: 2\.1 KiB of 12\.7 KiB, .*B/s, [0-9]+ s left", lines[0])
    assert re.fullmatch(r"100 %: 12\.7 KiB of 12\.7 KiB, .*B/s", lines[-1])
    assert cli.main(["pool", "x.npy", "z.npy", "--kernel", "2,2,2", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def interrupt_at(number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there are six tiles, and that one ends with an error."""
    make, tiles = work.Pooling.make, iter(range(99))

    def failing(self: Any, tile: Any, stores: Any) -> None:
        if next(tiles) == number:
            raise error
        make(self, tile, stores)

    monkeypatch.setattr(run, "choose", in_tiles(6))
    monkeypatch.setattr(work.Pooling, "make", failing)


COMMAND = ["pool", "x.npy", "y.npy", "--kernel", "2,2,2", "--threads", "1"]


def test_after_an_interruption(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, how far it came, and the way on; what was read before counts for no speed."""
    interrupt_at(4, KeyboardInterrupt(), monkeypatch)
    assert cli.main([*COMMAND, "--quiet"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "ndpool: interrupted; 4 of 6 tiles are finished, and the work can go on from there (resume=True, --resume)\n"
    )
    assert cli.main(COMMAND) == 2
    assert "unfinished-y.npy is there from work that was interrupted; go on with it" in capsys.readouterr().err
    moments = iter([0.0, 1.0])
    monkeypatch.setattr(run.time, "monotonic", lambda: next(moments, 1.0))
    assert cli.main([*COMMAND, "--resume"]) == 0
    out, _ = capsys.readouterr()
    assert out.endswith("\nspeed  4.2 KiB/s of source\n")  # two tiles of six, each of which reads all rows
    assert_bits(np.load("y.npy"), MAX(X))
    assert left(Path()) == [*SOURCES, "y.npy"]


def test_an_interruption_before_any_tile_leaves_nothing(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(0, KeyboardInterrupt(), monkeypatch)
    assert cli.main(COMMAND) == 130
    assert capsys.readouterr() == ("", "ndpool: interrupted\n")
    assert left(Path()) == SOURCES


SLOWLY = """
import sys, time
from ndpool import cli
from ndpool.large import run, work
from tests.large.made import in_tiles
make, run.choose = work.Pooling.make, in_tiles(6)
def slow(self, tile, stores):
    make(self, tile, stores)
    print(tile, flush=True)
    time.sleep(0.2)
work.Pooling.make = slow
sys.exit(cli.main(sys.argv[1:]))
"""


def test_ctrl_c(folder: Path) -> None:
    """The signal itself, to a process of its own: the tile in work is finished and counts."""
    root = Path(__file__).parents[2]
    paths = [str(folder / one) if one in ("x.npy", "y.npy") else one for one in COMMAND]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *paths], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    process.stdout.readline()
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert re.search(r"\nndpool: interrupted; [1-5] of 6 tiles are finished, and the work can go on .*--resume", err)
    assert cli.main([*COMMAND, "--resume", "--quiet"]) == 0
    assert_bits(np.load("y.npy"), MAX(X))


# -- what is refused ---------------------------------------------------------------------------------------------------


def file_named_zarr() -> None:
    Path("s.zarr").write_text("no zarr")


def broken() -> None:
    Path("s.npy").write_bytes(b"no npy")


def unreadable() -> None:
    np.save("s.npy", X)
    os.chmod("s.npy", 0)


def there() -> None:
    np.save("y.npy", X)


def folder_alone() -> None:
    Path("s.zarr").mkdir()


def folder_named_npy() -> None:
    Path("s.npy").mkdir()


def nothing() -> None:
    pass


K = ["--kernel", "2,2,2"]
REFUSED: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "no source": (nothing, ["pool", "s.npy", "y.npy", *K], "s.npy: there is no such file; check the path"),
    "no source of a pyramid": (nothing, ["pyramid", "s.npy"], "s.npy: there is no such file; check the path"),
    "no format": (nothing, ["pool", "x.npy", "y.abc", *K], "y.abc: no format is known by this ending"),
    "a broken file": (broken, ["pool", "s.npy", "y.npy", *K], "s.npy: is no .npy file"),
    "a folder named .npy": (folder_named_npy, ["pool", "s.npy", "y.npy", *K], "Is a directory: 's.npy'"),
    "a file named .zarr": (file_named_zarr, ["pool", "s.zarr", "y.npy", *K], "s.zarr: holds no zarr array"),
    "a folder named .zarr": (folder_alone, ["pyramid", "s.zarr"], "s.zarr: holds no zarr array"),
    "a destination that is there": (there, ["pool", "x.npy", "y.npy", *K], "y.npy is there already; use another name"),
    "the source itself": (nothing, ["pool", "x.npy", "x.npy", *K, "--overwrite"], "x.npy and the source x.npy lie in"),
    "no folder": (nothing, ["pool", "x.npy", "no/y.npy", *K], "the folder no is not there; make it first"),
    "a long kernel": (nothing, ["pool", "x.npy", "y.npy", "--kernel", "2,11,2"], "on axis 1, kernel_size=11 is larger"),
    "no kernel": (nothing, ["pool", "x.npy", "y.npy"], "--op max needs a window; use --kernel 2,2,2"),
    "an unknown op": (nothing, ["pool", "x.npy", "y.npy", "--op", "med", *K], "--op med is not one of mean, avg, max"),
    "two windows": (nothing, ["pool", "x.npy", "y.npy", "--op", "MaxPool(2)", *K], "is a whole record; put the other"),
    "an op of floats": (nothing, ["pool", "x.npy", "y.npy", "--op", "SmoothMaxPool(2, beta=1.0)"], "uint16"),
    "no codec": (nothing, ["pool", "x.npy", "y.zarr", *K, "--codec", "zip"], ".zarr: codec='zip' is not one of auto"),
    "a codec of .npy": (nothing, ["pool", "x.npy", "y.npy", *K, "--codec", "zstd"], ".npy: codec= is no option"),
    "no codec of a pyramid": (nothing, ["pyramid", "x.npy", "--codec", "zip"], ".zarr: codec='zip' is not one of auto"),
    "chunks of .npy": (nothing, ["pool", "x.npy", "y.npy", *K, "--chunks", "2,2,2"], ".npy has no chunks; leave"),
    "two chunks": (nothing, ["pool", "x.npy", "y.zarr", *K, "--chunks", "2,2"], "chunks=(2, 2) is not a size for each"),
    "shards alone": (nothing, ["pool", "x.npy", "y.zarr", *K, "--shards", "4,4,4"], "shards=(4, 4, 4) are made of"),
    "shards of a pyramid": (nothing, ["pyramid", "x.zarr", "--shards", "8,8,8"], "shards=(8, 8, 8) are made of chunks"),
    "odd shards": (
        nothing, ["pool", "x.npy", "y.zarr", *K, "--shards", "4,4,4", "--chunks", "3,3,3"],
        "shards=(4, 4, 4) are no multiples of chunks=(3, 3, 3)",
    ),
    "shards in format 2": (
        nothing, ["pyramid", "x.npy", "--shards", "4,4,4", "--chunks", "2,2,2", "--zarr-format", "2"],
        "zarr_format=2 has no shards",
    ),
    "little memory": (nothing, ["pool", "x.npy", "y.npy", *K, "--memory", "2MB"], "memory=2MB is too little: the smal"),
    "no memory": (nothing, ["pool", "x.npy", "y.npy", *K, "--memory", "much"], "memory='much' is not a size"),
    "no threads": (nothing, ["pool", "x.npy", "y.npy", *K, "--threads", "0"], "threads=0 is below 1"),
    "nine levels": (nothing, ["pyramid", "x.npy", "--levels", "9"], "levels=9: nothing can be smaller than (1, 1, 1)"),
    "a word for levels": (nothing, ["pyramid", "x.npy", "--levels", "few"], "'few' is not a number of levels"),
    "a pyramid in .npy": (nothing, ["pyramid", "x.npy", "y.npy"], "y.npy cannot hold a pyramid"),
    "labels in a JPEG": (nothing, ["pool", "x.npy", "y.jpg", *K], ".jpg: a JPEG picture holds uint8 of two axes"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, capsys: Any) -> None:
    prepare, argv, said = REFUSED[what]
    prepare()
    assert said in fails(capsys, *argv)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_source_that_may_not_be_read(capsys: Any) -> None:
    unreadable()
    assert "Permission denied: 's.npy'" in fails(capsys, "pool", "s.npy", "y.npy", *K)


def test_what_was_there_stays(capsys: Any) -> None:
    there()
    fails(capsys, *COMMAND)
    assert_bits(np.load("y.npy"), X)
    assert cli.main([*COMMAND, "--overwrite"]) == 0
    assert_bits(np.load("y.npy"), MAX(X))


def test_no_room_on_the_disk(capsys: Any) -> None:
    """A file may be no longer than this process is allowed: the error says which, and how long it is to be."""
    np.save("x.npy", np.zeros((1 << 10, 1 << 10), "f8"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        assert cli.main(["pool", "x.npy", "y.npy", "--kernel", "2,1"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.search(r"for its 4194[0-9]{3} bytes: '.*unfinished-y\.npy'\n$", capsys.readouterr().err)
    assert left(Path()) == SOURCES
