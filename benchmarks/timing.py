"""How calls are timed: contenders in turns, round after round, and the floor that none of them can beat.

One thread is measured in process CPU time, which a busy machine disturbs least and which also catches a library that
uses more threads than it was told to; more threads are measured in wall time.
"""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

LOOP_S = 0.002  # shorter calls are repeated within a round, so that the clock's own cost disappears
BUDGET_S = 1.0  # a slow contender gets fewer rounds than the others
PATIENCE_S = 1.0  # and one round alone if a call is longer than this
CHUNKS = 8  # a round whose calls become slow, because another process has the cores, ends at one of so many places


@dataclass(frozen=True)
class Contender:
    """A call to time, and how to read what it returns as NumPy arrays in ndpool's order of axes."""

    name: str
    run: Callable[[], Any]
    read: Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Times:
    """Milliseconds a call; `cores` is CPU time over wall time, to see who used more threads than allowed."""

    median_ms: float
    min_ms: float
    cores: float
    rounds: int
    calls: int


@dataclass(frozen=True)
class _Plan:
    run: Callable[[], Any]
    calls: int
    rounds: int
    warm: bool


def _plan(run: Callable[[], Any], rounds: int) -> _Plan:
    """Estimate from the fastest of a few calls; the first ones pay for compiling and for touching memory."""
    run()
    call, start = math.inf, time.perf_counter()
    while time.perf_counter() - start < LOOP_S:
        before = time.perf_counter()
        run()
        call = min(call, time.perf_counter() - before)
    if call > PATIENCE_S:
        return _Plan(run, 1, 1, False)
    return _Plan(run, max(1, math.ceil(LOOP_S / call)), min(rounds, max(3, int(BUDGET_S / call))), call < LOOP_S * 10)


def _sample(plan: _Plan) -> tuple[float, float]:
    """CPU and wall seconds of one call. The warm-up lets everyone start with what he himself leaves in the cache."""
    if plan.warm:
        plan.run()
    chunk, done = math.ceil(plan.calls / CHUNKS), 0
    wall, cpu = time.perf_counter(), time.process_time()
    while done < plan.calls and (done == 0 or time.perf_counter() - wall < LOOP_S * 10):
        for _ in range(chunk):
            plan.run()
        done += chunk
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / done, wall / done


def measure(runs: dict[str, Callable[[], Any]], rounds: int, threads: int) -> dict[str, Times]:
    """Each run's times, interleaved so that a disturbance meets all alike."""
    plans = {name: _plan(run, rounds) for name, run in runs.items()}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, plan in plans.items():
                if len(samples[name]) < plan.rounds:
                    samples[name].append(_sample(plan))
    finally:
        gc.enable()
    return {name: _times(samples[name], plans[name].calls, threads) for name in runs}


def _times(samples: Sequence[tuple[float, float]], calls: int, threads: int) -> Times:
    seconds = [cpu if threads == 1 else wall for cpu, wall in samples]
    cores = median(cpu / wall for cpu, wall in samples)
    return Times(median(seconds) * 1e3, min(seconds) * 1e3, cores, len(samples), calls)


# -- the floor ---------------------------------------------------------------------------------------------------------


@lru_cache
def native_stream() -> Callable[..., Any] | None:
    """The C++ engine's loop that only moves bytes, if that engine is built."""
    try:
        return getattr(importlib.import_module("ndpool._native"), "stream", None)
    except ImportError:
        return None


def stream(read: Any, write: Any, threads: int) -> None:
    """Read all bytes of one buffer and write all of another; NumPy stands in (in one thread) for a missing engine."""
    native = native_stream()
    if native is not None:
        native(read, write, threads)
        return
    words = read.size // 8 * 8
    np.max(read[:words].view(np.int64), initial=0)
    write.fill(0)


def floors(moved: tuple[int, int], threads: int) -> dict[str, Callable[[], Any]]:
    """The floor with a fresh output at each call, as contenders have it, and with an output that is kept.

    The first is the one that fractions refer to. The second shows what fresh memory costs: beyond some 32 MB the
    system hands out new pages each time and clears them, which takes longer than the stream itself. Those who keep the
    memory of earlier results (ndpool does, as some others do) may go below the first.
    """
    source, kept = np.ones(moved[0], np.uint8), np.ones(moved[1], np.uint8)
    return {
        "floor": lambda: stream(source, np.empty(moved[1], np.uint8), threads),
        "floor, output kept": lambda: stream(source, kept, threads),
    }
