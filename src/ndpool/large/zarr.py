"""Zarr arrays, formats 2 and 3, on a disk or wherever zarr-python keeps them.

Chunks are read and written one by one in the caller's thread, so the caller's threads say how many are in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore

from ..errors import PoolError
from .coded import UNFINISHED, coding_of, replace
from .store import Array, Like, Slices, Store, check_dtype, check_options, cut, shape_of, within

CODECS: dict[str, dict[int, Any]] = {  # by name, then by zarr's format; each as its library makes it unasked
    "auto": {2: "auto", 3: "auto"},
    "blosc": {2: numcodecs.Blosc(), 3: BloscCodec()},
    "zstd": {2: numcodecs.Zstd(), 3: ZstdCodec()},
    "gzip": {2: numcodecs.GZip(), 3: GzipCodec()},
    "none": {2: None, 3: None},
}
OVERHEAD = 1 << 20  # what codecs need, and what they make of noise beyond its length
BYTES_OF_A_CHUNK = 1 << 24  # where nothing else says how large a chunk is to be


class Zarr(Store):
    """An array of zarr's. Missing chunks are the fill value; a chunk that is it all through is not written."""

    encoded = True

    def __init__(self, array: zarr.Array[Any], name: str, path: str | None = None) -> None:
        self.array, self.name, self.path = array, name, path
        check_dtype(name, array.dtype)
        self.dtype = array.dtype.newbyteorder("=")
        self.shape, self.chunks = array.shape, array.chunks
        self.units = array.shards or array.chunks
        self.axes = axes_of(array, path)
        self.fill = 0 if array.fill_value is None else array.fill_value
        self.coding = coding_of(array.metadata.to_dict(), array.dtype, self.fill) if path else None
        if self.coding is not None and self.coding.chunk.axes == (*range(array.ndim),)[::-1]:
            self.order = "F" if array.ndim > 1 else "C"

    def read(self, part: Slices, out: Array | None = None) -> Array:
        out = np.empty(shape_of(part), self.dtype, self.order) if out is None else out
        for index, piece in cut(part, self.units):
            try:
                self._read(index, piece, out[within(piece, part)])
            except Exception as error:
                raise OSError(f"{self._file(index)}: the chunk cannot be decoded: {_line(error)}") from error
        return out

    def _read(self, index: tuple[int, ...], piece: Slices, out: Array) -> None:
        if self.coding is None:
            out[...] = self.array[piece]
            return
        start = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, self.units, strict=True))
        try:
            with Path(self._file(index)).open("rb") as file:
                self.coding.read(file, out, within(piece, start))
        except FileNotFoundError:
            out[...] = self.fill

    def write(self, part: Slices, values: Array) -> None:
        for index, piece in cut(part, self.units):
            if self.coding is None:
                self.array[piece] = values[within(piece, part)]
                continue
            replace(self._file(index), partial(self.coding.write, values=values[within(piece, part)]))

    def working(self, part: Slices) -> int:
        """A chunk as it lies in its file, where noise is no shorter, and as it is decoded to take some of it."""
        if self.coding is None:
            return 4 * int(np.prod(self.units, dtype=object)) * self.dtype.itemsize
        chunk = self.coding.chunk
        copies = 3 if chunk.copies else 1 if shape_of(part) == chunk.shape else 2
        return copies * chunk.nbytes + OVERHEAD

    def state(self) -> str:
        meta = hashlib.sha256(json.dumps(self.array.metadata.to_dict(), sort_keys=True, default=str).encode())
        if self.path is None:
            return meta.hexdigest()[:16]
        files, size, newest = _census(self.path)
        return f"{meta.hexdigest()[:16]} {files} files, {size} bytes, the newest of {newest}"

    def finish(self) -> None:
        """Take away what writers left who were ended before they could."""
        for file in Path(self.path).rglob(f"*{UNFINISHED}") if self.path else ():
            file.unlink(missing_ok=True)

    def _file(self, index: tuple[int, ...]) -> str:
        key = self.array.metadata.encode_chunk_key(index)
        return os.path.join(self.path, key) if self.path else f"{self.name}: {key}"

    def __reduce__(self) -> Any:
        return (_opened, (self.path, self.name)) if self.path else (Zarr, (self.array, self.name))


def open(name: str, options: dict[str, Any]) -> Store:
    check_options(name, options, ())
    return _opened(os.path.abspath(name), name)


def _opened(path: str, name: str) -> Zarr:
    """The array at a path, or the largest level of the image there."""
    try:
        found = zarr.open(LocalStore(path, read_only=False), mode="r+")
    except (OSError, ValueError, KeyError) as error:
        raise OSError(f"{name}: holds no zarr array that can be opened ({_line(error)})") from error
    if isinstance(found, zarr.Array):
        return Zarr(found, name, path)
    scales = multiscales(dict(found.attrs))
    if not scales:
        arrays = ", ".join(sorted(found.array_keys())) or "none"
        raise PoolError(f"{name}: is a group without OME metadata; name an array in it (there are: {arrays})")
    level = scales[0]["datasets"][0]["path"]
    return _opened(os.path.join(path, level), f"{name}/{level}")


