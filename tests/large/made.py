"""What the tests of files share: records over arrays of any shape, arrays in any format, and sources that count."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import ndpool
from ndpool.large import tiles
from ndpool.large.held import Held
from ndpool.large.store import Like, Slices, Store, create_store, cut, whole
from ndpool.large.tiles import Grid, Plan, measure

from .. import cases  # noqa: F401, hypothesis' profile

# -- records -----------------------------------------------------------------------------------------------------------

SLIDING: dict[str, Any] = {
    "max": ndpool.MaxPool, "min": ndpool.MinPool, "mean": ndpool.AvgPool, "sum": ndpool.SumPool,
}  # fmt: skip


@st.composite
def records(draw: st.DrawFn, shape: tuple[int, ...], laws: tuple[str, ...] = tuple(SLIDING)) -> ndpool.Op:
    """A record that an array of that shape can be pooled with: sliding windows mostly."""
    axes = tuple(draw(st.sets(st.sampled_from(range(len(shape))), min_size=1)))
    form = draw(st.sampled_from(("slide", "slide", "slide", "bins", "whole")))
    if form == "bins":
        return ndpool.AdaptiveAvgPool(tuple(draw(st.integers(1, 2 * shape[a])) for a in axes), axes=axes)
    if form == "whole":
        return ndpool.GlobalMaxPool(axes=axes, keepdims=draw(st.booleans()))
    kernel = tuple(draw(st.integers(1, shape[a])) for a in axes)
    reach = [(shape[a] - 1) // max(1, k - 1) for a, k in zip(axes, kernel, strict=True)]
    return SLIDING[draw(st.sampled_from(laws))](
        kernel,
        stride=tuple(draw(st.integers(1, 5)) for _ in axes),
        padding=tuple(draw(st.integers(0, k // 2)) for k in kernel),
        dilation=tuple(draw(st.integers(1, max(1, most))) for most in reach),
        ceil_mode=draw(st.booleans()),
        axes=axes,
    )  # fmt: skip


# -- sources -----------------------------------------------------------------------------------------------------------


class Counting(Held):
    """An array in memory that is read in chunks of that size, and counts how often each is; `before` is called with
    the part before it is read."""

    def __init__(
        self, array: Any, chunks: tuple[int, ...] | None = None, before: Callable[[Slices], Any] = lambda part: None
    ) -> None:
        super().__init__(np.asarray(array))
        self.chunks = chunks or self.chunks
        self.encoded = chunks is not None
        self.before, self.lock = before, threading.Lock()
        self.reads, self.parts = Counter[tuple[int, ...]](), list[Slices]()  # of each chunk; in order

    def read(self, part: Slices, out: Any = None) -> Any:
        self.before(part)
        with self.lock:
            self.parts.append(part)
            self.reads.update(index for index, _ in cut(part, self.chunks))
        return super().read(part).copy()


def in_tiles(number: int) -> Callable[..., Plan]:
    """`choose` for small arrays: so many tiles along the first axis, or as many as there are units."""

    def choose(shape: Any, unit: Any, needs: Any, memory: int, most: int, shares: bool = True) -> Plan:
        if not math.prod(shape):
            return tiles.choose(shape, unit, needs, memory, most, shares)
        length = -(-shape[0] // number)
        tile = (min(shape[0], -(-length // unit[0]) * unit[0]), *shape[1:])
        return measure(Grid(shape, tile), needs, memory, most, shares)

    return choose


def put(name: Path, x: Any, chunks: tuple[int, ...] | None = None, **more: Any) -> Path:
    """An array in a new file; the path."""
    shards, axes = more.pop("shards", None), more.pop("axes", None)
    store = create_store(name, Like(x.shape, x.dtype, chunks, shards, axes, more))
    for _, part in cut(whole(x.shape), store.units if chunks else tuple(max(1, n) for n in x.shape)):
        store.write(part, x[part])
    store.finish()
    return name


def held(store: Store) -> Any:
    """All of it."""
    return store.read(whole(store.shape))


def bits(a: Any) -> Any:
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") if a.dtype.kind == "f" else np.asarray(a)


def assert_bits(got: Any, want: Any, note: Any = "") -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), note
    assert np.array_equal(bits(got), bits(want)), (note, got, want)


def left(folder: Path) -> list[str]:
    """The names of what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())
