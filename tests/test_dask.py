"""dask's arrays: lazily what NumPy gives, bit for bit, whatever the blocks; one small task per block, and no others."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError, PoolTypeError
from ndpool.blocks import Blocks, Recipe, cut, edges, meeting
from ndpool.blocks import values as made
from ndpool.settings import threads
from ndpool.spec import Axis, adaptive, each, sliding, whole

from . import examples
from .cases import BFLOAT16, COMPLEX, FLOATS, INTEGERS, KINDS, RECORDS, SHAPE, tangents, values
from .test_slab import same

dask = pytest.importorskip("dask", reason="dask is the library in question")
da = pytest.importorskip("dask.array", reason="dask.array is the library in question")

HALO = ndpool.MaxPool(3, stride=1, padding=1)


def sizes(n: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Some blocks of n positions together, empty ones among them."""
    places = st.lists(st.integers(0, n), max_size=4).map(lambda found: [0, *sorted(found), n])
    return places.map(lambda found: tuple(np.diff(found).tolist()))


def cuts(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    return st.tuples(*map(sizes, shape))


def now(x: Any) -> Any:
    return x.compute(scheduler="sync")


def keys(x: Any) -> dict[Any, Any]:
    """The tasks of x's last layer, by key."""
    return dict(x.dask.layers[x.name])


def check(got: Any, want: Any, note: Any) -> None:
    """What dask says of an array before it is made is true, and it has the bits that are wanted."""
    found = now(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), note
    assert 0 in got.shape or all(n for along in got.chunks for n in along), note
    for index in product(*(range(len(along)) for along in got.chunks)):
        assert now(got.blocks[index]).shape == tuple(along[i] for i, along in zip(index, got.chunks, strict=True))
    same(found, want, note)


# -- the bits of the whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=examples(15))
@given(data=st.data(), seed=st.integers(0, 99))
def test_every_record_of_any_blocks(name: str, data: Any, seed: int) -> None:
    op, rng = RECORDS[name], np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from([d for d in KINDS.get(op.law.name, FLOATS[2:]) if d not in COMPLEX]))
    x = values(rng, SHAPE, dtype)
    if data.draw(st.booleans()) and dtype in FLOATS:
        x = x * rng.normal(size=SHAPE).astype(dtype)  # sums that are rounded
    lazy = da.from_array(x, chunks=data.draw(cuts(SHAPE)))
    note = (op, dtype, lazy.chunks)
    check(op(lazy), op(x), note)
    if hasattr(op, "return_indices"):
        two = replace(op, return_indices=True)
        for got, want in zip(two(lazy), two(x), strict=True):
            check(got, want, note)
    if op.law.divides and dtype in INTEGERS:
        with pytest.raises(PoolTypeError, match=r"a mean of .* is rounded and has no derivative"):
            op.linearize(lazy)
        return
    dx, dy = tangents(rng, SHAPE, dtype), tangents(rng, op.out_shape(SHAPE), dtype)
    at = op.linearize(lazy)
    same(now(at.y), op(x), note)
    check(at.jvp(da.from_array(dx, chunks=data.draw(cuts(dx.shape)))), op.jvp(x, dx), note)
    back = at.vjp(da.from_array(dy, chunks=data.draw(cuts(dy.shape))))
    assert back.chunks == tuple(tuple(n for n in along if n) for along in lazy.chunks)
    check(back, op.vjp(x, dy), note)


