"""Spelling: a function for every record, and the names with 1d, 2d and 3d that people's fingers know.

This is the only file where a rank stands in a name; each such name fixes `axes` to the last one, two or three.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Concatenate, ParamSpec

from . import ops
from .arguments import axes_tuple, choice, entries, named, numbered, rank_of, resolve_axes, sides, sizes
from .engines import namespace, reference, shape_of, unpooling
from .errors import PoolError, PoolTypeError
from .op import Op, function_name
from .suggest import ARGUMENTS

P = ParamSpec("P")


def _function(record: Callable[P, Op]) -> Callable[Concatenate[Any, P], Any]:
    """`function(x, *args)` is `record(*args)(x)`."""

    made = lru_cache(maxsize=256, typed=True)(record)

    def call(x: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            op = made(*args, **kwargs)  # type: ignore[arg-type]  # what has no hash is caught
        except TypeError:  # arguments that cannot be remembered, or wrong ones
            try:
                op = record(*args, **kwargs)
            except TypeError as error:
                raise error from error.__cause__  # said once, not twice
        return op(x)

    own = inspect.signature(record)
    x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY, annotation=Any)
    call.__signature__ = own.replace(parameters=[x, *own.parameters.values()], return_annotation=Any)  # type: ignore[attr-defined]
    call.__doc__ = f"`{record.__name__}(...)(x)`. {record.__doc__}"
    call.__name__ = call.__qualname__ = function_name(record.__name__)
    call.__module__ = "ndpool"
    return call


max_pool = _function(ops.MaxPool)
min_pool = _function(ops.MinPool)
avg_pool = _function(ops.AvgPool)
sum_pool = _function(ops.SumPool)
smooth_max_pool = _function(ops.SmoothMaxPool)
lp_pool = _function(ops.LpPool)
pool = _function(ops.Pool)
adaptive_max_pool = _function(ops.AdaptiveMaxPool)
adaptive_min_pool = _function(ops.AdaptiveMinPool)
adaptive_avg_pool = _function(ops.AdaptiveAvgPool)
adaptive_sum_pool = _function(ops.AdaptiveSumPool)
adaptive_smooth_max_pool = _function(ops.AdaptiveSmoothMaxPool)
adaptive_lp_pool = _function(ops.AdaptiveLpPool)
adaptive_pool = _function(ops.AdaptivePool)
global_max_pool = _function(ops.GlobalMaxPool)
global_min_pool = _function(ops.GlobalMinPool)
global_avg_pool = _function(ops.GlobalAvgPool)
global_sum_pool = _function(ops.GlobalSumPool)
global_smooth_max_pool = _function(ops.GlobalSmoothMaxPool)
global_lp_pool = _function(ops.GlobalLpPool)
global_pool = _function(ops.GlobalPool)


def max_unpool(
    y: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    output_size: tuple[int, ...] | None = None,
    axes: Any = None,
    duplicates: str = "sum",
) -> Any:
    """Put each value of `y` back where `max_pool(..., return_indices=True)` found it; zeros elsewhere.

    `output_size` names the sizes of the pooled axes (or of all axes, the others as in `y`); without it each is
    (n - 1) stride - 2 padding + kernel_size. Where two windows had one winner their values are added, which makes this
    max pooling's vjp at those winners; `duplicates="last"` keeps the last instead. An index of -1 puts nothing.

    >>> y, indices = max_pool([[1, 5, 2, 0], [4, 3, 0, 9]], 2, return_indices=True)
    >>> max_unpool(y, indices, 2)
    [[0, 5, 0, 0], [0, 0, 0, 9]]
    """
    with named("max_unpool"):
        shape = shape_of(y, "y")
        if shape_of(indices, "indices") != shape:
            raise PoolError(f"indices has shape {shape_of(indices)}, but y has {shape}; give both the same")
        choice("duplicates", duplicates, ("sum", "last"))
        out, pooled = unpooled_shape(shape, kernel_size, stride, padding, output_size, axes)
        if namespace(indices) is not namespace(y):
            raise PoolTypeError("y and indices are of different kinds; give two arrays or two nested lists")
        run = unpooling.nested if namespace(y) is None else unpooling.arrays
        return run(y, indices, out, pooled, duplicates)


def unpooled_shape(
    shape: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, output_size: Any, axes: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape that `max_unpool` gives, and the pooled axes, ascending."""
    kernel_size, padding = sizes("kernel_size", kernel_size, 1), numbered(padding)
    stride = kernel_size if stride is None else sizes("stride", stride, 1)
    axes = axes_tuple(axes)
    pooled = resolve_axes(axes, rank_of(kernel_size=kernel_size, stride=stride, padding=padding, axes=axes), len(shape))
    given = None if output_size is None else sizes("output_size", output_size, 0)
    whole = isinstance(given, tuple) and len(given) == len(shape)
    wrong = [a for a in range(len(shape)) if whole and a not in pooled and given[a] != shape[a]]  # type: ignore[index]
    if wrong:
        fixed = tuple(given[a] if a in pooled else n for a, n in enumerate(shape))  # type: ignore[index]
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
            out[a] = given[a] if whole else entries("output_size", given, len(pooled))[i]  # type: ignore[index]
        elif out[a] < 0:
            raise PoolError(f"on axis {a}, the output would have {out[a]} positions; use less padding or output_size")
    return tuple(out), tuple(sorted(pooled))


