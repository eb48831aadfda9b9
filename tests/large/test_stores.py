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

from ndpool.large.store import Like, create_store, cut, reopen_store, whole, within

DTYPES = ("bool", "uint8", ">i2", "<i4", ">u8", "float16", ">f4", "float64", "complex64")
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {  # the ending, and options
    "npy": ("npy", {}),
    "npy F": ("npy", {"order": "F"}),
    "raw": ("raw", {}),
    "raw F": ("raw", {"order": "F"}),
    "tif": ("tif", {}),
    "ome.tif": ("ome.tif", {}),
    "h5": ("h5:/some/data", {}),
    "zarr": ("zarr", {}),
    "zarr 2": ("zarr", {"zarr_format": 2}),
    "zarr blosc": ("zarr", {"codec": "blosc"}),
    "zarr 2 blosc": ("zarr", {"codec": "blosc", "zarr_format": 2}),
    "zarr gzip": ("zarr", {"codec": "gzip"}),
    "zarr 2 gzip": ("zarr", {"codec": "gzip", "zarr_format": 2}),
    "zarr none": ("zarr", {"codec": "none"}),
    "zarr 2 none": ("zarr", {"codec": "none", "zarr_format": 2}),
}
# what a format has not: dtypes, and numbers of axes
NOT = {
    "tif": (("bool",), ()),
    "ome.tif": (("bool", "float16", ">u8"), (1,)),
}


@st.composite
def stored(draw: Any, format: str = "zarr") -> tuple[np.ndarray, Like, tuple[slice, ...]]:
    """An array, a store to be made for it, and a part of it."""
    dtypes, ranks = NOT.get(format, ((), ()))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2 if 1 in ranks else 1, max_size=4)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    sharded = format.startswith("zarr") and "2" not in format and draw(st.booleans())
    shards = tuple(c * draw(st.integers(1, 3)) for c in chunks) if sharded else None
    starts = [draw(st.integers(0, n)) for n in shape]
    part = tuple(slice(start, draw(st.integers(start, n))) for start, n in zip(starts, shape, strict=True))
    seed = draw(st.integers(0, 9))
    x = np.random.default_rng(seed).integers(0, 3 if seed else 1, shape)
    x = x.astype(draw(st.sampled_from([dtype for dtype in DTYPES if dtype not in dtypes])))
    return x, Like(x.shape, x.dtype, chunks, shards, options=FORMATS[format][1]), part


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_was_put_in_comes_out(format: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    x, like, part = data.draw(stored(format))
    name = str(tmp_path_factory.mktemp("stored") / f"x.{FORMATS[format][0]}")
    made = create_store(name, like)
    for _, piece in cut(whole(x.shape), made.units):
        if (memory := made.memory(piece)) is not None and data.draw(st.booleans()):
            memory[...] = x[piece]
        else:
            made.write(piece, x[piece])
    made.finish()
    for store in (made, reopen_store(name, like), pickle.loads(pickle.dumps(made))):
        got = store.read(part)
        np.testing.assert_array_equal(got, x[part])
        assert got.dtype == store.dtype == x.dtype.newbyteorder("=")
        assert store.working(part) >= 0
        assert store.order == ("F" if format.endswith("F") else "C")
    assert reopen_store(name, like).state() == made.state()


@given(stored())
def test_a_part_is_cut_by_the_chunks_it_lies_in(case: Any) -> None:
    x, like, part = case
    chunks = like.chunks
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
