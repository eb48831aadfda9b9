"""Chunks of zarr arrays as bytes: what zarr-python does, in the caller's thread and into memory that is there.

`coding_of` reads an array's metadata; it is None where something is not known here, and zarr-python does it all.
Chunks are checked before they are decoded: a blosc chunk that was cut short would be decoded beyond its end.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import IO, Any
from uuid import uuid4

import numcodecs
import numpy as np
from numcodecs.compat import ensure_contiguous_ndarray

from .store import Array, Slices, cut, whole, within

try:  # zarr brings one of them along
    from google_crc32c import value as crc32c
except ImportError:
    from crc32c import crc32c

UNFINISHED = ".partial"  # the ending of a chunk's file while it is being written
_ABSENT = 2**64 - 1  # in a shard's index, instead of a chunk's offset and length


@dataclass(frozen=True)
class Chunk:
    """How one chunk is bytes: elements of `dtype`, its axes in the order of `axes`, through `codecs` one by one."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    axes: tuple[int, ...]
    codecs: tuple[Any, ...]  # of numcodecs, in the order of encoding
    scratch: local = field(default_factory=local, compare=False)  # of each thread, memory to decode into

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def chunk(self) -> Chunk:
        return self

    @property
    def copies(self) -> bool:
        """Whether the decoded chunk is made elsewhere and copied into its memory."""
        return len(self.codecs) > 1 or any(codec.codec_id not in SIZES for codec in self.codecs)

    def read(self, file: IO[bytes], out: Array, part: Slices) -> None:
        """Put a part of the chunk into `out`."""
        self.decode(file.read(), out, part)

    def write(self, file: IO[bytes], values: Array) -> bool:
        """Write the values, of which those beyond the array are missing; False where all are the fill value."""
        if (data := self.encode(values)) is not None:
            file.write(data)
        return data is not None

    def decode(self, data: Any, out: Array, part: Slices) -> None:
        target = out.transpose(self.axes)
        straight = out.shape == self.shape and target.flags.c_contiguous and out.dtype == self.dtype
        values = target if straight else self._memory()
        for codec in self.codecs[:0:-1]:
            data = codec.decode(data)
        _decode_into(self.codecs[0] if self.codecs else None, data, values.reshape(-1).view(np.uint8))
        if not straight:
            out[...] = values.transpose(np.argsort(self.axes))[part]

    def encode(self, values: Array) -> Any:
        if values.shape != self.shape:
            padded = np.full(self.shape, self.fill, self.dtype)
            padded[tuple(map(slice, values.shape))] = values
            values = padded
        data: Any = np.ascontiguousarray(values.transpose(self.axes), self.dtype)
        if _all_are(self.fill, data):
            return None
        for codec in self.codecs:
            data = gzip.compress(data, codec.level, mtime=0) if codec.codec_id == "gzip" else codec.encode(data)
        return data

    def _memory(self) -> Array:
        """Memory for a chunk, the same one each time: pages that are new cost as much as decoding does."""
        found: Array | None = getattr(self.scratch, "values", None)
        if found is None:
            found = self.scratch.values = np.empty([self.shape[axis] for axis in self.axes], self.dtype)
        return found


@dataclass(frozen=True)
class Shard:
    """Chunks in one file, and an index of where they lie in it, before or after them."""

    shape: tuple[int, ...]
    chunk: Chunk
    index_first: bool
    checked: bool  # whether the index is followed by its checksum

    def read(self, file: IO[bytes], out: Array, part: Slices) -> None:
        index = self._index(file)
        for at, piece in cut(part, self.chunk.shape):
            offset, length = map(int, index[at])
            target = out[within(piece, part)]
            if offset == _ABSENT:
                target[...] = self.chunk.fill
            else:
                file.seek(offset)
                start = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.chunk.shape, strict=True))
                self.chunk.decode(file.read(length), target, within(piece, start))

    def write(self, file: IO[bytes], values: Array) -> bool:
        index = np.full((*self._per_axis, 2), _ABSENT, "<u8")
        file.write(bytes(self._index_size * self.index_first))
        for at, piece in cut(whole(values.shape), self.chunk.shape):
            offset = file.tell()
            if self.chunk.write(file, values[piece]):
                index[at] = offset, file.tell() - offset
        file.seek(0, os.SEEK_SET if self.index_first else os.SEEK_END)
        file.write(index.tobytes())
        if self.checked:
            file.write(crc32c(index.tobytes()).to_bytes(4, "little"))
        return bool((index != _ABSENT).any())

    @property
    def _per_axis(self) -> tuple[int, ...]:
        return tuple(n // c for n, c in zip(self.shape, self.chunk.shape, strict=True))

    @property
    def _index_size(self) -> int:
        return int(np.prod(self._per_axis, dtype=object)) * 16 + 4 * self.checked

    def _index(self, file: IO[bytes]) -> Array:
        size = file.seek(0, os.SEEK_END)
        if size < self._index_size:
            raise ValueError(f"{size} bytes are too few for its index")
        file.seek(0 if self.index_first else -self._index_size, os.SEEK_SET if self.index_first else os.SEEK_END)
        data = file.read(self._index_size)
        entries = data[: len(data) - 4 * self.checked]
        if self.checked and crc32c(entries) != int.from_bytes(data[-4:], "little"):
            raise ValueError("the checksum of its index is wrong")
        return np.frombuffer(entries, "<u8").reshape(*self._per_axis, 2)


# -- files -------------------------------------------------------------------------------------------------------------


def replace(path: str, write: Callable[[IO[bytes]], bool]) -> None:
    """Write a file anew, which takes the place of `path` once it is complete; where there is nothing to say, none."""
    unfinished = f"{path}.{uuid4().hex}{UNFINISHED}"
    try:
        with _new(unfinished) as file:
            worthwhile = write(file)
        if worthwhile:
            os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    if not worthwhile:
        Path(path).unlink(missing_ok=True)


def _new(path: str) -> IO[bytes]:
    try:
        return Path(path).open("xb")
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).open("xb")


