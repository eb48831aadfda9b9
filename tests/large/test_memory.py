"""What a whole process holds at most, from its first import to the result, stays within `memory=`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from .made import put

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is Linux's")

RUN = """
import os, sys
import numpy as np, zarr, ml_dtypes
import ndpool
from ndpool import large
from ndpool.large.run import resident
from ndpool.spec import lp

call, room, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.chdir(folder)
how = {"memory": resident() + (room << 20), "threads": 2}
report = eval(call)
peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10
print(how["memory"], peak, report.peak, report.tiles)
"""

CHUNK = (50, 50, 50)
CALLS: dict[str, tuple[str, int]] = {  # the call, and the megabytes beside what the process holds without it
    "npy": ("large.pool('f.npy', 'to.npy', ndpool.MaxPool((2, 2, 2)), **how)", 60),
    "npy to zarr": ("large.pool('f.npy', 'to.zarr', ndpool.AvgPool((2, 2, 2)), chunks=(50, 50, 50), **how)", 80),
    "zarr": ("large.pool('f.zarr', 'to.zarr', ndpool.MaxPool((2, 2, 2)), **how)", 60),
    "zarr of bytes": ("large.pool('u.zarr', 'to.zarr', ndpool.MaxPool((3, 3, 3), 2, 1), **how)", 60),
    "overlapping npy": ("large.pool('f.npy', 'to.npy', ndpool.MaxPool((9, 9, 9), 1), **how)", 100),
    "overlapping zarr": ("large.pool('f.zarr', 'to.zarr', ndpool.AvgPool((9, 9, 9), 1), **how)", 100),
    "pyramid": ("large.pyramid('u.zarr', 'to.ome.zarr', **how)", 80),
    "means of bytes": ("large.pool('u.npy', 'to.npy', ndpool.AvgPool((3, 3, 3), 1, dtype='float64'), **how)", 100),
    "bytes as floats": ("large.pool('u.npy', 'to.npy', ndpool.AvgPool((4, 4, 4), dtype='float64'), **how)", 60),
    "sums of frames": ("large.pool('u.npy', 'to.npy', ndpool.SumPool((2, 2), axes=(1, 2), dtype='int64'), **how)", 60),
    "complex": ("large.pool('c.npy', 'to.npy', ndpool.SumPool((2, 2), 1, axes=(1, 2)), **how)", 96),
    "a law of its own": ("large.pool('f.npy', 'to.npy', ndpool.Pool(lp(2), (2, 2, 2)), **how)", 60),
    "modes": ("large.pool('u.npy', 'to.npy', ndpool.ModePool((2, 2, 2)), **how)", 60),
    "all": ("large.pool('f.npy', 'to.npy', ndpool.GlobalAvgPool(), **how)", 60),
    "vjp of max": ("large.vjp('f.npy', 'y.npy', 'to.npy', ndpool.MaxPool((2, 2, 2)), **how)", 60),
    "vjp of means": ("large.vjp('f.npy', 'y.npy', 'to.npy', ndpool.AvgPool((2, 2, 2)), **how)", 60),
    "vjp of smooth max": ("large.vjp('f.zarr', 'y.npy', 'to.zarr', ndpool.SmoothMaxPool((2, 2, 2)), **how)", 100),
    "jvp of max": ("large.jvp('f.npy', 'f.npy', 'to.npy', ndpool.MaxPool((2, 2, 2)), **how)", 60),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Noise, which no codec shortens: 100 MB of floats, of bytes and of complex numbers, and a cotangent."""
    folder = tmp_path_factory.mktemp("memory")
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((300, 300, 300), "float32")
    put(folder / "f.npy", floats)
    put(folder / "y.npy", floats[::2, ::2, ::2])
    put(folder / "c.npy", floats.view("complex64"))
    put(folder / "f.zarr", floats, CHUNK, codec="none")
    noise = rng.integers(0, 256, (400, 500, 500), "u1")
    put(folder / "u.npy", noise)
    put(folder / "u.zarr", noise, (100, 100, 100), codec="none")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", CALLS)
def test_the_process_stays_within_memory(folder: Path, name: str) -> None:
    call, room = CALLS[name]
    to = f"to-{list(CALLS).index(name)}"
    command = [sys.executable, "-c", RUN, call.replace("'to.", f"'{to}."), str(room), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    memory, peak, said, tiles = map(int, ran.stdout.split())
    print(f"{name}: {peak / 2**20:.0f} MiB of {memory / 2**20:.0f}, planned {said / 2**20:.0f}, in {tiles} tiles")
    assert said <= memory
    assert peak <= memory, f"{(peak - memory) / 2**20:.1f} MiB more than memory={memory}"
    assert tiles > 1  # what is within memory by itself says nothing
