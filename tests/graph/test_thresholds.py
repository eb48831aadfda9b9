"""The graph's rules on both sides: what is just allowed is built, run and stored; the next value beyond is an error."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ndpool import Graph, GraphError, MaxPool, PoolError, Program
from ndpool.graph import store
from ndpool.graph.build import Var
from ndpool.graph.check import Report, Row
from ndpool.graph.draw import plain
from ndpool.graph.glue import Flatten
from ndpool.graph.literals import ENTRIES, write
from ndpool.graph.table import OPS
from ndpool.spec import Interval

# -- building: shapes of the arguments, what is just allowed, what is not, and words of the error ---------------------

Shapes = tuple[tuple[int, ...], ...]
BUILT: dict[str, tuple[Shapes, tuple[str, Any], tuple[str, Any], str]] = {
    "the first axis of a sum": (((2, 3),), ("sum", (-2,)), ("sum", (-3,)), "axes=.* must be different axes of 2"),
    "the last axis of a sum": (((2, 3),), ("sum", (1,)), ("sum", (2,)), "axes=.* must be different axes of 2"),
    "each axis of a sum once": (((2, 3),), ("sum", ((0, -1),)), ("sum", ((1, -1),)), "must be different axes of 2"),
    "the last axis of a mean": (((2, 3),), ("mean", (1,)), ("mean", (2,)), "must be different axes of 2"),
    "the first start of a flatten": (((2, 3),), ("flatten", (-2,)), ("flatten", (-3,)), "start=-3 must be an axis"),
    "the last start of a flatten": (((2, 3),), ("flatten", (1,)), ("flatten", (2,)), "start=2 must be an axis of 2"),
    "a flatten of no axes": (((),), ("flatten", (0,)), ("flatten", (1,)), "start=1 must be an axis of 0"),
    "the elements of a reshape": (((2, 3),), ("reshape", ((6,),)), ("reshape", ((5,),)), "holds 5 elements, not 6"),
    "one size left open": (((2, 3),), ("reshape", ((3, -1),)), ("reshape", ((-1, -1),)), "holds .* elements, not 6"),
    "a size left open that fits": (((2, 3),), ("reshape", ((-1, 2),)), ("reshape", ((-1, 4),)), "holds .* elements"),
    "the least size": (((2, 3),), ("reshape", ((-1,),)), ("reshape", ((-2,),)), "shape=-2 is below -1"),
    "no size left open beside 0": (((0, 3),), ("reshape", ((0, 5),)), ("reshape", ((0, -1),)), "elements, not 0"),
    "the first axis of a concat": (((2, 3),) * 2, ("concat", (-2,)), ("concat", (-3,)), "axis=-3 must be an axis of 2"),
    "the last axis of a concat": (((2, 3),) * 2, ("concat", (1,)), ("concat", (2,)), "axis=2 must be an axis of 2"),
}


def build(shapes: Shapes, op: str, arguments: Any) -> Program:
    g = Graph()
    return g.build(getattr(g, op)(*(g.input(shape) for shape in shapes), *arguments))


@pytest.mark.parametrize("rule", BUILT)
def test_arguments_that_are_just_allowed_and_those_that_are_not(rule: str) -> None:
    shapes, (op, allowed), (_, beyond), words = BUILT[rule]
    build(shapes, op, allowed)
    with pytest.raises(PoolError, match=words):
        build(shapes, op, beyond)


FITTED: dict[str, tuple[str, Any, Shapes, Shapes, str]] = {
    "a sum of sizes 1": ("add", (), ((2, 1), (3,)), ((2, 2), (3,)), "sizes must be equal or 1"),
    "a concat of equal sizes": ("concat", (), ((2, 3), (4, 3)), ((2, 3), (4, 2)), "but those of axis 0 must be equal"),
    "a concat of equal ranks": ("concat", (), ((2, 3), (4, 3)), ((2, 3), (4, 3, 1)), "axis 0 must be equal"),
    "a concat of few axes": ("concat", (), ((2,), (4,)), ((2,), (4, 1)), "axis 0 must be equal"),
    "a product": ("matmul", (), ((2, 3), (3, 4)), ((2, 3), (4, 3)), "the last axis of a must be as long"),
    "a product with a vector": ("matmul", (), ((2, 3), (3,)), ((2, 3), (2,)), "the last axis of a must be as long"),
    "a product of a number": ("matmul", (), ((3,), (3,)), ((3,), ()), "the last axis of a must be as long"),
    "a product by a number": ("matmul", (), ((3,), (3,)), ((), (3,)), "the last axis of a must be as long"),
    "a product of several": ("matmul", (), ((5, 2, 3), (1, 3, 4)), ((5, 2, 3), (2, 3, 4)), "must be equal or 1"),
    "channels of a conv": ("conv", (), ((2, 5), (4, 2, 3)), ((3, 5), (4, 2, 3)), "x has 3 channels, w takes 2"),
    "groups of a conv": ("conv", (1, 0, 1, 2), ((4, 5), (6, 2, 3)), ((4, 5), (5, 2, 3)), "groups=2 and gives 5"),
    "channels of groups": ("conv", (1, 0, 1, 2), ((4, 5), (6, 2, 3)), ((2, 5), (6, 2, 3)), "x has 2 channels"),
    "axes of a conv": ("conv", (), ((2, 5), (4, 2, 3)), ((5,), (4, 2, 3)), "w must be"),
    "axes of a kernel": ("conv", (), ((2,), (4, 2)), ((2,), (4,)), "w must be"),
    "a kernel that fits": ("conv", (), ((2, 3), (4, 2, 3)), ((2, 2), (4, 2, 3)), "on spatial axis 0, kernel_size=3"),
    "a dilated kernel that fits": ("conv", (1, 0, 2), ((2, 5), (4, 2, 3)), ((2, 4), (4, 2, 3)), "spans 5"),
    "classes": ("softmax_cross_entropy", (), ((2, 3), (2, 3)), ((2, 3), (2, 1)), "must have the same shape"),
    "an axis of classes": ("softmax_cross_entropy", (), ((3,), (3,)), ((), ()), "must have the same shape"),
}  # fmt: skip


@pytest.mark.parametrize("rule", FITTED)
def test_shapes_that_just_fit_and_those_that_do_not(rule: str) -> None:
    op, arguments, allowed, beyond, words = FITTED[rule]
    build(allowed, op, arguments)
    with pytest.raises(GraphError, match=words):
        build(beyond, op, arguments)


def test_no_groups_are_an_error() -> None:
    with pytest.raises(PoolError, match="groups=0 is below 1"):
        build(((2, 5), (4, 2, 3)), "conv", (1, 0, 1, 0))


def test_a_graph_takes_sizes_of_0_and_none_below() -> None:
    g = Graph()
    assert g.input((0, 2)).shape == (0, 2)
    with pytest.raises(PoolError, match="shape=-1 is below 0"):
        g.input((-1, 2))
    with pytest.raises(GraphError, match="the name 'x' is taken"):
        g.build([g.input((), name="x"), g.input((), name="x")])


def test_variables_are_those_of_the_graph() -> None:
    g, other = Graph(), Graph()
    x, stranger = g.input((2,)), other.input((2,))
    assert x == Var(g, 0)
    assert x != stranger
    assert g.build(Var(g, 0)).output_shapes == ((2,),)
    for beyond in (1, -1):
        with pytest.raises(GraphError, match=f"no variable {beyond}, only 1"):
            g.build(Var(g, beyond))
    with pytest.raises(GraphError, match="belongs to another graph"):
        g.build(stranger)
    with pytest.raises(GraphError, match="no outputs"):
        g.build([])


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (lambda x: 10 - x, [9, 8]),
        (lambda x: x - 10, [-9, -8]),
        (lambda x: 10 / x, [10, 5]),
        (lambda x: x / 2, [0.5, 1]),
        (lambda x: np.array([[1.0, 0.0], [3.0, 1.0]]) @ x, [1, 5]),
        (lambda x: x @ np.array([[1.0, 0.0], [3.0, 1.0]]), [7, 2]),
        (lambda x: -x, [-1, -2]),
        (lambda x: 3 + x, [4, 5]),
        (lambda x: 3 * x, [3, 6]),
    ],
)  # fmt: skip
def test_each_side_of_an_operator_is_its_own(op: Callable[[Any], Any], want: list[float]) -> None:
    g = Graph()
    assert g.build(op(g.input((2,))))(np.array([1.0, 2.0])).tolist() == want


def test_a_constant_is_copied_and_cannot_be_written() -> None:
    g, value = Graph(), np.array([1.0, 2.0])
    program = g.build(g.input((2,)) + g.const(value))
    value[:] = 7
    assert program(np.zeros(2)).tolist() == [1, 2]
    held = next(node.op.value for node in program.nodes if hasattr(node.op, "value"))
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 3


# -- running ----------------------------------------------------------------------------------------------------------


def two(op: Callable[[Any, Any], Any], dtypes: tuple[str | None, str | None] = (None, None)) -> Program:
    g = Graph()
    return g.build(op(g.input((2,), "a", dtypes[0]), g.input((2,), "b", dtypes[1])))


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32"), ("float16", "float64")])
def test_a_zero_cotangent_has_the_dtype_of_its_own_input(dtypes: tuple[str, str]) -> None:
    """Where nothing arrives, too, and whichever of the inputs is the wider."""
    xs = tuple(np.ones(2, d) for d in dtypes)
    for i, read in enumerate((lambda a, b: a * a, lambda a, b: b * b)):
        program = two(read)
        for got in (program.vjp(xs, xs[i]), program.linearize(xs).vjp(xs[i])):
            assert tuple(g.dtype.name for g in got) == dtypes
            assert [g.tolist() for g in got] == [[2, 2] if j == i else [0, 0] for j in range(2)]


@pytest.mark.parametrize(
    ("dtypes", "want"),
    [
        (("float32", "float64"), "float64"),
        (("float64", "float32"), "float64"),
        (("float16", "float32"), "float32"),
        (("float32", "int64"), "float32"),
        (("int64", "float32"), "float32"),
    ],
)
def test_a_constant_is_of_the_dtype_that_it_meets(dtypes: tuple[str, str], want: str) -> None:
    """Of the wider of two, real before whole; of the one that it meets alone; of the widest input if it meets none."""
    xs = tuple(np.full(2, 2, d) for d in dtypes)
    g = Graph()
    a, b = g.input((2,), "a"), g.input((2,), "b")
    both, of_a, of_b, free = g.build([(a * b) * 3, a * 3, b * 3, g.const(3.0) * 1, a, b])(*xs)[:4]
    assert (both.dtype, both.tolist()) == (np.result_type(*dtypes), [12, 12])
    for x, y in zip(xs, (of_a, of_b), strict=True):
        assert y.dtype == (x.dtype if x.dtype.kind == "f" else np.float64)
    assert free.dtype == want


def test_a_constant_that_meets_two_inputs_keeps_the_precision_of_the_wider() -> None:
    for dtypes in (("float32", "float64"), ("float64", "float32")):
        xs = [np.ones(2, d) for d in dtypes]
        assert two(lambda a, b: (a * b) * 0.1)(*xs).tolist() == [0.1, 0.1]


@pytest.mark.parametrize("kind", [Fraction, Decimal])
def test_whole_numbers_beside_others_become_numbers_of_their_kind(kind: Any) -> None:
    got = two(lambda a, b: a / b)([1, kind(1)], [4, kind(4)])
    assert got == [kind(1) / 4] * 2
    assert {type(y) for y in got} == {kind}


def test_constants_that_are_no_rationals_stay_as_they_are() -> None:
    g = Graph()
    x = g.input((2,))
    values = [g.const([math.inf, 0.5]), g.const([True, False]), x + g.const([math.inf, 0.5])]
    infinite, true, summed = g.build(values)([Fraction(1), Fraction(2)])
    assert infinite == [math.inf, Fraction(1, 2)]
    assert true == [True, False]
    assert {type(v) for v in true} == {bool}
    assert summed == [math.inf, Fraction(5, 2)]


def test_inputs_are_named_each_once() -> None:
    program, x = two(lambda a, b: a - b), np.ones(2)
    assert program(a=x, b=2 * x).tolist() == [-1, -1]
    for given in ({"a": x}, {"a": x, "b": x, "c": x}, {"a": x, "c": x}):
        with pytest.raises(GraphError, match="inputs are a, b, not"):
            program(**given)
    for count in (1, 3):
        with pytest.raises(GraphError, match=rf"2 inputs \(a, b\), but {count} given"):
            program(*(x,) * count)
    with pytest.raises(GraphError, match="all by position or all by name"):
        program(x, b=x)
    with pytest.raises(GraphError, match="some inputs are nested lists and some arrays"):
        program(x, [1, 2])
    with pytest.raises(GraphError, match=r"input b has shape \(3,\), but the graph says \(2,\)"):
        program(x, np.ones(3))
    with pytest.raises(GraphError, match="input b has dtype float64, not float32"):
        two(lambda a, b: a - b, (None, "float32"))(x.astype(np.float32), x)


def test_tangents_are_of_the_kind_of_the_inputs() -> None:
    g = Graph()
    x = g.input((2,))
    program = g.build(g.sum(x * x))
    assert program.vjp(np.array([1.0, 2.0]), 1).tolist() == [2, 4]
    assert program.vjp([1, 2], 1) == [2, 4]
    with pytest.raises(GraphError, match="is a nested list, but the inputs are arrays"):
        program.jvp(np.ones(2), [1.0, 2.0])
    with pytest.raises(GraphError, match="is an array, but the inputs are nested lists"):
        program.jvp([1, 2], np.ones(2))


def test_a_hessian_is_of_one_number() -> None:
    for shape, count, allowed in (((), 1, True), ((1,), 1, True), ((1, 1), 1, True), ((2,), 1, False), ((), 2, False)):
        g = Graph()
        x = g.input(shape)
        program = g.build([x * x] * count)
        x0 = np.ones(shape)
        if allowed:
            assert program.hvp(x0, x0).sum() == 2
        else:
            with pytest.raises(GraphError, match="needs one output with one element"):
                program.hvp(x0, x0)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 2), (2, 2), (2, 1), (3, 2)])
def test_a_jacobian_goes_forwards_where_inputs_are_no_more_than_outputs(inputs: int, outputs: int) -> None:
    class Twice:
        """x[:outputs] and x again; counts what it is asked."""

        name, asked = "twice", ""

        def out_shape(self, shape: Any) -> Any:
            return (outputs,)

        def forward(self, x: Any) -> Any:
            return np.resize(x, outputs) * 2

        def jvp(self, x: Any, dx: Any) -> Any:
            Twice.asked += "j"
            return np.resize(dx, outputs) * 2

        def vjp(self, x: Any, dy: Any) -> Any:
            Twice.asked += "v"
            return 2 * np.array([sum(dy[i::inputs]) for i in range(inputs)])

    g = Graph()
    program = g.build(g.push(Twice(), g.input((inputs,))))
    got = program.jacobian(np.ones(inputs))
    assert got.shape == (outputs, inputs)
    assert got.tolist() == [[2.0 * (o % inputs == i) for i in range(inputs)] for o in range(outputs)]
    assert set(Twice.asked) == ({"j"} if inputs <= outputs else {"v"})


def test_residuals_serve_as_often_as_wanted() -> None:
    g = Graph()
    x = g.input((2,))
    at = g.build(x * x + x).linearize(np.array([1.0, 2.0]))
    for _ in range(2):
        assert at.vjp(np.ones(2)).tolist() == [3, 5]
        assert at.jvp(np.ones(2)).tolist() == [3, 5]


def test_a_batch_of_none_runs_in_every_mode() -> None:
    class Slow:
        """Without a batched form of its own."""

        name = "slow"

        def out_shape(self, shape: Any) -> Any:
            return shape

        def forward(self, x: Any) -> Any:
            return 2 * x

        def jvp(self, x: Any, dx: Any) -> Any:
            return 2 * dx

        def vjp(self, x: Any, dy: Any) -> Any:
            return 2 * dy

    g = Graph()
    program = g.build(g.push(Slow(), g.input((3,))))
    for n in (0, 1, 2):
        x, many = np.ones((n, 3)), program.batched(n)
        assert [many(x).shape, many.jvp(x, x).shape, many.vjp(x, x).shape] == [(n, 3)] * 3
        assert many.vjp(x, x).sum() == 6 * n
    with pytest.raises(PoolError, match="n=-1 is below 0"):
        program.batched(-1)


def test_a_batch_is_each_sample_by_itself_wherever_axes_are_counted_from() -> None:
    rng = np.random.default_rng(0)
    g = Graph()
    x, row = g.input((4, 3, 6), "x"), g.input((6,), "row")
    pooled = g.max_pool(x, (2, 3), axes=(0, 2))
    values = (pooled, g.sum(x, 0), g.mean(x, (1, -1)), g.concat(x, x, 2), x + row, row * x, g.flatten(x, 1))
    program = g.build([*values, g.reshape(x, (9, -1), keep=1), g.reshape(x, (-1, 2))])
    xs, rows = rng.normal(size=(2, 4, 3, 6)), rng.normal(size=(2, 6))
    for many, got in ((rows, program.batched(2)(xs, rows)), (None, program.batched(2, ("x",))(xs, rows[0]))):
        for i in range(2):
            want = program(xs[i], rows[0] if many is None else rows[i])
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a[i], b)
    twice = program.batched(2).batched(1)(xs[None], rows[None])
    for a, b in zip(twice, program.batched(2)(xs, rows), strict=True):
        np.testing.assert_allclose(a[0], b)


@pytest.mark.parametrize("inputs", [("x",), ("w",), ("x", "w")], ids=str)
def test_a_batch_of_convolutions_is_each_by_itself(inputs: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    g = Graph()
    shapes = {"x": (2, 7), "w": (4, 1, 3)}
    program = g.build(g.conv(*(g.input(shape, name) for name, shape in shapes.items()), 2, ((1, 0),), 1, 2))
    xs = {name: rng.normal(size=(3,) * (name in inputs) + shape) for name, shape in shapes.items()}
    got = program.batched(3, inputs)(**xs)
    for i in range(3):
        np.testing.assert_allclose(got[i], program(**{n: x[i] if n in inputs else x for n, x in xs.items()}))


def test_composed_programs_fit_one_another() -> None:
    one, both = two(lambda a, b: a + b), two(lambda a, b: a * b)
    g = Graph()
    x = g.input((2,))
    pair = g.build([x, x + 1])
    assert pair.compose(both)(np.array([1.0, 2.0])).tolist() == [2, 6]
    for first, then, words in (
        (one, both, "1 outputs for 2 inputs"),
        (pair, g.build(x), "2 outputs for 1 inputs"),
    ):
        with pytest.raises(GraphError, match=words):
            first.compose(then)
    narrow = Graph()
    with pytest.raises(GraphError, match="does not fit input"):
        one.compose(narrow.build(narrow.input((3,))))


def test_a_node_is_found_by_number_name_and_label() -> None:
    g = Graph()
    x = g.input((2,), "x")
    program = g.build(g.neg(g.relu(x, name="y")))
    for node in (1, "y"):
        assert program.upto(node)(np.array([-1.0, 2.0])).tolist() == [0, 2]
    assert program.upto("neg 2")(np.array([-1.0, 2.0])).tolist() == [0, -2]
    with pytest.raises(GraphError, match="no node 3; there are 0 to 2"):
        program.upto(3)


# -- elementwise functions at 0 and NaN ------------------------------------------------------------------------------

AT_ZERO: dict[str, tuple[float, float]] = {
    "relu": (0.0, 0.0),
    "sigmoid": (0.5, 0.25),
    "tanh": (0.0, 1.0),
    "softplus": (math.log(2), 0.5),
    "exp": (1.0, 1.0),
}


@pytest.mark.parametrize("function", AT_ZERO)
def test_values_and_slopes_at_zero_and_beside_it(function: str) -> None:
    g = Graph()
    program = g.build(getattr(g, function)(g.input((3,))))
    value, slope = AT_ZERO[function]
    tiny = 1e-300
    for x in ([0.0, -0.0, -tiny], [Fraction(0), Fraction(0), Fraction(0)]):
        for given in (np.array(x), x) if isinstance(x[0], float) else (x,):
            got = [float(v) for v in program(given)]
            moved = [float(v) for v in program.jvp(given, np.ones(3) if isinstance(given, np.ndarray) else [1, 1, 1])]
            assert got == pytest.approx([value] * 3)
            assert moved == pytest.approx([slope] * 3)
    beyond = np.array([tiny, 5e-324, 1.0])
    if function == "relu":
        assert program.jvp(beyond, np.ones(3)).tolist() == [1, 1, 1]
        assert program.jvp(beyond.tolist(), [1, 1, 1]) == [1, 1, 1]


@pytest.mark.parametrize("function", ["relu", "sigmoid", "tanh", "softplus", "exp", "sqrt"])
def test_nan_stays_nan(function: str) -> None:
    g = Graph()
    program = g.build(getattr(g, function)(g.input((1,))))
    assert math.isnan(program(np.array([math.nan]))[0])
    assert math.isnan(program([math.nan])[0])


@pytest.mark.parametrize(
    ("x", "slope"), [((-1, 0), 0), ((0, 0), 0), ((0, 1), (0, 1)), ((-1, 1), (0, 1)), ((1e-300, 1), 1)]
)
def test_the_slope_of_a_relu_of_an_interval(x: Any, slope: Any) -> None:
    g = Graph()
    program = g.build(g.relu(g.input((1,))))
    (got,) = program.jvp([Interval(*x)], [1])
    got = got if isinstance(got, Interval) else Interval(got, got)
    low, high = slope if isinstance(slope, tuple) else (slope, slope)
    assert got.lo == pytest.approx(low, abs=1e-9)
    assert got.hi == pytest.approx(high, abs=1e-9)


def test_the_root_of_a_negative_number_is_nan_and_of_zero_is_zero() -> None:
    g = Graph()
    program = g.build(g.sqrt(g.input((2,))))
    for given in ([0.0, -1e-300], np.array([0.0, -1e-300])):
        zero, none = program(given)
        assert zero == 0
        assert math.isnan(none)


def test_small_numbers_do_not_vanish_in_softplus() -> None:
    g = Graph()
    program = g.build(g.softplus(g.input((1,))))
    assert program([-50.0])[0] == pytest.approx(math.exp(-50.0), rel=1e-12, abs=0)
    assert program(np.array([-50.0]))[0] == pytest.approx(math.exp(-50.0), rel=1e-12, abs=0)


# -- checking --------------------------------------------------------------------------------------------------------


def test_a_difference_counts_from_the_tolerance_on() -> None:
    at, beyond, none = (Row("n", "p", "l", d, tolerance=1e-9) for d in (1e-9, 1.1e-9, None))
    assert (at.ok, beyond.ok, none.ok) == (True, False, False)
    assert (at.verdict, beyond.verdict) == ("ok", "WRONG")
    assert Report((at,)).ok
    assert not Report((at, beyond)).ok
    assert not Report((at, none)).ok


# -- files -----------------------------------------------------------------------------------------------------------


def pooled(kernel: Any) -> dict[str, Any]:
    """A program file with one op, whose kernel is that."""
    g = Graph()
    found = json.loads(store.to_json(g.build(g.max_pool(g.input((4, 4), name="x"), 2))))
    found["nodes"][1]["params"]["kernel_size"] = kernel
    return found


def constant(**changes: Any) -> str:
    g = Graph()
    found = json.loads(store.to_json(g.build(g.const([1, 2]))))
    found["nodes"][0].update(changes)
    return json.dumps(found)


def said(text: str) -> str:
    """What is wrong with a file; nothing if it is read."""
    try:
        store.from_json(text)
    except GraphError as error:
        return str(error)
    return ""


def assert_limit(allowed: str, beyond: str, words: str) -> None:
    """The first is read, or fails for another reason; the second fails for that one."""
    assert not re.search(words, said(allowed))
    assert re.search(words, said(beyond))


def test_the_longest_tuple_of_a_file() -> None:
    texts = [json.dumps(pooled([1] * n)) for n in (ENTRIES, ENTRIES + 1)]
    assert_limit(*texts, r"a tuple of \d+ entries")


def test_the_longest_tuple_that_is_written() -> None:
    assert len(write(MaxPool((1,) * ENTRIES))["params"]["kernel_size"]) == ENTRIES
    with pytest.raises(GraphError, match="short tuples"):
        write(MaxPool((1,) * (ENTRIES + 1)))


PRODUCTS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3, 2)),
    ((4, 2, 3), (3, 2)),
    ((2, 3), (4, 3, 2)),
    ((4, 2, 3), (4, 3, 2)),
    ((4, 2, 3), (3,)),
    ((3,), (4, 3, 2)),
]


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
@pytest.mark.parametrize("inputs", [("a",), ("b",), ("a", "b")], ids=str)
def test_a_batch_of_products_is_each_product_by_itself(shapes: Shapes, inputs: tuple[str, ...]) -> None:
    """Of either argument or both, whatever their numbers of axes; as many samples as the first axis has elements."""
    rng = np.random.default_rng(0)
    g = Graph()
    program = g.build(g.matmul(*(g.input(shape, name) for shape, name in zip(shapes, "ab", strict=True))))
    for n in (2, shapes[0][0]):
        xs = [rng.normal(size=(n,) * (name in inputs) + shape) for shape, name in zip(shapes, "ab", strict=True)]
        got = program.batched(n, inputs)(*xs)
        for i in range(n):
            want = program(*(x[i] if name in inputs else x for x, name in zip(xs, "ab", strict=True)))
            np.testing.assert_allclose(got[i], want)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_that_is_written(sign: int) -> None:
    assert write(Flatten(sign * (2**63 - 1)))["params"] == {"start": sign * (2**63 - 1)}
    with pytest.raises(GraphError, match="a file holds 64-bit ints"):
        write(Count(sign * 2**63))


@dataclass(frozen=True)
class Count:
    """An op of the user's own."""

    n: int
    rule: Literal[1, "one"] = 1
    pair: tuple[int, int] = (0, 0)

    name = "count"

    def out_shape(self, shape: Any) -> Any:
        return shape

    def forward(self, x: Any) -> Any:
        return x


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "count", Count)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_of_a_file(sign: int) -> None:
    assert_limit(json.dumps(pooled(sign * (2**63 - 1))), json.dumps(pooled(sign * 2**63)), "does not fit 64 bits")


