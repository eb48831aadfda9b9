"""Elements and nothing else, mapped: what they are is said by whoever opens the file."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import PoolError
from .mapped import Layout, Mapped, new_file, order_of
from .store import Like, Store, check_options


def open(name: str, options: dict[str, Any]) -> Store:
    check_options(name, options, ("shape", "dtype", "order", "offset"))
    if "shape" not in options or "dtype" not in options:
        raise PoolError(f"{name}: says nothing of itself; give shape= and dtype=, as shape=(512, 512), dtype='uint16'")
    shape, offset = options["shape"], options.get("offset", 0)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    for key, sizes in (("shape", shape), ("offset", (offset,))):
        if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes):
            raise PoolError(f"{name}: {key}={options[key]!r} is made of integers from 0 on")
    return Mapped(name, Layout(int(offset), tuple(map(int, shape)), _dtype(name, options), order_of(name, options)))


def _dtype(name: str, options: dict[str, Any]) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16

    try:
        found: np.dtype[Any] = np.dtype(options["dtype"])
        return found
    except TypeError as error:
        raise PoolError(f"{name}: dtype={options['dtype']!r} is no dtype; use a name as 'uint16' or '>f4'") from error


def check(name: str, like: Like) -> None:
    check_options(name, like.options, ("order",))
    order_of(name, like.options)


def create(name: str, like: Like) -> Store:
    layout = Layout(0, like.shape, like.dtype, order_of(name, like.options))
    new_file(name, b"", layout.nbytes)
    return Mapped(name, layout)
