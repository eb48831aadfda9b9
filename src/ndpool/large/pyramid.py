"""`pyramid`: an image in smaller and smaller copies, each made of the one before, as viewers want it (OME-Zarr).

The base is read once: a tile of it becomes tiles of as many levels as memory allows, and later sweeps begin at the last
level of the one before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .. import ops
from ..arguments import integer, named
from ..errors import PoolError
from ..op import Op
from .poolings import apart, facts_of, of_values, with_chunks
from .report import Report
from .result import Result
from .run import How, Job, Options, carry_out
from .store import Like, Store, create_store, format_of, open_store, place, reopen_store
from .targets import Target, planned
from .tiles import TooLittle, choose
from .transposed import Transposed
from .work import Pooling, Work

if TYPE_CHECKING:
    from .ome import Image

METHODS: dict[str, Callable[..., Op]] = {
    "mean": ops.AvgPool, "max": ops.MaxPool, "min": ops.MinPool, "sum": ops.SumPool, "mode": ops.ModePool,
}  # fmt: skip
SPATIAL = 3  # how many of the last axes are space where nobody says
FEW = 4  # as many entries as a last axis of colours may have
NAMES = "tczyx"


def pyramid(
    source: Any,
    destination: str | os.PathLike[str] | None = None,
    *,
    op: str | Callable[..., Op] = "mean",
    levels: int | str = "auto",
    factor: int | tuple[int, ...] = 2,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
    **how: Unpack[Options],
) -> Report:
    """A multiscale image of source: OME-Zarr with level 0, a copy, and `levels` smaller ones.

    Without a destination, an array of a zarr group gets its levels beside it, and any other file a new NAME.ome.zarr.

    op: mean, max, min, sum or mode, or what makes a record of kernel_size, ceil_mode and axes. Windows at the end of an
    axis count what they have. levels: how many, or "auto": until a level fits into one chunk. factor: by how much
    each is smaller; an int for the axes of space, or one for each of the last axes. The others are as in `pool`.
    """
    with named("pyramid"):
        method, make = _method(op)
        base, image = _image(open_store(source))
        folder, first = _destination(source, base, destination)
        done, chosen = How.of(how), {"zarr_format": _format(base), **(options or {})}
        like = Like(base.shape, base.dtype, chunks, shards, image.names, chosen, base)
        made = _levels(base, image, make, factor, levels, like)
        return carry_out(_job(made, method, folder, first, done), done)


@dataclass(frozen=True)
class Levels:
    """What a pyramid is made of: the base, and for each smaller level its record, made of the level before."""

    base: Store
    image: Image
    records: tuple[Op, ...]
    targets: tuple[Target, ...]  # of all levels, the base's too

    def factors(self, level: int) -> tuple[int, ...]:
        """By how much a level is smaller than the one before."""
        if level == 0:
            return (1,) * len(self.base.shape)
        return tuple(axis.stride for axis in self.records[level - 1].window(self.targets[level - 1].shape).axes)


# -- what was asked for ------------------------------------------------------------------------------------------------


def _method(op: Any) -> tuple[str, Callable[..., Op]]:
    """The name of a method, and what makes its records."""
    if isinstance(op, str):
        if op not in METHODS:
            raise PoolError(f"op={op!r} is not one of {', '.join(METHODS)}")
        return op, METHODS[op]
    if not callable(op) or isinstance(op, Op):
        raise PoolError(f"op={op!r} makes no records; use one of {', '.join(METHODS)}, or a class like ndpool.MaxPool")
    return getattr(op, "__name__", "own"), op


def _image(store: Store) -> tuple[Store, Image]:
    """The base with its axes in OME's order, space last, and what is known of it."""
    from . import ome

    found = ome.image_of(store.path)
    if found is not None:
        return store, found
    rank, name = len(store.shape), Path(store.path or "image").name.partition(".")[0]
    names = store.axes
    if names is None:
        colours = rank == 3 and store.shape[-1] <= FEW < store.shape[-2]
        names = ("y", "x", "c") if colours else tuple(NAMES[-rank:] if rank <= len(NAMES) else ())
    if len(names) != rank:
        raise PoolError(f"{store.name} has {rank} axes, and an image has up to {len(NAMES)}: {', '.join(NAMES)}")
    spatial = [a for a, n in enumerate(names) if ome.TYPES.get(n, "space") == "space"]
    order = (*(a for a in range(rank) if a not in spatial), *spatial)
    if order != tuple(range(rank)):
        store = Transposed(store, order)
    return store, ome.plain([names[a] for a in order], name)


