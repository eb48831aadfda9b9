"""What a store is: an array that lies in files (or in memory), parts of which are read and written.

`open_store` finds the format of a name and opens it; `create_store` makes a new one. A format is a module of this
folder with `open(name, options)`, `create(name, like)`, and `check(name, like)` that raises where it cannot make that;
it imports the library that knows the format, and is itself imported when a name asks for it.

A part is a tuple of slices, one per axis, with 0 <= start <= stop <= size and no step.
"""

from __future__ import annotations

import importlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import PoolError, PoolTypeError
from ..suggest import argument

Slices = tuple[slice, ...]
Array = np.ndarray[Any, Any]


class Store(ABC):
    """An array in files. A store can be pickled: another process opens the same files again."""

    name: str  # what errors call it
    path: str | None = None  # the file or folder it lies in
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # in the machine's byte order, which the file need not have
    chunks: tuple[int, ...]  # what is decoded as a whole; of memory that is mapped, what lies in one piece
    units: tuple[int, ...]  # what is written as a whole, by one writer at a time: chunks, or shards of them
    order: Literal["C", "F"] = "C"  # "F": the first axis is the one whose neighbours lie together
    axes: tuple[str, ...] | None = None  # the names of the axes, where the format has them
    encoded: bool = False  # whether parts are decoded into memory of their own, or are mapped as they lie

    @abstractmethod
    def read(self, part: Slices, out: Array | None = None) -> Array:
        """The values of a part. They may be the file's own memory: nobody writes to them.

        Parts that are decoded are put into `out`, where it is given: an array of the part's shape, of `dtype`.
        """

    @abstractmethod
    def write(self, part: Slices, values: Array) -> None:
        """Put values into a part that is made of whole units (or ends where the array ends)."""

    def memory(self, part: Slices) -> Array | None:
        """The memory of a part, for a result to be made in; None where results are encoded."""
        return None

    @abstractmethod
    def working(self, part: Slices) -> int:
        """At most how many bytes one thread holds beyond the part's own while it reads the part."""

    @abstractmethod
    def state(self) -> str:
        """A text that is another one when the array has been changed since."""

    def finish(self) -> None:  # noqa: B027
        """All has been written: make it last."""


@dataclass(frozen=True)
class Like:
    """What a new store is to be. `chunks` and `shards` are None where the format is to choose."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    axes: tuple[str, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the format: codec, zarr_format, order, ...
    source: Store | None = None  # what it is made of, and compressed like


# -- formats: the ending of a name -> the module that knows it ---------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A module of this folder, the extra of ndpool that installs its library, and options that the ending implies.

    `unsaid` are options for opening what the files themselves do not tell.
    """

    module: str
    extra: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()


FORMATS = {
    "npy": Format("npy"),
    "raw": Format("raw", unsaid=("shape", "dtype", "order")),
    "bin": Format("raw", unsaid=("shape", "dtype", "order")),
    "zarr": Format("zarr", "large"),
    "ome.tif": Format("tiff", "large", {"ome": True}, ("shape",)),
    "ome.tiff": Format("tiff", "large", {"ome": True}, ("shape",)),
    "tif": Format("tiff", "large", unsaid=("shape",)),
    "tiff": Format("tiff", "large", unsaid=("shape",)),
    "h5": Format("hdf5", "hdf5"),
    "hdf5": Format("hdf5", "hdf5"),
    "png": Format("picture", "pictures", {"kind": "PNG"}),
    "jpg": Format("picture", "pictures", {"kind": "JPEG"}),
    "jpeg": Format("picture", "pictures", {"kind": "JPEG"}),
}  # where two endings fit, the longer one stands first


def place(name: str | os.PathLike[str]) -> Path:
    """The file or folder that holds an array of this name: `file.h5:/group/data` lies in file.h5.

    >>> str(place("scan.h5:/frames/0")), str(place("scan.zarr/0"))
    ('scan.h5', 'scan.zarr/0')
    """
    return Path(split(name)[0])


def split(name: str | os.PathLike[str]) -> tuple[str, str]:
    """The file of a name, and what comes after its colon.

    >>> split("scan.h5:/frames/0")
    ('scan.h5', '/frames/0')
    """
    text = os.fspath(name)
    file, colon, inside = text.rpartition(":")
    return (file, inside) if colon and _ending(file) in ("h5", "hdf5") else (text, "")


def format_of(name: str | os.PathLike[str]) -> str:
    """The format that a name asks for, a key of FORMATS.

    >>> format_of("scan.ome.zarr/0"), format_of("scan.h5:/frames"), format_of("scan.ome.tif")
    ('zarr', 'h5', 'ome.tif')
    """
    path = place(name)
    ending = _ending(path.name)
    if ending is None and (any(_ending(parent.name) == "zarr" for parent in path.parents) or _is_zarr(path)):
        return "zarr"
    if ending is None:
        known = ", ".join(f".{key}" for key in FORMATS)
        guess = _meant(path.suffix.lstrip("."), FORMATS)
        raise PoolError(f"{os.fspath(name)}: no format is known by this ending; use one of {known}{guess}")
    return ending


def _meant(name: str, known: Iterable[str]) -> str:
    guess = argument(name, known)
    return f"; did you mean {guess}?" if guess else ""