@settings(max_examples=examples(60))
@given(
    data=st.data(),
    k=st.integers(1, 80),
    stride=st.integers(1, 9),
    dilation=st.integers(1, 3),
    lo=st.integers(0, 90),
    hi=st.integers(0, 90),
    ceil=st.booleans(),
    seed=st.integers(0, 99),
)
def test_long_sums_of_any_blocks(
    data: Any, k: int, stride: int, dilation: int, lo: int, hi: int, ceil: bool, seed: int
) -> None:
    """Every way of folding a long axis, where the order of a sum shows in its last bits; padding of many windows."""
    n, rng = 150, np.random.default_rng(seed)
    given = {"stride": stride, "padding": ((lo, hi),), "dilation": dilation, "ceil_mode": ceil, "axes": (1,)}
    op = data.draw(
        st.sampled_from(
            [
                ndpool.AvgPool((1,), axes=(1,)),
                ndpool.SumPool((1,), axes=(1,)),
                ndpool.SmoothMaxPool((1,), beta=0.3, axes=(1,)),
                ndpool.LpPool(3, (1,), axes=(1,)),
                ndpool.MaxPool((1,), axes=(1,), ties="split"),
            ]
        )
    )
    op = replace(op, kernel_size=(k,), **given)
    x = rng.normal(size=(2, n, 3)).astype(data.draw(st.sampled_from(["float32", "float64", "float16"])))
    try:
        y = op(x)
    except PoolError:
        return
    lazy = da.from_array(x, chunks=((2,), data.draw(sizes(n)), (1, 2)))
    dy = rng.normal(size=y.shape).astype(x.dtype)
    at = op.linearize(lazy)
    same(now(at.y), y, lazy.chunks)
    same(now(at.jvp(lazy)), op.jvp(x, x), lazy.chunks)
    same(now(at.vjp(da.from_array(dy, chunks=((1, 1), data.draw(sizes(y.shape[1])), 3)))), op.vjp(x, dy), lazy.chunks)


@pytest.mark.parametrize("order", ["C", "F", "a turned one"])
@pytest.mark.parametrize("dtype", [BFLOAT16, ">f4", "uint8", "complex64"])
def test_blocks_that_lie_otherwise(order: str, dtype: Any) -> None:
    x = (np.arange(7 * 9 * 5) % 23).reshape(7, 9, 5).astype(dtype)
    x = {"C": x, "F": np.asfortranarray(x), "a turned one": x.transpose(2, 0, 1)}[order]
    op = ndpool.SumPool((3, 2), stride=1, dtype="complex64" if dtype == "complex64" else None)
    lazy = da.from_array(x, chunks=3)
    assert now(op(lazy)).dtype == op(x).dtype == op(lazy).dtype
    assert np.array_equal(now(op(lazy)), op(x))


