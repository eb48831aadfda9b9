"""These tests run in a pytest of their own, from `make unit`: Triton reads TRITON_INTERPRET as it is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("torch") and find_spec("triton")
collect_ignore_glob = [] if interpreted else ["test_*.py"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The interpreter computes with NumPy, which warns of inf - inf where a GPU does not."""
    with np.errstate(all="ignore"):
        yield
