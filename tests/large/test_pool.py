"""From files to files: what `pool`, `jvp` and `vjp` write has the bits that the record makes of the whole array."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError, PoolTypeError, large
from ndpool.arrays import changed
from ndpool.large import run, tiles
from ndpool.large.shared import Shared
from ndpool.large.store import cut, open_store
from ndpool.large.tiles import Grid, Plan, measure

from .. import examples
from ..cases import BFLOAT16, EVERY, KINDS, LABELLED, RECORDS, SHAPE, tangents, usual, values
from .made import Counting, assert_bits, held, in_tiles, put, records

# how an array lies where it is read or written: the ending, and options of the format
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "npy": ("npy", {}),
    "npy F": ("npy", {"order": "F"}),
    "zarr": ("zarr", {}),
    "zarr 2": ("zarr", {"zarr_format": 2}),
    "zarr shards": ("zarr", {}),
}
NAMELESS = {"raw": ("raw", {}), "raw F": ("raw", {"order": "F"})}  # for bfloat16, which the others have no name for
KEPT = {"GlobalMaxPool", "GlobalSumPool", "GlobalPool", "GlobalModePool"}  # records that drop axes by themselves


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A new folder whenever it is asked for: hypothesis has many examples in one test."""
    return lambda: tmp_path_factory.mktemp("pool")


def chunked(draw: Any, shape: tuple[int, ...], format: str) -> dict[str, Any]:
    """Chunks and shards of any size, for formats that have them."""
    if not format.startswith("zarr"):
        return {}
    chunks = tuple(draw(st.integers(1, max(1, n))) for n in shape)
    if format != "zarr shards":
        return {"chunks": chunks}
    return {"chunks": chunks, "shards": tuple(c * draw(st.integers(1, 3)) for c in chunks)}


def stored(draw: Any, folder: Path, name: str, x: Any) -> Any:
    """An array as a source, as it may lie."""
    kind = draw(st.sampled_from(("memory", "memory F", *formats(x.dtype))))
    if kind.startswith("memory"):
        return np.asfortranarray(x) if kind.endswith("F") else x
    ending, options = formats(x.dtype)[kind]
    return opened(put(folder / f"{name}.{ending}", x, **chunked(draw, x.shape, kind), **options), x, options)