def test_the_longest_number_of_a_file() -> None:
    short, long = (json.dumps(pooled(7)).replace(" 7", " " + "9" * n) for n in (20, 21))
    assert_limit(short, long, "too long, too large or no number at all")
    short, long = (json.dumps(pooled(7)).replace(" 7", " 0." + "1" * n) for n in (98, 99))
    assert_limit(short, long, "too long, too large or no number at all")


def test_the_deepest_brackets_of_a_file() -> None:
    """The program, its list of nodes, the node and its params are four."""
    deep = [json.dumps(pooled(7)).replace(" 7", " " + "[" * n + "]" * n) for n in (60, 61)]
    assert_limit(*deep, "brackets are nested more than 64 deep")


def test_the_sizes_of_a_file() -> None:
    words = "shape is not at most 64 sizes from 0 to"
    assert_limit(constant(shape=[1] * 64), constant(shape=[1] * 65), words)
    assert_limit(constant(shape=[0]), constant(shape=[-1]), words)
    assert_limit(constant(shape=[2**63 - 1]), constant(shape=[2**63]), words)
    assert_limit(constant(shape=[2]), constant(shape=[True]), words)


def test_the_elements_of_a_file() -> None:
    words = f"over {store.ELEMENTS} elements, or {store.CONSTANTS} in constants"
    inputs = [constant(op="input", params={}, name="x", shape=[n]) for n in (store.ELEMENTS, store.ELEMENTS + 1)]
    assert_limit(*inputs, words)
    assert_limit(constant(shape=[store.CONSTANTS]), constant(shape=[store.CONSTANTS + 1]), words)