def _destination(source: Any, base: Store, destination: Any) -> tuple[Path, Path | None]:
    """The folder of the image, and the array in it that is level 0 if that is the source."""
    path = base.path
    if destination is not None:
        if format_of(destination) != "zarr":
            raise PoolError(f"{os.fspath(destination)} cannot hold a pyramid; use a name that ends in .ome.zarr")
        return place(destination), None
    if path is None:
        raise PoolError("an array in memory says no place for its pyramid; give a destination like image.ome.zarr")
    from . import ome

    inside = Path(path)
    if ome.is_group(inside.parent):
        return inside.parent, inside
    stem = re.sub(r"(\.(ome|zarr|npy|tiff?|png|jpe?g|h5|hdf5|raw|bin))+$", "", inside.name)
    return inside.with_name(f"{stem}.ome.zarr"), None


def _format(base: Store) -> int:
    """The format of zarr's that a pyramid has: the base's, if that has one."""
    from . import ome

    return ome.format_at(Path(base.path)) if base.path and Path(base.path).is_dir() else 3


def _factor(given: Any, image: Image, shape: tuple[int, ...]) -> tuple[int, ...]:
    """By how much a level shrinks, for each axis: 1 for those that are not pooled."""
    axes = image.in_space[-SPATIAL:]
    if isinstance(given, (tuple, list)):
        if len(given) > len(shape):
            raise PoolError(
                f"factor={tuple(given)} has more entries than {len(shape)} axes; give one for each of the last"
            )
        axes, by = tuple(range(len(shape)))[-len(given) :], [integer("factor", f, 1) for f in given]
    else:
        by = [integer("factor", given, 2)] * len(axes)
    found = [1] * len(shape)
    for a, f in zip(axes, by, strict=True):
        found[a] = f
    return tuple(found)


