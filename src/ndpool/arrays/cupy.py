"""CuPy's arrays: as torch tensors on the same memory, by DLPack, which run on the Triton engine.

Without a torch that reaches the GPU they stay with the portable engine, as any array-API array.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from .adapter import From, Held


class Borrowed(Held):
    """Arrays whose memory torch is lent, and whose package takes torch's results: no copy either way."""

    def values(self, x: Any) -> Any:
        return importlib.import_module("torch").from_dlpack(x)

    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        return sys.modules[type(x).__module__.partition(".")[0]].from_dlpack(y.contiguous())


def reached() -> bool:
    """Whether torch is there and has a GPU."""
    return bool(importlib.util.find_spec("torch")) and bool(importlib.import_module("torch").cuda.is_available())


ADAPTER = Borrowed() if reached() else None
