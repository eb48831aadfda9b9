"""Arrays in memory as stores, for sources and destinations; a memory map of NumPy's is its file's array."""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np

from .mapped import Layout, Mapped
from .store import Array, Slices, Store, check_dtype


class Held(Store):
    """An array in memory. Another process gets a copy of it."""

    def __init__(self, array: Array) -> None:
        self.array, self.name = array, "the array in memory"
        check_dtype(self.name, array.dtype)
        self.shape, self.dtype = array.shape, array.dtype.newbyteorder("=")
        self.chunks = self.units = (1,) * array.ndim
        self.order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"

    def read(self, part: Slices, out: Array | None = None) -> Array:
        return self.array[part].astype(self.dtype, copy=False)

    def write(self, part: Slices, values: Array) -> None:
        self.array[part] = values

    def memory(self, part: Slices) -> Array | None:
        return self.array[part] if self.array.dtype.isnative and self.array.flags.writeable else None

    def working(self, part: Slices) -> int:
        return 0 if self.array.dtype.isnative else self.array[part].nbytes

    def state(self) -> str:
        return f"checksum {zlib.crc32(np.ascontiguousarray(self.array).view(np.uint8).data):08x}"


def wrap(array: Array) -> Store:
    """The store of an array: of the file where it is a memory map, so that its pages are let go after use."""
    return (_mapped(array) if isinstance(array, np.memmap) else None) or Held(np.asarray(array))


def _mapped(array: np.memmap[Any, Any]) -> Store | None:
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    one_piece = array.flags.c_contiguous or array.flags.f_contiguous
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c" or not one_piece:
        return None
    if not os.path.exists(root.filename):
        return None
    offset = root.offset + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    layout = Layout(offset, array.shape, array.dtype, "C" if array.flags.c_contiguous else "F")
    return Mapped(os.fspath(root.filename), layout, writable=root.mode != "r")
