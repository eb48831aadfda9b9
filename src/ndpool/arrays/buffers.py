"""Memory of the CPU in any object: memoryviews, memory maps of files, and what has `__dlpack__`,
`__array_interface__` or `__array__`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import PoolTypeError
from .adapter import From, Held

HOST = (1, 3, 11, 13)  # DLPack's numbers of devices whose memory the CPU reads: its own, pinned, and managed


class Views(Held):
    """memoryviews, as NumPy sees them."""

    def values(self, x: Any) -> Any:
        return np.asarray(x)

    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        return memoryview(np.asarray(y))  # type: ignore[arg-type]  # arrays are buffers


class Mapped(Held):
    """Memory maps of files, which are NumPy arrays of a class of their own; results lie in memory."""

    def values(self, x: Any) -> Any:
        return np.asarray(x)

    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        return y


class Buffers(Held):
    """Other objects, without a copy where they allow it. What has `__dlpack__` comes back by its package's
    `from_dlpack`; where there is none, results are NumPy arrays."""

    def values(self, x: Any) -> Any:
        if not hasattr(x, "__dlpack__"):
            try:
                return np.asarray(x)
            except (TypeError, ValueError) as error:
                raise PoolTypeError(f"x is a {type(x).__name__} that gives no array ({error}); make it one") from error
        device = x.__dlpack_device__()
        if device[0] not in HOST:
            raise PoolTypeError(f"x lies on device {tuple(map(int, device))} of DLPack; move it to the CPU")
        return np.from_dlpack(x)

    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        package = sys.modules.get(type(x).__module__.partition(".")[0])
        back = getattr(package, "from_dlpack", None) if hasattr(x, "__dlpack__") else None
        return y if back is None else back(np.asarray(y))


VIEWS, MAPPED, ADAPTER = Views(), Mapped(), Buffers()