def _ending(name: str) -> str | None:
    return next((key for key in FORMATS if name.lower().endswith(f".{key}")), None)


def _is_zarr(path: Path) -> bool:
    return any((path / file).is_file() for file in ("zarr.json", ".zarray", ".zgroup"))


def module_of(format: str) -> Any:
    """The module of a format, imported; where its library is missing, the error says how to install it."""
    if format not in FORMATS:
        raise PoolError(f"format={format!r} is not one of {', '.join(FORMATS)}{_meant(format, FORMATS)}")
    return imported(FORMATS[format].module, f".{format}", FORMATS[format].extra)


def imported(module: str, what: str, extra: str | None) -> Any:
    """A module of this folder; where its library is missing, the error says how to install what needs it."""
    try:
        return importlib.import_module(f".{module}", __package__)
    except ModuleNotFoundError as error:
        if extra is None or str(error.name).startswith("ndpool"):
            raise
        install = f"pip install 'ndpool[{extra}]'"
        raise PoolError(f"{what} needs {error.name}, which is not installed; {install}") from error


# -- opening and making ------------------------------------------------------------------------------------------------


def open_store(source: Any, **options: Any) -> Store:
    """The store of a name, an array in memory, an array of zarr or h5py, or a store itself.

    `options` are the format's: `raw` needs shape and dtype, and takes offset and order.
    """
    if isinstance(source, Store):
        return source
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        format = format_of(name)
        if not place(name).exists():
            raise FileNotFoundError(f"{name}: there is no such file; check the path")
        opened: Store = module_of(format).open(name, options)
        return opened
    for library, module in (("zarr", "zarr"), ("h5py", "hdf5"), ("numpy", "held")):
        if any(kind.__module__.partition(".")[0] == library for kind in type(source).__mro__):
            wrapped: Store = importlib.import_module(f".{module}", __package__).wrap(source)
            return wrapped
    raise PoolTypeError(f"{type(source).__name__} is no store; use a path, a NumPy array, or one of zarr or h5py")


def create_store(name: str | os.PathLike[str], like: Like, format: str | None = None) -> Store:
    """A new array in files. `format` is for names that do not end in theirs, as those of unfinished results."""
    key = format or format_of(name)
    module = module_of(key)
    check_dtype(os.fspath(name), like.dtype)
    if place(name).exists():
        raise FileExistsError(f"{os.fspath(name)}: exists already; remove it or use another name")
    options = {**FORMATS[key].options, **like.options}
    like = replace(like, dtype=like.dtype.newbyteorder("="), options=options)
    module.check(os.fspath(name), like)
    created: Store = module.create(os.fspath(name), like)
    return created


def reopen_store(name: str | os.PathLike[str], like: Like, format: str | None = None) -> Store:
    """The store that `create_store` made of these arguments, to go on with."""
    key = format or format_of(name)
    said = {"order": "C", **like.options, "shape": like.shape, "dtype": like.dtype.newbyteorder("=")}
    options = {option: said[option] for option in FORMATS[key].unsaid}
    opened: Store = module_of(key).open(os.fspath(name), options)
    if (opened.shape, opened.dtype) != (like.shape, like.dtype.newbyteorder("=")):
        raise OSError(f"{os.fspath(name)}: holds {opened.dtype} of shape {opened.shape}, not what was begun; remove it")
    return opened


def remove(name: str | os.PathLike[str]) -> None:
    """Take away what lies at a name, a file or a folder with all that is in it; nothing there is fine."""
    path = place(name)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- what formats share ------------------------------------------------------------------------------------------------


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Numbers pass: NumPy's, and those that register themselves with it, as bfloat16 does."""
    if dtype.kind not in "biufc" and not (dtype.kind == "V" and dtype.isbuiltin == 2):
        kind = "objects" if dtype.hasobject else "records" if dtype.names else "no numbers"
        raise PoolTypeError(f"{name}: dtype {dtype} holds {kind}; only arrays of numbers can be pooled")


def check_options(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    """An option that the format does not know is an error, not a surprise later."""
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise PoolError(f"{name}: {option}= is no option of this format; {takes}{_meant(option, known)}")


def shape_of(part: Slices) -> tuple[int, ...]:
    """How many positions a part has along each axis."""
    return tuple(piece.stop - piece.start for piece in part)


def whole(shape: tuple[int, ...]) -> Slices:
    """The part that is all of an array."""
    return tuple(slice(0, n) for n in shape)


def within(part: Slices, base: Slices) -> Slices:
    """A part of the array as a part of the piece that `base` cuts out of it."""
    return tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, base, strict=True))


def cut(part: Slices, chunks: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Slices]]:
    """The pieces of a part by the chunks they lie in, each after the number of its chunk along each axis."""
    ranges = [
        range(p.start // c, -(-p.stop // c) if p.stop > p.start else 0) for p, c in zip(part, chunks, strict=True)
    ]
    for index in product(*ranges):
        yield (
            index,
            tuple(
                slice(max(p.start, i * c), min(p.stop, (i + 1) * c))
                for p, i, c in zip(part, index, chunks, strict=True)
            ),
        )


def state_of(path: str | os.PathLike[str]) -> str:
    """The size of a file, and when it was last written."""
    found = os.stat(path)
    return f"{found.st_size} bytes of {found.st_mtime_ns}"
