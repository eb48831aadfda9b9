"""dask's arrays, lazily: a record runs on each chunk. Chunks along a pooled axis must not be crossed by windows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import dask.array

from ..engines import Linear
from ..errors import PoolError
from ..forms import Sliding
from ..spec import Axis
from .adapter import Adapter, changed, values_alone

if TYPE_CHECKING:
    from ..op import Op


class Chunks(Adapter):
    """Nothing is computed here, and nothing is moved between chunks."""

    def pool(self, op: Op, x: Any) -> Any:
        if dropped := _dropped(op, x):
            found = self.pool(changed(op, keepdims=True), x)
            parts = found if isinstance(found, tuple) else (found,)
            squeezed = tuple(dask.array.squeeze(part, dropped) for part in parts)
            return squeezed if isinstance(found, tuple) else squeezed[0]
        if not getattr(op, "return_indices", False):
            return self._map(op, x)
        alone = self._map(values_alone(op), x)
        if any(len(x.chunks[a]) > 1 for a in op.pooled_axes(x.ndim)):
            raise PoolError(f"return_indices=True numbers positions of whole axes; use {_rechunked(op, x)}")
        places = dask.array.map_blocks(partial(_places, op), x, dtype="int64", chunks=alone.chunks)
        return alone, places

    def linearize(self, op: Op, x: Any) -> Linear:
        op = values_alone(op)
        if dropped := _dropped(op, x):
            at = self.linearize(changed(op, keepdims=True), x)
            return Linear(
                dask.array.squeeze(at.y, dropped),
                lambda dx: dask.array.squeeze(at.jvp(dx), dropped),
                lambda dy: at.vjp(dask.array.expand_dims(dask.array.asarray(dy), dropped)),
            )
        y = self._map(op, x)
        back = x.dtype if op.dtype is None or x.dtype.kind in "fc" else op.dtype

        def jvp(dx: Any) -> Any:
            dx = dask.array.asarray(dx).rechunk(x.chunks)
            return dask.array.map_blocks(op.jvp, x, dx, dtype=y.dtype, chunks=y.chunks, meta=y._meta)

        def vjp(dy: Any) -> Any:
            dy = dask.array.asarray(dy).rechunk(y.chunks)
            return dask.array.map_blocks(op.vjp, x, dy, dtype=back, chunks=x.chunks, meta=x._meta.astype(back))

        return Linear(y, jvp, vjp)

    def _map(self, op: Op, x: Any) -> Any:
        """op on each chunk of x."""
        meta = x._meta.astype(op.dtype or x.dtype)
        return dask.array.map_blocks(op, x, dtype=meta.dtype, chunks=_chunks(op, x), meta=meta)


def _dropped(op: Op, x: Any) -> tuple[int, ...]:
    """The axes that the result does not have."""
    return () if getattr(op, "keepdims", True) else op.pooled_axes(x.ndim)


def _places(op: Op, block: Any) -> Any:
    return op(block)[1]


def _chunks(op: Op, x: Any) -> tuple[tuple[int, ...], ...]:
    """How many outputs each chunk has along each axis; raises where a window reads more than one chunk."""
    if any(n != n for sizes in x.chunks for n in sizes):
        raise PoolError("x has chunks of unknown sizes; use x.compute_chunk_sizes()")
    window, found = op.window(x.shape), []
    for a, (axis, sizes) in enumerate(zip(window.axes, x.chunks, strict=True)):
        if axis.is_identity:
            found.append(sizes)
        elif len(sizes) == 1:
            found.append((axis.outputs,))
        elif _apart(op, axis, sizes):
            ends = [-(-n // axis.stride) for n in sizes[:-1]]
            found.append((*ends, axis.outputs - sum(ends)))
        else:
            raise PoolError(f"windows read across the chunks {sizes} of axis {a} of x; use {_rechunked(op, x)}")
    return tuple(found)


def _apart(op: Op, axis: Axis, sizes: tuple[int, ...]) -> bool:
    """Whether every window lies in one chunk, and each chunk can be pooled as if it were alone."""
    tiles = isinstance(op, Sliding) and op.padding in (0, "same") and axis.lo == 0 and axis.extent <= axis.stride
    whole = all(n % axis.stride == 0 for n in sizes[:-1])
    return tiles and whole and axis.start(axis.outputs - 1) >= sum(sizes[:-1])


def _rechunked(op: Op, x: Any) -> str:
    """What makes one chunk of every pooled axis that is cut."""
    cut = {a: -1 for a in op.pooled_axes(x.ndim) if len(x.chunks[a]) > 1}
    return f"x.rechunk({cut})"


ADAPTER = Chunks()
