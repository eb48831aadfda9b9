"""TIFF files, OME-TIFF among them: series in one piece are mapped, tiles and strips that are compressed are decoded.

New files are uncompressed and in one piece, and BigTIFF where they must be.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from ..errors import PoolError
from .mapped import Layout, Mapped, allocate
from .store import Array, Like, Slices, Store, check_dtype, check_options, cut, shape_of, state_of, within

BUFFER = 1 << 20  # bytes that reading takes beside
MOST_OF_TIFF = 2**32 - 2**25  # bytes of an array beyond which its file must be a BigTIFF
OME_DTYPES = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64", "complex64", "complex128")
JPEG = (6, 7, 34892, 33007)  # compressions whose segments need tables of the page
OME_AXES = "TCZYX"  # tifffile's letters for the axes of an OME image that has all of them


@dataclass(frozen=True)
class Page:
    """Where the segments of a page lie."""

    path: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tables: dict[str, Any]  # what decoding them takes besides


class Segments(Store):
    """A series that is decoded tile by tile, or strip by strip: its leading axes are pages, the others those of a page.

    tifffile sees a page as samples, depth, length, width and samples again; `kept` are those that the array has.
    """

    encoded = True
    path: str

    def __init__(self, path: str, series: Any, options: dict[str, Any], name: str) -> None:
        self.path, self.options, self.name = os.path.abspath(path), options, name
        first = series.keyframe
        self.decode, self.fill = first.decode, first.nodata
        self.kept = tuple(i for i, n in enumerate(first.shaped) if i in (2, 3) or n > 1)
        inner = tuple(first.shaped[i] for i in self.kept)
        self.shape = next((s for s in (series.shape, series.get_shape(False)) if s[-len(inner) :] == inner), ())
        if not self.shape or math.prod(self.shape) != len(series.pages) * math.prod(inner):
            raise PoolError(f"{name}: series of shape {series.shape} with pages of {inner} are not known; save it anew")
        self.dtype = np.dtype(series.dtype).newbyteorder("=")
        self.axes = _names(series.axes if self.shape == series.shape else series.get_axes(False))
        self.block, self.grid = _segments(first)
        self.lead = len(self.shape) - len(inner)
        self.chunks = self.units = (1,) * self.lead + tuple(self.block[i] for i in self.kept)
        self.pages = [_page(page) for page in series.pages]
        try:
            first.decode(None, 0)
        except (ValueError, NotImplementedError) as error:
            raise PoolError(f"{name}: {error}; pip install imagecodecs, which knows more compressions") from error

    def read(self, part: Slices, out: Array | None = None) -> Array:
        out = np.empty(shape_of(part), self.dtype) if out is None else out
        for index, piece in cut(part, self.chunks):
            number = np.ravel_multi_index(index[: self.lead], self.shape[: self.lead]) if self.lead else 0
            position = dict(zip(self.kept, index[self.lead :], strict=True))
            segment = int(np.ravel_multi_index([position.get(i, 0) for i in range(4)], self.grid[:4]))
            base = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, self.chunks, strict=True))
            inside = dict(zip(self.kept, within(piece, base)[self.lead :], strict=True))
            page = self.pages[int(number)]
            try:
                self._put(page, segment, inside, out[within(piece, part)])
            except Exception as error:
                raise OSError(f"{page.path}: segment {segment} of page {number} cannot be decoded: {error}") from error
        return out

    def _put(self, page: Page, segment: int, inside: dict[int, slice], target: Array) -> None:
        values = self._decoded(page, segment)
        found = values[tuple(inside.get(i, slice(0, 1)) for i in range(1, 5))]
        target[...] = found.reshape(target.shape)

    def _decoded(self, page: Page, segment: int) -> Array:
        """A segment as depth, length, width and samples; one that the file has not is the fill value."""
        size = page.sizes[segment] if segment < len(page.sizes) else 0
        data = None
        if size:
            with Path(page.path).open("rb") as file:
                file.seek(page.offsets[segment])
                data = file.read(size)
            if len(data) < size:
                raise ValueError(f"the file ends after {len(data)} of its {size} bytes")
        values: Array | None = self.decode(data, segment, **page.tables)[0]
        return np.full(self.block[1:], self.fill, self.dtype) if values is None else values

    def write(self, part: Slices, values: Array) -> None:
        raise OSError(f"{self.name}: compressed TIFF files are for reading only; write to a new array")

    def working(self, part: Slices) -> int:
        """A segment as it lies in the file, as zlib decodes and joins it, and as its predictor is taken away."""
        return 6 * math.prod(self.block) * self.dtype.itemsize + BUFFER

    def state(self) -> str:
        return " ".join(state_of(path) for path in sorted({page.path for page in self.pages}))

    def __reduce__(self) -> Any:
        return _opened, (self.path, self.options, self.name)


def _segments(page: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of a page's tiles or strips and how many there are, of its samples, depth, length, width, samples."""
    tile = page.tile or (min(page.rowsperstrip, page.imagelength), page.imagewidth)
    block = (1, *(1,) * (3 - len(tile)), *tile, page.shaped[4])
    return block, tuple(-(-n // b) for n, b in zip(page.shaped, block, strict=True))


def _page(page: Any) -> Page:
    tables = {"jpegtables": page.jpegtables, "jpegheader": page.keyframe.jpegheader}
    found = tables if page.keyframe.compression in JPEG else {}
    return Page(page.parent.filehandle.path, tuple(page.dataoffsets), tuple(page.databytecounts), found)


def _names(letters: str) -> tuple[str, ...] | None:
    """Names of axes from tifffile's letters, if each is another one."""
    return tuple(letters.lower()) if len(set(letters)) == len(letters) else None


def open(name: str, options: dict[str, Any]) -> Store:
    check_options(name, options, ("series", "level", "shape"))
    return _opened(os.path.abspath(name), options, name)


def _opened(path: str, options: dict[str, Any], name: str) -> Store:
    try:
        with tifffile.TiffFile(path) as file:
            series = file.series[options.get("series", 0)].levels[options.get("level", 0)]
            check_dtype(name, np.dtype(series.dtype))
            if series.dataoffset is None:
                return Segments(path, series, options, name)
            dtype = np.dtype(series.dtype).newbyteorder(file.byteorder)
            shape = options.get("shape", series.shape)  # OME-TIFF does not tell which axes of length one there were
            if [n for n in shape if n > 1] != [n for n in series.shape if n > 1]:
                raise PoolError(f"{name}: shape={shape} is not that of the file, {series.shape}")
            axes = _names(series.axes) if shape == series.shape else None
            return Mapped(path, Layout(series.dataoffset, shape, dtype), name=name, axes=axes)
    except IndexError as error:
        raise PoolError(f"{name}: has no such series or level ({options or 'it is empty'})") from error
    except tifffile.TiffFileError as error:
        raise OSError(f"{name}: is no TIFF file that can be opened: {error}") from error


def check(name: str, like: Like) -> None:
    check_options(name, like.options, ("ome",))
    ome = like.options.get("ome", False)
    if like.dtype.kind in "bV" or (ome and like.dtype.name not in OME_DTYPES):
        held = "numbers of at most 32 bits, doubles and complex numbers" if ome else "no such numbers"
        raise PoolError(f"{name}: dtype {like.dtype} is not among what it can hold ({held}); use a .zarr")
    if 0 in like.shape or not like.shape:
        raise PoolError(f"{name}: shape {like.shape} has no pixels, which TIFF cannot say; use a .zarr or .npy")
    _letters(name, like, ome)


def create(name: str, like: Like) -> Store:
    ome = like.options.get("ome", False)
    letters = _letters(name, like, ome)
    size = math.prod(like.shape) * like.dtype.itemsize
    try:
        offset, _ = tifffile.imwrite(
            name, shape=like.shape, dtype=like.dtype, ome=ome, bigtiff=size > MOST_OF_TIFF, returnoffset=True,
            align=64, photometric=_photometric(like.shape, letters),
            metadata={"axes": letters} if letters else {},
        )  # fmt: skip
        with Path(name).open("rb+") as file:
            allocate(file.fileno(), os.fstat(file.fileno()).st_size, name)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Mapped(name, Layout(offset, like.shape, like.dtype), axes=_names(letters) if letters else None)


def _photometric(shape: tuple[int, ...], letters: str) -> str | None:
    if len(shape) == 1:
        return None  # tifffile makes a row of it
    return "rgb" if letters[-1:] == "S" and shape[-1] in (3, 4) else "minisblack"


def _letters(name: str, like: Like, ome: bool) -> str:
    """tifffile's letters for the axes: of their names if these are letters, else of OME's axes the last ones."""
    ndim = len(like.shape)
    letters = "".join(like.axes or ()).upper()
    if len(letters) != ndim or (like.axes and any(len(axis) != 1 for axis in like.axes)):
        letters = OME_AXES[-ndim:] if ome else ""
    if ome and (not 2 <= ndim <= 5 or not set(letters) <= set("TCZYXS") or len(letters) != ndim):
        raise PoolError(f"{name}: an OME-TIFF has 2 to 5 axes among t, c, z, y, x, not {like.axes or like.shape}")
    return letters