def check(name: str, like: Like) -> None:
    check_options(name, like.options, ("zarr_format", "codec"))
    version, codec = like.options.get("zarr_format", 3), like.options.get("codec")
    if version not in (2, 3):
        raise PoolError(f"{name}: zarr_format={version!r} is not 2 or 3")
    if like.shards and version == 2:
        raise PoolError(f"{name}: zarr_format=2 has no shards; use zarr_format=3, or no shards")
    if codec not in (None, *CODECS):
        raise PoolError(f"{name}: codec={codec!r} is not one of {', '.join(CODECS)}")
    chunks, shards = chunks_of(like), like.shards
    if shards and any(s % c for s, c in zip(shards, chunks, strict=True)):
        raise PoolError(f"{name}: shards={shards} are no multiples of chunks={chunks}; use multiples")


def create(name: str, like: Like) -> Store:
    version, chunks = like.options.get("zarr_format", 3), chunks_of(like)
    path = os.path.abspath(name)
    attributes = {"_ARRAY_DIMENSIONS": list(like.axes)} if like.axes and version == 2 else None
    array = zarr.create_array(
        LocalStore(path), shape=like.shape, dtype=like.dtype, chunks=chunks, shards=like.shards, fill_value=0,
        compressors=_compressors(like, version), zarr_format=version, attributes=attributes,
        dimension_names=like.axes if version == 3 else None,
        chunk_key_encoding={"name": "default" if version == 3 else "v2", "separator": "/"},
    )  # fmt: skip
    return Zarr(array, name, path)


def _compressors(like: Like, version: int) -> Any:
    """The codec that is asked for, or the source's, or zarr's own choice."""
    codec = like.options.get("codec")
    if codec is None and isinstance(like.source, Zarr) and like.source.array.metadata.zarr_format == version:
        return like.source.array.compressors or None
    return CODECS[codec or "auto"][version]


def encoding(like: Like) -> int:
    """At most how many bytes one thread holds while it writes: a chunk in order, its code, and a copy of that."""
    copies = 1 if like.options.get("codec") == "none" else 3
    return copies * int(np.prod(chunks_of(like), dtype=object)) * like.dtype.itemsize + OVERHEAD


def chunks_of(like: Like) -> tuple[int, ...]:
    """The chunks asked for, none larger than the array; or cubes of some megabytes."""
    if like.chunks is not None:
        return tuple(max(1, min(c, n)) for c, n in zip(like.chunks, like.shape, strict=True))
    chunks = [max(1, n) for n in like.shape]
    while int(np.prod(chunks, dtype=object)) * like.dtype.itemsize > BYTES_OF_A_CHUNK:
        longest = chunks.index(max(chunks))
        chunks[longest] = 1 << ((chunks[longest] - 1).bit_length() - 1)  # the next smaller power of two
    return tuple(chunks)


def wrap(array: zarr.Array[Any]) -> Store:
    """The store of an array that is open."""
    store = array.store_path.store
    if isinstance(store, LocalStore):
        path = os.path.join(store.root, array.path)
        return Zarr(array, path, os.path.abspath(path))
    return Zarr(array, str(array.store_path))


# -- what the metadata says --------------------------------------------------------------------------------------------


def multiscales(attributes: dict[str, Any]) -> list[Any]:
    """The images that a group's attributes describe, as OME-Zarr 0.5 or 0.4 put it."""
    ome = attributes.get("ome", attributes)
    found = ome.get("multiscales", []) if isinstance(ome, dict) else []
    return [scale for scale in found if scale.get("datasets")]


def axes_of(array: zarr.Array[Any], path: str | None) -> tuple[str, ...] | None:
    """The names of the axes: the array's own, or those in the image that it is a level of."""
    metadata = array.metadata.to_dict()
    names = metadata.get("dimension_names") or dict(array.attrs).get("_ARRAY_DIMENSIONS")
    if not names and path is not None:
        names = _axes_of_image(Path(path))
    return tuple(map(str, names)) if names and len(names) == array.ndim and all(names) else None


def _axes_of_image(path: Path) -> list[str] | None:
    for above in list(path.parents)[:3]:
        for file, key in (("zarr.json", "attributes"), (".zattrs", None)):
            if (above / file).is_file():
                attributes = json.loads((above / file).read_text())
                for scale in multiscales(attributes.get(key, {}) if key else attributes):
                    levels = [above / level["path"] for level in scale["datasets"]]
                    axes = [axis["name"] if isinstance(axis, dict) else axis for axis in scale.get("axes", [])]
                    if path in levels and axes:
                        return axes
    return None


def _census(path: str) -> tuple[int, int, int]:
    """The number of files in a folder and those below it, their size, and when the newest was written."""
    files, size, newest, folders = 0, 0, 0, [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    found = entry.stat()
                    files, size, newest = files + 1, size + found.st_size, max(newest, found.st_mtime_ns)
    return files, size, newest


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
