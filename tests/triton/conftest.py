"""These tests run in a pytest of their own, from `make unit`: Triton reads TRITON_INTERPRET as it is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("torch") and find_spec("triton")
collect_ignore_glob = [] if interpreted else ["test_*.py"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The interpreter computes with NumPy, which warns of inf - inf where a GPU does not."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True, scope="session")
def _language() -> Iterator[None]:
    """The interpreter replaces the whole language at every call of every function, half of its time. Here: once."""
    import triton.language as tl
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda fn: SimpleNamespace(restore=lambda: None))
        yield
    if scope is not None:  # older releases leave the language as it is
        scope.restore()
