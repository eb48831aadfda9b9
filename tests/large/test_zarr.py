"""Zarr arrays: what zarr-python writes is read, and the other way round; chunks that are broken; names and levels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr import codecs

from ndpool import PoolError
from ndpool.large.store import Like, create_store, cut, open_store, remove, whole
from ndpool.large.zarr import Zarr, chunks_of

from .peaks import peaks

# what zarr.create_array is asked for, and whether its chunks are decoded here or by zarr
WRITTEN: dict[str, tuple[dict[str, Any], bool]] = {
    "default": ({}, True),
    "none": ({"compressors": None}, True),
    "blosc": ({"compressors": codecs.BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2)}, True),
    "gzip": ({"compressors": codecs.GzipCodec(level=1)}, True),
    "zstd with checksum": ({"compressors": codecs.ZstdCodec(level=3, checksum=True)}, True),
    "two codecs": ({"compressors": [codecs.ZstdCodec(), codecs.GzipCodec()]}, True),
    "big end first": ({"serializer": codecs.BytesCodec(endian="big")}, True),
    "transposed": ({"filters": [codecs.TransposeCodec(order=(1, 2, 0))]}, True),
    "Fortran order": ({"filters": [codecs.TransposeCodec(order=(2, 1, 0))]}, True),
    "checksum": ({"compressors": [codecs.Crc32cCodec()]}, False),
    "shards": ({"shards": (4, 4, 8)}, True),
    "shards of blosc": ({"shards": (2, 4, 4), "compressors": codecs.BloscCodec(cname="lz4")}, True),
    "index first": ({"shards": {"shape": (4, 4, 8), "index_location": "start"}}, True),
    "keys as in format 2": ({"chunk_key_encoding": {"name": "v2", "separator": "."}}, True),
    "format 2": ({"zarr_format": 2}, True),
    "format 2 none": ({"zarr_format": 2, "compressors": None}, True),
    "format 2 Fortran order": ({"zarr_format": 2, "order": "F"}, True),
    "format 2 lz4": ({"zarr_format": 2, "compressors": numcodecs.LZ4()}, True),
    "format 2 gzip": ({"zarr_format": 2, "compressors": numcodecs.GZip()}, True),
    "format 2 filter": ({"zarr_format": 2, "filters": [numcodecs.Delta("<i2")], "compressors": numcodecs.Zstd()}, True),
    "format 2 two filters": ({"zarr_format": 2, "filters": [numcodecs.Delta("<i2"), numcodecs.Shuffle(2)]}, True),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_what_zarr_does(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Zarr's files are read, and files written into the same array are read by zarr: the same numbers, both ways."""
    asked, here = WRITTEN[kind]
    path = tmp_path_factory.mktemp("written") / "x.zarr"
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(3))
    fill = data.draw(st.sampled_from((0, 1, -3)))
    array = zarr.create_array(path, shape=shape, chunks=(2, 2, 4), dtype="<i2", fill_value=fill, **asked)
    x = np.random.default_rng(data.draw(st.integers(0, 9))).integers(-9, 9, shape).astype("<i2")
    x[: data.draw(st.integers(0, shape[0]))] = fill
    array[:] = x
    store = open_store(path)
    assert isinstance(store, Zarr)
    assert (store.coding is not None) is here
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    part = tuple(slice(start, data.draw(st.integers(start + 1, n))) for start, n in zip(starts, shape, strict=True))
    np.testing.assert_array_equal(store.read(part), x[part])
    out = np.empty_like(x[part])
    assert store.read(part, out) is out
    np.testing.assert_array_equal(out, x[part])
    y = x[::-1] * 2
    files = {file.name for file in path.rglob("*")}
    for _, piece in cut(whole(shape), store.units):
        store.write(piece, y[piece])
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], y)
    assert not [name for name in {file.name for file in path.rglob("*")} - files if name.endswith(".partial")]


@pytest.mark.parametrize("options", [{}, {"zarr_format": 2}, {"codec": "blosc"}, {"codec": "gzip"}, {"codec": "none"}])
def test_zarr_reads_what_is_made_here(tmp_path: Path, options: dict[str, Any]) -> None:
    x = np.arange(5 * 7 * 9, dtype=">f4").reshape(5, 7, 9)
    x[:2] = -0.0
    x[2] = np.nan
    axes = ("z", "y", "x")
    made = create_store(tmp_path / "x.zarr", Like(x.shape, x.dtype, (2, 3, 4), axes=axes, options=options))
    made.write(whole(x.shape), x)
    array = zarr.open_array(tmp_path / "x.zarr", mode="r")
    assert np.ascontiguousarray(array[:], ">f4").tobytes() == x.tobytes()  # zeros keep their sign
    assert array.dtype == "f4"
    assert made.axes == open_store(tmp_path / "x.zarr").axes == axes


