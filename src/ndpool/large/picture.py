"""PNG and JPEG by Pillow: small arrays, held in memory and written as a whole."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import PoolError
from .held import Held
from .store import Array, Like, Slices, Store, check_options, state_of

AXES = ("y", "x", "c")
BAD = (Image.DecompressionBombError, Image.DecompressionBombWarning)
HOLDS = {  # the dtypes of arrays of two axes, and how many channels bytes may have as a third one
    "PNG": (("bool", "uint8", "uint16"), (2, 3, 4)),
    "JPEG": (("uint8",), (3,)),
}


class Picture(Held):
    """A picture in memory, which is written to its file as a whole."""

    encoded = True
    path: str

    def __init__(self, name: str, array: Array, kind: str = "PNG") -> None:
        super().__init__(array)
        self.name, self.path, self.kind = name, os.path.abspath(name), kind
        self.chunks = self.units = tuple(max(1, n) for n in array.shape)
        self.axes = AXES[: array.ndim]

    def write(self, part: Slices, values: Array) -> None:
        self.array = self.array.copy()  # what is read has no memory to write to
        self.array[part] = values
        self.save()

    def memory(self, part: Slices) -> Array | None:
        return None

    def working(self, part: Slices) -> int:
        """The pixels of the picture, which stay, once more as Pillow decodes them."""
        return 2 * self.array.nbytes

    def state(self) -> str:
        return state_of(self.path)

    def save(self) -> None:
        unfinished = f"{self.path}.{uuid4().hex}.partial"
        try:
            Image.fromarray(self.array).save(unfinished, self.kind)
            os.replace(unfinished, self.path)
        finally:
            Path(unfinished).unlink(missing_ok=True)

    def __reduce__(self) -> Any:
        return open, (self.path, {})


def open(name: str, options: dict[str, Any]) -> Store:
    check_options(name, options, ())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(name) as image:
                if image.mode in ("P", "PA"):  # numbers of colours, which are no colours
                    image = image.convert("RGBA" if image.has_transparency_data else "RGB")
                return Picture(name, np.asarray(image), image.format or "PNG")
    except BAD as error:
        raise PoolError(f"{name}: is too large to be held as a whole ({error}); save it as .tif or .zarr") from error
    except (UnidentifiedImageError, OSError) as error:
        raise OSError(f"{name}: is no picture that can be read: {error}") from error


def check(name: str, like: Like) -> None:
    check_options(name, like.options, ("kind",))
    kind, ndim = like.options["kind"], len(like.shape)
    dtypes, channels = HOLDS[kind]
    coloured = ndim == 3 and like.shape[2] in channels and like.dtype == np.uint8
    if not (coloured or (ndim == 2 and like.dtype.name in dtypes)) or 0 in like.shape:
        raise PoolError(
            f"{name}: a {kind} picture holds {', '.join(dtypes)} of two axes, or uint8 and {channels} channels as a "
            f"third, not {like.dtype} of shape {like.shape}; use a .tif or .zarr"
        )
    if (pixels := like.shape[0] * like.shape[1]) > (most := Image.MAX_IMAGE_PIXELS or pixels):
        raise PoolError(f"{name}: {pixels} pixels are more than the {most} a picture may have; use a .tif or .zarr")


def create(name: str, like: Like) -> Store:
    made = Picture(name, np.zeros(like.shape, like.dtype), like.options["kind"])
    made.save()
    return made


def encoding(like: Like) -> int:
    """At most how many bytes one thread holds while it writes: the picture that is kept, Pillow's, and its code."""
    return 3 * math.prod(like.shape) * like.dtype.itemsize + (1 << 20)
