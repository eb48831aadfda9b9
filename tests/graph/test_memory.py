"""Forward keeps what someone still reads; vjp keeps residuals. NumPy reports its arrays to tracemalloc."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ndpool import Graph, Program

from .strategies import unary

N = 200_000
ARRAY = 8 * N
LAYERS = 50


def peak(run: Callable[[], Any]) -> float:
    """The most memory in use at once during `run`, in arrays, beyond what was there before."""
    run()  # plans and caches
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        return (tracemalloc.get_traced_memory()[1] - before) / ARRAY
    finally:
        tracemalloc.stop()


def chain(layer: Callable[[Graph, Any], Any], layers: int = LAYERS) -> Program:
    def build(g: Graph, x: Any) -> Any:
        for _ in range(layers):
            x = layer(g, x)
        return x

    return unary(build, (N,))


CHAINS: dict[str, Callable[[Graph, Any], Any]] = {
    "relu": lambda g, x: g.relu(x),
    "exp of neg": lambda g, x: g.exp(g.neg(x)),
    "sigmoid": lambda g, x: g.sigmoid(x),
    "add": lambda g, x: x + 1,
    "residual": lambda g, x: g.relu(x) + x,
    "max_pool": lambda g, x: g.max_pool(x, (3,), 1, 1),
    "avg_pool": lambda g, x: g.avg_pool(x, (3,), 1, 1),
    "relu, max_pool": lambda g, x: g.max_pool(g.relu(x), (3,), 1, 1),
}


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(N)


@pytest.mark.parametrize("case", CHAINS)
def test_a_forward_chain_needs_a_few_arrays_however_long(case: str, x: np.ndarray) -> None:
    program = chain(CHAINS[case])
    assert peak(lambda: program(x)) < 10


@pytest.mark.parametrize("case", CHAINS)
def test_the_length_of_a_chain_does_not_matter_forward(case: str, x: np.ndarray) -> None:
    short, long = chain(CHAINS[case], 10), chain(CHAINS[case], 40)
    assert peak(lambda: long(x)) <= peak(lambda: short(x)) + 0.1


@pytest.mark.parametrize("case", ["relu", "add", "residual", "max_pool"])
def test_a_jvp_keeps_no_residuals_of_the_layers_behind(case: str, x: np.ndarray) -> None:
    program = chain(CHAINS[case])
    assert peak(lambda: program.jvp(x, x)) < 16


def test_vjp_through_sums_keeps_nothing(x: np.ndarray) -> None:
    """x + 1 and x + x need no residual at all."""
    for layer in (CHAINS["add"], lambda g, v: v + v, lambda g, v: g.neg(v)):
        program = chain(layer)
        assert peak(lambda p=program: p.vjp(x, x)) < 8


def test_vjp_keeps_one_residual_a_layer(x: np.ndarray) -> None:
    """relu keeps its slope and no more; the sum beside it keeps nothing."""
    for layer in (CHAINS["relu"], lambda g, v: g.relu(v) + 1):
        program = chain(layer)
        assert peak(lambda p=program: p.vjp(x, x)) < LAYERS + 8


def test_vjp_of_max_pooling_keeps_winners_not_values(x: np.ndarray) -> None:
    """Two merges a layer, a mask of one byte an element each: half an array a layer is plenty."""
    program = chain(CHAINS["max_pool"])
    assert peak(lambda: program.vjp(x, x)) < LAYERS / 2 + 16


def test_pulling_needs_a_few_arrays(x: np.ndarray) -> None:
    """The residuals are there already; cotangents go as soon as they are pulled on."""
    program = chain(CHAINS["relu"])
    at = program.linearize(x)
    assert peak(lambda: at.vjp(x)) < 8


def test_nothing_is_kept_after_a_run(x: np.ndarray) -> None:
    program = chain(CHAINS["relu, max_pool"], 5)
    for run in (lambda: program(x), lambda: program.vjp(x, x), lambda: program.jvp(x, x)):
        run()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        run()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert after - before < ARRAY / 2


def test_a_value_that_is_read_late_is_kept_and_no_other(x: np.ndarray) -> None:
    def build(g: Graph, v: Any) -> Any:
        first = g.exp(v)
        h = first
        for _ in range(20):
            h = g.tanh(h)
        return h + first

    program = unary(build, (N,))
    assert peak(lambda: program(x)) < 6
    assert np.array_equal(program(np.zeros(N)).shape, (N,))