def formats(dtype: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    return NAMELESS if dtype == BFLOAT16 else FORMATS


def opened(path: Path, like: Any, options: dict[str, Any]) -> Any:
    """The store of a file of which we know what is in it."""
    raw = {"shape": like.shape, "dtype": like.dtype, **options} if path.suffix == ".raw" else {}
    return open_store(path, **raw)


def any_tiles(draw: Any) -> Callable[..., Plan]:
    """`choose` for small arrays: tiles of any number of units along each axis."""

    def choose(shape: Any, unit: Any, needs: Any, memory: int, most: int, shares: bool = True) -> Plan:
        units = [draw(st.integers(1, max(1, -(-n // u)))) for n, u in zip(shape, unit, strict=True)]
        tile = tuple(max(1, min(n, k * u)) for n, k, u in zip(shape, units, unit, strict=True))
        return measure(Grid(shape, tile), needs, memory, most, shares)

    return choose


@contextmanager
def tiled(draw: Any) -> Iterator[None]:
    """Tiles of any size, or those of the planner, who may have hardly any memory."""
    room = draw(st.sampled_from((None, 8 << 20, 10**9)))
    choose = mock.patch.object(run, "choose", any_tiles(draw) if room is None else run.choose)
    with choose, mock.patch.object(run, "room", return_value=room or 10**9):
        yield


def check(draw: Any, folder: Path, want: Any, what: Callable[..., Any], *arguments: Any) -> None:
    """What is written is what we want: `arguments` are the sources, and the record."""
    *sources, op = arguments
    format = draw(st.sampled_from(list(formats(want.dtype))))
    ending, options = formats(want.dtype)[format]
    more = chunked(draw, want.shape, format) if draw(st.booleans()) or format == "zarr shards" else {}
    to = folder / f"y.{ending}"
    given = [stored(draw, folder, f"x{i}", x) for i, x in enumerate(sources)]
    with tiled(draw):
        what(*given, to, op, options=options, threads=draw(st.integers(1, 3)), **more)
    assert_bits(held(opened(to, want, options)), want, op)


def kept(op: Any) -> Any:
    """The record with all axes."""
    return changed(op, keepdims=True) if not getattr(op, "keepdims", True) else op


def drawn_values(draw: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return values(np.random.default_rng(draw(st.integers(0, 99))), shape, dtype)


def tangent(x: Any, shape: tuple[int, ...]) -> Any:
    return tangents(np.random.default_rng(1), shape, x.dtype)


# -- the bits of the whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@given(data=st.data())
@settings(max_examples=examples(2))
def test_every_record(name: str, data: st.DataObject, folder: Callable[[], Path]) -> None:
    """large.pool(x, y, op)  =>  y == op(x), with axes of 1 where the record drops some."""
    op = EVERY[name]
    dtype = data.draw(st.sampled_from(KINDS.get(op.law.name, (usual(op.law),))))
    x = drawn_values(data.draw, SHAPE, dtype)
    want = kept(op)(x)
    check(data.draw, folder(), want, large.pool, x, op)
    assert (want.shape != op(x).shape) is (name in KEPT)


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
@settings(max_examples=examples(1))
def test_every_derivative(name: str, data: st.DataObject, folder: Callable[[], Path]) -> None:
    """large.jvp(x, dx, y, op)  =>  y == op.jvp(x, dx), and large.vjp likewise."""
    op = kept(RECORDS[name])
    dtypes = ("float64",) if name.endswith("Pool") and op.law.name not in KINDS else ("float16", "float32", "float64")
    x = drawn_values(data.draw, SHAPE, data.draw(st.sampled_from(dtypes)))
    dx, dy = tangent(x, x.shape), tangent(x, op.out_shape(x.shape))
    check(data.draw, folder(), op.jvp(x, dx), large.jvp, x, dx, RECORDS[name])
    check(data.draw, folder(), op.vjp(x, dy), large.vjp, x, dy, RECORDS[name])


@given(data=st.data())
@settings(max_examples=examples(20))
def test_any_record_of_any_shape(data: st.DataObject, folder: Callable[[], Path]) -> None:
    """Ranks 1 to 4: strides, dilation, ceil_mode, padding, bins and whole axes, of floats of any size."""
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, (60, 20, 9, 5)[rank - 1])) for _ in range(rank))
    op = data.draw(records(shape))
    x = np.random.default_rng(0).normal(size=shape).astype(data.draw(st.sampled_from(("float32", "float64"))))
    dx, dy = tangent(x, shape), tangent(x, kept(op).out_shape(shape))
    what, given, want = data.draw(
        st.sampled_from(
            (
                (large.pool, (x,), lambda: kept(op)(x)),
                (large.jvp, (x, dx), lambda: kept(op).jvp(x, dx)),
                (large.vjp, (x, dy), lambda: kept(op).vjp(x, dy)),
            )
        )
    )
    check(data.draw, folder(), want(), what, *given, op)


CONVERTING: dict[str, tuple[ndpool.Op, Any]] = {  # records with dtype=, and what they convert
    "means of bytes": (ndpool.AvgPool((2, 3), stride=1, dtype="float32"), "uint8"),
    "sums of bytes": (ndpool.SumPool((2, 3), dtype="int64"), "uint8"),
    "means in bfloat16": (ndpool.AvgPool((3, 3), 1, 1, dtype="bfloat16"), "float32"),
    "max of bfloat16": (ndpool.MaxPool(2, dtype="float64"), BFLOAT16),
    "bins": (ndpool.AdaptiveAvgPool(3, dtype="float16"), "int16"),
    "whole": (ndpool.GlobalSumPool(axes=(0, 2), keepdims=False, dtype="float64"), "float32"),
}


@pytest.mark.parametrize("name", CONVERTING)
@given(data=st.data())
@settings(max_examples=examples(2))
def test_what_converts(name: str, data: st.DataObject, folder: Callable[[], Path]) -> None:
    op, dtype = CONVERTING[name]
    x = drawn_values(data.draw, SHAPE, dtype)
    check(data.draw, folder(), kept(op)(x), large.pool, x, op)


LONG: dict[str, ndpool.Op] = {  # windows of which sums are cut into pieces, and those that are built from blocks
    "sums": ndpool.SumPool((701,), 13, 350),
    "means": ndpool.AvgPool((37, 5), 1, (18, 2), axes=(0, 1), count_include_pad=False),
    "smooth max": ndpool.SmoothMaxPool((299,), 7, 100, beta=0.7),
    "norms": ndpool.LpPool(3.0, (64,), 50),
    "all": ndpool.GlobalSumPool(axes=(-1,)),
    "smooth max of all": ndpool.GlobalSmoothMaxPool(beta=-2.0),
    "bins": ndpool.AdaptiveAvgPool((7,)),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@given(data=st.data())
@settings(max_examples=examples(1))
def test_long_windows(name: str, dtype: str, data: st.DataObject, folder: Callable[[], Path]) -> None:
    """Of numbers that no sum is exact of, so that another order of additions would be seen."""
    op = LONG[name]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.normal(size=(120, 31) if name == "means" else (3, 4001)).astype(dtype)
    dx, dy = rng.normal(size=x.shape).astype(dtype), rng.normal(size=op.out_shape(x.shape)).astype(dtype)
    check(data.draw, folder(), op(x), large.pool, x, op)
    check(data.draw, folder(), op.jvp(x, dx), large.jvp, x, dx, op)
    check(data.draw, folder(), op.vjp(x, dy), large.vjp, x, dy, op)


def test_indices_are_not_written(tmp_path: Path) -> None:
    x = values(np.random.default_rng(0), SHAPE, "float32")
    op = ndpool.MaxPool(2, return_indices=True)
    large.pool(x, tmp_path / "y.npy", op)
    large.vjp(x, op(x)[0], tmp_path / "dx.npy", op)
    plain = changed(op, return_indices=False)
    assert_bits(np.load(tmp_path / "y.npy"), op(x)[0])
    assert_bits(np.load(tmp_path / "dx.npy"), plain.vjp(x, op(x)[0]))


def test_nothing_is_pooled_to_nothing(tmp_path: Path) -> None:
    """An empty batch: files of no elements, and none of the memory."""
    x, op = np.zeros((0, 6), "float32"), ndpool.MaxPool((2,))
    for ending in ("npy", "zarr"):
        report = large.pool(x, tmp_path / f"y.{ending}", op)
        assert (open_store(tmp_path / f"y.{ending}").shape, report.made, report.tiles) == ((0, 3), 0, 0)


def test_axes_keep_their_names_and_chunks(tmp_path: Path) -> None:
    source = put(tmp_path / "x.zarr", np.zeros((8, 9), "u1"), (4, 3), axes=("y", "x"))
    large.pool(source, tmp_path / "y.zarr", ndpool.MaxPool(2))
    made = open_store(tmp_path / "y.zarr")
    assert (made.axes, made.chunks) == (("y", "x"), (4, 3))


# -- chunks are decoded once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=examples(5))
def test_chunks_are_decoded_once(threads: int, data: st.DataObject, folder: Callable[[], Path]) -> None:
    """Of overlapping tiles, too, whoever makes them; and once again where there is no room for what others need."""
    shape = tuple(data.draw(st.integers(4, n)) for n in (30, 12))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    op = ndpool.SumPool(tuple(data.draw(st.integers(1, 4)) for _ in shape), stride=data.draw(st.integers(1, 2)))
    x = np.random.default_rng(0).normal(size=shape)
    source, dy = Counting(x, chunks), np.random.default_rng(1).normal(size=op.out_shape(shape))
    cotangents = Counting(dy, chunks)
    to = folder()
    ample = mock.patch.object(tiles, "DIAGONAL", 1.25 if threads == 1 else 9.0)  # tiles at a time are ahead of others
    with mock.patch.object(run, "choose", any_tiles(data.draw)), ample:
        large.pool(source, to / "y.npy", op, threads=threads)
        assert max(source.reads.values()) == 1
        source.reads.clear()
        large.vjp(source, cotangents, to / "dx.npy", op, threads=threads)
    assert max(source.reads.values()) == 1
    assert max(cotangents.reads.values()) == 1
    assert_bits(np.load(to / "y.npy"), op(x))
    assert_bits(np.load(to / "dx.npy"), op.vjp(x, dy))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("part", [0, 0.05, 1])
def test_pieces_for_which_there_is_no_room(tmp_path: Path, threads: int, part: float) -> None:
    """What cannot be kept is decoded again: more reads, the same bits, and never more kept than there is room for."""
    x, op = np.random.default_rng(0).normal(size=(40, 40)), ndpool.AvgPool((9, 9), 1)
    source, most = Counting(x, (16, 16)), []

    class Narrow(Shared):
        def __init__(self, base: Any, need: Any, grid: Grid, finished: Any, room: int) -> None:
            super().__init__(base, need, grid, finished, int(part * room))

        def read(self, part: Any, out: Any = None) -> Any:
            found = super().read(part, out)
            kept = sum(piece.nbytes for piece in list(self.pieces.values()))
            most.append(kept <= self.room or threads > 1)
            return found

    with mock.patch.object(run, "choose", in_tiles(8)), mock.patch.object(run, "Shared", Narrow):
        large.pool(source, tmp_path / "y.npy", op, threads=threads)
    assert_bits(np.load(tmp_path / "y.npy"), op(x))
    assert all(most)
    assert len(most) == 8
    assert (max(source.reads.values()) == 1) is (part == 1)
    assert set(source.reads) == {index for index, _ in cut((slice(0, 40),) * 2, (16, 16))}


def test_chunks_that_cannot_be_decoded_end_every_tile(tmp_path: Path) -> None:
    """Tiles that wait for a chunk that another one failed at fail too, and do not wait for ever."""

    def broken(part: Any) -> None:
        if part[0].start == 16:
            raise OSError("chunk 1 is broken")

    source = Counting(np.zeros((40, 4)), (16, 4), broken)
    with mock.patch.object(run, "choose", in_tiles(8)), pytest.raises(PoolError, match="chunk 1 is broken"):
        large.pool(source, tmp_path / "y.npy", ndpool.SumPool((9, 1), 1), threads=3)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LABELLED)
def test_records_without_derivative(tmp_path: Path, name: str) -> None:
    x = np.zeros(SHAPE, "int64")
    for what in (large.jvp, large.vjp):
        with pytest.raises(PoolTypeError, match="derivative"):
            what(x, x, tmp_path / "y.npy", LABELLED[name])
    assert not os.listdir(tmp_path)


X, OP = np.zeros((4, 6), "float32"), ndpool.AvgPool(2)
REFUSED: dict[str, tuple[Callable[[str], Any], type[Exception], str]] = {
    "no record": (lambda to: large.pool(X, to, "max"), PoolTypeError, r"pool: op='max' is not a record"),
    "a function": (lambda to: large.pool(X, to, ndpool.max_pool), PoolTypeError, "is not a record"),
    "a class": (lambda to: large.vjp(X, X, to, ndpool.MaxPool), PoolTypeError, "vjp: op=.* is not a record"),
    "too many axes": (lambda to: large.pool(X, to, ndpool.MaxPool((1, 1, 1))), PoolError, "axes"),
    "a kernel too large": (lambda to: large.pool(X, to, ndpool.MaxPool(9)), PoolError, "kernel_size=9"),
    "labels of floats": (lambda to: large.pool(X, to, ndpool.ModePool(2)), PoolTypeError, "mode"),
    "a tangent of another shape": (
        lambda to: large.jvp(X, X[1:], to, OP), PoolError, r"the tangent .* of shape \(3, 6\), but the source",
    ),
    "a tangent of another dtype": (lambda to: large.jvp(X, X.astype("f8"), to, OP), PoolError, "tangent .* float64"),
    "a cotangent of the source's shape": (
        lambda to: large.vjp(X, X, to, OP), PoolError, r"the cotangent .* but the result is float32 of shape \(2, 3\)",
    ),
    "a derivative of integers": (
        lambda to: large.vjp(X.astype("i4"), X[:2, :3].astype("i4"), to, OP), PoolTypeError, "derivative of int32",
    ),
    "a derivative that converts": (
        lambda to: large.vjp(X, X[:2, :3], to, ndpool.AvgPool(2, dtype="float64")), PoolTypeError, "no dtype",
    ),
    "chunks of another rank": (lambda to: large.pool(X, f"{to}.zarr", OP, chunks=(2,)), PoolError, r"chunks=\(2,\)"),
    "chunks of nothing": (lambda to: large.pool(X, f"{to}.zarr", OP, chunks=(2, 0)), PoolError, r"chunks=\(2, 0\)"),
    "shards that are no multiples": (
        lambda to: large.pool(X, f"{to}.zarr", OP, chunks=(2, 2), shards=(3, 2)), PoolError, "multiples",
    ),
    "chunks of a file without": (lambda to: large.pool(X, to, OP, chunks=(2, 2)), PoolError, "npy has no chunks"),
    "little memory": (lambda to: large.pool(X, to, OP, memory="1MB"), PoolError, "memory=.* is too little"),
    "no memory": (lambda to: large.pool(X, to, OP, memory="much"), PoolError, "memory="),
    "no threads": (lambda to: large.pool(X, to, OP, threads=0), PoolError, "threads=0"),
    "a word misspelt": (lambda to: large.pool(X, to, OP, thread=1), PoolTypeError, "did you mean threads"),
    "an option misspelt": (lambda to: large.pool(X, to, OP, options={"ordr": "F"}), PoolError, "order"),
    "an unknown ending": (lambda to: large.pool(X, to[:-4], OP), PoolError, "no format is known"),
    "a source that is none": (lambda to: large.pool([[1.0]], to, OP), PoolTypeError, "list is no store"),
    "a source that is not there": (lambda to: large.pool(f"{to}.zarr", to, OP), FileNotFoundError, "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    """Each error names the argument, and nothing is left behind."""
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        call(str(tmp_path / "y.npy"))
    assert not os.listdir(tmp_path)


def test_a_source_is_not_written_over(tmp_path: Path) -> None:
    source = put(tmp_path / "x.npy", X)
    with pytest.raises(PoolError, match="write to another place"):
        large.pool(source, source, OP, overwrite=True)
    assert_bits(np.load(source), X)
