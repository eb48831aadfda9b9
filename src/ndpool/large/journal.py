"""The journal of a result that is being made: which tiles are finished, on the disk beside it.

A journal is a text file. Its first line says what is made of what, in which tiles; each other line is a tile that is
finished, written after its values were. Every line ends with a checksum that also covers the first line, so a line that
a killed process left half written, or one of another journal, is no tile. The file is locked while a process works on
the result: a lock ends with its process, however that ends.

What a process has written is the system's, and outlives the process; but not a failure of power. So now and then all is
put on the disk, and a line says so. Where the machine has been started anew since, only tiles before such a line count.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import PoolError

EVERY = 30.0  # seconds between such lines
SETTLED, STARTED = -1, -2  # numbers of sweeps that there are not


def start() -> int:
    """A number of this machine's present start."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return zlib.crc32(boot.read_bytes()) if boot.exists() else 0


class Journal:
    """`with Journal(path) as journal`: locked and read, and where there is one, with what it says of tiles.

    With make=False there may be no file, and then none is made.
    """

    def __init__(self, path: Path, make: bool = True):
        self.path, self.make = path, make
        self.header: dict[str, Any] | None = None  # None: there is no journal, or not even its first line
        self.finished: set[tuple[int, int]] = set()  # (sweep, tile)
        self.damaged = False  # whether there are lines that this class did not write; then nothing is finished
        self._file = -1
        self._seed = 0
        self._settled = time.monotonic()

    def __enter__(self) -> Journal:
        if not self.make and not self.path.exists():
            return self
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_there():  # its process ended, and took it away, between the two calls
                raise BlockingIOError
            self._read()
        except BlockingIOError:
            os.close(self._file)
            raise PoolError(
                f"another process is working on {self.path.with_suffix('')}; wait for it, or end it"
            ) from None
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._file < 0:
            return
        if self.header is None and not os.fstat(self._file).st_size:
            self.remove()  # nothing was begun
        os.close(self._file)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def forget(self) -> None:
        """No tile is finished: what was written of them is about to be removed."""
        os.ftruncate(self._file, 0 if self.header is None else len(self._first(self.header)))
        self.finished = set()

    def begin(self, header: dict[str, Any]) -> None:
        """A new journal of that work."""
        os.ftruncate(self._file, 0)
        self.header, self.finished = None, set()
        self._append(self._first(header) + self._line(STARTED, start()))
        self.header = header

    def add(self, sweep: int, tile: int) -> None:
        """That tile of that sweep has been written."""
        self._append(self._line(sweep, tile))
        self.finished.add((sweep, tile))
        if time.monotonic() - self._settled > EVERY:
            self.settle()

    def settle(self) -> None:
        """Put all that is finished on the disk."""
        os.sync()
        self._append(self._line(SETTLED, len(self.finished)))
        os.fsync(self._file)
        self._settled = time.monotonic()

    def remove(self) -> None:
        """The result is finished and in its place."""
        self.path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full: what is there is no line, and no tile
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(28, "no space left on the disk for the journal", str(self.path))

    def _first(self, header: dict[str, Any]) -> bytes:
        text = json.dumps(header, sort_keys=True)
        self._seed = zlib.crc32(text.encode())
        return f"{text} {self._seed:08x}\n".encode()

    def _line(self, sweep: int, tile: int) -> bytes:
        text = f"{sweep} {tile}"
        return f"{text} {zlib.crc32(text.encode(), self._seed):08x}\n".encode()

    def _read(self) -> None:
        """What the file says; a last line that is not whole is cut off."""
        with open(self.path, "rb") as file:
            lines = file.read().split(b"\n")
        whole, rest = lines[:-1], lines[-1]
        if not whole:
            return
        header = self._header(whole[0])
        said, counts = self._said(whole[1:]) if header else [], len(whole) - 1
        started = [number for sweep, number in said if sweep == STARTED]
        restarted = bool(started) and started[-1] != start()
        if restarted:
            counts = max((i + 1 for i, (sweep, _) in enumerate(said) if sweep == SETTLED), default=0)
        if header is None or len(said) < counts:
            self.damaged = True
            return
        self.header = header
        self.finished = {(sweep, tile) for sweep, tile in said[:counts] if sweep >= 0}
        if rest or restarted:
            os.ftruncate(self._file, sum(len(line) + 1 for line in whole[: 1 + counts]))
        if restarted:
            self._append(self._line(STARTED, start()))

    def _header(self, line: bytes) -> dict[str, Any] | None:
        """What the first line says, if it is whole."""
        try:
            header: dict[str, Any] = json.loads(line.rpartition(b" ")[0])
        except ValueError:
            return None
        return header if self._first(header)[:-1] == line else None

    def _said(self, lines: list[bytes]) -> list[tuple[int, int]]:
        """The numbers in the other lines, up to one that is damaged."""
        found: list[tuple[int, int]] = []
        for line in lines:
            try:
                sweep, number = map(int, line.split()[:2])
            except ValueError:
                break
            if self._line(sweep, number)[:-1] != line:
                break
            found.append((sweep, number))
        return found
