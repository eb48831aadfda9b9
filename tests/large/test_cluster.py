"""Tiles made by the workers of a dask cluster: the bits of this process, whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool import PoolError
from ndpool.large import jvp, pool, pyramid, run, store, vjp
from ndpool.large.store import open_store

from .made import assert_bits, held, in_tiles, left, put

distributed = pytest.importorskip("distributed", reason="a cluster is distributed's")
dask = pytest.importorskip("dask", reason="a cluster is dask's")
zarr = pytest.importorskip("zarr", reason="what workers read is an array of zarr's")

X = np.random.default_rng(0).normal(size=(48, 20, 12)).astype("f4")
CHUNKS = (4, 8, 12)
OP = ndpool.AvgPool((3, 2), stride=(2, 1), padding=(1, 0), axes=(0, 1))
TILES = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two processes, each of two threads."""
    config = {"distributed.admin.log-length": 0, "temporary-directory": str(tmp_path_factory.mktemp("dask"))}
    with (
        dask.config.set(config),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address=":0", silence_logs=50
        ) as local,
    ):
        yield local


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with X in files; work on it is done in some tiles."""
    monkeypatch.setattr(run, "choose", in_tiles(TILES))
    monkeypatch.setattr(run, "resident", lambda: 0)  # other tests may have left gigabytes in this process
    np.save(tmp_path / "x.npy", X)
    put(tmp_path / "x.zarr", X, CHUNKS)
    return tmp_path


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "to"), [("x.npy", "y.npy"), ("x.zarr", "y.zarr")])
def test_pool(source: str, to: str, sources: Path, cluster: Any) -> None:
    report = pool(sources / source, sources / to, OP, cluster=cluster.scheduler_address)
    assert report.made == report.tiles > 1
    assert_bits(held(open_store(sources / to)), OP(X))
    assert left(sources) == ["x.npy", "x.zarr", to]


def test_derivatives_by_a_client(sources: Path, cluster: Any) -> None:
    """A client of the user's is used, and stays open."""
    dy = np.random.default_rng(1).normal(size=OP(X).shape).astype("f4")
    np.save(sources / "dy.npy", dy)
    with distributed.Client(cluster) as client:
        vjp(sources / "x.zarr", sources / "dy.npy", sources / "dx.npy", OP, cluster=client)
        jvp(sources / "x.zarr", sources / "x.npy", sources / "ty.npy", OP, cluster=client)
        assert client.submit(abs, -1).result() == 1
    assert_bits(np.load(sources / "dx.npy"), OP.vjp(X, dy))
    assert_bits(np.load(sources / "ty.npy"), OP.jvp(X, X))


def test_pyramid(sources: Path, cluster: Any) -> None:
    """Later sweeps read what workers have written."""
    for to, how in (("here.ome.zarr", {}), ("there.ome.zarr", {"cluster": cluster.scheduler_address})):
        pyramid(sources / "x.zarr", sources / to, levels=3, **how)
    for level in "0123":
        here, there = (held(open_store(sources / one / level)) for one in ("here.ome.zarr", "there.ome.zarr"))
        assert_bits(there, here)


# -- a worker that dies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["y.zarr", "y.ome.zarr"])
def test_a_worker_is_killed(to: str, sources: Path, cluster: Any) -> None:
    """Another one makes its tiles again, and a new one comes."""
    with distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        victim = next(iter(client.run(os.getpid).values()))

        def kill(done: int, total: int) -> None:
            if 0 < done < total and victim not in killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

        killed: list[int] = []
        if to == "y.zarr":
            report = pool(sources / "x.zarr", sources / to, OP, cluster=client, progress=kill)
            assert_bits(held(open_store(sources / to)), OP(X))
        else:
            report = pyramid(sources / "x.zarr", sources / to, levels=1, cluster=client, progress=kill)
            assert_bits(held(open_store(sources / to / "0")), X)
            mean = ndpool.AvgPool((2, 2, 2), ceil_mode=True)
            assert_bits(held(open_store(sources / to / "1")), mean(X))
        assert killed == [victim]
        assert report.made == report.tiles > 1
    assert left(sources) == ["x.npy", "x.zarr", to]
    assert not list((sources / to).rglob("*unfinished*"))


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_counts_the_threads_of_a_worker(sources: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker makes a tile in each of its threads, and all have to fit; the client's threads do not count."""
    how: dict[str, Any] = {"dry_run": True, "chunks": CHUNKS, "memory": "20GB"}
    one = pool(sources / "x.zarr", sources / "y.zarr", OP, threads=1, **how).sweeps[0].plan.tile_bytes
    report = pool(sources / "x.zarr", sources / "y.zarr", OP, threads=1, cluster=cluster.scheduler_address, **how)
    assert report.sweeps[0].plan.at_a_time == 2
    monkeypatch.setattr(run, "room", lambda memory: 2 * one - 1)
    pool(sources / "x.zarr", sources / "y.zarr", OP, threads=4, **how)
    with pytest.raises(
        PoolError, match=r"memory=20GB is too little: .*each worker makes 2 at a time.*use memory=[0-9]+MiB"
    ):
        pool(sources / "x.zarr", sources / "y.zarr", OP, cluster=cluster.scheduler_address, **how)
    assert left(sources) == ["x.npy", "x.zarr"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def in_memory() -> Any:
    """X as zarr's, in no file."""
    return zarr.array(X, chunks=CHUNKS, store=zarr.storage.MemoryStore())


IN_MEMORY: dict[str, Callable[..., Any]] = {
    "array": lambda **how: pool(X, "y.npy", OP, **how),
    "zarr": lambda **how: pool(in_memory(), "y.npy", OP, **how),
    "store": lambda **how: pool(open_store(X), "y.npy", OP, dry_run=True, **how),
    "pyramid": lambda **how: pyramid(X, "y.ome.zarr", **how),
    "cotangent": lambda **how: vjp("x.npy", OP(X), "y.npy", OP, **how),
}


@pytest.mark.parametrize("what", IN_MEMORY)
def test_what_is_in_no_file_is_refused(what: str, sources: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tile would take all of it to its worker."""
    monkeypatch.chdir(sources)
    with pytest.raises(PoolError, match=r"is in no file, and workers read files; save it as .npy or .zarr, or leave"):
        IN_MEMORY[what](cluster=cluster.scheduler_address)
    assert left(sources) == ["x.npy", "x.zarr"]


def test_no_scheduler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndpool.large.cluster.PATIENCE", 0.3)
    with pytest.raises(PoolError, match=r"cluster='tcp://127.0.0.1:9': no scheduler answers there"):
        pool(sources / "x.npy", sources / "y.npy", OP, cluster="tcp://127.0.0.1:9")
    assert left(sources) == ["x.npy", "x.zarr"]


MISSING = """
import sys
sys.modules["distributed"] = None
from ndpool import cli
sys.exit(cli.main(sys.argv[1:]))
"""


def test_without_distributed(sources: Path) -> None:
    """The error says what to install."""
    argv = ["pool", "x.npy", "y.npy", "--kernel", "2,2,2", "--cluster", "tcp://127.0.0.1:9"]
    root = Path(store.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MISSING, *argv], cwd=sources, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "ndpool: pool: cluster= needs distributed, which is not installed; pip install 'ndpool[large]'\n"
    )
    assert left(sources) == ["x.npy", "x.zarr"]
