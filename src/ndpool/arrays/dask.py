"""dask's arrays, lazily: one task per block of a result, made of those blocks of x that its windows read.

Nothing is rechunked and nothing is computed here. A layer of tasks is a rule: `Pooled` makes those that are asked for.
What a task does is `blocks.Recipe`; results have the bits that NumPy gives for the whole array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import dask.array
import numpy as np
from dask.array.core import Array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.task_spec import Task, TaskRef

from ..arguments import named
from ..blocks import (
    Edges,
    Met,
    Recipe,
    cotangents,
    edges,
    inputs_met,
    linear_cotangents,
    outputs_met,
    places,
    tangents,
    values,
)
from ..engines import Linear, dtypes
from ..errors import PoolError, PoolTypeError
from ..op import accept
from .adapter import Adapter, changed, values_alone
from .converted import allows, converted

if TYPE_CHECKING:
    from ..op import Op

Key = tuple[Any, ...]
Table = list[list[Met]]  # for each axis, the blocks of a result
Dropped = tuple[int, ...]  # axes that an array has not, and the input has


class DaskArrays(Adapter):
    """Results are cut where x is: an output lies in the block in which its window begins, padding aside."""

    def pool(self, op: Op, x: Any) -> Any:
        alone = values_alone(op)
        dtype = _checked(alone, x)
        y = _outputs("", values, alone, (x,), dtype)
        return (y, _outputs("-places", places, alone, (x,), np.dtype("int64"))) if alone is not op else y

    def linearize(self, op: Op, x: Any) -> Linear:
        op = values_alone(op)
        dtype = _checked(op, x)
        if op.law.divides and dtypes.kind(dtype) == "integer":
            raise PoolTypeError(
                f"a mean of {dtypes.name(dtype)} is rounded and has no derivative; convert x to float32 first"
            )
        real = dtypes.kind(x.dtype) in ("real", "complex")
        shape = op.out_shape(x.shape)

        def jvp(dx: Any) -> Any:
            dx = _tangent(op, "dx", dx, "x", x.shape, x.dtype if real else dtype)
            moved = dtype if dtypes.kind(dtype) in ("real", "complex") else dx.dtype
            if op.law.linear:  # a law of dx alone
                return _outputs("", values, op if real else changed(op, dtype=None), (dx,), moved)
            return _outputs("-jvp", tangents, op, (x, dx), moved)

        def vjp(dy: Any) -> Any:
            dy = _tangent(op, "dy", dy, "y", shape, dtype)
            return _inputs(op, x, dy, x.dtype if real else dy.dtype)

        return Linear(_outputs("", values, op, (x,), dtype), jvp, vjp)


# -- what is asked for -------------------------------------------------------------------------------------------------


def _checked(op: Op, x: Any) -> Any:
    """The dtype of op(x); raises now what would else be an error of every task."""
    if not isinstance(x, Array):
        raise PoolTypeError(
            "x is planned by dask's queries, which have no place for tasks of others; use "
            "dask.config.set({'array.query-planning': False}) before dask.array is imported"
        )
    if any(n != n for n in x.shape):
        raise PoolError("x has chunks of unknown sizes; use x.compute_chunk_sizes()")
    dtype = x.dtype
    if op.dtype is not None:
        allows(dtype, op.dtype)
        dtype = converted(np.zeros(0, dtype), op.dtype).dtype
    dtypes.check(op.law.kinds, op.law.name, dtype)
    op.consider(x.shape)
    return dtype


def _tangent(op: Op, name: str, t: Any, of: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """A tangent as an array of dask's, cut wherever it is."""
    t = dask.array.asarray(t)
    with named(op.name):
        accept(name, np.broadcast_to(np.zeros((), t.dtype), t.shape), of, shape, np, dtype)
    return t


# -- results -----------------------------------------------------------------------------------------------------------


def _dropped(op: Op, ndim: int) -> Dropped:
    """The axes that op's result does not have."""
    return () if getattr(op, "keepdims", True) else op.pooled_axes(ndim)


def _grid(x: Any, dropped: Dropped = ()) -> list[Edges]:
    """Where x is cut, along those axes too that it has dropped."""
    sizes = iter(x.chunks)
    return [(0, 1) if a in dropped else edges(next(sizes)) for a in range(x.ndim + len(dropped))]


