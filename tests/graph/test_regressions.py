"""Bugs that were found by looking, each kept out by a test."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import ndpool
from ndpool.graph import Graph, GraphError


def test_rejecting_empty_windows_takes_no_memory_for_each_output() -> None:
    op = ndpool.MaxPool((1,), 1, 2**40, empty="error")
    tracemalloc.start()
    with pytest.raises(ndpool.PoolError, match="output 0 reads nothing"):
        op.out_shape((3,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("dilation", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 2, 4])
@pytest.mark.parametrize("padding", [0, 1, 2, 4, 7])
def test_empty_windows_are_found_wherever_they_are(size: int, padding: int, dilation: int) -> None:
    for kernel in (1, 2, 3):
        for stride in (1, 2, 3):
            try:
                axis = ndpool.MaxPool((kernel,), stride, padding, dilation=dilation).window((size,)).axes[0]
            except ndpool.PoolError:
                continue
            empty = any(not axis.reads(o) for o in range(axis.outputs))
            strict = ndpool.MaxPool((kernel,), stride, padding, dilation=dilation, empty="error")
            if empty:
                with pytest.raises(ndpool.PoolError, match="reads nothing"):
                    strict.window((size,))
            else:
                assert strict.window((size,)).axes[0] == axis


def test_bfloat16_inputs_survive_a_transform_where_nothing_else_knows_the_name() -> None:
    code = """
from ndpool.graph import Graph
g = Graph()
program = g.build(g.relu(g.input((2,), "x", "bfloat16")))
assert program.prune().inputs[0].dtype == "bfloat16"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_convolution_takes_numbers_for_padding() -> None:
    g = Graph()
    with pytest.raises(GraphError, match="padding='same'"):
        g.conv(g.input((1, 4, 4)), g.input((1, 1, 3, 3)), padding="same")


def test_a_program_without_inputs_checks_out() -> None:
    g = Graph()
    assert g.build(g.relu(g.const([1.0, -1.0]))).check().ok


def test_numpy_integers_are_integers_to_glue() -> None:
    g = Graph()
    x = g.input((2, 3))
    program = g.build([g.concat(x, x, axis=np.int64(1)), g.flatten(x, np.int64(0)), g.sum(x, axes=np.int64(1))])
    assert ndpool.Program.from_json(program.to_json()) == program


def test_a_report_prints_names_on_one_line() -> None:
    g = Graph()
    text = str(g.build(g.relu(g.input((2,)), name="a\nb\x1b[31m")).check())
    assert "\x1b" not in text
    assert "a\\nb" in text
