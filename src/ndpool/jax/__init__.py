"""ndpool for JAX: pooling with all of JAX's transforms, run by the C++ engine on the CPU.

import ndpool.jax as npx
y = jax.jit(lambda x: npx.max_pool(x, 3, stride=2, padding=1))(x)

`ndpool.jax.reduce_window` takes lax's arguments; `ndpool.jax.flax`, `equinox` and `haiku` take theirs.
"""

from typing import Any

from . import functional
from .functional import apply, max_unpool
from .lax import reduce_window

__all__ = [
    "adaptive_avg_pool",
    "adaptive_lp_pool",
    "adaptive_max_pool",
    "adaptive_min_pool",
    "adaptive_mode_pool",
    "adaptive_smooth_max_pool",
    "adaptive_sum_pool",
    "apply",
    "avg_pool",
    "global_avg_pool",
    "global_lp_pool",
    "global_max_pool",
    "global_min_pool",
    "global_mode_pool",
    "global_smooth_max_pool",
    "global_sum_pool",
    "lp_pool",
    "max_pool",
    "max_unpool",
    "min_pool",
    "mode_pool",
    "reduce_window",
    "smooth_max_pool",
    "sum_pool",
]  # fmt: skip

globals().update({name: getattr(functional, name) for name in functional.NAMES})


def __getattr__(name: str) -> Any:
    found = functional.ranked(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
