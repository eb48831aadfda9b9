"""What a process holds at most while it reads parts of a store, and what the store announced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MEASURE = """
import ctypes, gc, sys
import numpy as np
from ndpool.large import zarr
from ndpool.large.store import Like, open_store, shape_of, whole

def memory(what):
    return int(next(line for line in open("/proc/self/status") if line.startswith(what)).split()[1]) << 10

def peak(function, *arguments):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")
    before = memory("VmRSS")
    result = function(*arguments)
    return memory("VmHWM") - before

name, parts, options = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
store = open_store(name)
noise = np.asfortranarray(np.random.default_rng(0).integers(0, 256, store.shape, "u1"))
for part in parts:
    store = open_store(name)
    print(peak(store.read, part), int(np.prod(shape_of(part))) * store.dtype.itemsize + store.working(part))
if options is not None:
    like = Like(store.shape, store.dtype, store.chunks, options=options)
    store = open_store(name)
    print(peak(store.write, whole(store.shape), noise), zarr.encoding(like))
"""


def peaks(name: str | Path, parts: Sequence[tuple[slice, ...]], writing: dict[str, Any] | None = None) -> Any:
    """For each part, the bytes that reading it took at most, and that were announced, in a process of its own; then
    those of writing the whole of a zarr array, where the options it was made with are given."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process is Linux's to tell")
    command = [sys.executable, "-c", MEASURE, str(name), str(list(parts)), str(writing)]
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is the system's again
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=at_once)
    return [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