@pytest.mark.parametrize(
    ("rule", "fits"), [(1, True), ("one", True), (True, False), (1.0, False), ("two", False), (2, False)]
)
def test_a_literal_is_of_the_type_it_is_written_in(rule: Any, fits: bool) -> None:
    text = pooled(2)
    text["nodes"][1] |= {"op": "count", "params": {"n": 3, "rule": rule}, "shape": [4, 4]}
    assert (said(json.dumps(text)) == "") == fits


@pytest.mark.parametrize(("pair", "fits"), [([1, 2], True), ([1], False), ([1, 2, 3], False), ([1, 2.0], False)])
def test_a_tuple_is_as_long_as_it_is_declared(pair: Any, fits: bool) -> None:
    text = pooled(2)
    text["nodes"][1] |= {"op": "count", "params": {"n": 3, "pair": pair}, "shape": [4, 4]}
    assert (said(json.dumps(text)) == "") == fits


def test_the_nodes_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x = g.input((2,))
    three = g.build(g.neg(g.neg(x)))
    four = g.build(g.neg(Var(g, 2)))
    texts = store.to_json(three), store.to_json(four)
    monkeypatch.setattr(store, "NODES", 3)
    assert store.from_json(texts[0]) == three
    assert store.to_json(three) == texts[0]
    for refused in (lambda: store.from_json(texts[1]), lambda: store.to_json(four)):
        with pytest.raises(GraphError, match="3"):
            refused()


