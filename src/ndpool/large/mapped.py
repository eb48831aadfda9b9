"""An array that lies in a file as it lies in memory: parts of it are mapped, and not copied.

A part is mapped when it is asked for and unmapped when its view is dropped, so the pages that count as the process'
own are those of the parts in use. A part whose pages hold much that is not its own is copied, some of it at a time.
Each mapping opens the file for itself: a store holds no descriptor.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from ..errors import PoolError
from .store import Array, Slices, Store, check_dtype, shape_of, state_of, within

PIECE = 1 << 16  # bytes in one piece that are worth a fault
FOLIO = 1 << 21  # bytes that one fault may map: Linux maps what its cache holds in one piece, up to a huge page
WINDOW = 1 << 24  # bytes of a file that are mapped at a time where they are copied


@dataclass(frozen=True)
class Layout:
    """Where the elements lie: element i of a C-ordered array at offset + i * itemsize."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # in the file's byte order
    order: Literal["C", "F"] = "C"

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        fast_first = self.shape if self.order == "F" else self.shape[::-1]
        strides = tuple(accumulate(fast_first[:-1], lambda stride, n: stride * n, initial=self.dtype.itemsize))
        strides = strides[: len(self.shape)]
        return strides if self.order == "F" else strides[::-1]

    def span(self, part: Slices) -> tuple[int, int]:
        """The bytes of the file from the part's first element to its last."""
        ends = zip(part, self.strides, strict=True)
        firsts, lasts = zip(*((p.start * s, (p.stop - 1) * s) for p, s in ends), strict=True) if part else ((), ())
        return self.offset + sum(firsts), self.offset + sum(lasts) + self.dtype.itemsize

    def pages_beside(self, part: Slices) -> int:
        """Bytes of neighbours in the pages that are mapped with a part, or with a window of it at a time."""
        return min(self.scattered(part), WINDOW + 2 * FOLIO)

    def scattered(self, part: Slices) -> int:
        """Bytes of neighbours in the pages that all of a part lies in."""
        own = math.prod(shape_of(part)) * self.dtype.itemsize
        runs, together = 1, True  # how many pieces lie apart
        for n, size in (*zip(shape_of(part), self.shape, strict=True),)[:: 1 if self.order == "F" else -1]:
            runs, together = (runs, n == size) if together else (runs * n, False)
        first, last = self.span(part)
        apart, at_most = runs * 2 * FOLIO, min(last - first + 2 * FOLIO, self.offset + self.nbytes + mmap.PAGESIZE)
        return min(apart, max(0, at_most - own)) if own else 0

    def windows(self, part: Slices) -> Iterator[Slices]:
        """The part in pieces that lie within WINDOW bytes of the file, cut along the slowest axis first."""
        first, last = self.span(part)
        axes = range(len(part)) if self.order == "C" else range(len(part))[::-1]
        longest = next((a for a in axes if part[a].stop - part[a].start > 1), None)
        if last - first <= WINDOW or longest is None:
            yield part
            return
        start, stop = part[longest].start, part[longest].stop
        n = max(1, min((stop - start) // 2, (WINDOW - self.dtype.itemsize) // self.strides[longest]))
        for i in range(start, stop, n):
            yield from self.windows((*part[:longest], slice(i, min(i + n, stop)), *part[longest + 1 :]))


class Mapped(Store):
    """An array in a file, uncompressed and in one piece. `writable` says whether parts may be written."""

    path: str

    def __init__(
        self, path: str, layout: Layout, *, name: str | None = None, axes: tuple[str, ...] | None = None,
        writable: bool = True,
    ) -> None:  # fmt: skip
        self.path, self.layout, self.axes, self.writable = os.path.abspath(path), layout, axes, writable
        self.name = name or path
        check_dtype(self.name, layout.dtype)
        self.shape, self.order = layout.shape, layout.order
        self.dtype = layout.dtype.newbyteorder("=")
        self.encoded = not layout.dtype.isnative
        self.chunks = in_one_piece(layout)
        self.units = (1,) * len(layout.shape)
        self.strides = layout.strides
        size = os.stat(path).st_size
        if size < layout.offset + layout.nbytes:
            raise OSError(
                f"{self.name}: the file has {size} bytes, but its array of {layout.dtype}, shape {layout.shape}, ends "
                f"at byte {layout.offset + layout.nbytes}; it was cut short, or the shape, dtype or offset is wrong"
            )

    def read(self, part: Slices, out: Array | None = None) -> Array:
        if self._in_place(part):
            return self._view(part, mmap.ACCESS_READ)
        out = np.empty(shape_of(part), self.dtype, self.order) if out is None else out
        for window in self.layout.windows(part) if out.size else ():
            out[within(window, part)] = self._view(window, mmap.ACCESS_READ)
        return out

    def write(self, part: Slices, values: Array) -> None:
        for window in self.layout.windows(part) if values.size else ():
            self._view(window, mmap.ACCESS_WRITE)[...] = values[within(window, part)]

    def memory(self, part: Slices) -> Array | None:
        return self._view(part, mmap.ACCESS_WRITE) if self._in_place(part) else None

    def _in_place(self, part: Slices) -> bool:
        """Whether a part is used as it lies, in pages of its own for the most part; else it is copied."""
        return self.layout.dtype.isnative and self.layout.scattered(part) <= WINDOW

    def working(self, part: Slices) -> int:
        """Pages that the part shares with its neighbours; where it is copied, a window of the file."""
        if self.layout.dtype.isnative:
            return self.layout.pages_beside(part)
        return min(math.prod(shape_of(part)) * self.dtype.itemsize, WINDOW) + 2 * FOLIO

    def state(self) -> str:
        return state_of(self.path)

    def _view(self, part: Slices, access: int) -> Array:
        shape = shape_of(part)
        if 0 in shape:
            return np.empty(shape, self.layout.dtype)
        if access == mmap.ACCESS_WRITE and not self.writable:
            raise OSError(f"{self.name}: is open for reading only; write to a new array")
        first, last = self.layout.span(part)
        start = first - first % mmap.ALLOCATIONGRANULARITY
        file = os.open(self.path, os.O_RDONLY if access == mmap.ACCESS_READ else os.O_RDWR)
        try:
            memory = mmap.mmap(file, last - start, access=access, offset=start)
        except ValueError as error:  # the length is beyond the end
            raise OSError(f"{self.name}: the file has become shorter than its array; make it anew") from error
        finally:
            os.close(file)
        return np.ndarray(shape, self.layout.dtype, memory, first - start, self.strides)


def in_one_piece(layout: Layout) -> tuple[int, ...]:
    """The block of neighbours that lie together: whole axes, the last of them cut to PIECE bytes, by a power of two."""
    block, length = [1] * len(layout.shape), layout.dtype.itemsize
    axes = range(len(layout.shape))
    for axis in axes if layout.order == "F" else reversed(axes):
        n = max(1, layout.shape[axis])
        block[axis] = n if n * length <= PIECE else 1 << max(0, (PIECE // length).bit_length() - 1)
        length *= n
        if length > PIECE:
            break
    return tuple(block)


def new_file(path: str, header: bytes, size: int) -> None:
    """A new file that begins with a header and has all its bytes on the disk: a full disk is an error now."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(file, header)
        allocate(file, size, path)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)


def allocate(file: int, size: int, path: str) -> None:
    """Give an open file its bytes on the disk, up to `size`."""
    try:
        if not hasattr(os, "posix_fallocate"):  # macOS: holes, and a disk that fills up is found while writing
            os.truncate(file, max(size, os.fstat(file).st_size))
        elif size:
            os.posix_fallocate(file, 0, size)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} for its {size} bytes", path) from error


def order_of(name: str, options: dict[str, Any]) -> Literal["C", "F"]:
    """The option that says which axis is the one whose neighbours lie together."""
    order = options.get("order", "C")
    if order == "C" or order == "F":
        return order  # type: ignore[no-any-return]
    raise PoolError(f"{name}: order={order!r} is neither 'C' (the last axis lies together) nor 'F' (the first)")
