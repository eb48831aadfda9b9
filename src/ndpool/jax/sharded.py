"""Arrays in parts on several devices: each device pools its own part.

Of an explicit mesh (`jax.sharding.AxisType`) the type of an array says where its parts are. Of an automatic one it does
not: there XLA cuts what it knows, and gathers the parts for a call of an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ..errors import PoolError

Array = Any


def by_parts(f: Callable[..., Any], pooled: tuple[int, ...], dropped: tuple[int, ...], *arrays: Array) -> Any:
    """f(*arrays), part by part where one of them is in parts; results lie as it does, without the `dropped` axes."""
    lies = next((found for a in arrays if any((found := jax.typeof(a).sharding).spec)), None)
    if lies is None:
        return f(*arrays)
    for a in pooled:
        if lies.spec[a] is not None:
            whole = PartitionSpec(*(None if a in pooled else names for a, names in enumerate(lies.spec)))
            raise PoolError(
                f"axis {a} is pooled, but its parts are on other devices (x has {lies.spec}); "
                f"use jax.sharding.reshard(x, {whole})"
            )
    parted = [names if isinstance(names, tuple) else (names,) for names in lies.spec if names is not None]
    run = jax.shard_map(
        f,
        mesh=lies.mesh,
        in_specs=lies.spec,
        out_specs=PartitionSpec(*(names for a, names in enumerate(lies.spec) if a not in dropped)),
        axis_names={name for names in parted for name in names},
    )
    return run(*(jax.sharding.reshard(a, lies) if jax.typeof(a).sharding != lies else a for a in arrays))
