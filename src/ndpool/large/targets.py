"""What is to be made: arrays that are planned before anything is written, so that bad input leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import PoolError
from .mapped import Layout
from .store import FORMATS, Like, Slices, module_of


@dataclass(frozen=True)
class Target:
    """An array to be made: as what, and in which units it is written.

    `encoding` is the memory that one thread takes beside what it writes; None where results are mapped.
    """

    like: Like
    units: tuple[int, ...]
    encoding: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.like.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.like.dtype

    @property
    def encoded(self) -> bool:
        return self.encoding is not None

    @property
    def chunks(self) -> tuple[int, ...]:
        """What is decoded as a whole where a later sweep reads this array."""
        return self.like.chunks or self.units

    def working(self, part: Slices) -> int:
        """Of mapped memory, pages that the part shares with its neighbours."""
        if self.encoding is not None:
            return self.encoding
        return Layout(0, self.shape, self.dtype, self.like.options.get("order", "C")).pages_beside(part)


def planned(format: str, like: Like) -> Target:
    """What a new array of that format will be: what is left open in `like` decided as the format does."""
    module = FORMATS[format].module
    if (like.chunks or like.shards) and module != "zarr":
        raise PoolError(f".{format} has no chunks; leave chunks and shards out, or write a .zarr")
    for name, given in (("chunks", like.chunks), ("shards", like.shards)):
        if given is not None and (len(given) != len(like.shape) or any(n < 1 for n in given)):
            raise PoolError(
                f"{name}={given} is not a size for each of {len(like.shape)} axes; give one of at least 1 each"
            )
    if like.shards and not like.chunks:
        raise PoolError(f"shards={like.shards} are made of chunks, and there are none; give chunks, too")
    module_of(format).check(f".{format}", replace(like, options={**FORMATS[format].options, **like.options}))
    if module == "zarr":
        like = replace(like, chunks=module_of(format).chunks_of(like))
        units = like.shards or like.chunks
        assert units is not None
        return Target(like, units, module_of(format).encoding(like))
    if module == "picture":
        return Target(like, tuple(max(1, n) for n in like.shape), module_of(format).encoding(like))
    return Target(like, (1,) * len(like.shape))
