"""ndpool for JAX: pooling with all of JAX's transforms, run by the C++ engine on the CPU.

import ndpool.jax as npx
y = jax.jit(lambda x: npx.max_pool(x, 3, stride=2, padding=1))(x)

`ndpool.jax.reduce_window` takes lax's arguments; `ndpool.jax.flax`, `equinox` and `haiku` take theirs.
"""

from typing import Any

from . import functional
from .functional import apply

__all__ = ["apply"]
__all__ += functional.NAMES

globals().update({name: getattr(functional, name) for name in functional.NAMES})


def __getattr__(name: str) -> Any:
    found = functional.ranked(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
