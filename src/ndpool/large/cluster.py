"""Tiles made by the workers of a dask cluster: each opens the files for itself, so the client moves no data."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from distributed import Client

from ..errors import PoolError

PATIENCE = 30.0  # seconds that a scheduler has to answer in


def threads_of(cluster: Any) -> tuple[int, ...]:
    """How many threads each worker has."""
    with _client(cluster) as client:
        found = tuple(client.nthreads().values())
    if not sum(found):
        raise PoolError(f"cluster={cluster!r} has no workers; start some, as with `dask worker ADDRESS`")
    return found


@contextmanager
def workers(cluster: Any) -> Iterator[Executor]:
    """What makes tiles on a cluster.

    A task whose worker dies is done again by another one: a tile that is made twice has the same bits.
    """
    with _client(cluster) as client:
        yield client.get_executor(pure=False)


@contextmanager
def _client(cluster: Any) -> Iterator[Any]:
    """The client of a cluster that is given by the address of its scheduler, or by a client, which stays open."""
    if isinstance(cluster, Client):
        yield cluster
        return
    try:
        client = Client(cluster, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise PoolError(f"cluster={cluster!r}: no scheduler answers there ({error})") from error
    try:
        yield client
    finally:
        client.close()
