"""Pyramids: every level is the pooling of the one above, and the metadata says where its positions lie."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError
from ndpool.large import ome, pyramid, run
from ndpool.large.store import open_store

from .made import Counting, assert_bits, in_tiles, left, put

levels_of = importlib.import_module("ndpool.large.pyramid")  # `pyramid` is its function

X = np.random.default_rng(0).integers(0, 9, (11, 13, 18)).astype("u2")
CHUNKS = (4, 4, 4)
MAKERS: dict[Any, Any] = {**levels_of.METHODS, ndpool.LpPool: ndpool.LpPool}


def below(x: Any, make: Any, factor: tuple[int, ...]) -> Any:
    """The level below x, by ndpool's functions on the whole array."""
    by = [min(f, n) for f, n in zip(factor, x.shape, strict=True)]
    axes = tuple(a for a, f in enumerate(by) if f > 1)
    return make(kernel_size=tuple(by[a] for a in axes), ceil_mode=True, axes=axes)(x)


def check(place: Path, x: Any, make: Any, factor: tuple[int, ...], levels: int, names: Any = None) -> None:
    """All levels, read by zarr-python, and what the group says of them."""
    image = zarr.open_group(place, mode="r")
    scales = multiscales(place)
    assert [one["path"] for one in scales["datasets"]] == [*(names or map(str, range(levels + 1)))]
    for one in scales["datasets"]:
        assert_bits(np.asarray(image[one["path"]]), x, one["path"])
        x = below(x, make, factor) if max(x.shape) > 1 else x


def multiscales(place: Path) -> dict[str, Any]:
    attributes = dict(zarr.open_group(place, mode="r").attrs)
    found: dict[str, Any] = attributes.get("ome", attributes)["multiscales"][0]
    return found