@pytest.mark.parametrize("shape", [(0, 4, 6), (2, 0, 6), (0, 0, 0)])
@pytest.mark.parametrize("op", [ndpool.SumPool(2, padding=1), ndpool.GlobalSumPool(), ndpool.AdaptiveMaxPool(3)])
def test_nothing(op: Any, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    try:
        y = op(x)
    except PoolError:
        with pytest.raises(PoolError):
            op(da.from_array(x))
        return
    lazy = da.from_array(x, chunks=tuple((0, n) for n in shape))
    check(op(lazy), y, op)
    check(op.linearize(lazy).vjp(da.from_array(y)), op.vjp(x, y), op)


def test_dtype_converts_each_block() -> None:
    x = (np.arange(40) % 7 + 250).astype(np.uint8).reshape(5, 8)
    lazy = da.from_array(x, chunks=(2, 3))
    for op in (
        ndpool.SumPool(2, stride=1, dtype="int64"),
        ndpool.AvgPool(3, dtype="float64"),
        ndpool.MaxPool(3, 1, dtype="float32"),
        ndpool.SumPool(2, dtype="bfloat16"),
    ):
        check(op(lazy), op(x), op)
        dy = np.ones(op(x).shape, op(x).dtype if op.dtype != "int64" else np.float32)
        check(op.linearize(lazy).vjp(dy), op.vjp(x, dy), op)
        dx = np.ones(x.shape, dy.dtype)
        check(op.linearize(lazy).jvp(dx), op.jvp(x, dx), op)
    f = x.astype(np.float32)
    op = ndpool.MaxPool(3, 1, dtype="float64", return_indices=True)
    for got, want in zip(op(da.from_array(f, chunks=(2, 3))), op(f), strict=True):
        check(got, want, op)
    check(op.linearize(da.from_array(f, chunks=2)).vjp(op(f)[0]), op.vjp(f, op(f)[0]), op)


def test_dims_and_coordinates_stay_lazy() -> None:
    xarray = pytest.importorskip("xarray", reason="xarray holds dask's arrays")
    x = xarray.DataArray(np.arange(63.0).reshape(7, 9), {"y": np.arange(7)}, ("y", "x"))
    lazy = x.chunk(y=3, x=4)
    op = ndpool.MaxPool(3, stride=2, padding=1, axes=("y", "x"))
    assert op(lazy).chunks == ((2, 1, 1), (2, 2, 1))
    assert op(lazy).compute(scheduler="sync").identical(op(x))
    assert op.vjp(lazy, op(lazy)).compute(scheduler="sync").identical(op.vjp(x, op(x)))


# -- blocks of results -------------------------------------------------------------------------------------------------


@st.composite
def any_axis(draw: st.DrawFn) -> Axis:
    n, k, d = draw(st.integers(1, 30)), draw(st.integers(1, 12)), draw(st.integers(1, 3))
    lo = draw(st.integers(0, 12))
    hi = max(0, d * (k - 1) + 1 - n - lo) + draw(st.integers(0, 12))
    form = draw(st.sampled_from(["slide", "slide", "bins", "whole", "each"]))
    if form == "slide":
        return sliding(n, k, draw(st.integers(1, 9)), (lo, hi), d, draw(st.booleans()))
    return adaptive(n, draw(st.integers(1, 2 * n))) if form == "bins" else whole(n) if form == "whole" else each(n)


@given(any_axis(), st.data())
def test_an_output_lies_in_the_block_in_which_its_window_begins(axis: Axis, data: Any) -> None:
    inputs = edges(data.draw(sizes(axis.size)))
    outputs = cut(axis, inputs)
    assert (outputs[0], outputs[-1]) == (0, axis.outputs)
    assert all(begin < end for begin, end in pairwise(outputs))

    def home(o: int) -> int:
        return meeting(inputs, min(axis.start(o) + axis.lo, axis.size - 1), axis.size).start

    for begin, end in pairwise(outputs):
        assert len({home(o) for o in range(begin, end)}) == 1
        assert begin == 0 or home(begin) != home(begin - 1)


@given(st.data(), st.integers(1, 12))
def test_the_blocks_that_a_part_meets(data: Any, n: int) -> None:
    inputs = edges(data.draw(sizes(n)))
    begin = data.draw(st.integers(0, n))
    end = data.draw(st.integers(begin, n))
    met = meeting(inputs, begin, end)
    holding = [i for i in range(len(inputs) - 1) if max(begin, inputs[i]) < min(end, inputs[i + 1])]
    assert set(holding) <= set(met)
    assert not holding or (met.start, met[-1]) == (holding[0], holding[-1])
    assert len(met) >= 1
    x = np.arange(n)
    held = Blocks((inputs[met.start : met.stop + 1],), tuple(x[inputs[i] : inputs[i + 1]] for i in met))
    assert held[(slice(begin, end),)].tolist() == x[begin:end].tolist()


def test_blocks_of_windows_that_keep_the_size_are_those_of_x() -> None:
    """So y and x meet without a copy: `x - y` has a task per block and no others."""
    x = da.zeros((20, 30), chunks=((7, 9, 4), (10, 15, 5)))
    for op in (HALO, ndpool.AvgPool(5, 1, "same"), ndpool.MaxPool((1, 9), stride=1, padding=((0, 0), (8, 0)))):
        assert op(x).chunks == x.chunks
    assert ndpool.MaxPool(2)(da.zeros((20, 30), chunks=(8, 10))).chunks == ((4, 4, 2), (5, 5, 5))
    assert ndpool.MaxPool(3, stride=2)(da.zeros((20, 30), chunks=(8, 10))).chunks == ((4, 4, 1), (5, 5, 4))
    assert ndpool.MaxPool(8)(x).chunks == ((1, 1), (2, 1))  # none is empty
    assert ndpool.GlobalMaxPool(keepdims=False)(da.zeros((4, 20, 30), chunks=7)).chunks == ((4,),)


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_a_task_takes_the_blocks_that_its_windows_read_and_no_others() -> None:
    x = da.zeros((4, 40, 40), chunks=(1, 10, 10))
    assert len(keys(HALO(x))) == 4 * 4 * 4
    assert keys(HALO(x))[(HALO(x).name, 2, 0, 1)].dependencies == set(product([x.name], [2], [0, 1], [0, 1, 2]))
    tiles = ndpool.SumPool(5)(x)
    for key, task in keys(tiles).items():
        assert task.dependencies == {(x.name, *key[1:])}
    y, where = ndpool.max_pool(x, 2, stride=1, return_indices=True)
    for part in (y, where):
        assert keys(part)[(part.name, 0, 1, 2)].dependencies == set(product([x.name], [0], [1, 2], [2, 3]))
    dx = ndpool.MaxPool(11, stride=10).vjp(x, ndpool.MaxPool(11, stride=10)(x))
    of = keys(dx)[(dx.name, 0, 1, 3)].dependencies
    assert {key[1:] for key in of if key[0] == x.name} == set(product([0], [0, 1, 2], [2, 3]))


def test_a_linear_law_has_its_derivatives_without_x() -> None:
    x = da.zeros((40, 40), chunks=10)
    op = ndpool.AvgPool(3, stride=1, padding=1)
    for moved in (op.linearize(x).jvp(da.ones(x.shape, chunks=7)), op.linearize(x).vjp(da.ones(x.shape, chunks=7))):
        assert x.name not in moved.dask.layers
    assert x.name in HALO.linearize(x).vjp(x).dask.layers


def test_tasks_are_small_and_alike() -> None:
    x = da.from_array(np.zeros((300, 300)), chunks=10)
    for y in (HALO(x), HALO.linearize(x).jvp(x), HALO.linearize(x).vjp(x), ndpool.GlobalMaxPool(axes=0)(x[:30])):
        for task in list(keys(y).values())[::97]:
            assert len(pickle.dumps(task)) < 1500
            assert isinstance(pickle.loads(pickle.dumps(task)).func, Recipe)
    assert HALO(x).name == ndpool.max_pool(x, 3, 1, 1).name  # the same work has the same name
    assert HALO(x).name != replace(HALO, ties="last")(x).name
    assert len(pickle.dumps(HALO(x).dask.layers[HALO(x).name])) < 20_000  # the rule of 900 tasks


def test_a_result_keeps_nothing_else_alive() -> None:
    x = da.from_array(np.arange(90000.0).reshape(300, 300), chunks=100)
    for y in (HALO(x), HALO.linearize(x).vjp(x), ndpool.max_pool(x, 3, return_indices=True)[1]):
        block = now(y.blocks[1, 1])
        while isinstance(block.base, np.ndarray):
            block = block.base
        assert block.nbytes == now(y.blocks[1, 1]).nbytes


def test_a_graph_of_a_hundred_thousand_blocks() -> None:
    x = da.zeros((320 * 4, 320 * 4), chunks=4, dtype="uint8")
    y = HALO(x)
    assert y.npartitions == 102_400
    assert len(y.dask.layers) == len(x.dask.layers) + 1
    assert len(y.dask) == 2 * 102_400
    assert not y.dask.layers[y.name].is_materialized()
    (few,) = dask.optimize(y[:10])
    assert sum(key[0] == x.name for key in few.dask) == 4 * 320  # the rows of blocks under three rows of results
    assert len(few.dask) <= 10 * 320
    tasks, _ = y.dask.layers[y.name].cull(set(y.dask.layers[y.name]), ())
    assert len(tasks) == 102_400
    assert tasks[(y.name, 319, 319)].dependencies == set(product([x.name], [318, 319], [318, 319]))
    with pytest.raises(KeyError):
        y.dask.layers[y.name][(y.name, 320, 0)]
    assert (x.name, 0, 0) not in y.dask.layers[y.name]


def counted(x: Any, seen: list[Any]) -> Any:
    """x, and in `seen` the number of each block that is computed."""
    return x.map_blocks(lambda block, block_id: seen.append(block_id) or block, dtype=x.dtype, meta=x._meta)


def test_a_slice_computes_the_blocks_it_needs() -> None:
    seen: list[Any] = []
    x = counted(da.from_array(np.arange(100.0 * 100).reshape(100, 100), chunks=10), seen)
    assert not seen
    y = ndpool.MaxPool(3, stride=1)(x)
    assert now(y[:10, 35:40]).shape == (10, 5)
    assert sorted(set(seen)) == list(product([0, 1], [3, 4]))
    assert len(seen) == len(set(seen))
    seen.clear()
    now(ndpool.SumPool(10).linearize(x).vjp(da.ones((10, 10), chunks=1))[:20])
    assert not seen  # a sum's cotangents need no x


def test_inputs_are_fused_where_a_block_is_read_once(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="blocks are read from its arrays")
    store = zarr.create_array(tmp_path / "x.zarr", shape=(40, 40), chunks=(10, 10), dtype="float32")
    store[:] = np.arange(1600, dtype=np.float32).reshape(40, 40)
    x = da.from_zarr(store).map_blocks(np.sqrt).map_blocks(np.exp)
    (tiles,) = dask.optimize(ndpool.AvgPool(5)(x))
    work = [task for task in dict(tiles.dask).values() if getattr(task, "func", None) is not None]
    assert len(work) == 16  # one task reads, computes and pools a block
    assert np.array_equal(now(tiles), ndpool.avg_pool(np.exp(np.sqrt(store[:])), 5))
    (halo,) = dask.optimize(HALO(x))
    work = [task for task in dict(halo.dask).values() if getattr(task, "func", None) is not None]
    assert len(work) == 32
    assert np.array_equal(now(halo), HALO(np.exp(np.sqrt(store[:]))))


def test_a_part_runs_on_one_thread_and_tells_nobody() -> None:
    def asked(op: Any, shape: Any, bounds: Any, x: Any) -> Any:
        return np.full(1, threads())

    before = threads()
    part = Recipe(asked, HALO, (4, 4), (), ((0, 4), (0, 4)), (((0, 4), (0, 4)),))
    assert part(np.zeros((4, 4))).tolist() == [1]
    assert threads() == before


def test_a_mapped_file_is_pooled_as_a_plain_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(64.0).reshape(8, 8))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    part = Recipe(made, ndpool.MaxPool(2), (8, 8), (), ((0, 4), (0, 4)), (((0, 8), (0, 8)),))
    assert part(x).tolist() == ndpool.max_pool(np.array(x), 2).tolist()
    assert type(Blocks(((0, 8), (0, 8)), (x,))[slice(0, 8), slice(0, 8)]) is np.ndarray


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda x: HALO(x[x[:, 0] > 0]), PoolError, r"x has chunks of unknown sizes; use x.compute_chunk_sizes\(\)"),
        (lambda x: ndpool.max_pool(x, 9), PoolError, r"on axis 0, kernel_size=9 is larger than the padded input"),
        (lambda x: ndpool.avg_pool(x, 2, dtype="uint8"), PoolTypeError, "dtype='uint8' cannot hold x's float64"),
        (lambda x: HALO(x.astype("complex64")), PoolTypeError, "x has dtype complex64"),
        (lambda x: HALO.jvp(x, x[:3]), PoolError, r"dx has shape \(3, 8\), but x has \(4, 8\)"),
        (lambda x: HALO.vjp(x, x[:3]), PoolError, r"dy has shape \(3, 8\), but y has \(4, 8\)"),
        (lambda x: HALO.vjp(x, x.astype("f4")), PoolTypeError, "dy has dtype float32, but x has float64"),
        (lambda x: HALO(x, out=np.zeros((4, 8))), PoolTypeError, "out is for results that are NumPy arrays"),
        (lambda x: HALO.hvp(x, x, x), PoolTypeError, "a Array has no hvp here"),
    ],
)
def test_what_is_refused_before_anything_is_computed(call: Any, kind: Any, words: str) -> None:
    seen: list[Any] = []
    with pytest.raises(kind, match=f"^(max|avg)_pool: {words}"):
        call(counted(da.ones((4, 8), chunks=(4, 4)), seen))
    assert not seen


