"""Fixtures of the adapter's tests, which are left out where there is no JAX."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("jax") else ["*.py"]


@pytest.fixture(autouse=True)
def _wide(request: pytest.FixtureRequest) -> Iterator[None]:
    """64-bit numbers, unless a test is marked `narrow`."""
    import jax

    with jax.enable_x64("narrow" not in request.keywords):
        yield


@pytest.fixture(autouse=True)
def _forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """Long tables compile thousands of programs, whose memory one process has not."""
    yield
    if "long" in request.keywords:
        import jax

        jax.clear_caches()


@pytest.fixture(params=["handler", "composed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of the ways that a primitive runs: XLA's call of the engine, or JAX's own operations."""
    from .ways import use

    with use(request.param, monkeypatch):
        yield str(request.param)
