"""Every format holds what was put into it: any shape, dtype, byte order and part, and in another process."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndpool.large.store import Like, create_store, cut, open_store, whole, within

DTYPES = ("bool", "uint8", ">i2", "<i4", ">u8", "float16", ">f4", "float64", "complex64")
FORMATS: dict[str, tuple[str, dict[str, Any], bool]] = {  # the ending, options, and whether shards may be
    "npy": ("npy", {}, False),
    "npy F": ("npy", {"order": "F"}, False),
    "zarr": ("zarr", {}, True),
    "zarr 2": ("zarr", {"zarr_format": 2}, False),
    "zarr blosc": ("zarr", {"codec": "blosc"}, True),
    "zarr 2 blosc": ("zarr", {"codec": "blosc", "zarr_format": 2}, False),
    "zarr gzip": ("zarr", {"codec": "gzip"}, True),
    "zarr 2 gzip": ("zarr", {"codec": "gzip", "zarr_format": 2}, False),
    "zarr none": ("zarr", {"codec": "none"}, True),
    "zarr 2 none": ("zarr", {"codec": "none", "zarr_format": 2}, False),
}


@st.composite
def stored(draw: Any, sharded: bool) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...] | None, tuple[slice, ...]]:
    """An array, chunks and shards for it, and a part of it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    shards = tuple(c * draw(st.integers(1, 3)) for c in chunks) if sharded and draw(st.booleans()) else None
    starts = [draw(st.integers(0, n)) for n in shape]
    part = tuple(slice(start, draw(st.integers(start, n))) for start, n in zip(starts, shape, strict=True))
    seed = draw(st.integers(0, 9))
    values = np.random.default_rng(seed).integers(0, 3 if seed else 1, shape)
    return values.astype(draw(st.sampled_from(DTYPES))), chunks, shards, part


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_was_put_in_comes_out(format: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    ending, options, sharded = FORMATS[format]
    x, chunks, shards, part = data.draw(stored(sharded))
    name = str(tmp_path_factory.mktemp("stored") / f"x.{ending}")
    made = create_store(name, Like(x.shape, x.dtype, chunks, shards, options=options))
    for _, piece in cut(whole(x.shape), made.units):
        if (memory := made.memory(piece)) is not None and data.draw(st.booleans()):
            memory[...] = x[piece]
        else:
            made.write(piece, x[piece])
    made.finish()
    for store in (made, open_store(name), pickle.loads(pickle.dumps(made))):
        got = store.read(part)
        np.testing.assert_array_equal(got, x[part])
        assert got.dtype == store.dtype == x.dtype.newbyteorder("=")
        assert store.working(part) >= 0
    assert open_store(name).state() == made.state()


@given(stored(False))
def test_a_part_is_cut_by_the_chunks_it_lies_in(case: Any) -> None:
    x, chunks, _, part = case
    pieces = list(cut(part, chunks))
    seen = np.zeros(x.shape, int)
    for index, piece in pieces:
        seen[piece] += 1
        assert all(p.start // c == (p.stop - 1) // c == i for i, p, c in zip(index, piece, chunks, strict=True))
        assert x[part][within(piece, part)].shape == x[piece].shape
    assert (seen[part] == 1).all()
    assert seen.sum() == x[part].size


def test_states_change_with_the_array(tmp_path: Path) -> None:
    for name in ("x.npy", "x.zarr"):
        made = create_store(tmp_path / name, Like((4, 4), np.dtype("u1"), (2, 2)))
        for path in [tmp_path / name, *(tmp_path / name).rglob("*")]:
            os.utime(path, ns=(0, 0))  # clocks of files are coarse
        before = made.state()
        made.write(whole((4, 4)), np.ones((4, 4), np.uint8))
        assert made.state() != before
