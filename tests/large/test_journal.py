"""The journal: what it says is finished was said to be, whatever became of its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndpool import PoolError
from ndpool.large.journal import Journal

from . import made

HEADER = {"op": "MaxPool(2)", "grids": [[[8], [2]]]}
TILES = [(0, 3), (0, 11), (1, 0)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of TILES."""
    with Journal(tmp_path / "unfinished-x.npy.journal") as journal:
        journal.begin(HEADER)
        for tile in TILES:
            journal.add(*tile)
    return journal.path


def test_what_was_written_is_read(path: Path) -> None:
    with Journal(path) as journal:
        assert (journal.header, journal.finished, journal.damaged) == (HEADER, {*TILES}, False)
        journal.add(1, 1)
    with Journal(path) as journal:
        assert journal.finished == {*TILES, (1, 1)}


def test_a_journal_that_was_not_begun_leaves_no_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        assert (journal.header, journal.finished) == (None, set())
    assert made.left(tmp_path) == []


def test_a_journal_that_is_only_looked_for_is_not_made(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", make=False) as journal:
        assert journal.header is None
        assert made.left(tmp_path) == []


def test_a_torn_last_line_is_no_tile(path: Path) -> None:
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for lost in range(1, last + 1):
        path.write_bytes(whole[:-lost])
        with Journal(path) as journal:
            assert journal.finished == {*TILES[:-1]}
            journal.add(7, 7)
        with Journal(path) as journal:
            assert journal.finished == {*TILES[:-1], (7, 7)}


def test_a_torn_first_line_is_no_journal(path: Path) -> None:
    first = path.read_bytes().splitlines()[0]
    for kept in range(len(first)):
        path.write_bytes(first[:kept])
        with Journal(path) as journal:
            assert (journal.header, journal.finished, journal.damaged) == (None, set(), False)


@given(st.data())
def test_no_changed_byte_makes_a_tile(path: Path, data: Any) -> None:
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
    path.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
    try:
        with Journal(path) as journal:
            assert journal.finished <= {*TILES}
            assert journal.damaged or journal.header in (None, HEADER)
    finally:
        path.write_bytes(whole)


def test_lines_of_another_journal_are_damage(path: Path) -> None:
    with Journal(path.with_name("other")) as other:
        other.begin({**HEADER, "op": "MinPool(2)"})
        other.add(0, 5)
    path.write_bytes(path.read_bytes() + other.path.read_bytes().splitlines(keepends=True)[1])
    with Journal(path) as journal:
        assert journal.damaged
        assert not journal.finished


def test_a_new_beginning_forgets(path: Path) -> None:
    with Journal(path) as journal:
        journal.forget()
        assert not journal.finished
    with Journal(path) as journal:
        assert (journal.header, journal.finished) == (HEADER, set())
        journal.begin({"op": "other"})
    with Journal(path) as journal:
        assert (journal.header, journal.finished) == ({"op": "other"}, set())


def test_one_at_a_time(path: Path) -> None:
    with Journal(path), pytest.raises(PoolError, match=r"another process is working on .*unfinished-x\.npy; wait"):
        Journal(path).__enter__()
    with Journal(path):
        pass


def test_a_killed_process_holds_no_lock(path: Path) -> None:
    script = (
        "import pathlib, sys; from ndpool.large.journal import Journal; Journal(pathlib.Path(sys.argv[1])).__enter__();"
        "print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(PoolError, match="another process"):
        Journal(path).__enter__()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    with Journal(path) as journal:
        assert journal.finished == {*TILES}


def test_a_full_disk_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Journal(path) as journal:
        monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:3]))
        with pytest.raises(OSError, match="no space left on the disk for the journal"):
            journal.add(1, 1)
        monkeypatch.undo()
        assert (1, 1) not in journal.finished
        journal.add(1, 2)
    with Journal(path) as journal:
        assert journal.finished == {*TILES, (1, 2)}


def test_a_journal_that_could_not_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "journal") as journal:
        monkeypatch.setattr(os, "write", lambda file, line: 0)
        with pytest.raises(OSError, match="no space left"):
            journal.begin(HEADER)
        monkeypatch.undo()
    assert made.left(tmp_path) == []
