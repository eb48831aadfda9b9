"""`pool`, `jvp` and `vjp`: a record from files to files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..arguments import named
from ..arrays import changed, values_alone
from ..engines import dtypes
from ..errors import PoolError, PoolTypeError
from ..op import Op
from .report import Report
from .result import Result
from .run import How, Job, Options, carry_out
from .store import Like, Store, create_store, format_of, open_store, place, reopen_store
from .targets import Target, planned
from .work import Jvp, Pooling, Vjp, Work

UNIT_BYTES = 256 << 20  # of source that one unit of a result is made of, where nobody says how large units are
SMALL = 32  # chunks of fewer positions along every axis are not made smaller


def pool(
    source: Any,
    destination: str | os.PathLike[str],
    op: Op,
    *,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
    **how: Unpack[Options],
) -> Report:
    """op(source), written to a new array: tile by tile, within `memory`, and with the bits of the whole.

    `source` is a path (.npy, .zarr, .tif, .h5, ...), an array of NumPy, zarr or h5py, or a `Store`; `destination` is a
    path. `chunks` and `shards` are those of a zarr result (its source's where nothing is said), `options` the format's:
    codec, zarr_format, order.

    memory: the most that this process may hold, like "4GB"; 2GB, or 1GB beside what it holds, if not given.
    threads: how many tiles are made at a time. resume: go on with work that was interrupted. overwrite: replace what is
    there, once the new is whole. dry_run: only say what would be done. progress: True, or a function of (bytes done,
    bytes in all).
    cluster: the address of a dask scheduler whose workers make the tiles.
    """
    with named("pool"):
        read = open_store(source)
        op = of_values(op, read.dtype)
        shape, result = op.window(read.shape).out_shape, _dtype(op.dtype) if op.dtype else read.dtype

        def work(target: Target) -> Work:
            return Pooling(read, (op,), (target,))

        like = Like(shape, result, chunks, shards, read.axes, options or {}, read)
        return _to_file(destination, "pool", op, {"the source": read}, like, work, how)


def jvp(
    source: Any,
    tangent: Any,
    destination: str | os.PathLike[str],
    op: Op,
    *,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
    **how: Unpack[Options],
) -> Report:
    """The tangent of op(source) for the tangent of source, from files to a file. Arguments as in `pool`."""
    with named("jvp"):
        x, dx = open_store(source), open_store(tangent)
        op = of_values(op, x.dtype, derivative=True)
        shape = op.window(x.shape).out_shape
        _same("the tangent", dx, "the source", x.shape, x.dtype)

        def work(target: Target) -> Work:
            return Jvp(op, x, dx, (target,))

        like = Like(shape, x.dtype, chunks, shards, x.axes, options or {}, x)
        return _to_file(destination, "jvp", op, {"the source": x, "the tangent": dx}, like, work, how)


def vjp(
    source: Any,
    cotangent: Any,
    destination: str | os.PathLike[str],
    op: Op,
    *,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
    **how: Unpack[Options],
) -> Report:
    """The cotangent of source for the cotangent of op(source), from files to a file. Arguments as in `pool`."""
    with named("vjp"):
        x, dy = open_store(source), open_store(cotangent)
        op = of_values(op, x.dtype, derivative=True)
        _same("the cotangent", dy, "the result", op.window(x.shape).out_shape, x.dtype)

        def work(target: Target) -> Work:
            return Vjp(op, x, dy, (target,))

        like = Like(x.shape, x.dtype, chunks, shards, x.axes, options or {}, x)
        return _to_file(destination, "vjp", op, {"the source": x, "the cotangent": dy}, like, work, how)


def of_values(op: Any, dtype: np.dtype[Any], derivative: bool = False) -> Op:
    """The record as it is used here: values alone, with all axes; checked against the dtype before anything is made."""
    if not isinstance(op, Op):
        raise PoolTypeError(f"op={op!r} is not a record; use one like ndpool.MaxPool((2, 2, 2))")
    op = values_alone(op)
    if not getattr(op, "keepdims", True):
        op = changed(op, keepdims=True)
    assert isinstance(op, Op)
    dtypes.check(op.law.kinds, op.law.name, op.dtype or dtype)
    if derivative and op.law.no_derivative:
        raise PoolTypeError(op.law.no_derivative)
    if derivative and (op.dtype is not None or dtypes.kind(dtype) not in ("real", "complex")):
        raise PoolTypeError(
            f"a derivative of {dtypes.name(dtype)} is not made here; use a source of floats, and no dtype"
        )
    return op


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401  # with it NumPy knows the name
    return np.dtype(name)


def _same(name: str, store: Store, of: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if store.shape != shape or store.dtype != dtype:
        raise PoolError(
            f"{name} {store.name} is {store.dtype} of shape {store.shape}, but {of} is {dtype} of shape {shape}; give "
            "it these"
        )


def _to_file(
    destination: str | os.PathLike[str],
    what: str,
    op: Op,
    sources: dict[str, Store],
    like: Like,
    work: Callable[[Target], Work],
    how: Options,
) -> Report:
    """One sweep that makes one array."""
    name = os.fspath(destination)
    format = format_of(name)
    target = planned(format, with_chunks(format, like, sources["the source"], work))
    result = Result(place(name))
    apart(sources.values(), result)
    facts = facts_of(what, repr(op), sources, [target], format)
    partial = f"{result.partial}{name[len(os.fspath(place(name))) :]}"

    def stores(new: bool) -> list[Store]:
        return [(create_store if new else reopen_store)(partial, target.like)]

    return carry_out(Job(result, facts, lambda numbers: [work(target)], stores), How.of(how))


def with_chunks(format: str, like: Like, source: Store, work: Callable[[Target], Work]) -> Like:
    """`like` with the chunks that it is to have. Where nobody says it they are the source's, or smaller where so much
    source is read for one of them that few fit into memory."""
    if like.chunks is not None or like.shards is not None or format != "zarr":
        return like
    known = source.encoded and len(source.chunks) == len(like.shape)
    chunks = list(source.chunks if known else planned(format, like).chunks)
    while max(chunks, default=0) >= SMALL:
        like = replace(like, chunks=tuple(chunks))
        need = work(planned(format, like)).needs[0]
        if need.held(tuple(slice(0, min(c, n)) for c, n in zip(chunks, like.shape, strict=True))) <= UNIT_BYTES:
            break
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return replace(like, chunks=tuple(chunks))


def apart(sources: Iterable[Store], result: Result) -> None:
    """Raise if the result, whole or in the making, would take the place of something that is read, or lie inside it."""
    for source in sources:
        read = Path(source.path).resolve() if source.path else None
        for made in (result.place, result.partial):
            there = made.resolve()
            if read is not None and (there == read or there in read.parents or read in there.parents):
                raise PoolError(f"{made} and the source {source.name} lie in one another; write to another place")


def facts_of(what: str, op: str, sources: dict[str, Store], targets: list[Target], format: str) -> dict[str, Any]:
    """What work that goes on must have in common with the work that began, as errors call it."""
    facts: dict[str, Any] = {"the work": what, "the op": op, "the format": format}
    for name, store in sources.items():
        facts[name] = os.path.abspath(store.name) if store.path else store.name
        facts[f"the array of {name}"] = f"{store.dtype.name} {store.shape}"
        facts[f"the state of {name} (size and time)"] = store.state()
    likes = [target.like for target in targets]
    return {
        **facts,
        "the result": [f"{like.dtype.name} {like.shape}" for like in likes],
        "chunks": [like.chunks for like in likes],
        "shards": [like.shards for like in likes],
        "options": [sorted(like.options.items()) for like in likes],
    }