def moves(place: Path, level: int) -> dict[str, list[float]]:
    """The scale and, if there is one, the translation of a level."""
    transformations = multiscales(place)["datasets"][level]["coordinateTransformations"]
    return {one["type"]: one[one["type"]] for one in transformations}


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", MAKERS, ids=str)
def test_every_level_is_the_pooling_of_the_one_above(op: Any, tmp_path: Path) -> None:
    x = X.astype("f4") / 3 if op is ndpool.LpPool else X
    make = (lambda **window: ndpool.LpPool(2, **window)) if op is ndpool.LpPool else MAKERS[op]
    pyramid(x, tmp_path / "y.ome.zarr", op=make if op is ndpool.LpPool else op, levels=3, chunks=CHUNKS)
    check(tmp_path / "y.ome.zarr", x, make, (2, 2, 2), 3)
    assert left(tmp_path) == ["y.ome.zarr"]


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_any_shape_and_factors(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Odd ends are windows of fewer positions; an axis that is one position long is left alone."""
    shape = tuple(data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=3)))
    factor = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    chunks = tuple(data.draw(st.integers(3, 6)) for _ in shape)
    op, levels = data.draw(st.sampled_from([*levels_of.METHODS])), data.draw(st.integers(1, 3))
    x = np.random.default_rng(0).integers(0, 99, shape).astype("i4")
    source = Counting(x)
    source.axes = ("z", "y", "x")[-len(shape) :]  # so that a short last axis is no colours
    place = tmp_path_factory.mktemp("any") / "y.ome.zarr"
    how: dict[str, Any] = {"op": op, "factor": factor, "chunks": chunks}
    known = 0  # how many levels there can be
    while any(f > 1 and n > 1 for f, n in zip(factor, shape, strict=True)):
        shape, known = tuple(-(-n // f) for n, f in zip(shape, factor, strict=True)), known + 1
    if not known:
        with pytest.raises(PoolError, match=r"makes nothing of shape .* smaller; use a larger one"):
            pyramid(source, place, levels=levels, **how)
    elif levels > known:
        with pytest.raises(PoolError, match=rf"levels={levels}: nothing can be smaller than .*; use levels <= {known}"):
            pyramid(source, place, levels=levels, **how)
    else:
        pyramid(source, place, levels=levels, **how)
        check(place, x, levels_of.METHODS[op], factor, levels)


def test_levels_are_made_until_one_fits_into_a_chunk(tmp_path: Path) -> None:
    pyramid(X, tmp_path / "y.ome.zarr", chunks=CHUNKS)
    check(tmp_path / "y.ome.zarr", X, ndpool.AvgPool, (2, 2, 2), 3)  # 18 -> 9 -> 5 -> 3
    assert zarr.open(tmp_path / "y.ome.zarr" / "3").shape == (2, 2, 3)


def test_factors_are_those_of_the_last_axes(tmp_path: Path) -> None:
    pyramid(X, tmp_path / "y.ome.zarr", factor=(2, 3), levels=2)
    check(tmp_path / "y.ome.zarr", X, ndpool.AvgPool, (1, 2, 3), 2)
    assert moves(tmp_path / "y.ome.zarr", 2) == {"scale": [1, 4, 9], "translation": [0, 1.5, 4]}
    with pytest.raises(PoolError, match=r"factor=\(2, 2, 2, 2\) has more entries than 3 axes"):
        pyramid(X, tmp_path / "z.ome.zarr", factor=(2, 2, 2, 2))


def test_channels_and_time_are_not_pooled(tmp_path: Path) -> None:
    x = X.reshape(2, 11, 3, 13, 3)[:, :, :, :13, :3]
    pyramid(x, tmp_path / "y.ome.zarr", levels=1)
    check(tmp_path / "y.ome.zarr", x, ndpool.AvgPool, (1, 1, 2, 2, 2), 1)
    assert [(a["name"], a["type"]) for a in multiscales(tmp_path / "y.ome.zarr")["axes"]] == [
        ("t", "time"), ("c", "channel"), ("z", "space"), ("y", "space"), ("x", "space"),
    ]  # fmt: skip


def test_colours_at_the_end_come_first(tmp_path: Path) -> None:
    """OME wants space last, so a picture is turned."""
    x = np.random.default_rng(0).integers(0, 256, (31, 22, 3)).astype("u1")
    np.save(tmp_path / "x.npy", x)
    pyramid(tmp_path / "x.npy", levels=2)
    check(tmp_path / "x.ome.zarr", x.transpose(2, 0, 1), ndpool.AvgPool, (1, 2, 2), 2)
    assert [axis["name"] for axis in multiscales(tmp_path / "x.ome.zarr")["axes"]] == ["c", "y", "x"]


# -- metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("zarr_format", "version"), [(2, "0.4"), (3, "0.5")])
def test_metadata(zarr_format: int, version: str, tmp_path: Path) -> None:
    place = tmp_path / "y.ome.zarr"
    pyramid(X, place, levels=2, op="max", options={"zarr_format": zarr_format})
    group = zarr.open_group(place, mode="r")
    assert group.metadata.zarr_format == group["1"].metadata.zarr_format == zarr_format
    said = dict(group.attrs) if zarr_format == 2 else group.attrs["ome"]
    assert (said if zarr_format == 3 else said["multiscales"][0])["version"] == version
    assert multiscales(place)["type"] == "max"
    assert moves(place, 0) == {"scale": [1, 1, 1]}
    assert moves(place, 1) == {"scale": [2, 2, 2], "translation": [0.5, 0.5, 0.5]}
    assert moves(place, 2) == {"scale": [4, 4, 4], "translation": [1.5, 1.5, 1.5]}
    assert open_store(place / "1").axes == ("z", "y", "x")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_ome_zarr_reads_it(zarr_format: int, tmp_path: Path) -> None:
    reader = pytest.importorskip("ome_zarr.reader", reason="ome-zarr reads what was written")
    io = pytest.importorskip("ome_zarr.io", reason="ome-zarr reads what was written")
    pyramid(X, tmp_path / "y.ome.zarr", levels=2, options={"zarr_format": zarr_format})
    (node,) = reader.Reader(io.parse_url(tmp_path / "y.ome.zarr"))()
    assert [axis["name"] for axis in node.metadata["axes"]] == ["z", "y", "x"]
    x = X
    for got, (scale, *_) in zip(node.data, node.metadata["coordinateTransformations"], strict=True):
        assert_bits(got.compute(scheduler="sync"), x)
        assert scale == {"type": "scale", "scale": [math.ceil(11 / len(x))] * 3}
        x = below(x, ndpool.AvgPool, (2, 2, 2))


def image(place: Path, zarr_format: int, **more: Any) -> dict[str, Any]:
    """A group with X as `s0`, and what it says of it."""
    ome.create_group(place, zarr_format)
    put(place / "s0", X, CHUNKS, zarr_format=zarr_format)
    axes = [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"]
    transformations = [
        {"type": "scale", "scale": [2.0, 0.5, 0.25]},
        {"type": "translation", "translation": [10.0, 0.0, -1.0]},
    ]
    dataset = {"path": "s0", "coordinateTransformations": transformations}
    said = {"multiscales": [{"name": "brain", "axes": axes, "datasets": [dataset], **more}]}
    said["omero"] = {"channels": [{"color": "FF0000", "window": {"start": 0, "end": 9}}]}
    group = zarr.open_group(place, mode="r+")
    group.attrs.update({"own": 1, **(said if zarr_format == 2 else {"ome": {"version": "0.5", **said}})})
    return said


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("inside", [True, False])
def test_what_an_image_says_is_kept(zarr_format: int, inside: bool, tmp_path: Path) -> None:
    """Axes, units, where positions lie and colours, of a pyramid in place and of a new one."""
    whole = {"coordinateTransformations": [{"type": "scale", "scale": [3.0, 3.0, 3.0]}]}
    source = tmp_path / "image.zarr"
    said = image(source, zarr_format, **whole)
    place = source if inside else tmp_path / "y.ome.zarr"
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    pyramid(source if inside else source / "s0", None if inside else place, levels=2)
    check(place, X, ndpool.AvgPool, (2, 2, 2), 2, ["s0", "s1", "s2"] if inside else None)
    found = multiscales(place)
    for key in ("name", "axes", "coordinateTransformations"):
        assert found[key] == said["multiscales"][0].get(key, whole.get(key))
    assert moves(place, 0) == {"scale": [2, 0.5, 0.25], "translation": [10, 0, -1]}
    assert moves(place, 2) == {"scale": [8, 2, 1], "translation": [13, 0.75, -0.625]}
    attributes = dict(zarr.open_group(place, mode="r").attrs)
    assert attributes.get("ome", attributes)["omero"] == said["omero"]
    assert attributes.get("own") == (1 if inside else None)
    changed = {path for path, was in before.items() if path.read_bytes() != was}
    assert {path.name for path in changed} <= {"zarr.json", ".zattrs"}
    assert {path.parent for path in changed} == ({source} if inside else set())
    assert left(tmp_path) == sorted({"image.zarr", place.name})


def test_in_place_of_a_group_that_says_nothing(tmp_path: Path) -> None:
    ome.create_group(tmp_path / "g.zarr", 3)
    put(tmp_path / "g.zarr" / "raw", X, CHUNKS)
    pyramid(tmp_path / "g.zarr" / "raw", levels=2)
    check(tmp_path / "g.zarr", X, ndpool.AvgPool, (2, 2, 2), 2, ["raw", "raw-1", "raw-2"])
    with pytest.raises(PoolError, match="raw-1 is there already"):
        pyramid(tmp_path / "g.zarr" / "raw", levels=2)
    pyramid(tmp_path / "g.zarr" / "raw", levels=2, op="max", overwrite=True)
    check(tmp_path / "g.zarr", X, ndpool.MaxPool, (2, 2, 2), 2, ["raw", "raw-1", "raw-2"])


@pytest.mark.parametrize("said", [{"datasets": []}, {}])
def test_a_group_that_lists_no_levels_is_no_image(said: Any, tmp_path: Path) -> None:
    ome.create_group(tmp_path / "g.zarr", 3)
    put(tmp_path / "g.zarr" / "0", X, CHUNKS)
    group = json.loads((tmp_path / "g.zarr" / "zarr.json").read_text())
    group["attributes"] = {"ome": {"version": "0.5", "multiscales": [said]}}
    (tmp_path / "g.zarr" / "zarr.json").write_text(json.dumps(group))
    assert ome.image_of(str(tmp_path / "g.zarr" / "0")) is None
    pyramid(tmp_path / "g.zarr" / "0", levels=1)
    check(tmp_path / "g.zarr", X, ndpool.AvgPool, (2, 2, 2), 1)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def test_the_base_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its chunks is decoded by one tile, though three levels and a copy are made."""
    monkeypatch.setattr(run, "choose", in_tiles(4))
    monkeypatch.setattr(levels_of, "_has_room", lambda *work: True)
    x = np.random.default_rng(0).integers(0, 99, (64, 24, 24)).astype("u2")
    source = Counting(x, (8, 8, 8))
    report = pyramid(source, tmp_path / "y.ome.zarr", levels=3, chunks=(8, 8, 8), threads=2)
    assert (len(report.sweeps), report.tiles) == (1, 1)  # one unit of level 3 is 64 planes of the base
    assert set(source.reads.values()) == {1}
    assert len(source.reads) == 8 * 3 * 3
    assert report.bytes_read == x.nbytes
    check(tmp_path / "y.ome.zarr", x, ndpool.AvgPool, (2, 2, 2), 3)


def test_little_memory_makes_more_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer levels at a time, and still each chunk of the base once, and the same bits."""
    x = np.random.default_rng(0).integers(0, 99, (512, 32, 32)).astype("u2")
    how: dict[str, Any] = {"levels": 3, "chunks": (16, 16, 16), "threads": 1, "overwrite": True}
    free, numbers = 64 << 20, []
    for _ in range(2):
        monkeypatch.setattr(run, "room", lambda memory, free=free: free)
        source = Counting(x, (16, 16, 16))
        report = pyramid(source, tmp_path / "y.ome.zarr", **how)
        assert max(sweep.plan.bytes for sweep in report.sweeps) <= free
        assert set(source.reads.values()) == {1}
        check(tmp_path / "y.ome.zarr", x, ndpool.AvgPool, (2, 2, 2), 3)
        numbers.append(len(report.sweeps))
        free = report.sweeps[0].plan.tile_bytes * 2 // 3
    assert numbers[0] == 1
    assert numbers[1] > 1


def test_sweeps_of_one_level_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later sweep reads what the one before has written."""
    monkeypatch.setattr(levels_of, "_has_room", lambda *work: False)
    for module in (run, levels_of):
        monkeypatch.setattr(module, "choose", in_tiles(3))
    report = pyramid(X, tmp_path / "y.ome.zarr", levels=3, chunks=CHUNKS, options={"codec": "none"})
    assert len(report.sweeps) == 3
    check(tmp_path / "y.ome.zarr", X, ndpool.AvgPool, (2, 2, 2), 3)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "match"),
    [
        ("median", "op='median' is not one of mean, max, min, sum, mode"),
        (ndpool.MaxPool(2), "makes no records; use one of"),
        (lambda **w: ndpool.MaxPool(**w, stride=1), r"windows of .*stride=1.* do not tile; .*stride"),
        (lambda **w: ndpool.MaxPool(**{**w, "kernel_size": 3}, stride=2), "windows of .* do not tile"),
        (lambda **w: ndpool.MaxPool(**w, padding=1), "windows of .*padding=1.* do not tile"),
        (lambda **w: ndpool.MaxPool(**w, dilation=2, stride=2), "windows of .*dilation=2.* do not tile"),
        (lambda **w: ndpool.MaxPool(**{**w, "ceil_mode": False}), "windows of .* do not tile"),
        (lambda **w: ndpool.MaxPool(**{**w, "kernel_size": 2, "axes": (0,)}), "windows of .* do not tile"),
        (lambda **w: ndpool.MaxPool(**w, dtype="float32"), "dtype='float32', but .*; leave it out"),
        (lambda **w: 3, "op=3 is not a record; use one like"),
        (ndpool.GlobalMaxPool, "global_max_pool: got an unexpected keyword argument 'kernel_size'"),
    ],
)  # fmt: skip
def test_ops_that_make_no_levels(op: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=match):
        pyramid(X, tmp_path / "y.ome.zarr", op=op, levels=1)
    assert left(tmp_path) == []


def test_an_op_that_has_indices_gives_its_values(tmp_path: Path) -> None:
    pyramid(X, tmp_path / "y.ome.zarr", op=lambda **w: ndpool.MaxPool(**w, return_indices=True), levels=1)
    check(tmp_path / "y.ome.zarr", X, ndpool.MaxPool, (2, 2, 2), 1)


@pytest.mark.parametrize(
    ("source", "how", "match"),
    [
        (X, {}, "an array in memory says no place for its pyramid; give a destination"),
        (X, {"destination": "y.npy"}, "y.npy cannot hold a pyramid; use a name that ends in .ome.zarr"),
        (X, {"destination": "y.zarr", "levels": 0}, "levels=0 is below 1"),
        (X, {"destination": "y.zarr", "levels": 9}, r"levels=9: nothing can be smaller .*; use levels <= 5$"),
        (X, {"destination": "y.zarr", "factor": 1}, "factor=1 is below 2"),
        (X[:, None, None, None], {"destination": "y.zarr"}, r"has 6 axes, and an image has up to 5"),
    ],
)  # fmt: skip
def test_what_has_no_pyramid(source: Any, how: Any, match: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PoolError, match=match):
        pyramid(source, **how)
    assert left(tmp_path) == []