def unpad(x: Any, padding: Any, axes: Any = None) -> Any:
    """x without `padding` positions at both ends of its pooled axes (by default the last two).

    >>> unpad([[0, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]], 1)
    [[1, 2]]
    """
    with named("unpad"):
        shape, padding, axes = shape_of(x), numbered(padding), axes_tuple(axes)
        pooled = resolve_axes(axes, rank_of(padding=padding, axes=axes), len(shape))
        parts = [slice(None)] * len(shape)
        for a, p in zip(pooled, entries("padding", padding, len(pooled)), strict=True):
            lo, hi = sides(p)
            if lo + hi > shape[a]:
                raise PoolError(f"on axis {a}, padding={p} is more than the input's {shape[a]}; use less")
            parts[a] = slice(lo, shape[a] - hi)
        return reference.cut(x, parts) if namespace(x) is None else x[tuple(parts)]


def rank_in(name: str) -> tuple[str, tuple[int, ...]] | None:
    """The name without its rank, and the last axes that the rank stands for.

    >>> rank_in("max_pool2d"), rank_in("max_pool")
    (('max_pool', (-2, -1)), None)
    """
    match = re.fullmatch(r"(\w+)([123])d", name)
    return (match[1], tuple(range(-int(match[2]), 0))) if match else None


def ranked(name: str) -> Any:
    """`max_pool2d` is `max_pool` on the last two axes; `MaxPool2d` makes a `MaxPool` of them. None for other names.

    >>> ranked("max_pool1d")([1, 5, 2, 0], 2)
    [5, 2]
    >>> ranked("MaxPool2d")(3, stride=2)
    MaxPool(kernel_size=3, stride=2, axes=(-2, -1))
    """
    stem, axes = rank_in(name) or ("", ())
    target = globals().get(stem) or getattr(ops, stem, None) if stem.lower().endswith("pool") else None
    if not target:
        return None

    def spelled(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, axes=axes, **kwargs)
        except TypeError:
            for given in kwargs:
                if given == "axes" or given in ARGUMENTS["axes"]:
                    raise PoolTypeError(
                        f"{name}: takes no {given}, because it pools axes {axes}; use {stem}(..., axes=...)"
                    ) from None
            raise

    spelled.__name__ = spelled.__qualname__ = name
    spelled.__doc__ = f"`{stem}` with axes={axes}. {target.__doc__}"
    spelled.__module__ = "ndpool"
    return spelled