# -- codecs ------------------------------------------------------------------------------------------------------------


def _decode_into(codec: Any, data: Any, out: Array) -> None:
    """Decode into `out`, of bytes, which must be filled."""
    size = SIZES[codec.codec_id](data) if codec is not None and codec.codec_id in SIZES else None
    if size == out.nbytes:
        codec.decode(data, out)
        return
    if codec is not None and codec.codec_id == "gzip":
        data = _gunzip(data, out.nbytes)
    elif codec is not None:
        data = codec.decode(data)
    decoded = ensure_contiguous_ndarray(data).view(np.uint8)
    if decoded.nbytes != out.nbytes:
        raise ValueError(f"{decoded.nbytes} bytes instead of {out.nbytes}")
    out[:] = decoded


def _gunzip(data: Any, size: int) -> bytes:
    """The content, made in one piece where its size is the one that is expected."""
    found = zlib.decompress(data, 31, max(1, size))
    return found if len(found) == size else gzip.decompress(data)


def _size_in_blosc(data: Any) -> int:
    """The size of a chunk before it was encoded; an error where the chunk is not as long as its header says."""
    size, encoded = (int.from_bytes(data[i : i + 4], "little") for i in (4, 12))
    if encoded != len(data) or len(data) < 16:
        raise ValueError(f"its header says that it has {encoded} bytes, but it has {len(data)}")
    return size


def _size_in_zstd(data: Any) -> int | None:
    """The size in the header of a frame, None where it has none (RFC 8878, 3.1.1.1)."""
    flags = data[4] if len(data) > 4 else 0
    at = 5 + (0 if flags & 32 else 1) + (0, 1, 2, 4)[flags & 3]
    length = (1 if flags & 32 else 0, 2, 4, 8)[flags >> 6]
    size = int.from_bytes(data[at : at + length], "little") + (256 if length == 2 else 0)
    return size if length else None


SIZES: dict[str, Callable[[Any], int | None]] = {"blosc": _size_in_blosc, "zstd": _size_in_zstd}


def _all_are(fill: Any, values: Array) -> bool:
    """Whether all values have the bits of one: a zero is not a negative zero."""
    bits, wanted = values.reshape(-1).view(np.uint8), np.asarray(fill, values.dtype).reshape(1).view(np.uint8)
    if bits.size == 0 or (bits[: wanted.size] != wanted).any() or (bits[-wanted.size :] != wanted).any():
        return False
    step = wanted.size << 16
    rows = (bits[i : i + step].reshape(-1, wanted.size) for i in range(0, bits.size, step))
    return all((row == wanted).all() for row in rows)


# -- metadata ----------------------------------------------------------------------------------------------------------


def coding_of(metadata: dict[str, Any], dtype: np.dtype[Any], fill: Any) -> Chunk | Shard | None:
    """How an array's files are made of its chunks, by its metadata; None where that is not known here."""
    try:
        if metadata["zarr_format"] == 2:
            shape = tuple(metadata["chunks"])
            axes = tuple(range(len(shape)))[:: -1 if metadata["order"] == "F" else 1]
            named = [*(metadata.get("filters") or ()), *filter(None, [metadata.get("compressor")])]
            codecs = tuple(c if isinstance(c, numcodecs.abc.Codec) else numcodecs.get_codec(c) for c in named)
            return Chunk(shape, dtype, fill, axes, codecs)
        grid = metadata["chunk_grid"]
        return _coding(tuple(grid["configuration"]["chunk_shape"]), dtype, fill, list(metadata["codecs"]))
    except (KeyError, LookupError, TypeError, ValueError):
        return None


def _coding(shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any, codecs: list[Any]) -> Chunk | Shard:
    """The chain of zarr format 3: transpose, then bytes or sharding_indexed, then codecs of bytes."""
    axes = tuple(range(len(shape)))
    name, settings = _named(codecs.pop(0))
    if name == "transpose":
        axes = tuple(settings["order"])
        name, settings = _named(codecs.pop(0))
    if name == "sharding_indexed":
        index = [_named(codec) for codec in settings["index_codecs"]]
        if codecs or axes != tuple(range(len(shape))) or index[0] != ("bytes", {"endian": "little"}):
            raise ValueError("unusual")
        if [name for name, _ in index[1:]] not in ([], ["crc32c"]):
            raise ValueError("unusual")
        inner = _coding(tuple(settings["chunk_shape"]), dtype, fill, list(settings["codecs"]))
        if isinstance(inner, Shard):
            raise ValueError("unusual")
        return Shard(shape, inner, settings.get("index_location", "end") == "start", len(index) == 2)
    if name != "bytes":
        raise ValueError("unusual")
    file = dtype.newbyteorder(settings.get("endian", "little"))
    return Chunk(shape, file, fill, axes, tuple(CODECS[name](settings) for name, settings in map(_named, codecs)))


def _named(codec: Any) -> tuple[str, dict[str, Any]]:
    return (codec, {}) if isinstance(codec, str) else (codec["name"], dict(codec.get("configuration") or {}))


def _blosc(settings: dict[str, Any]) -> Any:
    shuffle = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[settings["shuffle"]]
    return numcodecs.Blosc(settings["cname"], settings["clevel"], shuffle, settings.get("blocksize", 0))


CODECS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "blosc": _blosc,
    "gzip": lambda settings: numcodecs.GZip(settings["level"]),
    "zstd": lambda settings: numcodecs.Zstd(settings["level"], settings.get("checksum", False)),
}
