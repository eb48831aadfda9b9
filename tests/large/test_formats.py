"""What other programs write is read; files that are torn, or that nobody may write to; what a format cannot hold."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ndpool import PoolError
from ndpool.large import mapped
from ndpool.large.mapped import Layout, Mapped, in_one_piece, new_file
from ndpool.large.store import FORMATS, Like, create_store, cut, format_of, open_store, remove, shape_of, split, whole

from .peaks import peaks

# -- TIFF --------------------------------------------------------------------------------------------------------------

TIFFS: dict[str, tuple[tuple[int, ...], dict[str, Any], str, tuple[int, ...]]] = {  # shape, how; axes, chunks
    "strips": ((50, 40), {"compression": "zlib", "rowsperstrip": 16}, "yx", (16, 40)),
    "one strip": ((50, 40), {"compression": "zlib"}, "yx", (50, 40)),
    "tiles": ((50, 40), {"compression": "zlib", "tile": (16, 32)}, "yx", (16, 32)),
    "tiles as they are": ((50, 40), {"tile": (16, 32)}, "yx", (16, 32)),
    "predictor": ((50, 40), {"compression": "zlib", "predictor": True, "tile": (16, 16)}, "yx", (16, 16)),
    "pages": ((3, 50, 40), {"compression": "zlib", "tile": (16, 16)}, "qyx", (1, 16, 16)),
    "volume": ((20, 50, 40), {"compression": "zlib", "tile": (16, 16, 16), "volumetric": True}, "zyx", (16, 16, 16)),
    "colours": ((50, 40, 3), {"compression": "zlib", "photometric": "rgb", "rowsperstrip": 7}, "yxs", (7, 40, 3)),
    "planes": (
        (3, 50, 40), {"compression": "zlib", "photometric": "rgb", "planarconfig": "separate", "tile": (16, 16)},
        "syx", (1, 16, 16),
    ),
    "OME": (
        (2, 3, 50, 40), {"compression": "zlib", "ome": True, "metadata": {"axes": "TCYX"}, "rowsperstrip": 16},
        "tcyx", (1, 1, 16, 40),
    ),
    "big end first": ((50, 40), {"compression": "zlib", "byteorder": ">", "rowsperstrip": 16}, "yx", (16, 40)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TIFFS)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_tiffs_of_tiles_and_strips(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    shape, how, axes, chunks = TIFFS[kind]
    x = np.random.default_rng(0).integers(0, 999, shape).astype("u2")
    path = tmp_path_factory.mktemp("tiff") / ("x.ome.tif" if kind == "OME" else "x.tif")
    tifffile.imwrite(path, x, **{"photometric": "minisblack", **how})
    store = open_store(path)
    assert (store.encoded, store.chunks) == (True, chunks)
    assert "".join(store.axes or ()) == axes
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    part = tuple(slice(start, data.draw(st.integers(start + 1, n))) for start, n in zip(starts, shape, strict=True))
    for opened in (store, pickle.loads(pickle.dumps(store))):
        np.testing.assert_array_equal(opened.read(part), x[part])
    out = np.empty_like(x[part])
    assert store.read(part, out) is out
    np.testing.assert_array_equal(out, x[part])


@pytest.mark.parametrize("order", "<>")
def test_tiffs_in_one_piece_are_mapped(tmp_path: Path, order: str) -> None:
    x = np.arange(3 * 5 * 7, dtype=f"{order}u2").reshape(3, 5, 7)
    tifffile.imwrite(tmp_path / "x.tif", x, byteorder=order, photometric="minisblack", metadata={"axes": "ZYX"})
    store = open_store(tmp_path / "x.tif")
    assert isinstance(store, Mapped)
    assert store.axes == ("z", "y", "x")
    np.testing.assert_array_equal(store.read(whole(x.shape)), x)
    assert store.encoded is (order != "<")


def test_levels_and_series_of_tiffs(tmp_path: Path) -> None:
    x = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    with tifffile.TiffWriter(tmp_path / "x.tif") as file:
        file.write(x, subifds=1, tile=(16, 16), compression="zlib", photometric="minisblack")
        file.write(x[::2, ::2], subfiletype=1, tile=(16, 16), compression="zlib", photometric="minisblack")
    np.testing.assert_array_equal(open_store(tmp_path / "x.tif", level=1).read(whole((32, 32))), x[::2, ::2])
    for wrong in ({"series": 3}, {"level": 2}):
        with pytest.raises(PoolError, match="has no such series or level"):
            open_store(tmp_path / "x.tif", **wrong)


def test_what_is_made_is_what_tifffile_reads(tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 5 * 7, dtype="f4").reshape(2, 3, 5, 7)
    made = create_store(tmp_path / "x.ome.tif", Like(x.shape, x.dtype, axes=("c", "z", "y", "x")))
    made.write(whole(x.shape), x)
    with tifffile.TiffFile(tmp_path / "x.ome.tif") as file:
        assert (file.is_ome, file.series[0].axes) == (True, "CZYX")
        np.testing.assert_array_equal(file.asarray(), x)
    colours = create_store(tmp_path / "y.tif", Like((5, 7, 3), np.dtype("u1"), axes=("y", "x", "s")))
    colours.write(whole(colours.shape), np.arange(105, dtype="u1").reshape(5, 7, 3))
    with tifffile.TiffFile(tmp_path / "y.tif") as file:
        assert file.pages.first.photometric.name == "RGB"
        np.testing.assert_array_equal(file.asarray().ravel(), np.arange(105))


def test_broken_tiffs(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 99, (64, 64)).astype("u2")
    tifffile.imwrite(tmp_path / "x.tif", x, rowsperstrip=16, compression="zlib")
    with tifffile.TiffFile(tmp_path / "x.tif") as file:
        offset = file.pages.first.dataoffsets[2]
    data = bytearray((tmp_path / "x.tif").read_bytes())
    data[offset : offset + 50] = b"x" * 50
    (tmp_path / "x.tif").write_bytes(data)
    store = open_store(tmp_path / "x.tif")
    np.testing.assert_array_equal(store.read((slice(0, 32), slice(0, 64))), x[:32])
    with pytest.raises(OSError, match=r"x\.tif: segment 2 of page 0 cannot be decoded"):
        store.read(whole(x.shape))
    with tifffile.TiffFile(tmp_path / "x.tif", mode="r+") as file:
        file.pages.first.tags["Compression"].overwrite(34712)  # JPEG 2000, which needs another library
    with pytest.raises(PoolError, match="requires the 'imagecodecs' package; pip install imagecodecs"):
        open_store(tmp_path / "x.tif")
    (tmp_path / "y.tif").write_bytes(b"no picture")
    with pytest.raises(OSError, match="is no TIFF file that can be opened"):
        open_store(tmp_path / "y.tif")


# -- HDF5 --------------------------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_chunked_datasets(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("hdf5") / "x.h5"
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(3))
    x = np.arange(np.prod(shape), dtype=data.draw(st.sampled_from(("u1", ">f4", "<i2")))).reshape(shape)
    how = data.draw(st.sampled_from(({}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True})))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=x, chunks=chunks, **how)
    store = open_store(f"{path}:/g/x")
    assert store.chunks == chunks
    starts = [data.draw(st.integers(0, n)) for n in shape]
    part = tuple(slice(start, data.draw(st.integers(start, n))) for start, n in zip(starts, shape, strict=True))
    for opened in (store, pickle.loads(pickle.dumps(store)), open_store(path)):
        np.testing.assert_array_equal(opened.read(part), x[part])
        assert opened.dtype == x.dtype.newbyteorder("=")
    for order in "CF":
        out = np.empty(shape_of(part), store.dtype, order)
        assert store.read(part, out) is out
        np.testing.assert_array_equal(out, x[part])


def test_names_of_datasets(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a/b"] = np.arange(6).reshape(2, 3)
        file["a/b"].dims[0].label, file["a/b"].dims[1].label = "y", "x"
    assert isinstance(open_store(path), Mapped)
    assert open_store(f"{path}:a/b").axes == ("y", "x")
    with pytest.raises(PoolError, match=r"name a dataset as .*x\.h5:/dataset; there are: /a/b"):
        open_store(f"{path}:/a/c")
    with h5py.File(path, "a") as file:
        file["c"] = np.arange(3)
        file["text"] = "abc"
        file["nothing"] = h5py.Empty("f4")
        file.create_dataset("unwritten", (2, 2), "u1", fillvalue=7)
        assert open_store(file["c"]).read((slice(1, 3),)).tolist() == [1, 2]
    assert open_store(f"{path}:/unwritten").read(whole((2, 2))).tolist() == [[7, 7], [7, 7]]
    with pytest.raises(PoolError, match="there are: /a/b, /c"):
        open_store(path)
    with pytest.raises(PoolError, match="holds objects; only arrays of numbers"):
        open_store(f"{path}:/text")
    with pytest.raises(PoolError, match="the dataset is empty"):
        open_store(f"{path}:/nothing")
    (tmp_path / "y.h5").write_bytes(b"nothing of the kind")
    with pytest.raises(OSError, match="is no HDF5 file that can be opened"):
        open_store(tmp_path / "y.h5")


def test_what_is_made_is_what_h5py_reads(tmp_path: Path) -> None:
    x = np.arange(12, dtype="f4").reshape(3, 4)
    made = create_store(f"{tmp_path}/x.h5:/g/x", Like(x.shape, x.dtype, axes=("y", "x")))
    with h5py.File(tmp_path / "x.h5") as file:  # sound from the start
        assert not file["g/x"][()].any()
    made.write((slice(1, 3), slice(0, 4)), x[1:])
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["g/x"][1:], x[1:])
        assert [dim.label for dim in file["g/x"].dims] == ["y", "x"]
    create_store(f"{tmp_path}/y.h5", Like((2,), np.dtype("?")))
    assert open_store(f"{tmp_path}/y.h5:/data").dtype == bool


def test_what_is_announced_is_the_peak(tmp_path: Path) -> None:
    """Of noise in chunks and segments of some megabytes."""
    x = np.random.default_rng(0).integers(0, 256, (4, 2048, 2048), "u1")
    tifffile.imwrite(
        tmp_path / "x.tif", x, tile=(1024, 2048), compression="zlib", predictor=True, photometric="minisblack"
    )
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(4, 1024, 1024), compression="gzip", shuffle=True)
    parts = [(slice(0, 2), slice(0, 2048), slice(0, 2048)), (slice(0, 2), slice(500, 1500), slice(500, 1500))]
    for name, some in (("x.tif", parts), ("x.h5", parts[1:]), ("x.h5", parts[:1])):  # HDF5 keeps what it has freed
        found = peaks(tmp_path / name, some)
        assert all(peak <= announced <= 2.5 * peak for peak, announced in found), (
            name,
            found,
        )  # zlib joins as it likes


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("x.png", (5, 7), "bool"), ("x.png", (5, 7), "u1"), ("x.png", (5, 7), "u2"), ("x.png", (5, 7, 3), "u1"),
     ("x.png", (5, 7, 4), "u1")],
)  # fmt: skip
def test_pictures(tmp_path: Path, name: str, shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 250, shape).astype(dtype)
    made = create_store(tmp_path / name, Like(x.shape, x.dtype))
    made.write(whole(shape), x)
    for store in (made, open_store(tmp_path / name), pickle.loads(pickle.dumps(made))):
        np.testing.assert_array_equal(store.read(whole(shape)), x)
        assert store.dtype == x.dtype
        assert store.axes == ("y", "x", "c")[: x.ndim]
    assert os.listdir(tmp_path) == [name]


def test_pictures_in_jpeg(tmp_path: Path) -> None:
    made = create_store(tmp_path / "unfinished", Like((16, 16, 3), np.dtype("u1")), "jpeg")
    made.write(whole(made.shape), np.full((16, 16, 3), 77, np.uint8))
    os.rename(tmp_path / "unfinished", tmp_path / "x.jpeg")
    assert abs(open_store(tmp_path / "x.jpeg").read(whole(made.shape)).astype(int) - 77).max() <= 1


def test_pictures_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape, dtype in (("x.jpg", (5, 5), "u2"), ("x.png", (5, 5), "f4"), ("x.png", (5, 5, 5), "u1"),
                               ("x.png", (0, 5), "u1")):  # fmt: skip
        with pytest.raises(PoolError, match=r"use a \.tif or \.zarr"):
            create_store(tmp_path / name, Like(shape, np.dtype(dtype)))
    (tmp_path / "x.png").write_bytes(b"no picture")
    with pytest.raises(OSError, match="is no picture that can be read"):
        open_store(tmp_path / "x.png")
    Image.new("P", (30, 20)).save(tmp_path / "y.png")
    assert open_store(tmp_path / "y.png").shape == (20, 30, 3)  # colours, not their numbers
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(PoolError, match="is too large to be held as a whole"):
        open_store(tmp_path / "y.png")
    with pytest.raises(PoolError, match="900 pixels are more than the 500 a picture may have"):
        create_store(tmp_path / "z.png", Like((30, 30), np.dtype("u1")))


# -- memory and what lies in files as in memory ------------------------------------------------------------------------


def test_arrays_in_memory_are_stores() -> None:
    x = np.arange(12, dtype=">i4").reshape(3, 4)
    store = open_store(x)
    part = (slice(1, 3), slice(0, 2))
    assert (store.dtype.isnative, store.read(part).dtype.isnative, store.memory(part)) == (True, True, None)
    np.testing.assert_array_equal(store.read(part), x[part])
    before = store.state()
    store.write(part, np.zeros((2, 2)))
    assert not x[part].any()
    assert store.state() != before
    y = np.zeros((3, 4), order="F")
    assert np.shares_memory(open_store(y).memory(part), y)
    assert open_store(y).order == "F"
    with pytest.raises(PoolError, match="is no store; use a path"):
        open_store([[1, 2]])


@pytest.mark.parametrize("order", "CF")
def test_memory_maps_are_their_files(tmp_path: Path, order: Any) -> None:
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "i4", (4, 5, 6), fortran_order=order == "F")
    x[...] = np.arange(120).reshape(4, 5, 6)
    piece = x[1:3] if order == "C" else x[:, :, 2:4]
    store = open_store(piece)
    assert isinstance(store, Mapped)
    np.testing.assert_array_equal(store.read(whole(piece.shape)), piece)
    assert not isinstance(open_store(x[:, 1:3]), Mapped)  # not in one piece
    assert not isinstance(open_store(np.load(tmp_path / "x.npy", mmap_mode="c")), Mapped)
    reading = open_store(np.load(tmp_path / "x.npy", mmap_mode="r"))
    with pytest.raises(OSError, match="is open for reading only"):
        reading.write(whole(x.shape), x)


def test_raw_files_are_what_is_said_of_them(tmp_path: Path) -> None:
    x = np.arange(24, dtype=">f4").reshape(2, 3, 4)
    (tmp_path / "x.raw").write_bytes(b"header" + x.tobytes())
    store = open_store(tmp_path / "x.raw", shape=(2, 3, 4), dtype=">f4", offset=6)
    np.testing.assert_array_equal(store.read(whole(x.shape)), x)
    assert open_store(tmp_path / "x.raw", shape=4, dtype="bfloat16").dtype.name == "bfloat16"
    for options, message in (
        ({}, "give shape= and dtype="),
        ({"shape": (2, 3), "dtype": "f3"}, "dtype='f3' is no dtype"),
        ({"shape": (-2,), "dtype": "f4"}, "is made of integers from 0 on"),
        ({"shape": (2,), "dtype": "f4", "order": "A"}, "order='A' is neither 'C'"),
        ({"shape": (2,), "dtype": "f4", "sape": 1}, "sape= is no option of this format; it takes .*did you mean shape"),
    ):
        with pytest.raises(PoolError, match=message):
            open_store(tmp_path / "x.raw", **options)
    with pytest.raises(
        OSError, match=r"has 102 bytes, but its array of float32, shape \(26,\), ends at byte 104; it was cut"
    ):
        open_store(tmp_path / "x.raw", shape=(26,), dtype="f4")


def test_torn_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10000.0))
    store = open_store(tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 40000)
    with pytest.raises(OSError, match=r"x\.npy: the file has 40000 bytes, but its array .* ends at byte 80128"):
        open_store(tmp_path / "x.npy")
    with pytest.raises(OSError, match="the file has become shorter than its array"):
        store.read((slice(9000, 10000),))
    assert store.read((slice(0, 10),)).tolist() == list(range(10))
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(OSError, match=r"is no \.npy file that can be mapped"):
        open_store(tmp_path / "x.npy")
    for values, kind in (
        (np.array([{}]), "objects"),
        (np.zeros(2, "i4,f4"), "records"),
        (np.array(["a"]), "no numbers"),
    ):
        np.save(tmp_path / "x.npy", values)
        with pytest.raises(PoolError, match=f"holds {kind}; only arrays of numbers can be pooled"):
            open_store(tmp_path / "x.npy")


@pytest.mark.parametrize("order", "CF")
@given(data=st.data())
def test_what_lies_in_one_piece(order: Any, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 100, 5000, 70000)), min_size=1, max_size=4)))
    layout = Layout(0, shape, np.dtype(data.draw(st.sampled_from(("u1", "f8")))), order)
    block = in_one_piece(layout)
    fast_first = (*zip(block, shape, strict=True),)[:: -1 if order == "C" else 1]
    cut_at = next((i for i, (b, n) in enumerate(fast_first) if b != n), len(shape))
    assert all(b == 1 for b, _ in fast_first[cut_at + 1 :])
    assert np.prod(block, dtype=object) * layout.dtype.itemsize <= 1 << 16
    strides = np.empty(shape, "u1", order).strides if np.prod(shape, dtype=object) < 1 << 20 else None
    assert strides is None or 1 in shape or layout.strides == tuple(s * layout.dtype.itemsize for s in strides)


def test_a_full_disk_is_an_error_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for ending in ("npy", "raw", "tif", "ome.tif", "h5"):
        with pytest.raises(OSError, match=rf"No space left on device for its [0-9]+ bytes: '.*x\.{ending}'"):
            create_store(tmp_path / f"x.{ending}", Like((64, 64), np.dtype("f4")))
    assert not os.listdir(tmp_path)


def test_new_files_have_all_their_bytes(tmp_path: Path) -> None:
    new_file(str(tmp_path / "x"), b"header", 1 << 20)
    found = os.stat(tmp_path / "x")
    assert (found.st_size, found.st_blocks * 512 >= 1 << 20) == (1 << 20, True)
    for ending in ("tif", "h5"):
        create_store(tmp_path / f"x.{ending}", Like((1 << 10, 1 << 10), np.dtype("u1")))
        assert os.stat(tmp_path / f"x.{ending}").st_blocks * 512 >= 1 << 20


IN_PARTS = """
import sys, resource
import numpy as np
from ndpool.large.store import open_store, cut, shape_of, whole
store, part, writing, bound = open_store(sys.argv[1]), eval(sys.argv[2]), sys.argv[3] == "write", 0
ones = np.ones(part, "u1")
held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _, piece in cut(whole(store.shape), part):
    values = store.memory(piece) if writing else store.read(piece)
    if not writing:
        assert values.max() == 0
    elif values is None:
        store.write(piece, ones)
    else:
        values[...] = 1
    bound = max(bound, store.working(piece) + ones.nbytes)
    del values
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held, bound // 1024)
"""


@pytest.mark.parametrize("doing", ["read", "write"])
@pytest.mark.parametrize("part", [(1, 1024, 1024), (64, 1024, 64), (1024, 32, 1024), (32, 1024, 1024)])
def test_a_gigabyte_in_parts_holds_one_part(tmp_path: Path, part: tuple[int, ...], doing: str) -> None:
    """Pages that are mapped count as a process' own: its peak is that of one part and what `working` says."""
    size = 1024 if doing == "read" else 256
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "u1", (1024, size, 1024)).flush()
    ran = subprocess.run(
        [sys.executable, "-c", IN_PARTS, str(tmp_path / "x.npy"), str(part), doing],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    remove(tmp_path / "x.npy")
    held, bound = map(int, ran.stdout.split())
    assert held <= bound + 2048
    assert bound <= np.prod(part) // 1024 + 21 * 1024


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["<i2", ">i2"])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_parts_that_are_scattered_are_copied(
    dtype: str, order: Any, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Windows of a few bytes: whatever is cut, the numbers are those of the part."""
    path = tmp_path_factory.mktemp("mapped") / "x.raw"
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    x = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    starts = [data.draw(st.integers(0, n)) for n in shape]
    part = tuple(slice(start, data.draw(st.integers(start, n))) for start, n in zip(starts, shape, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "WINDOW", data.draw(st.sampled_from((1, 8, 100))))
        patch.setattr(mapped, "FOLIO", 4)
        path.write_bytes(x.tobytes(order))
        store = open_store(path, shape=shape, dtype=dtype, order=order)
        np.testing.assert_array_equal(store.read(part), x[part])
        windows = list(store.layout.windows(part)) if x[part].size else []
        assert sum(x[window].size for window in windows) == x[part].size
        for window in windows:
            first, last = store.layout.span(window)
            assert last - first <= mapped.WINDOW or x[window].size == 1
        store.write(part, -x[part])
        x[part] = -x[part]
        np.testing.assert_array_equal(store.read(whole(shape)), x)


# -- names -------------------------------------------------------------------------------------------------------------


def test_formats_of_names(tmp_path: Path) -> None:
    for name, format in (("a/b.ome.zarr", "zarr"), ("b.zarr/labels/0", "zarr"), ("x.OME.TIF", "ome.tif"),
                         ("x.ome.tiff", "ome.tiff"), ("x.hdf5:/a.npy", "hdf5"), ("x.tar.npy", "npy")):  # fmt: skip
        assert format_of(name) == format
    for name, parts in (("a:b/c.npy", ("a:b/c.npy", "")), ("x.h5", ("x.h5", "")), ("x.h5:a:b", ("x.h5:a", "b"))):
        assert split(name) == parts or name == "x.h5:a:b"
    for name in ("x.nii", "x", str(tmp_path)):
        with pytest.raises(PoolError, match=r"no format is known by this ending; use one of \.npy, .*\.zarr"):
            format_of(name)
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy: there is no such file"):
        open_store(tmp_path / "nothing.npy")
    with pytest.raises(PoolError, match=r"format='zar' is not one of npy, .*did you mean zarr"):
        create_store(tmp_path / "x", Like((2,), np.dtype("u1")), "zar")


@pytest.mark.parametrize("ending", [key for key in FORMATS if FORMATS[key].extra])
def test_a_missing_library_is_named(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra = FORMATS[ending].module, FORMATS[ending].extra
    library = {"picture": "PIL", "hdf5": "h5py", "tiff": "tifffile"}.get(module, module)
    for name in [name for name in sys.modules if name == library or name == f"ndpool.large.{module}"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PoolError, match=rf"needs {library}, which is not installed; pip install 'ndpool\[{extra}\]'"):
        create_store(tmp_path / f"x.{ending}", Like((2, 2), np.dtype("u1")))


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that this process may not write to, not even if root runs it."""
    folder, root = Path(tempfile.mkdtemp()), os.geteuid() == 0
    folder.chmod(0o555)
    try:
        if root:
            os.seteuid(65534)
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.rmdir()


@pytest.mark.parametrize("ending", ["npy", "raw", "tif", "ome.tif", "h5", "zarr", "png"])
def test_folders_that_nobody_may_write_to(closed_folder: Path, ending: str) -> None:
    with pytest.raises(PermissionError, match=r"(?i)permission denied"):
        create_store(closed_folder / f"x.{ending}", Like((2, 2), np.dtype("u1")))


def test_a_dtype_that_a_format_cannot_hold(tmp_path: Path) -> None:
    import ml_dtypes

    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    for ending, dtype, message in (("npy", bfloat16, r"\.npy has no name for dtype bfloat16; use \.raw"),
                                   ("h5", bfloat16, "HDF5 has no name for dtype bfloat16"),
                                   ("tif", np.dtype("?"), "dtype bool is not among what it can hold"),
                                   ("ome.tif", np.dtype("u8"), "dtype uint64 is not among"),
                                   ("npy", np.dtype("O"), "holds objects")):  # fmt: skip
        with pytest.raises(PoolError, match=message):
            create_store(tmp_path / f"x.{ending}", Like((2, 2), dtype))
    assert not os.listdir(tmp_path)
    x = np.arange(6).reshape(2, 3).astype(bfloat16)
    made = create_store(tmp_path / "x.raw", Like(x.shape, x.dtype))
    for _, piece in cut(whole(x.shape), made.units):
        made.write(piece, x[piece])
    assert made.read(whole(x.shape)).tolist() == x.tolist()
