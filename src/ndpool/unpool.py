"""The two functions that are no records: `max_unpool`, which puts winners back, and `unpad`."""

from __future__ import annotations

from typing import Any

from . import arrays
from .arguments import (
    axes_tuple,
    choice,
    entries,
    layout_letters,
    named,
    numbered,
    pooled_letters,
    rank_of,
    resolve_axes,
    resolve_layout,
    sides,
    sizes,
)
from .engines import namespace, reference, shape_of, unpooling
from .errors import PoolError, PoolTypeError


def max_unpool(
    y: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    output_size: tuple[int, ...] | None = None,
    axes: Any = None,
    layout: str | None = None,
    duplicates: str = "sum",
) -> Any:
    """Put each value of `y` back where `max_pool(..., return_indices=True)` found it; zeros elsewhere.

    `output_size` names the sizes of the pooled axes (or of all axes, the others as in `y`); without it each is
    (n - 1) stride - 2 padding + kernel_size. Where two windows had one winner their values are added, which makes this
    max pooling's vjp at those winners; `duplicates="last"` keeps the last instead. An index of -1 puts nothing.

    >>> from ndpool import max_pool
    >>> y, indices = max_pool([[1, 5, 2, 0], [4, 3, 0, 9]], 2, return_indices=True)
    >>> max_unpool(y, indices, 2)
    [[0, 5, 0, 0], [0, 0, 0, 9]]
    """
    with named("max_unpool"):
        if adapter := arrays.find(y, "y"):
            given = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "output_size": output_size}
            return adapter.unpool(y, indices, given | {"axes": axes, "layout": layout, "duplicates": duplicates})
        shape = shape_of(y, "y")
        if shape_of(indices, "indices") != shape:
            raise PoolError(f"indices has shape {shape_of(indices)}, but y has {shape}; give both the same")
        choice("duplicates", duplicates, ("sum", "last"))
        out, pooled = unpooled_shape(shape, kernel_size, stride, padding, output_size, axes, layout)
        if namespace(indices) is not namespace(y):
            raise PoolTypeError("y and indices are of different kinds; give two arrays or two nested lists")
        run = unpooling.nested if namespace(y) is None else unpooling.arrays
        return run(y, indices, out, pooled, duplicates)


def pooled_axes(arguments: dict[str, Any], ndim: int) -> tuple[int, ...]:
    """The axes that arguments speak of, in the order that these list them: `axes` or `layout`, and sizes."""
    axes, layout = axes_tuple(arguments.get("axes"), names=True), layout_letters(arguments.get("layout"))
    if axes is not None and layout is not None:
        raise PoolError(f"axes={axes} and layout={layout!r} both say which axes are pooled; give one")
    said: dict[str, Any] = {"axes": axes} if layout is None else {"layout": pooled_letters(layout)}
    given = {name: arguments[name] for name in ("kernel_size", "stride", "padding") if name in arguments}
    rank = rank_of(**given, **said)
    return resolve_axes(axes, rank, ndim) if layout is None else resolve_layout(layout, ndim)


def unpooled_shape(
    shape: tuple[int, ...],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    output_size: Any,
    axes: Any,
    layout: str | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape that `max_unpool` gives, and the pooled axes, ascending."""
    kernel_size, padding = sizes("kernel_size", kernel_size, 1), numbered(padding)
    stride = kernel_size if stride is None else sizes("stride", stride, 1)
    given: Any = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "axes": axes, "layout": layout}
    pooled = pooled_axes(given, len(shape))
    given = None if output_size is None else sizes("output_size", output_size, 0)
    whole = isinstance(given, tuple) and len(given) == len(shape)
    wrong = [a for a in range(len(shape)) if whole and a not in pooled and given[a] != shape[a]]
    if wrong:
        fixed = tuple(given[a] if a in pooled else n for a, n in enumerate(shape))
        said = f"axis {wrong[0]}, which is" if len(wrong) == 1 else f"axes {', '.join(map(str, wrong))}, which are"
        raise PoolError(f"output_size={given} is not y's size on {said} not pooled; use output_size={fixed}")
    out = list(shape)
    for i, a in enumerate(pooled):
        k, s, (lo, hi) = (
            entries("kernel_size", kernel_size, len(pooled))[i],
            entries("stride", stride, len(pooled))[i],
            sides(entries("padding", padding, len(pooled))[i]),
        )
        out[a] = (shape[a] - 1) * s - lo - hi + k
        if given is not None:
            out[a] = given[a] if whole else entries("output_size", given, len(pooled))[i]
        elif out[a] < 0:
            raise PoolError(f"on axis {a}, the output would have {out[a]} positions; use less padding or output_size")
    return tuple(out), tuple(sorted(pooled))


def unpad(x: Any, padding: Any, axes: Any = None, layout: str | None = None) -> Any:
    """x without `padding` positions at both ends of its pooled axes (by default the last two).

    >>> unpad([[0, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]], 1)
    [[1, 2]]
    """
    with named("unpad"):
        adapter, padding = arrays.find(x), numbered(padding)
        if adapter:
            axes = arrays.positions(axes, adapter.names(x))
        shape = adapter.shape(x) if adapter else shape_of(x)
        pooled = pooled_axes({"padding": padding, "axes": axes, "layout": layout}, len(shape))
        parts = [slice(None)] * len(shape)
        for a, p in zip(pooled, entries("padding", padding, len(pooled)), strict=True):
            lo, hi = sides(p)
            if lo + hi > shape[a]:
                raise PoolError(f"on axis {a}, padding={p} is more than the input's {shape[a]}; use less")
            parts[a] = slice(lo, shape[a] - hi)
        if adapter:
            return adapter.cut(x, tuple(parts))
        return reference.cut(x, parts) if namespace(x) is None else x[tuple(parts)]
