"""Datasets of HDF5 files, as `file.h5:/path/to/dataset`: contiguous ones are mapped, chunked ones are decoded.

New ones are contiguous and allocated as they are made, so the file is sound from then on, whatever ends the process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..errors import PoolError
from .mapped import Layout, Mapped, allocate
from .store import Array, Like, Slices, Store, check_dtype, check_options, shape_of, split, state_of

DATASET = "/data"  # of a new file where the name says no other
CACHE = 9 << 20  # what HDF5 keeps of chunks, at most, and what it takes itself


class Chunked(Store):
    """A dataset that HDF5 decodes, under its own lock: threads take turns."""

    encoded = True
    path: str

    def __init__(self, dataset: h5py.Dataset, name: str) -> None:
        self.dataset, self.name = dataset, name
        self.path = os.path.abspath(dataset.file.filename)
        check_dtype(name, dataset.dtype)
        self.shape, self.dtype = dataset.shape, dataset.dtype.newbyteorder("=")
        self.chunks = self.units = dataset.chunks or tuple(max(1, n) for n in dataset.shape)
        self.axes = _labels(dataset)

    def read(self, part: Slices, out: Array | None = None) -> Array:
        values = out if out is not None and out.flags.c_contiguous else np.empty(shape_of(part), self.dtype)
        try:
            if values.size:
                self.dataset.read_direct(values, part)
        except (OSError, RuntimeError) as error:
            raise OSError(f"{self.name}: a chunk of {part} cannot be decoded: {error}") from error
        if out is not None and out is not values:
            out[...] = values
        return values if out is None else out

    def write(self, part: Slices, values: Array) -> None:
        self.dataset[part] = values

    def working(self, part: Slices) -> int:
        """A chunk as it lies in the file and decoded, and another one if `out` is not for HDF5 to write to."""
        return 2 * int(np.prod(self.chunks, dtype=object)) * self.dtype.itemsize + CACHE

    def state(self) -> str:
        return state_of(self.path)

    def __reduce__(self) -> Any:
        return _opened, (self.path, self.dataset.name, self.name)


def open(name: str, options: dict[str, Any]) -> Store:
    check_options(name, options, ())
    path, inside = split(name)
    return _opened(path, inside, name)


def _opened(path: str, inside: str, name: str) -> Store:
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise OSError(f"{path}: is no HDF5 file that can be opened: {error}") from error
    found = file.get(inside) if inside else None
    if not isinstance(found, h5py.Dataset):
        datasets = _datasets(file)
        if inside or len(datasets) != 1:
            listed = ", ".join(datasets[:9]) or "none"
            raise PoolError(f"{name}: name a dataset as {path}:/dataset; there are: {listed}")
        found = file[datasets[0]]
    return _store(found, name)


def _datasets(file: h5py.File) -> list[str]:
    found: list[str] = []

    def note(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            found.append(f"/{name}")

    file.visititems(note)
    return found


def wrap(dataset: h5py.Dataset) -> Store:
    """The store of a dataset that is open."""
    if dataset.file.mode != "r":
        dataset.file.flush()
    return _store(dataset, f"{dataset.file.filename}:{dataset.name}")


def _store(dataset: h5py.Dataset, name: str) -> Store:
    if dataset.shape is None:
        raise PoolError(f"{name}: the dataset is empty; name one with values")
    check_dtype(name, dataset.dtype)
    offset = None if dataset.chunks or dataset.external or dataset.is_virtual else dataset.id.get_offset()
    if offset is None:  # also a dataset nothing was ever written to
        return Chunked(dataset, name)
    layout = Layout(offset, dataset.shape, dataset.dtype)
    return Mapped(dataset.file.filename, layout, name=name, axes=_labels(dataset))


def _labels(dataset: h5py.Dataset) -> tuple[str, ...] | None:
    labels = tuple(dim.label for dim in dataset.dims)
    return labels if labels and all(labels) else None


def check(name: str, like: Like) -> None:
    check_options(name, like.options, ())
    if like.dtype.kind == "V":
        raise PoolError(f"{name}: HDF5 has no name for dtype {like.dtype}; use .raw")


def create(name: str, like: Like) -> Store:
    path, inside = split(name)
    try:
        with h5py.File(path, "x") as file:
            parent, _, leaf = (inside or DATASET).strip("/").rpartition("/")
            group = file.require_group(parent) if parent else file
            kept = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            kept.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            kept.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # the file's bytes are zeros
            space = h5py.h5s.create_simple(like.shape) if like.shape else h5py.h5s.create(h5py.h5s.SCALAR)
            kind = h5py.h5t.py_create(like.dtype, logical=True)
            dataset = h5py.Dataset(h5py.h5d.create(group.id, leaf.encode(), kind, space, dcpl=kept))
            for dim, axis in zip(dataset.dims, like.axes or (), strict=False):
                dim.label = axis
            offset = dataset.id.get_offset()
        made = Mapped(path, Layout(offset or 0, like.shape, like.dtype), name=name, axes=like.axes)
        with Path(path).open("rb+") as opened:
            allocate(opened.fileno(), made.layout.offset + made.layout.nbytes, path)
    except BaseException:
        if os.path.exists(path):
            os.unlink(path)
        raise
    return made