def test_chunks_of_the_fill_value_have_no_files(tmp_path: Path) -> None:
    made = create_store(tmp_path / "x.zarr", Like((8, 8), np.dtype("u1"), (2, 2), (4, 4)))
    x = np.zeros((8, 8), np.uint8)
    x[5, 5] = 1
    made.write(whole(x.shape), x)
    assert [file.name for file in (tmp_path / "x.zarr" / "c").rglob("*") if file.is_file()] == ["1"]
    made.write(whole(x.shape), np.zeros_like(x))
    assert not [file for file in (tmp_path / "x.zarr" / "c").rglob("*") if file.is_file()]
    assert not open_store(tmp_path / "x.zarr").read(whole(x.shape)).any()


def test_chunks_that_are_missing_without_a_fill_value(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(2, 2), dtype="u1", zarr_format=2, fill_value=None)
    metadata = json.loads((tmp_path / "x.zarr" / ".zarray").read_text())
    (tmp_path / "x.zarr" / ".zarray").write_text(json.dumps({**metadata, "fill_value": None}))
    assert not open_store(tmp_path / "x.zarr").read(whole((2, 2))).any()


# -- broken files ------------------------------------------------------------------------------------------------------

CODED = {
    "zstd": {}, "blosc": {"codec": "blosc"}, "gzip": {"codec": "gzip"}, "none": {"codec": "none"},
    "2": {"zarr_format": 2}, "2 blosc": {"codec": "blosc", "zarr_format": 2},
}  # fmt: skip
BROKEN = {
    "cut short": lambda data: data[: len(data) * 2 // 3],
    "empty": lambda data: b"",
    "garbage": lambda data: b"garbage!" * 20,
    "too long": lambda data: data + data,
}


CASES = [
    (coded, broken, sharded)
    for coded in CODED
    for broken in BROKEN
    for sharded in (False, True)
    if not (sharded and coded.startswith("2"))  # format 2 has no shards
    if broken != "too long" or (coded in ("2 blosc", "blosc", "none") and not sharded)  # frames end by themselves
]


@pytest.mark.parametrize(("coded", "broken", "sharded"), CASES)
def test_a_chunk_that_cannot_be_decoded_is_named(tmp_path: Path, coded: str, broken: str, sharded: bool) -> None:
    made = create_store(
        tmp_path / "x.zarr",
        Like((40, 40), np.dtype("u2"), (20, 20), (20, 40) if sharded else None, options=CODED[coded]),
    )
    x = np.arange(1600, dtype="u2").reshape(40, 40)
    made.write(whole(x.shape), x)
    (file,) = [file for file in (tmp_path / "x.zarr").rglob("0") if file.is_file() and file.parent.name == "1"]
    file.write_bytes(BROKEN[broken](file.read_bytes()))
    with pytest.raises(OSError, match=r"x\.zarr.*1.0: the chunk cannot be decoded"):
        open_store(tmp_path / "x.zarr").read(whole(x.shape))
    first = open_store(tmp_path / "x.zarr").read((slice(0, 20), slice(0, 40)))
    np.testing.assert_array_equal(first, x[:20])


def test_a_chunk_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create_store(tmp_path / "x.zarr", Like((4, 4), np.dtype("u1"), (4, 4)))
    before = np.ones((4, 4), np.uint8)
    made.write(whole((4, 4)), before)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        made.write(whole((4, 4)), before * 2)
    np.testing.assert_array_equal(made.read(whole((4, 4))), before)
    assert not list((tmp_path / "x.zarr").rglob("*.partial"))


def test_what_writers_left_is_taken_away(tmp_path: Path) -> None:
    made = create_store(tmp_path / "x.zarr", Like((4, 4), np.dtype("u1"), (2, 2)))
    made.write(whole((4, 4)), np.ones((4, 4), np.uint8))
    (tmp_path / "x.zarr" / "c" / "0" / "1.0123.partial").write_bytes(b"begun")
    made.finish()
    assert not list((tmp_path / "x.zarr").rglob("*.partial"))
    assert made.read(whole((4, 4))).all()


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coded", ["zstd", "blosc", "gzip", "none", "shards", "zarr's own"])
def test_what_is_announced_is_the_peak(tmp_path: Path, coded: str) -> None:
    """Of noise, which no codec makes shorter: never more than was announced, and not much less."""
    shape, path, options = (64, 512, 512), tmp_path / "x.zarr", CODED.get(coded, {})
    x = np.random.default_rng(0).integers(0, 256, shape, "u1")
    if coded == "zarr's own":
        how = {"chunks": (32, 512, 512), "compressors": [codecs.ZstdCodec(), codecs.Crc32cCodec()]}
        zarr.create_array(path, shape=shape, dtype="u1", **how)[:] = x
        options = None
    else:
        like = Like(shape, x.dtype, (32, 512, 512), shape if coded == "shards" else None, options=options)
        create_store(path, like).write(whole(shape), x)
    chunk = (slice(0, 32), slice(0, 512), slice(0, 512))
    found = peaks(path, [chunk, (slice(24, 40), *chunk[1:])], options)
    assert all(peak <= announced for peak, announced in found), found
    assert all(announced <= 1.7 * peak for peak, announced in found) or coded == "zarr's own", found


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_an_image_is_its_largest_level(tmp_path: Path, version: Any) -> None:
    group = zarr.create_group(tmp_path / "i.ome.zarr", zarr_format=version)
    for level, n in enumerate((8, 4)):
        group.create_array(str(level), shape=(n, n), dtype="u1")
    axes = [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    scales = [{"axes": axes, "datasets": [{"path": "0"}, {"path": "1"}]}]
    group.attrs.update({"multiscales": scales} if version == 2 else {"ome": {"version": "0.5", "multiscales": scales}})
    assert open_store(tmp_path / "i.ome.zarr").shape == (8, 8)
    second = open_store(tmp_path / "i.ome.zarr" / "1")
    assert (second.shape, second.axes) == ((4, 4), ("y", "x"))


def test_names_that_hold_no_array(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "g.zarr").create_array("a", shape=(2,), dtype="u1")
    with pytest.raises(PoolError, match=r"is a group without OME metadata; name an array in it \(there are: a\)"):
        open_store(tmp_path / "g.zarr")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(OSError, match=r"empty\.zarr: holds no zarr array that can be opened"):
        open_store(tmp_path / "empty.zarr")
    zarr.create_array(tmp_path / "broken.zarr", shape=(2,), dtype="u1")
    (tmp_path / "broken.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"')
    with pytest.raises(OSError, match=r"broken\.zarr: holds no zarr array that can be opened"):
        open_store(tmp_path / "broken.zarr")
    metadata = (tmp_path / "g.zarr" / "a" / "zarr.json").read_text()
    (tmp_path / "g.zarr" / "a" / "zarr.json").write_text(metadata.replace('"zstd"', '"lzip"'))
    with pytest.raises(OSError, match=r"holds no zarr array that can be opened .*lzip"):
        open_store(tmp_path / "g.zarr" / "a")
    zarr.create_array(tmp_path / "text.zarr", shape=(2,), dtype=str)
    with pytest.raises(PoolError, match="only arrays of numbers can be pooled"):
        open_store(tmp_path / "text.zarr")


@pytest.mark.parametrize(
    ("options", "shards", "message"),
    [
        ({"codec": "lzip"}, None, r"codec='lzip' is not one of auto, blosc, zstd, gzip, none"),
        ({"zarr_format": 4}, None, "zarr_format=4 is not 2 or 3"),
        ({"zarr_format": 2}, (8, 8), "zarr_format=2 has no shards; use zarr_format=3"),
        ({"level": 4}, None, "level= is no option of this format; it takes zarr_format, codec"),
        ({}, (8, 6), r"shards=\(8, 6\) are no multiples of chunks=\(4, 4\)"),
    ],
)
def test_options_that_make_no_array(tmp_path: Path, options: Any, shards: Any, message: str) -> None:
    with pytest.raises(PoolError, match=message):
        create_store(tmp_path / "x.zarr", Like((9, 9), np.dtype("u1"), (4, 4), shards, options=options))
    assert not (tmp_path / "x.zarr").exists()


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    create_store(tmp_path / "x.zarr", Like((9, 9), np.dtype("u1")))
    with pytest.raises(FileExistsError, match="exists already; remove it or use another name"):
        create_store(tmp_path / "x.zarr", Like((9, 9), np.dtype("u1")))
    remove(tmp_path / "x.zarr")
    remove(tmp_path / "x.zarr")
    create_store(tmp_path / "x.zarr.partial", Like((9, 9), np.dtype("u1")), "zarr")


def test_an_open_array_is_a_store() -> None:
    array = zarr.create_array({}, shape=(5, 5), chunks=(2, 2), dtype="u1")
    store = open_store(array)
    x = np.arange(25, dtype="u1").reshape(5, 5)
    for _, piece in cut(whole(x.shape), store.units):
        store.write(piece, x[piece])
    np.testing.assert_array_equal(array[:], x)
    np.testing.assert_array_equal(store.read((slice(1, 4), slice(0, 5))), x[1:4])


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5), st.sampled_from(("u1", "f8")))
def test_chunks_are_some_megabytes(shape: list[int], dtype: str) -> None:
    chunks = chunks_of(Like(tuple(shape), np.dtype(dtype)))
    size = int(np.prod(chunks, dtype=object)) * np.dtype(dtype).itemsize
    assert size <= 1 << 24
    assert size >= 1 << 22 or chunks == tuple(shape)
