"""Pooling, once: any rank, any scalar, exact derivatives in both directions.

>>> import ndpool
>>> op = ndpool.MaxPool(kernel_size=2, stride=2)
>>> op([[1, 5, 2, 0], [4, 3, 0, 9]])
[[5, 9]]
"""

from typing import Any

from . import arrays, spec
from .api import (
    adaptive_avg_pool,
    adaptive_lp_pool,
    adaptive_max_pool,
    adaptive_min_pool,
    adaptive_mode_pool,
    adaptive_pool,
    adaptive_smooth_max_pool,
    adaptive_sum_pool,
    avg_pool,
    global_avg_pool,
    global_lp_pool,
    global_max_pool,
    global_min_pool,
    global_mode_pool,
    global_pool,
    global_smooth_max_pool,
    global_sum_pool,
    lp_pool,
    max_pool,
    min_pool,
    mode_pool,
    pool,
    ranked,
    smooth_max_pool,
    sum_pool,
)  # fmt: skip
from .engines import Linear
from .engines.dual import DualArray
from .engines.native import kept_memory, set_kept_memory
from .errors import PoolError, PoolTypeError, PoolWarning
from .graph import Graph, GraphError, Program
from .op import Op
from .ops import (
    AdaptiveAvgPool,
    AdaptiveLpPool,
    AdaptiveMaxPool,
    AdaptiveMinPool,
    AdaptiveModePool,
    AdaptivePool,
    AdaptiveSmoothMaxPool,
    AdaptiveSumPool,
    AvgPool,
    GlobalAvgPool,
    GlobalLpPool,
    GlobalMaxPool,
    GlobalMinPool,
    GlobalModePool,
    GlobalPool,
    GlobalSmoothMaxPool,
    GlobalSumPool,
    LpPool,
    MaxPool,
    MinPool,
    ModePool,
    Pool,
    SmoothMaxPool,
    SumPool,
)  # fmt: skip
from .settings import set_threads, threads
from .spec import Dual, Interval, Law, adaptive_end, adaptive_start
from .suggest import attribute
from .unpool import max_unpool, unpad

__version__ = "0.1.0"

__all__ = [
    "AdaptiveAvgPool", "AdaptiveLpPool", "AdaptiveMaxPool", "AdaptiveMinPool", "AdaptiveModePool", "AdaptivePool",
    "AdaptiveSmoothMaxPool", "AdaptiveSumPool", "AvgPool", "Dual", "DualArray", "GlobalAvgPool", "GlobalLpPool",
    "GlobalMaxPool", "GlobalMinPool", "GlobalModePool", "GlobalPool", "GlobalSmoothMaxPool", "GlobalSumPool", "Graph",
    "GraphError", "Interval", "Law", "Linear", "LpPool", "MaxPool", "MinPool", "ModePool", "Op", "Pool", "PoolError",
    "PoolTypeError", "PoolWarning", "Program", "SmoothMaxPool", "SumPool", "adaptive_avg_pool", "adaptive_end",
    "adaptive_lp_pool", "adaptive_max_pool", "adaptive_min_pool", "adaptive_mode_pool", "adaptive_pool",
    "adaptive_smooth_max_pool", "adaptive_start", "adaptive_sum_pool", "arrays", "avg_pool", "global_avg_pool",
    "global_lp_pool", "global_max_pool", "global_min_pool", "global_mode_pool", "global_pool", "global_smooth_max_pool",
    "global_sum_pool", "kept_memory", "lp_pool", "max_pool", "max_unpool", "min_pool", "mode_pool", "pool",
    "set_kept_memory", "set_threads", "smooth_max_pool", "spec", "sum_pool", "threads", "unpad",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The 1d, 2d and 3d spellings: `ndpool.max_pool2d`, `ndpool.AdaptiveAvgPool3d`, ..."""
    found = ranked(name)
    if found is None:
        meant = None if name.startswith("_") else attribute(name, __dir__())
        raise AttributeError(
            f"module 'ndpool' has no attribute {name!r}" + (f"; did you mean {meant!r}?" if meant else "")
        )
    return found


def __dir__() -> list[str]:
    spelled = [f"{name}{rank}d" for name in __all__ if name.lower().endswith("pool") for rank in (1, 2, 3)]
    return [*__all__, "__version__", *spelled]
