"""The builder checks every call at once; an op of the user's own takes ten lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import ndpool
from ndpool import Graph, GraphError, PoolError
from ndpool.graph import OPS, NodeOp, Var, jvp_available, register, vjp_available

from ..cases import EVERY, RECORDS, SHAPE
from .strategies import ForwardOnly, Square, flat, floats, fractions, given, seeds, unary, zipped


@pytest.fixture
def g() -> Graph:
    graph = Graph()
    graph.input((2, 3), "a")
    graph.input((4,), "b")
    graph.input((2, 8, 8), "image")
    graph.input((5, 3, 2, 2), "w")
    return graph


def var(g: Graph, name: str) -> Var:
    return next(Var(g, node.id) for node in g.nodes if node.name == name)


# -- errors: what is called, what the message must hold ----------------------------------------------------------------

BAD: dict[str, tuple[Callable[[Graph, Var, Var, Var, Var], Any], tuple[str, ...]]] = {
    "unknown id": (lambda g, a, b, i, w: g.neg(Var(g, 99)), ("neg 4", "no variable 99")),
    "negative id": (lambda g, a, b, i, w: g.neg(Var(g, -1)), ("neg 4", "no variable -1")),
    "another graph": (lambda g, a, b, i, w: g.add(a, Graph().input((2, 3), "z")), ("add 4", "z", "another graph")),
    "build of another graph": (lambda g, a, b, i, w: g.build(Graph().input((2,), "z")), ("build", "another graph")),
    "build of nothing": (lambda g, a, b, i, w: g.build([]), ("build", "no outputs")),
    "build of a number": (lambda g, a, b, i, w: g.build([3]), ("build", "3 is not a variable")),
    "not an op": (lambda g, a, b, i, w: g.push(object(), a), ("4", "out_shape", "forward")),
    "not a variable": (lambda g, a, b, i, w: g.push(OPS["add"](), a, 3), ("add 4", "3 is not a variable", "const")),
    "add": (lambda g, a, b, i, w: g.add(a, b), ("add 4", "a: (2, 3)", "b: (4,)", "equal or 1")),
    "operator": (lambda g, a, b, i, w: a * b, ("mul 4", "(2, 3)", "(4,)", "equal or 1")),
    "matmul": (lambda g, a, b, i, w: g.matmul(a, b), ("matmul 4", "(2, 3)", "(4,)", "last axis")),
    "matmul of a scalar": (lambda g, a, b, i, w: g.matmul(a, g.const(1.0)), ("matmul 5", "(2, 3)", "()")),
    "reshape": (lambda g, a, b, i, w: g.reshape(a, (5, -1)), ("reshape 4", "(2, 3)", "(5, -1)", "6")),
    "reshape, twice -1": (lambda g, a, b, i, w: g.reshape(a, (-1, -1)), ("reshape 4", "(2, 3)", "(-1, -1)")),
    "flatten": (lambda g, a, b, i, w: g.flatten(a, start=2), ("flatten 4", "(2, 3)", "start=2")),
    "sum": (lambda g, a, b, i, w: g.sum(a, axes=(0, 2)), ("sum 4", "(2, 3)", "axes=(0, 2)")),
    "mean, an axis twice": (lambda g, a, b, i, w: g.mean(a, axes=(0, -2)), ("mean 4", "(2, 3)", "different")),
    "concat, rank": (lambda g, a, b, i, w: g.concat(a, b), ("concat 4", "(2, 3)", "(4,)", "axis 0")),
    "concat, axis": (lambda g, a, b, i, w: g.concat(a, a, axis=2), ("concat 4", "axis=2")),
    "cross-entropy": (lambda g, a, b, i, w: g.softmax_cross_entropy(a, b), ("(2, 3)", "(4,)", "same shape")),
    "conv, channels": (lambda g, a, b, i, w: g.conv(i, w), ("conv 4", "(2, 8, 8)", "(5, 3, 2, 2)", "2 channels")),
    "conv, groups": (lambda g, a, b, i, w: g.conv(i, w, groups=2), ("conv 4", "groups=2")),
    "conv, rank": (lambda g, a, b, i, w: g.conv(b, w), ("conv 4", "(4,)", "x (.., C, *spatial)")),
    "conv, kernel": (
        lambda g, a, b, i, w: g.conv(g.reshape(i, (2, 64)), g.const(np.ones((1, 2, 65)))),
        ("conv 6", "(2, 64)", "spatial axis 0", "65"),
    ),
    "pool, kernel": (lambda g, a, b, i, w: g.max_pool(i, 9), ("max_pool 4", "(2, 8, 8)", "axis 1", "kernel_size <= 8")),
    "pool, stride 0": (lambda g, a, b, i, w: g.max_pool(i, 2, stride=0), ("max_pool", "stride=0", "stride >= 1")),
    "conv, stride 0": (lambda g, a, b, i, w: g.conv(i, w, stride=0), ("stride=0", "stride >= 1")),
    "conv, dilation 0": (lambda g, a, b, i, w: g.conv(i, w, dilation=0), ("dilation=0",)),
    "conv, padding -1": (lambda g, a, b, i, w: g.conv(i, w, padding=-1), ("padding=-1",)),
    "conv, strides": (
        lambda g, a, b, i, w: g.conv(i, g.const(np.ones((1, 2, 2, 2))), stride=(1, 1, 1)),
        ("conv 5", "stride=(1, 1, 1)", "3 entries for 2"),
    ),
    "pool, axes": (lambda g, a, b, i, w: g.max_pool3d(a, 2), ("max_pool 4", "(2, 3)", "axes=(-3, -2, -1)")),
    "arity 1 of 2": (lambda g, a, b, i, w: g.add(a), ("add 4", "1 given")),
    "arity 2 of 1": (lambda g, a, b, i, w: g.relu(a, a), ("relu 4", "2 given")),
    "arity of a pool": (lambda g, a, b, i, w: g.max_pool(i, i, 2), ("max_pool 4", "2 given")),
    "arity of concat": (lambda g, a, b, i, w: g.concat(), ("concat 4",)),
    "no kernel": (lambda g, a, b, i, w: g.max_pool(i), ("max_pool 4", "kernel_size")),
    "no such argument": (lambda g, a, b, i, w: g.conv(i, w, strides=2), ("conv 4", "strides")),
    "a number for a variable": (lambda g, a, b, i, w: g.add(a, 3), ("add 4",)),
    "indices": (lambda g, a, b, i, w: g.max_pool(i, 2, return_indices=True), ("max_pool 4", "return_indices")),
    "a name twice": (lambda g, a, b, i, w: g.input((1,), name="a"), ("'a'", "taken")),
    "a negative size": (lambda g, a, b, i, w: g.input((2, -1)), ("shape=-1",)),
    "a fractional size": (lambda g, a, b, i, w: g.input((2.5,)), ("shape=2.5",)),
    "a shape that is a number": (lambda g, a, b, i, w: g.input(4), ("input", "shape=4", "use (4,)")),
    "two dtypes": (
        lambda g, a, b, i, w: g.input((2,), "p", "float32") + g.input((2,), "q", np.float64),
        ("add 6", "float32", "float64"),
    ),
    "a constant that is text": (lambda g, a, b, i, w: g.const("abc"), ("str",)),
    "a ragged constant": (lambda g, a, b, i, w: g.const([[1], [2, 3]]), ("ragged",)),
    "a dual constant": (
        lambda g, a, b, i, w: g.const(ndpool.DualArray(np.ones(2), np.ones(2))),
        ("const", "DualArray"),
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_errors_name_the_node_the_shapes_and_the_rule(g: Graph, bad: str) -> None:
    call, words = BAD[bad]
    with pytest.raises(PoolError) as caught:
        call(g, *(var(g, name) for name in ("a", "b", "image", "w")))
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, (missing, str(caught.value))


def test_a_failed_call_leaves_the_graph_as_it_was(g: Graph) -> None:
    before = list(g.nodes)
    for call in (
        lambda: g.add(var(g, "a"), var(g, "b")),
        lambda: g.max_pool(var(g, "image"), 9),
        lambda: g.push(object()),
        lambda: g.input((1,), "a"),
    ):
        with pytest.raises(PoolError):
            call()
    assert g.nodes == before


def test_graph_error_is_a_pool_error_and_a_value_error() -> None:
    assert issubclass(GraphError, PoolError)
    assert issubclass(GraphError, ValueError)


def test_an_unknown_op_is_an_attribute_error_that_lists_the_known(g: Graph) -> None:
    with pytest.raises(AttributeError, match=r"no op 'maxpool'.*max_pool"):
        g.maxpool(var(g, "image"), 2)
    assert not hasattr(g, "relu4d")
    assert {"max_pool", "conv", "relu", "input", "push"} <= set(dir(g))


# -- variables -----------------------------------------------------------------------------------------------------


def test_a_variable_knows_its_graph_id_shape_and_dtype() -> None:
    g = Graph()
    x = g.input((2, 3), "x", np.float32)
    y = g.relu(x, name="r")
    assert (y.graph, y.id, y.shape, y.dtype, y.node.args) == (g, 1, (2, 3), "float32", (0,))
    assert repr(y) == "Var(r, shape=(2, 3), dtype=float32)"
    assert repr(g.neg(y)) == "Var(neg 2, shape=(2, 3), dtype=float32)"
    assert y == Var(g, 1) != x
    assert len({x, y, Var(g, 1)}) == 2
    assert y != Var(Graph(), 1)


def test_inputs_without_a_name_get_different_ones() -> None:
    g = Graph()
    names = [g.input((1,)).node.name for _ in range(3)]
    assert len(set(names)) == 3


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (4, r"shape=4 is not a sequence of sizes; use \(4,\)$"),
        (None, "shape=None is not a sequence of sizes; use a tuple like"),
        ("ab", "shape='ab' is not a sequence of sizes; use a tuple like"),
        (np.ones((3, 2)), r"shape is an array, not its sizes; use \(3, 2\) here, and give the array when"),
        ((2, -1), "shape=-1 is below 0"),
        ((2, 2.5), "shape=2.5 is not a whole number"),
    ],
)
@pytest.mark.parametrize("kind", ["input", "parameter"])
def test_a_shape_that_is_none(kind: str, shape: Any, said: str) -> None:
    with pytest.raises(ndpool.PoolError, match=f"^{kind}: {said}"):
        getattr(Graph(), kind)(shape)


@given(seeds)
def test_arithmetic_of_variables_is_that_of_numbers(rng: np.random.Generator) -> None:
    g = Graph()
    a, b = g.input((2, 2)), g.input((2,))
    half = Fraction(1, 2)
    p = g.build([a + b, a - b, a * b, a / (b * b + 1), a @ b, -a, half + a, half - a, half * a, half / (a * a + 1)])
    x, y = np.array(fractions(rng, (2, 2))), np.array(fractions(rng, (2,)))
    want = (x + y, x - y, x * y, x / (y * y + 1), x @ y, -x, half + x, half - x, half * x, half / (x * x + 1))
    got = p(x.tolist(), y.tolist())
    assert [flat(v) for v in got] == [list(w.reshape(-1)) for w in want]


def test_arrays_and_lists_in_arithmetic_become_constants() -> None:
    g = Graph()
    x = g.input((2,))
    p = g.build([np.array([1.0, 2.0]) + x, x * [3, 4], np.eye(2) @ x, 2.0 / x])
    got = p(np.array([5.0, 10.0]))
    assert [v.tolist() for v in got] == [[6, 12], [15, 40], [5, 10], [0.4, 0.2]]


def test_a_constant_is_a_copy() -> None:
    mine = np.ones(2)
    p = unary(lambda g, x: x + g.const(mine), (2,))
    mine[:] = 7
    assert p(np.zeros(2)).tolist() == [1, 1]


def test_a_program_does_not_grow_with_its_graph() -> None:
    g = Graph()
    x = g.input((2,))
    p = g.build(x + 1)
    count = len(p.nodes)
    g.neg(x)
    g.input((5,), "late")
    assert len(p.nodes) == count
    assert p(np.zeros(2)).tolist() == [1, 1]


def test_a_constant_fixes_no_dtype() -> None:
    g = Graph()
    assert (g.input((2,), "p", "float32") * np.ones(2)).dtype == "float32"
    assert (g.input((2,), "q") * np.ones(2)).dtype is None


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32")])
def test_a_dtype_may_be_a_name_a_type_or_a_dtype(dtype: Any) -> None:
    assert Graph().input((1,), dtype=dtype).dtype == "float32"


# -- ops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_a_node(name: str) -> None:
    op = RECORDS[name]
    assert isinstance(op, NodeOp)
    rng = np.random.default_rng(3)
    p = unary(lambda g, x: g.push(op, x), SHAPE)
    assert p.output_shapes == (op.out_shape(SHAPE),)
    x, dx = floats(rng, SHAPE), floats(rng, SHAPE)
    dy = floats(rng, op.out_shape(SHAPE))
    assert np.array_equal(p(x), op(x))
    assert np.array_equal(p.jvp(x, dx), op.jvp(x, dx))
    assert np.array_equal(p.vjp(x, dy), op.vjp(x, dy))
    q = zipped(Fraction, x.tolist())
    assert p(q) == op(q)


def test_every_record_has_a_name_in_the_table() -> None:
    assert {op.name for op in EVERY.values()} == {name for name in OPS if name.endswith("pool")}


FORMS = {"max": (), "min": (), "avg": (), "sum": (), "smooth_max": (), "lp": (2,)}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("form", ["", "adaptive_", "global_"])
@pytest.mark.parametrize("law", FORMS)
def test_spellings_by_rank_are_those_of_the_functions(law: str, form: str, rank: int) -> None:
    name = f"{form}{law}_pool{rank}d"
    args = FORMS[law] + (() if form == "global_" else (2,))
    x = floats(np.random.default_rng(rank), (2, 4, 5, 4))
    p = unary(lambda g, v: getattr(g, name)(v, *args), x.shape)
    assert np.array_equal(p(x), getattr(ndpool, name)(x, *args))


@pytest.fixture
def registered() -> Iterator[None]:
    register("square", Square)
    yield
    del OPS["square"]


@pytest.mark.usefixtures("registered")
def test_an_op_of_the_users_own() -> None:
    assert jvp_available(Square())
    assert vjp_available(Square())
    assert isinstance(Square(), NodeOp)
    g = Graph()
    x = g.input((4,), "x")
    p = g.build(g.sum(g.square(g.max_pool(x, (2,)))))
    assert p.nodes[2].label == "square 2"
    assert p([1, 3, Fraction(1, 2), 0]) == 9 + Fraction(1, 4)
    assert p.vjp([1, 3, Fraction(1, 2), 0], 1) == [0, 6, 1, 0]
    assert p.jvp(np.array([1.0, 3, 0.5, 0]), np.ones(4)) == 7
    assert p.hvp(np.array([1.0, 3, 0.5, 0]), np.array([1.0, 2, 3, 4])).tolist() == [0, 4, 6, 0]
    assert p.check().ok


@pytest.mark.parametrize("name", ["max_pool", "relu", "two words", "1st", ""])
def test_register_refuses_names_that_are_taken_or_no_names(name: str) -> None:
    with pytest.raises(GraphError, match=re.escape(repr(name))):
        register(name, Square)


@pytest.mark.parametrize("name", ["input", "const", "push", "build", "nodes"])
def test_register_refuses_names_that_the_graph_has_itself(name: str) -> None:
    before = dict(OPS)
    try:
        with pytest.raises(GraphError, match=name):
            register(name, Square)
    finally:
        OPS.clear()
        OPS.update(before)


def test_availability_is_that_of_the_op_itself() -> None:
    assert not jvp_available(ForwardOnly())
    assert not vjp_available(ForwardOnly())
    assert isinstance(ForwardOnly(), NodeOp)
    assert all(jvp_available(op) and vjp_available(op) for op in RECORDS.values())


@given(st.integers(0, 3))
def test_flatten_takes_its_start_by_position_and_by_name(start: int) -> None:
    shape = (2, 3, 4, 5)
    g = Graph()
    x = g.input(shape)
    want = (*shape[:start], int(np.prod(shape[start:])))
    assert g.flatten(x, start=start).shape == want
    assert g.flatten(x, start).shape == want


# -- parameters --------------------------------------------------------------------------------------------------------


def test_parameters_are_inputs_that_are_counted_and_shared():
    g = ndpool.Graph()
    x, w = g.input((1, 6, 6), name="x"), g.parameter((2, 1, 3, 3), name="w")
    program = g.build(g.max_pool(g.conv(x, w), 2))
    assert "18 parameters" in program.summary()
    assert [line.split()[-2] for line in program.summary().splitlines() if line.startswith("w ")] == ["18"]
    assert [node.op.name for node in program.inputs] == ["input", "parameter"]
    a, b = np.random.default_rng(0).normal(size=(3, 1, 6, 6)), np.ones((2, 1, 3, 3))
    many = program.batched(3)
    assert many.input_shapes == ((3, 1, 6, 6), (2, 1, 3, 3))
    assert np.allclose(many(a, b), [program(one, b) for one in a])
    assert program.batched(3, ("x", "w")).input_shapes == ((3, 1, 6, 6), (3, 2, 1, 3, 3))
    for again in (ndpool.Program.from_json(program.to_json()), program.prune(), program.fold_constants()):
        assert "18 parameters" in again.summary()
        assert np.array_equal(again(a[0], b), program(a[0], b))
    with pytest.raises(GraphError, match="parameter: the name 'w' is taken"):
        g.parameter((1,), name="w")