def _outputs(label: str, make: Callable[..., Any], op: Op, given: tuple[Any, ...], dtype: Any) -> Any:
    """What `make` gives for blocks of op's outputs, of arrays that have the input's shape."""
    shape = given[0].shape
    grids = zip(*map(_grid, given), strict=True)
    table = [outputs_met(axis, along) for axis, along in zip(op.window(shape).axes, grids, strict=True)]
    recipe = Recipe(make, op, shape, _dropped(op, len(shape)))
    return _array(label, recipe, table, [(array, ()) for array in given], dtype)


def _inputs(op: Op, x: Any, dy: Any, dtype: Any) -> Any:
    """The cotangents of blocks of x. A linear law's do not read x."""
    dropped = _dropped(op, x.ndim)
    grids = zip(op.window(x.shape).axes, _grid(x), _grid(dy, dropped), strict=True)
    table = [inputs_met(*along) for along in grids]
    sources, make = [(x, ()), (dy, dropped)], cotangents
    if op.law.linear:
        table = [[Met(m.bounds, m.blocks[1:], m.edges[1:]) for m in along] for along in table]
        sources, make = sources[1:], partial(linear_cotangents, x.dtype)
    return _array("-vjp", Recipe(make, op, x.shape), table, sources, dtype)


def _array(label: str, recipe: Recipe, table: Table, sources: Sequence[tuple[Any, Dropped]], dtype: Any) -> Any:
    """The array whose blocks a table lists axis by axis, made of `sources` and those axes that they have dropped."""
    arrays = [array for array, _ in sources]
    name = f"{recipe.op.name}{label}-{tokenize(recipe, [array.name for array in arrays])}"
    layer = Pooled(name, recipe, table, [(array.name, dropped) for array, dropped in sources])
    graph = HighLevelGraph.from_collections(name, layer, dependencies=arrays)
    kept = [along for a, along in enumerate(table) if a not in recipe.dropped]
    chunks = tuple(tuple(end - begin for (begin, end), _, _ in along) for along in kept)
    return Array(graph, name, chunks, dtype=dtype, meta=arrays[0]._meta)


class Pooled(Layer):  # type: ignore[misc]  # dask has no types here
    """A task for each block of a result, by a rule: it is made when somebody asks for it, and has nothing of others.

    So the graph of an array of a million blocks is as small as their edges, and a slice of it makes no other tasks.
    """

    has_legacy_tasks = False

    def __init__(self, name: str, recipe: Recipe, table: Table, sources: list[tuple[str, Dropped]]):
        super().__init__()
        self.name, self.recipe, self.table, self.sources = name, recipe, table, sources
        self.blocks = [range(len(along)) for a, along in enumerate(table) if a not in recipe.dropped]

    def __getitem__(self, key: Key) -> Task:
        if key not in self:
            raise KeyError(key)
        return self._task(key, {})

    def _task(self, key: Key, shared: dict[Key, TaskRef]) -> Task:
        index = iter(key[1:])
        met = [along[0 if a in self.recipe.dropped else next(index)] for a, along in enumerate(self.table)]
        recipe = self.recipe.at(tuple(m.bounds for m in met), tuple(zip(*(m.edges for m in met), strict=True)))
        refs = []
        for i, (name, dropped) in enumerate(self.sources):
            along = [m.blocks[i] for a, m in enumerate(met) if a not in dropped]
            refs += [shared.get(of) or shared.setdefault(of, TaskRef(of)) for of in product((name,), *along)]
        return Task(key, recipe, *refs)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, tuple) or len(key) != len(self.blocks) + 1 or key[0] != self.name:
            return False
        return all(i in along for i, along in zip(key[1:], self.blocks, strict=True))

    def __iter__(self) -> Iterator[Key]:
        return product((self.name,), *self.blocks)

    def __len__(self) -> int:
        return math.prod(map(len, self.blocks))

    def is_materialized(self) -> bool:
        return False

    def get_output_keys(self) -> set[Key]:
        return set(self)

    def get_dependencies(self, key: Key, all_hlg_keys: Any) -> set[Key]:
        return set(self[key].dependencies)

    def cull(self, keys: set[Key], all_hlg_keys: Any) -> tuple[Layer, Mapping[Key, set[Key]]]:
        shared: dict[Key, TaskRef] = {}
        tasks = {key: self._task(key, shared) for key in keys if key in self}
        needed = {key: task.dependencies for key, task in tasks.items()}
        return MaterializedLayer(tasks, annotations=self.annotations), needed


ADAPTER = DaskArrays()