def _record(
    make: Callable[..., Op], factor: tuple[int, ...], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Op | None:
    """What makes the next level of an array of that shape; None if nothing can be smaller."""
    by = [min(f, n) for f, n in zip(factor, shape, strict=True)]
    pooled = tuple(a for a, f in enumerate(by) if f > 1)
    if not pooled:
        return None
    window: dict[str, Any] = {"kernel_size": tuple(by[a] for a in pooled), "ceil_mode": True, "axes": pooled}
    record = of_values(make(**window), dtype)
    if record.dtype is not None:
        raise PoolError(f"op makes records with dtype={record.dtype!r}, but all levels have the source's; leave it out")
    # level after level is made of one tile: that needs windows that share nothing and leave nothing out
    if record.window(shape).axes != ops.MaxPool(**window).window(shape).axes:
        raise PoolError(
            f"windows of {record!r} do not tile; use kernel_size, ceil_mode and axes as they are given to op, no other "
            "stride than the kernel, no padding and no dilation"
        )
    return record


def _levels(base: Store, image: Image, make: Callable[..., Op], factor: Any, levels: Any, like: Like) -> Levels:
    """Records and targets of all levels."""
    by = _factor(factor, image, base.shape)
    first = record = _record(make, by, base.shape, base.dtype)
    if first is None:
        raise PoolError(f"factor={factor} makes nothing of shape {base.shape} smaller; use a larger one")
    shape = first.window(base.shape).out_shape
    if like.chunks is None and not base.encoded:
        like = replace(like, chunks=planned("zarr", like).chunks)
    second = replace(like, shape=shape)
    like = replace(
        like, chunks=with_chunks("zarr", second, base, lambda target: Pooling(base, (first,), (target,))).chunks
    )
    chunks = planned("zarr", like).chunks
    wanted = levels if levels == "auto" else integer("levels", levels, 1)
    records, shapes = [first], [base.shape, shape]
    while wanted == "auto" or len(records) < wanted:
        pooled = [a for a, f in enumerate(by) if f > 1]
        if wanted == "auto" and all(shapes[-1][a] <= chunks[a] for a in pooled):
            break
        record = _record(make, by, shapes[-1], base.dtype)
        if record is None:
            last = len(records)
            raise PoolError(
                f"levels={wanted}: nothing can be smaller than {shapes[-1]}, level {last}; use levels <= {last}"
            )
        records.append(record)
        shapes.append(record.window(shapes[-1]).out_shape)
    return Levels(base, image, tuple(records), tuple(planned("zarr", replace(like, shape=one)) for one in shapes))


# -- how it is made ----------------------------------------------------------------------------------------------------


def _job(levels: Levels, method: str, folder: Path, first: Path | None, how: How) -> Job:
    from . import ome

    names = _names(first.name if first else "0", len(levels.targets))
    own = names if first is None else names[1:]
    targets = levels.targets[-len(own) :]
    result = Result(folder, () if first is None else tuple(own))
    if first is None:
        apart([levels.base], result)
    zarr_format = targets[0].like.options["zarr_format"]
    facts = facts_of("pyramid", f"{method}: {levels.records!r}", {"the source": levels.base}, list(targets), "zarr")

    def stores(new: bool) -> list[Store]:
        paths = [os.fspath(result.partial / name) for name in own]
        if new:
            ome.create_group(result.partial, zarr_format)
        make = create_store if new else reopen_store
        return [make(path, target.like) for path, target in zip(paths, targets, strict=True)]

    def describe(group: Path) -> None:
        factors = [levels.factors(level) for level in range(len(names))]
        ome.describe(group, ome.multiscales(levels.image, names, factors, method, zarr_format))

    return Job(result, facts, lambda numbers: _sweeps(levels, first is None, how, numbers), stores, describe)


def _names(first: str, number: int) -> list[str]:
    """The names of the levels, of which one is there.

    >>> _names("0", 3), _names("s0", 2), _names("raw", 2)
    (['0', '1', '2'], ['s0', 's1'], ['raw', 'raw-1'])
    """
    stem, digits = re.fullmatch(r"(.*?)(\d*)", first).groups()  # type: ignore[union-attr]
    if digits:
        return [f"{stem}{int(digits) + level}" for level in range(number)]
    return [first, *(f"{first}-{level}" for level in range(1, number))]


def _sweeps(levels: Levels, copied: bool, how: How, numbers: list[int] | None) -> list[Work]:
    """Sweeps that make so many targets each. Where that is open, as few as memory allows: each makes as many levels as
    there is room for with all threads at work, or one."""
    memory, most = how.room, how.most
    works: list[Work] = []
    begin, end = 0, len(levels.records)
    while begin < end:
        also_copies = copied and begin == 0
        if numbers is not None:
            stop = begin + numbers[len(works)] - also_copies
        else:
            some = (
                n for n in range(end, begin + 1, -1) if _has_room(_sweep(levels, begin, n, also_copies), memory, most)
            )
            stop = next(some, begin + 1)
        works.append(_sweep(levels, begin, stop, also_copies))
        begin = stop
    return works


def _sweep(levels: Levels, begin: int, stop: int, copied: bool) -> Work:
    """What makes levels begin + 1 to stop of level `begin`, and a copy of that."""
    source = levels.targets[begin] if begin else levels.base
    return Pooling(source, levels.records[begin:stop], levels.targets[begin + (not copied) : stop + 1], copied)


def _has_room(work: Work, memory: int, most: int) -> bool:
    try:
        plan = choose(work.shape, work.unit, work.needs, memory, most)
    except TooLittle:
        return False
    return plan.at_a_time == most and len(plan.grid) >= 2 * most
