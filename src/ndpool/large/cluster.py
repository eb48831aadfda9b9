"""Tiles made by the workers of a dask cluster: each opens the files for itself, so the client moves no data."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from distributed import Client

from ..errors import PoolError


@contextmanager
def workers(cluster: Any) -> Iterator[tuple[Executor, int]]:
    """An executor on a cluster, given by the address of its scheduler or by a client, and the number of its threads.

    A task whose worker dies is done again by another one: a tile that is made twice has the same bits.
    """
    own = not isinstance(cluster, Client)
    try:
        client = Client(cluster, timeout=30) if own else cluster
    except (OSError, ValueError) as error:
        raise PoolError(f"cluster={cluster!r}: no scheduler answers there ({error})") from error
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise PoolError(f"cluster={cluster!r} has no workers; start some, as with `dask worker ADDRESS`")
        yield client.get_executor(pure=False), threads
    finally:
        if own:
            client.close()
