"""The native engine: the C++ kernels of the extension `ndpool._native`, for NumPy arrays on the CPU.

The extension is built when the package is installed, if a compiler is there; `available` and `reason` say if it is.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any


@cache
def _load() -> tuple[Any, str]:
    """The extension and "", or None and why there is none."""
    try:
        return importlib.import_module("ndpool._native"), ""
    except ModuleNotFoundError:
        return None, (
            "the extension was not built when ndpool was installed; install GCC or Clang, "
            "then install ndpool again with NDPOOL_NATIVE=1, which shows what stops the build"
        )
    except ImportError as error:
        return None, f"the extension does not load ({error}); install ndpool again on this machine"


def reason() -> str:
    """Why this engine is not in use and what to do about it, in one sentence; empty if it is."""
    if os.environ.get("NDPOOL_ENGINE") == "portable":
        return "NDPOOL_ENGINE=portable asks for the portable engine; unset it to use this one"
    return _load()[1]


def available() -> bool:
    """Whether this engine is in use."""
    return not reason()


def isa() -> str:
    """The instruction set in use."""
    return str(_load()[0].isa())


def isas() -> tuple[str, ...]:
    """The instruction sets built in, best first."""
    return tuple(_load()[0].isas())


def threads() -> int:
    """The most threads a run uses."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
