"""A program that tests itself finds what is wrong, and nothing else."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from ndpool import Graph, Program

from ..cases import RECORDS, SHAPE
from .strategies import ForwardOnly, Square, given, of, programs, unary


class WrongVjp(Square):
    name = "wrong_vjp"

    def vjp(self, x: Any, dy: Any) -> Any:
        return 2.001 * x * dy


class WrongJvp(Square):
    name = "wrong_jvp"

    def jvp(self, x: Any, dx: Any) -> Any:
        return 2.001 * x * dx


class WrongBoth(Square):
    """Adjoint to each other, but the derivative of something else."""

    name = "wrong_both"

    def jvp(self, x: Any, dx: Any) -> Any:
        return 3 * x * dx

    def vjp(self, x: Any, dy: Any) -> Any:
        return 3 * x * dy


class WrongAtTies(Square):
    """y = max(x, 0) with different conventions at 0 on either side."""

    name = "wrong_at_ties"

    def forward(self, x: Any) -> Any:
        return x.__array_namespace__().where(x > 0, x, 0 * x)

    def jvp(self, x: Any, dx: Any) -> Any:
        return dx * (x > 0)

    def vjp(self, x: Any, dy: Any) -> Any:
        return dy * (x >= 0)


class Silent(Square):
    """Right, but it loses the tangent of dual numbers."""

    name = "silent"

    def forward(self, x: Any) -> Any:
        value = getattr(x, "value", x)
        return value * value


def rows(program: Program) -> dict[tuple[str, str, str], Any]:
    return {(row.node, row.point, row.law): row for row in program.check().rows}


GOOD: dict[str, tuple[Any, tuple[int, ...]]] = {
    "log": (lambda g, x: g.log(x), (2, 3)),
    "sqrt": (lambda g, x: g.sqrt(x), (2, 3)),
    "div": (lambda g, x: 1 / x, (2, 3)),
    "div by itself": (lambda g, x: (x + 1) / x, (2, 3)),
    "log of a difference": (lambda g, x: g.log(g.sum(x, axes=0) * 0 + 1 + g.exp(x)), (2, 3)),
    "exp": (lambda g, x: g.exp(x), (2, 3)),
    "relu": (lambda g, x: g.relu(x), (2, 3)),
    "sigmoid": (lambda g, x: g.sigmoid(x), (2, 3)),
    "tanh": (lambda g, x: g.tanh(x), (2, 3)),
    "softplus": (lambda g, x: g.softplus(x), (2, 3)),
    "neg": (lambda g, x: g.neg(x), (2, 3)),
    "detach": (lambda g, x: x * g.detach(x), (2, 3)),
    "matmul": (lambda g, x: x @ g.reshape(x, (3, 2)), (2, 3)),
    "conv": (lambda g, x: g.conv(x, g.const(np.ones((2, 2, 2))), padding=1), (2, 3)),
    "concat": (lambda g, x: g.concat(x, x * 2, axis=1), (2, 3)),
    "mean": (lambda g, x: g.mean(x, axes=1), (2, 3)),
    "softmax_cross_entropy": (lambda g, x: g.softmax_cross_entropy(x, g.exp(x)), (2, 3)),
    "a user's own": (lambda g, x: g.push(Square(), x), (2, 3)),
    "an input": (lambda g, x: x, (2, 3)),
    "a constant": (lambda g, x: g.const([1.0, 2.0]), (2, 3)),
    "a number": (lambda g, x: x * x, ()),
    "nothing": (lambda g, x: g.relu(x), (0, 3)),
    **{
        name: (lambda g, x, op=op: g.push(op, x), SHAPE)
        for name, op in RECORDS.items()
        if name.removeprefix("Adaptive").removeprefix("Global") != "Pool"  # a law of one's own takes no dual arrays
    },
}


@pytest.mark.parametrize("case", GOOD)
def test_good_programs_are_ok(case: str) -> None:
    build, shape = GOOD[case]
    report = unary(build, shape).check()
    assert report.ok, str(report)
    assert bool(report)


@given(programs(), examples=40)
def test_random_programs_are_ok(program: Program) -> None:
    report = program.check()
    assert report.ok, str(report)


def test_checking_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("log", "sqrt", "div"):
            build, shape = GOOD[name]
            unary(build, shape).check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_programs_of_a_fixed_dtype_can_be_checked(dtype: str) -> None:
    report = unary(lambda g, x: g.max_pool(x, (2,)) * np.array([2, 3], dtype), (4,), dtype).check()
    assert report.ok, str(report)


def test_programs_with_short_constants_can_be_checked() -> None:
    report = unary(lambda g, x: x * np.ones(3, np.float32)).check()
    assert report.ok, str(report)


BAD: dict[str, tuple[type, set[str]]] = {
    "wrong vjp": (WrongVjp, {"adjoint"}),
    "wrong jvp": (WrongJvp, {"adjoint", "dual"}),
    "wrong both": (WrongBoth, {"dual"}),
    "silent": (Silent, {"dual"}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_derivative_is_found_at_its_node_and_in_the_whole(case: str) -> None:
    op, laws = BAD[case]
    g = Graph()
    x = g.input((3,), "x")
    program = g.build(g.sum(g.push(op(), g.relu(x + 0.5), name="culprit")))
    report = program.check()
    assert not report.ok
    assert not bool(report)
    found = rows(program)
    for law in ("adjoint", "dual"):
        assert found["culprit", "random", law].ok == (law not in laws)
        assert found["the whole", "random", law].ok == (law not in laws)
    innocent = [row for row in report.rows if row.node not in ("culprit", "the whole")]
    assert innocent
    assert all(row.ok for row in innocent)


def test_what_differs_at_ties_only_is_found_at_ties_only() -> None:
    found = rows(unary(lambda g, x: g.push(WrongAtTies(), x), (8,)))
    (name,) = {node for node, _, _ in found} - {"the whole"}
    assert found[name, "random", "adjoint"].ok
    assert not found[name, "tied", "adjoint"].ok


def test_what_cannot_be_checked_is_said_and_is_not_ok() -> None:
    report = unary(lambda g, x: g.push(ForwardOnly(), x)).check()
    assert not report.ok
    assert "not checked" in str(report)
    assert "WRONG" not in str(report)


def test_a_domain_that_is_never_reached_is_not_called_wrong() -> None:
    report = unary(lambda g, x: g.log(x - 1000)).check()
    assert "WRONG" not in str(report), str(report)


def test_the_table_names_nodes_points_laws_and_verdicts() -> None:
    g = Graph()
    x = g.input((4,), "x")
    report = g.build(g.push(WrongVjp(), g.max_pool(x, (2,), name="pool"))).check()
    lines = str(report).splitlines()
    assert lines[0].split() == ["node", "point", "law", "difference"]
    assert len(lines) == 1 + len(report.rows) == 1 + 2 * 2 * 3  # points x laws x (two nodes and the whole)
    assert {(row.point, row.law) for row in report.rows} == {
        (p, w) for p in ("random", "tied") for w in ("adjoint", "dual")
    }
    wrong = [line for line in lines if "WRONG" in line]
    assert all("adjoint" in line for line in wrong)
    assert any("wrong_vjp 2" in line for line in wrong)
    assert any("the whole" in line for line in wrong)
    assert [line for line in lines if line.startswith("pool") and line.endswith("ok")]


def test_constants_alone_are_not_checked() -> None:
    g = Graph()
    x = g.input((2,))
    report = g.build(x * g.exp(g.const([1.0, 2.0]))).check()
    assert not any("exp" in row.node for row in report.rows)


def test_the_seed_chooses_the_points_and_the_tolerance_the_verdict() -> None:
    program = unary(lambda g, x: g.push(WrongVjp(), x))
    assert program.check(seed=1).rows == program.check(seed=1).rows
    assert program.check(seed=1).rows != program.check(seed=2).rows
    assert program.check(tolerance=0.1).ok


def test_several_inputs_and_outputs() -> None:
    program = of(lambda g, x, y: [x * y, g.sum(x), y], (2, 3), (3,))
    assert program.check().ok
