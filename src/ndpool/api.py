"""Spelling: a function for every record, and the names with 1d, 2d and 3d that people's fingers know.

This is the only file where a rank stands in a name; each such name fixes `axes` to the last one, two or three.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Concatenate, ParamSpec

from . import arrays, ops
from .errors import PoolTypeError
from .op import Op, function_name
from .suggest import ARGUMENTS
from .unpool import max_unpool as max_unpool  # for `ranked`

P = ParamSpec("P")


def _function(record: Callable[P, Op]) -> Callable[Concatenate[Any, P], Any]:
    """`function(x, *args)` is `record(*args)(x)`."""

    made = lru_cache(maxsize=256, typed=True)(record)
    name = function_name(record.__name__)

    def call(x: Any, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if arrays.compiler is not None and arrays.compiler.is_tracing() and arrays.compiler.takes(x):
            return arrays.compiler.call(name, x, out, *args, **kwargs)
        try:
            op = made(*args, **kwargs)
        except TypeError:  # arguments that cannot be remembered, or wrong ones
            try:
                op = record(*args, **kwargs)
            except TypeError as error:
                raise error from error.__cause__  # said once, not twice
        return op(x) if out is None else op(x, out)

    own = inspect.signature(record)
    x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY, annotation=Any)
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    call.__signature__ = own.replace(parameters=[x, *own.parameters.values(), out], return_annotation=Any)  # type: ignore[attr-defined]
    call.__doc__ = f"`{record.__name__}(...)(x)`. {record.__doc__}"
    call.__name__ = call.__qualname__ = name
    call.__module__ = "ndpool"
    return call


max_pool = _function(ops.MaxPool)
min_pool = _function(ops.MinPool)
mode_pool = _function(ops.ModePool)
avg_pool = _function(ops.AvgPool)
sum_pool = _function(ops.SumPool)
smooth_max_pool = _function(ops.SmoothMaxPool)
lp_pool = _function(ops.LpPool)
pool = _function(ops.Pool)
adaptive_max_pool = _function(ops.AdaptiveMaxPool)
adaptive_min_pool = _function(ops.AdaptiveMinPool)
adaptive_mode_pool = _function(ops.AdaptiveModePool)
adaptive_avg_pool = _function(ops.AdaptiveAvgPool)
adaptive_sum_pool = _function(ops.AdaptiveSumPool)
adaptive_smooth_max_pool = _function(ops.AdaptiveSmoothMaxPool)
adaptive_lp_pool = _function(ops.AdaptiveLpPool)
adaptive_pool = _function(ops.AdaptivePool)
global_max_pool = _function(ops.GlobalMaxPool)
global_min_pool = _function(ops.GlobalMinPool)
global_mode_pool = _function(ops.GlobalModePool)
global_avg_pool = _function(ops.GlobalAvgPool)
global_sum_pool = _function(ops.GlobalSumPool)
global_smooth_max_pool = _function(ops.GlobalSmoothMaxPool)
global_lp_pool = _function(ops.GlobalLpPool)
global_pool = _function(ops.GlobalPool)


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