def test_a_node_reads_nodes_before_it() -> None:
    words = "is not the number of a node before"
    for text, beyond in ((pooled(2), 1), (pooled(2), -1), (pooled(2), True)):
        allowed = json.dumps(text)
        text["nodes"][1]["args"] = [beyond]
        assert_limit(allowed, json.dumps(text), words)
    outputs = pooled(2)
    allowed = json.dumps(outputs)
    outputs["outputs"] = [2]
    assert_limit(allowed, json.dumps(outputs), words)


def test_exact_numbers_of_a_file() -> None:
    def text(*numbers: Any) -> str:
        return constant(params={"exact": list(numbers)})

    words = "is not an exact number"
    assert list(store.from_json(text("3", "3/4")).nodes[0].op.value) == [3, Fraction(3, 4)]
    assert_limit(text("9" * 4300, "1"), text("9" * 4301, "1"), words)
    assert_limit(text("1/" + "9" * 4300, "1"), text("1/" + "9" * 4301, "1"), words)
    assert_limit(text("0." + "1" * 37, "1"), text("0." + "1" * 38, "1"), words)
    counted = r"shape \(2,\) has 2 elements, but exact is a list of"
    assert_limit(text("1", "2"), text("1"), counted)
    assert_limit(text("1", "2"), text("1", "2", "3"), counted)