def test_arrays_of_the_query_planner() -> None:
    code = (
        "import dask; dask.config.set({'array.query-planning': True})\n"
        "import dask.array, ndpool\n"
        "if dask.array.array_expr_enabled(): ndpool.max_pool(dask.array.ones((4, 4)), 2)\n"
        "else: raise SystemExit('use dask.config.set: this release of dask has no planner')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "use dask.config.set" in done.stderr, done.stderr


def test_an_error_of_a_task_names_the_function() -> None:
    y = ndpool.sum_pool(da.full((4, 8), 200, chunks=(4, 4), dtype="uint8"), 2)
    with pytest.raises(PoolError, match=r"^sum_pool: a sum does not fit uint8"):
        now(y)


# -- workers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """A client of two worker processes."""
    distributed = pytest.importorskip("distributed", reason="dask's workers are distributed's")
    config = {"distributed.admin.log-length": 0, "temporary-directory": str(tmp_path)}
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with (
        dask.config.set(config),
        distributed.LocalCluster(**options, silence_logs=50) as local,
        distributed.Client(local) as client,
    ):
        yield client


def slowly(block: Any) -> Any:
    time.sleep(0.05)
    return block


def test_workers_give_the_same_bits_though_one_is_killed(cluster: Any) -> None:
    x = np.random.default_rng(0).normal(size=(64, 72, 5)).astype(np.float32)
    lazy = da.from_array(x, chunks=(8, 9, 5)).map_blocks(slowly, meta=x[:0, :0, :0])
    op = ndpool.AvgPool((9, 5), stride=1, padding=2, axes=(0, 1))
    at = op.linearize(lazy)
    dy = np.random.default_rng(1).normal(size=at.y.shape).astype(np.float32)
    y, where = ndpool.max_pool(lazy, (4, 3), axes=(0, 1), stride=(2, 3), return_indices=True)
    wanted = cluster.compute([at.y, at.vjp(dy), y, where, ndpool.SmoothMaxPool(5, axes=(0, 1)).jvp(lazy, lazy)])
    workers = cluster.run(os.getpid)
    assert len(workers) == 2
    while len(cluster.run_on_scheduler(done)) < 20:
        time.sleep(0.02)
    os.kill(next(iter(workers.values())), signal.SIGKILL)
    got = cluster.gather(wanted)
    want = ndpool.max_pool(x, (4, 3), axes=(0, 1), stride=(2, 3), return_indices=True)
    same(got[0], op(x), "values")
    same(got[1], op.vjp(x, dy), "cotangents")
    same(got[2], want[0], "values of a max")
    same(got[3], want[1], "places")
    same(got[4], ndpool.SmoothMaxPool(5, axes=(0, 1)).jvp(x, x), "tangents")
    assert set(workers.values()) - set(cluster.run(os.getpid).values()) != set()


def done(dask_scheduler: Any) -> list[Any]:
    """The tasks that have been done, and of which the result is kept."""
    return [key for key, task in dask_scheduler.tasks.items() if task.state == "memory"]