def test_truth_values_of_a_file() -> None:
    def text(*values: int) -> str:
        data = base64.b64encode(bytes(values)).decode()
        return constant(params={"dtype": "bool", "base64": data})

    assert_limit(text(0, 1), text(0, 2), "a bool is neither 0 nor 1")


def test_the_largest_file_that_is_read(tmp_path: Path) -> None:
    path, text = tmp_path / "p.json", json.dumps(pooled(2))
    path.write_text(text)
    assert store.load(path, limit=len(text)).output_shapes == ((2, 2),)
    with pytest.raises(GraphError, match="more than"):
        store.load(path, limit=len(text) - 1)


def test_an_archive_holds_exactly_its_arrays(tmp_path: Path) -> None:
    """In either order of memory, and neither a byte more nor less."""
    g = Graph()
    value = np.arange(6.0).reshape(2, 3)
    path = tmp_path / "p.json"
    g.build(g.const(value)).save(path, constants="npz")
    for array, words in (
        (np.asfortranarray(value), ""),
        (value[:, :2], "shape"),
        (value.astype(np.float32), "float32"),
    ):
        np.savez(tmp_path / "p.npz", c0=array)
        if words:
            with pytest.raises(GraphError, match=words):
                store.load(path)
        else:
            assert store.load(path)().tolist() == value.tolist()


# -- words -----------------------------------------------------------------------------------------------------------


def test_text_is_cut_where_it_is_longer_than_the_width() -> None:
    assert plain("abcdef", 6) == "abcdef"
    assert plain("abcdefg", 6) == "abc..."
    assert plain("a\nb", 4) == "a\\nb"


def test_a_table_lists_eight_arguments() -> None:
    for n, dots in ((8, False), (9, True)):
        g = Graph()
        x = g.input((1,))
        assert (", ... ->" in g.build(g.concat(*[x] * n)).summary()) == dots


@pytest.mark.parametrize(("dtype", "size"), [("bool", 2), ("int8", 2), ("float16", 4), ("complex128", 32), (None, 8)])
def test_bytes_of_a_value(dtype: str | None, size: int) -> None:
    g = Graph()
    x = g.input((2,), "x", dtype)
    assert g.build(x).summary().splitlines()[1].split()[-2:] == [str(size), "output"]
