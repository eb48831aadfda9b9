"""Programs as files: what is written is read back bit for bit, and nothing else is read at all."""

from __future__ import annotations

import base64
import copy
import json
import math
import struct
import time
import tracemalloc
import zipfile
from collections import Counter
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndpool import Graph, GraphError, Law, MaxPool, Pool, Program
from ndpool.graph import literals, register, store
from ndpool.graph.program import Const, Input
from ndpool.graph.store import from_json, load, save, to_json
from ndpool.graph.table import OPS

# -- programs --------------------------------------------------------------------------------------------------------

GEOMETRY = {"stride": (1, 2), "padding": ((0, 1), (1, 0)), "dilation": 2, "ceil_mode": True, "axes": (-1, -2)}
CALLS: dict[str, dict[str, Any]] = {  # arguments for each op of the table, as far from their defaults as they go
    **{name: {} for name in ("add", "sub", "mul", "div", "detach", "softmax_cross_entropy", "matmul")},
    **{name: {} for name in ("neg", "exp", "log", "sqrt", "relu", "sigmoid", "tanh", "softplus")},
    "sum": {"axes": (0, -1), "keepdims": True},
    "mean": {"axes": 1},
    "reshape": {"shape": (2, -1), "keep": 1},
    "flatten": {"start": 1},
    "concat": {"axis": -1},
    "conv": {"stride": (1, 2), "padding": ((0, 1), (1, 0)), "dilation": 2, "groups": 2},
    "max_pool": {"kernel_size": 2, "ties": "split", "nan": "ignore", **GEOMETRY},
    "min_pool": {"kernel_size": (2, 3), "empty": "error"},
    "avg_pool": {"kernel_size": 2, "count_include_pad": False, "divisor_override": 3, "padding": "same"},
    "sum_pool": {"kernel_size": (2,), "stride": 1},
    "smooth_max_pool": {"kernel_size": 2, "beta": -0.1},
    "lp_pool": {"norm_type": 2.5, "kernel_size": 2},
    "adaptive_max_pool": {"output_size": (None, 3)},
    "adaptive_min_pool": {"output_size": 2, "ties": "last"},
    "adaptive_avg_pool": {"output_size": 3, "axes": 0},
    "adaptive_sum_pool": {"output_size": None},
    "adaptive_smooth_max_pool": {"output_size": 2, "beta": 3},
    "adaptive_lp_pool": {"norm_type": 2, "output_size": 2},
    "global_max_pool": {"keepdims": False, "ties": "first"},
    "global_min_pool": {"axes": -1},
    "global_avg_pool": {},
    "global_sum_pool": {"axes": (0, 1, 2)},
    "global_smooth_max_pool": {"beta": 1e-3},
    "global_lp_pool": {"norm_type": 1},
}
OWN_LAW = {"pool", "adaptive_pool", "global_pool"}
LABELS: dict[str, dict[str, Any]] = {  # ops of integers alone
    "mode_pool": {"kernel_size": 2, "stride": 1, "ties": "first"},
    "adaptive_mode_pool": {"output_size": (None, 3)},
    "global_mode_pool": {"axes": -1, "keepdims": False},
}


def every_op() -> Program:
    """One node of each op on an input of shape (4, 6, 6); the law of one's own left out."""
    g = Graph()
    x = g.input((4, 6, 6), name="x")
    y = g.exp(x)
    outputs = []
    for name, arguments in CALLS.items():
        read = [y]
        if name in ("add", "sub", "mul", "div", "softmax_cross_entropy", "concat", "matmul"):
            read = [y, x]
        if name == "conv":
            read = [y, g.const(np.arange(24.0).reshape(6, 2, 2, 1), name="w")]
        outputs.append(getattr(g, name)(*read, name=f"the {name}", **arguments))
    return g.build(outputs)


def small() -> Program:
    """Two inputs, a machine and an exact constant, a name, a fixed dtype, a dead node, two outputs."""
    g = Graph()
    x, y = g.input((2, 3), name="x", dtype="float32"), g.input((3,), name="y")
    h = x * g.const(np.array([[1.5], [-0.0]], np.float32), name="w") + g.const([Fraction(3, 4), 1, 0.5])
    g.exp(h)
    return g.build([g.max_pool(h, (2,), stride=1, name="pool"), g.relu(y)])


def assert_same(a: Program, b: Program) -> None:
    assert a.outputs == b.outputs
    assert len(a.nodes) == len(b.nodes)
    for p, q in zip(a.nodes, b.nodes, strict=True):
        assert (p.id, p.args, p.shape, p.dtype, p.name) == (q.id, q.args, q.shape, q.dtype, q.name)
        assert type(p.op) is type(q.op)
        if isinstance(p.op, Const):
            assert p.op.value.dtype == q.op.value.dtype
            assert p.op.value.shape == q.op.value.shape
            if p.op.value.dtype == object:
                assert [(type(v), repr(v)) for v in p.op.value.flat] == [(type(v), repr(v)) for v in q.op.value.flat]
            else:
                assert p.op.value.tobytes() == q.op.value.tobytes()
            assert not q.op.value.flags.writeable
        else:
            assert p.op == q.op
            assert repr(p.op) == repr(q.op)


def changed(program: Program, change) -> str:
    """The JSON of a program after change(document)."""
    document = json.loads(to_json(program))
    return json.dumps(change(document) or document)


def fails(text: Any, *words: str) -> None:
    with pytest.raises(GraphError) as caught:
        from_json(text)
    message = str(caught.value)
    assert message.isprintable(), message
    assert len(message) <= 600
    for word in words:
        assert word in message, message


# -- there and back --------------------------------------------------------------------------------------------------


def test_the_table_of_calls_has_every_op():
    assert set(CALLS) | set(LABELS) | OWN_LAW == set(OPS)


def test_ops_of_labels_come_back():
    g = Graph()
    x = g.input((4, 6, 6), name="x", dtype="int32")
    program = g.build([getattr(g, name)(x, **arguments) for name, arguments in LABELS.items()])
    again = from_json(to_json(program))
    assert_same(program, again)
    labels = np.random.default_rng(0).integers(0, 3, (4, 6, 6), np.int32)
    for a, b in zip(program(labels), again(labels), strict=True):
        assert a.tobytes() == b.tobytes()


def test_every_op_comes_back(monkeypatch):
    program = every_op()
    again = from_json(to_json(program))
    assert_same(program, again)
    x = np.random.default_rng(0).standard_normal((4, 6, 6))
    for a, b in zip(program(x), again(x), strict=True):
        assert a.tobytes() == b.tobytes()
    cotangents = tuple(np.ones(shape) for shape in program.output_shapes)
    assert program.vjp(x, cotangents).tobytes() == again.vjp(x, cotangents).tobytes()


def test_params_are_the_fields_that_differ_from_their_defaults():
    nodes = {node["op"]: node["params"] for node in json.loads(to_json(every_op()))["nodes"]}
    assert nodes["relu"] == nodes["add"] == nodes["global_avg_pool"] == {}
    assert nodes["global_max_pool"] == {"keepdims": False, "ties": "first"}
    assert nodes["max_pool"]["padding"] == [[0, 1], [1, 0]]
    assert nodes["smooth_max_pool"] == {"kernel_size": 2, "beta": -0.1}
    assert nodes["adaptive_max_pool"] == {"output_size": [None, 3]}


def test_json_is_the_same_each_time_and_after_a_round_trip():
    for program in (small(), every_op()):
        text = to_json(program)
        assert text == to_json(program) == to_json(from_json(text))
        assert json.loads(text)["version"] == 1
        assert text.isascii()


def test_methods_of_a_program():
    assert_same(small(), Program.from_json(small().to_json()))


def test_small_runs_the_same_on_arrays_and_exactly():
    program, again = small(), from_json(to_json(small()))
    x, y = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([1, -1, 0], np.float32)
    assert [a.tobytes() for a in program(x, y)] == [a.tobytes() for a in again(x, y)]
    assert program(x.tolist(), y.tolist()) == again(x.tolist(), y.tolist())
    exact = [[Fraction(v) for v in row] for row in x.tolist()]
    assert again(exact, [Fraction(1), Fraction(2), Fraction(0)]) == program(
        exact, [Fraction(1), Fraction(2), Fraction(0)]
    )


@pytest.mark.parametrize("constants", ["inline", "npz"])
@pytest.mark.parametrize("dtype", store.DTYPES)
def test_every_dtype_comes_back_bit_for_bit(dtype, constants, tmp_path):
    numpy = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 256, 6 * numpy.itemsize, dtype=np.uint8)  # NaNs of all kinds too
    value = (raw % 2 == 1 if dtype == "bool" else raw).view(numpy).reshape(2, 3)
    g = Graph()
    g.input((2,), name="x", dtype=numpy)
    outputs = [g.const(value), g.const(value[0, 0]), g.const(value[:0]), g.const(value.T)]
    program = g.build(outputs)
    save(program, tmp_path / "p.json", constants)
    assert (tmp_path / "p.npz").exists() == (constants == "npz")
    assert_same(program, load(tmp_path / "p.json"))


def test_byte_order_is_little_whatever_the_array_had():
    g = Graph()
    program = g.build(g.const(np.array([1, 2], ">i2")))
    (node,) = json.loads(to_json(program))["nodes"]
    assert base64.b64decode(node["params"]["base64"]) == b"\1\0\2\0"
    assert from_json(to_json(program)).nodes[0].op.value.tolist() == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        3,
        -(10**4000),
        0.1,
        -0.0,
        1e300,
        5e-324,
        math.inf,
        -math.inf,
        math.nan,
        Fraction(3, 4),
        Fraction(-2),
        True,
        False,
    ],
)
def test_exact_scalars_come_back_with_their_type(value):
    g = Graph()
    program = g.build([g.const(value), g.const([[value, 1]]), g.const(np.array([], dtype=object))])
    assert_same(program, from_json(to_json(program)))


def test_exact_constants_stay_inside_when_others_go_beside(tmp_path):
    program = small()
    save(program, tmp_path / "net.json", constants="npz")
    params = [
        node["params"] for node in json.loads((tmp_path / "net.json").read_text())["nodes"] if node["op"] == "const"
    ]
    assert params == [{"dtype": "float32", "npz": "c2"}, {"exact": ["3/4", "1", "0.5"]}]
    assert_same(program, load(tmp_path / "net.json"))


def test_a_batched_program_comes_back():
    g = Graph()
    x, w = g.input((2, 5, 5), name="x"), g.input((3, 2, 3, 3), name="w")
    program = g.build(g.conv(x, w, padding=1)).batched(2).batched(3, ("x",))
    assert '"mapped"' in to_json(program)
    assert_same(program, from_json(to_json(program)))


@dataclass(frozen=True)
class Scale:
    """A user's op in ten lines."""

    by: float
    label: str = "times"
    more: tuple[tuple[int, ...], ...] = ()
    made: float = 0.0

    def out_shape(self, shape):
        return shape

    def forward(self, x):
        return x * self.by

    def jvp(self, x, dx):
        return dx * self.by

    def vjp(self, x, dy):
        return dy * self.by


@dataclass(frozen=True)
class Twice(Scale):
    """The same, known under a name that fixes some of its fields."""


@pytest.fixture
def scale():
    register("scale", Scale)
    register("twice", partial(Twice, 2.0, label="two"))
    yield
    del OPS["scale"], OPS["twice"]


@pytest.mark.usefixtures("scale")
def test_an_op_of_ones_own_comes_back():
    g = Graph()
    x = g.input((2,))
    ops = [
        Scale(3.5, more=((1, 2), ())),
        Scale(math.inf),
        Scale(1, made=0),
        Twice(2.0, "two"),
        Twice(2.0, "two", made=1.0),
    ]
    program = g.build([g.push(op, x) for op in ops])
    nodes = json.loads(to_json(program))["nodes"][1:]
    assert [node["op"] for node in nodes] == ["scale", "scale", "scale", "twice", "twice"]
    assert [node["params"] for node in nodes[1:]] == [
        {"by": {"float": "inf"}}, {"by": 1, "made": 0}, {}, {"made": 1.0},
    ]  # fmt: skip
    assert_same(program, from_json(to_json(program)))


@pytest.mark.usefixtures("scale")
def test_fields_that_a_name_fixes_are_kept():
    def text(by: float) -> str:
        g = Graph()
        return to_json(g.build(g.push(Twice(by, "two"), g.input((2,)))))

    with pytest.raises(GraphError, match="Twice is not in the ops table"):
        text(3.0)
    document = json.loads(text(2.0))
    document["nodes"][1]["params"] = {"by": 3.0}
    fails(json.dumps(document), "node 1: field by", "no such field; it has more, made")


def test_an_op_that_is_not_registered_is_unknown():
    register("scale", Scale)
    g = Graph()
    text = to_json(g.build(g.push(Scale(1.0), g.input((2,)))))
    del OPS["scale"]
    fails(text, "node 1", "unknown op 'scale'")


def test_a_name_may_hold_anything():
    g = Graph()
    names = ["", 'a"b\\c\n', "\x00\ud800", "層", "__proto__"]
    program = g.build([g.relu(g.input((1,), name=f"in{n}"), name=n) for n in names])
    assert_same(program, from_json(to_json(program)))


# -- what cannot be written ------------------------------------------------------------------------------------------

MINE = Law(lambda x, t: x, lambda a, b: a + b, lambda s, n: (s, n), lambda g, x, t, n: g)


@dataclass(frozen=True)
class Unregistered(Scale):
    pass


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda g, x: g.push(Pool(MINE, 2), x, name="mine"), ("node 1 (mine)", "field law", "law.Law")),
        (lambda g, x: g.push(Unregistered(1.0), x), ("node 1", "Unregistered is not in the ops table")),
        (lambda g, x: g.const([Decimal("0.1")]), ("node 1 (const 1)", "it holds a Decimal")),
        (lambda g, x: g.const([np.float64(1)]), ("it holds a float64", "pass an array")),
        (lambda g, x: g.const([10**5000]), ("node 1", "4300")),
        (lambda g, x: g.const(np.ones(2, np.longdouble)), ("node 1", "dtype 'float128' is not one that a file holds")),
        (lambda g, x: g.const(np.array(["a"])), ("node 1", "dtype 'str32' is not one")),
        (lambda g, x: g.push(MaxPool(2, axes=(0, 1)), g.input((2, 2), dtype=np.longdouble)), ("node 1", "float128")),
        (lambda g, x: g.smooth_max_pool(x, 2, beta=np.float64(2)), ("field beta", "is a numpy.float64")),
        (lambda g, x: g.smooth_max_pool(x, 2, beta=Fraction(1, 2)), ("field beta", "is a fractions.Fraction")),
    ],
)  # fmt: skip
def test_what_a_file_cannot_hold_is_named(build, words):
    g = Graph()
    program = g.build(build(g, g.input((4, 4))))
    with pytest.raises(GraphError) as caught:
        to_json(program)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("by", ["1", None, (1.0,), True, [1.0], 2**64, np.float32(1)])
def test_a_field_that_does_not_fit_its_type_is_not_written(by):
    g = Graph()
    program = g.build(g.push(Scale(by), g.input((2,))))
    with pytest.raises(GraphError, match=r"node 1 .*field by: "):
        to_json(program)


def test_too_many_nodes_are_not_written(monkeypatch):
    monkeypatch.setattr(store, "NODES", 3)
    with pytest.raises(GraphError, match="more than the 3"):
        to_json(small())


def test_bad_arguments_of_save(tmp_path):
    with pytest.raises(GraphError, match="constants='yaml' is not a rule"):
        save(small(), tmp_path / "a.json", "yaml")
    with pytest.raises(GraphError, match="would be overwritten"):
        save(small(), tmp_path / "a.npz", "npz")
    assert not list(tmp_path.iterdir())


# -- what is not read ------------------------------------------------------------------------------------------------


def put(*path_and_value):
    """A change: the value at a path in the document."""

    def change(document):
        *path, last, value = path_and_value
        for key in path:
            document = document[key]
        document[last] = value

    return change


def drop(*path):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


# in `small`: 0 x, 1 y, 2 w, 3 mul, 4 exact const, 5 add, 6 exp (dead), 7 pool, 8 relu
REFUSED = [
    (lambda d: [d], ("is not a program",)),
    (put("format", "onnx"), ("is not a program",)),
    (put("version", 2), ("version 2 is not 1",)),
    (put("version", True), ("version True",)),
    (put("version", 1.0), ("version 1.0",)),
    (drop("version"), ("version None",)),
    (drop("nodes"), ("missing key 'nodes'",)),
    (drop("outputs"), ("missing key 'outputs'",)),
    (put("code", "import os"), ("unknown key 'code'",)),
    (put("nodes", {}), ("nodes are a dict of 0",)),
    (put("nodes", 3, []), ("node 3", "a list of 0 is not a node")),
    (put("nodes", []), ("outputs", "of which there are 0")),
    (drop("nodes", 3, "args"), ("node 3", "missing key 'args'")),
    (drop("nodes", 3, "name"), ("node 3", "missing key 'name'")),
    (put("nodes", 3, "x\n\x1b", 1), ("node 3", "unknown key 'x\\n\\x1b'")),
    (put("nodes", 3, "op", "os.system"), ("node 3", "unknown op 'os.system'")),
    (put("nodes", 3, "op", "max_pool2d"), ("node 3", "unknown op")),
    (put("nodes", 3, "op", 3), ("node 3", "op is 3, not a str")),
    (put("nodes", 3, "op", "pool"), ("node 3", "missing 2 required")),
    (put("nodes", 3, "params", [1]), ("node 3", "params is a list of 1, not a dict")),
    (put("nodes", 3, "params", "speed", 1), ("node 3: field speed", "mul has no such field; it has none")),
    (put("nodes", 7, "params", "self", 1), ("node 7: field self", "no such field")),
    (put("nodes", 8, "params", "function", "exp"), ("node 8: field function", "no such field")),
    (put("nodes", 7, "params", "kernel_size", 2.5), ("node 7: field kernel_size", "2.5 does not fit its")),
    (put("nodes", 7, "params", "kernel_size", {"float": "1"}), ("field kernel_size", "is not a literal")),
    (put("nodes", 7, "params", "kernel_size", {"__class__": "os"}), ("field kernel_size", "is not a literal")),
    (put("nodes", 7, "params", "kernel_size", {"float": []}), ("field kernel_size", "is not a literal")),
    (put("nodes", 7, "params", "kernel_size", [2] * 1001), ("field kernel_size", "a tuple of 1001")),
    (put("nodes", 7, "params", "kernel_size", 2**63), ("field kernel_size", "64 bits")),
    (put("nodes", 7, "params", "kernel_size", 0), ("node 7", "kernel_size=0 is below 1")),
    (put("nodes", 7, "params", "kernel_size", [3]), ("node 7", "shape is (2, 2) in the file, but the op gives (2, 1)")),
    (put("nodes", 7, "params", "kernel_size", [9]), ("node 7", "larger than the padded input")),
    (put("nodes", 7, "params", "ties", "any"), ("node 7: field ties",)),
    (put("nodes", 7, "params", "ceil_mode", 1), ("node 7: field ceil_mode",)),
    (put("nodes", 7, "params", "return_indices", True), ("node 7", "return_indices")),
    (drop("nodes", 7, "params", "kernel_size"), ("node 7", "kernel_size")),
    (put("nodes", 7, "args", [7]), ("node 7: args", "7 is not the number of a node before")),
    (put("nodes", 7, "args", [8]), ("node 7: args", "8 is not")),
    (put("nodes", 7, "args", [-1]), ("node 7: args", "-1 is not")),
    (put("nodes", 7, "args", [10**19]), ("node 7: args",)),
    (put("nodes", 7, "args", [True]), ("node 7: args", "True is not")),
    (put("nodes", 7, "args", [5.0]), ("node 7: args", "5.0 is not")),
    (put("nodes", 7, "args", ["5"]), ("node 7: args", "'5' is not")),
    (put("nodes", 7, "args", 5), ("node 7: args", "5 is not a list")),
    (put("nodes", 7, "args", []), ("node 7",)),
    (put("nodes", 7, "args", [5, 5]), ("node 7",)),
    (put("nodes", 3, "args", [0]), ("node 3",)),
    (put("nodes", 0, "args", [0]), ("node 0: args",)),
    (put("nodes", 1, "args", [0]), ("node 1", "input reads nothing")),
    (put("nodes", 2, "args", [0]), ("node 2", "const reads nothing")),
    (put("nodes", 0, "params", "x", 1), ("node 0", "an input has no params")),
    (put("nodes", 1, "name", "x"), ("node 1", "'x' is taken")),
    (put("nodes", 1, "name", None), ("node 1", "name is None in the file")),
    (put("nodes", 1, "name", ""), ("node 1", "name is '' in the file")),
    (put("nodes", 1, "name", 3), ("node 1", "name is 3, not a str or null")),
    (put("nodes", 0, "dtype", "float33"), ("node 0", "dtype 'float33'")),
    (put("nodes", 0, "dtype", "O"), ("node 0", "dtype 'O'")),
    (put("nodes", 0, "dtype", ["f4"]), ("node 0", "dtype is a list of 1")),
    (put("nodes", 0, "dtype", "float64"), ("node 3", "dtype is 'float32' in the file")),
    (put("nodes", 3, "dtype", None), ("node 3", "dtype is None in the file, but the op gives 'float32'")),
    (put("nodes", 3, "shape", [3, 2]), ("node 3", "shape is (3, 2) in the file, but the op gives (2, 3)")),
    (put("nodes", 3, "shape", 6), ("node 3", "shape is 6, not a list")),
    (put("nodes", 3, "shape", [2, 3.0]), ("node 3", "[2, 3.0]")),
    (put("nodes", 0, "shape", [2, True]), ("node 0", "shape")),
    (put("nodes", 0, "shape", [-2, 3]), ("node 0", "shape")),
    (put("nodes", 0, "shape", [2**63]), ("node 0", "shape")),
    (put("nodes", 0, "shape", [1] * 65), ("node 0", "at most 64 sizes")),
    (put("nodes", 0, "shape", [2**41]), ("node 0", "elements")),
    (put("nodes", 0, "shape", [2**62, 2**62, 2**62]), ("node 0", "elements")),
    (put("nodes", 0, "shape", [4]), ("node 3", "shape is (2, 3) in the file, but the op gives (2, 4)")),
    (put("nodes", 2, "shape", [2**30, 3]), ("node 2", "in constants")),
    (put("nodes", 2, "shape", [2**26, 3]), ("node 2", "characters of base64, not 12")),
    (put("nodes", 2, "shape", [1]), ("node 2", "is 8 characters of base64, not 12")),
    (put("nodes", 2, "shape", [0, 2**62, 2**62]), ("node 2",)),
    (put("nodes", 2, "params", {}), ("node 2", "a const has the params")),
    (put("nodes", 2, "params", "exact", []), ("node 2", "a const has the params")),
    (put("nodes", 2, "params", "npz", "c2"), ("node 2", "a const has the params")),
    (put("nodes", 2, "params", {"pickle": "gASV"}), ("node 2", "a const has the params")),
    (drop("nodes", 2, "params", "dtype"), ("node 2", "a const has the params")),
    (put("nodes", 2, "params", {"npz": "c2", "dtype": "float32"}), ("node 2", "in an .npz beside the file")),
    (put("nodes", 2, "params", "base64", "AADAPwAAAI"), ("node 2", "characters of base64, not 10")),
    (put("nodes", 2, "params", "base64", "AADAPwAAAI!="), ("node 2",)),
    (put("nodes", 2, "params", "base64", "AADAPwAA\nIA="), ("node 2",)),
    (put("nodes", 2, "params", "base64", "AADAPwAA層IA="), ("node 2",)),
    (put("nodes", 2, "params", "base64", "AADAPwAAAIAA"), ("node 2", "is 8 bytes, not 9")),
    (put("nodes", 2, "params", "base64", 12), ("node 2", "characters of base64, not 12")),
    (put("nodes", 2, "params", "dtype", "int16"), ("node 2", "of int16 is 8 characters")),
    (put("nodes", 2, "params", "dtype", "object"), ("node 2", "dtype 'object' is not one that a file holds")),
    (put("nodes", 2, "params", "dtype", None), ("node 2", "a const has the params")),
    (put("nodes", 2, "dtype", "float64"), ("node 2", "dtype is 'float64' in the file, but the op gives None")),
    (put("nodes", 4, "params", "exact", ["1", "2"]), ("node 4", "has 3 elements, but exact is a list of 2")),
    (put("nodes", 4, "params", "exact", "123"), ("node 4", "exact is '123'")),
    (put("nodes", 4, "shape", [2**32]), ("node 4", "in constants")),
    (put("nodes", 4, "shape", [2**20]), ("node 4", "has 1048576 elements")),
    *(
        (put("nodes", 4, "params", "exact", 0, bad), ("node 4",))
        for bad in (1, None, [], {}, "", "1/0", "1/-2", "0x10", "1_0", "1.2.3", "e5", ".", "+1", " 1", "\u0661")
        + ("infinity", "1e9e9", "--1", "__import__('os')", "1" * 39 + ".5", "9" * 5000)
    ),
    (put("outputs", []), ("outputs", "no outputs")),
    (put("outputs", 7), ("outputs", "7 is not a list")),
    (put("outputs", [9]), ("outputs", "9 is not the number of a node")),
    (put("outputs", [-1]), ("outputs",)),
    (put("outputs", [False]), ("outputs",)),
    (put("outputs", [[7]]), ("outputs",)),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_a_wrong_document_is_refused_in_one_line(change, words):
    fails(changed(small(), change), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("JSON",)),
        ("nonsense", ("JSON",)),
        (to_json(small())[:-1], ("JSON",)),
        (to_json(small())[:300], ("JSON",)),
        (to_json(small()) + "]", ("JSON",)),
        (to_json(small()).encode(), ("a bytes is not a str",)),
        (None, ("a NoneType is not a str",)),
        ("[" * 100_000, ("nested more than 64 deep",)),
        ('{"a":' * 65 + "1" + "}" * 65, ("nested more than 64 deep",)),
        ("[" * 60 + "]" * 60, ("is not a program",)),
        ('["' + "[" * 1000 + '", "\\"[[' + "[" * 1000 + '"]', ("is not a program",)),  # brackets in strings are text
        ("NaN", ("NaN is",)),
        (to_json(small()).replace("[2, 3]", "[2, NaN]"), ("NaN is",)),
        (to_json(small()).replace("[2, 3]", "[2, -Infinity]"), ("-Infinity is",)),
        (to_json(small()).replace("[2, 3]", "[2, 1e999]"), ("1e999 is too long, too large",)),
        (to_json(small()).replace("[2, 3]", f"[2, {'9' * 10_000}]"), ("99... is too long",)),
        (to_json(small()).replace("[2, 3]", f"[2, 0.{'9' * 10_000}]"), ("is too long",)),
        (to_json(small()).replace('"version": 1', '"version": 2, "version": 1'), ("a key is there twice",)),
        ("\ufeff" + to_json(small()), ("JSON",)),
    ],
)
def test_what_is_not_such_json_is_refused_in_one_line(text, words):
    fails(text, *words)


def test_loading_does_not_recurse_whatever_the_limit():
    fails('{"nodes":' + "[" * 5_000_000, "nested")


def test_mapped_ops_are_checked_inside():
    g = Graph()
    x, w = g.input((2, 5, 5), name="x"), g.input((3, 2, 3, 3), name="w")
    program = g.build(g.conv(x, w)).batched(2)
    for change, words in [
        (put("nodes", 2, "params", "op", "params", "stride", 0), ("node 2", "stride=0")),
        (put("nodes", 2, "params", "op", "op", "os"), ("node 2", "unknown op 'os'")),
        (put("nodes", 2, "params", "op", "op", "const"), ("node 2", "unknown op 'const'")),
        (put("nodes", 2, "params", "op", 3), ("node 2", "mapped has the params")),
        (put("nodes", 2, "params", "flags", [1, 1]), ("node 2", "mapped has the params")),
        (put("nodes", 2, "params", "flags", [True]), ("node 2",)),
        (put("nodes", 2, "params", "flags", [False, False]), ("node 2",)),
        (drop("nodes", 2, "params", "flags"), ("node 2", "mapped has the params")),
        (put("nodes", 2, "params", "op", {"op": "max_pool", "params": {"kernel_size": 2, "return_indices": True}}),
         ("node 2", "return_indices")),
    ]:  # fmt: skip
        fails(changed(program, change), *words)


def test_nothing_but_literals_reaches_a_constructor(monkeypatch):
    """Entries of the table that are no dataclasses are never called by a file."""
    called = []
    monkeypatch.setitem(OPS, "danger", lambda *args: called.append(args))
    fails(changed(small(), put("nodes", 8, "op", "danger")), "unknown op 'danger'")
    assert not called


def test_the_names_of_files_cannot_be_taken(monkeypatch):
    for name in literals.RESERVED:
        monkeypatch.setitem(OPS, name, Scale)
    g = Graph()
    with pytest.raises(GraphError, match="Scale is not in the ops table"):
        to_json(g.build(g.push(Scale(1.0), g.input((2,)))))
    assert_same(small(), from_json(to_json(small())))
    fails(changed(small(), put("nodes", 8, "op", "mapped")), "node 8", "mapped has the params")


def test_every_field_of_every_op_has_a_type_that_is_looked_up():
    for name in OPS:
        entry = literals._entry(name)
        assert entry is not None, name
        assert {f.name for f in fields(entry.record)} <= set(literals._hints(entry.record)), name


def test_an_error_in_a_shape_rule_is_a_graph_error(monkeypatch):
    @dataclass(frozen=True)
    class Odd:
        error: str

        def out_shape(self, shape):
            raise {"Recursion": RecursionError, "Memory": MemoryError, "Key": KeyError}[self.error]("a\nb")

        def forward(self, x):
            return x

    monkeypatch.setitem(OPS, "odd", Odd)
    for error in ("Recursion", "Memory", "Key", "none"):
        fails(changed(small(), lambda d, e=error: d["nodes"][8].update(op="odd", params={"error": e})), "node 8")


# -- sizes before memory ---------------------------------------------------------------------------------------------


def peak(run) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("node", [2, 4])
def test_a_size_is_checked_before_memory_is_taken(node):
    text = changed(small(), put("nodes", node, "shape", [2**28]))  # 1 GiB, within the limits
    assert peak(lambda: fails(text, f"node {node}")) < 2**20


def npz_of(tmp_path, header_shape, data: bytes, dtype: str = "<f4", version=(1, 0), method=zipfile.ZIP_STORED):
    """small() with an .npz whose one array has a header of our own."""
    save(small(), tmp_path / "p.json", "npz")
    with zipfile.ZipFile(tmp_path / "p.npz", "w", method) as archive, archive.open("c2.npy", "w") as file:
        head = {"descr": dtype, "fortran_order": False, "shape": header_shape}
        write = {(1, 0): np.lib.format.write_array_header_1_0, (2, 0): np.lib.format.write_array_header_2_0}
        write[version](file, head)
        file.write(data)
    return tmp_path / "p.json"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"header_shape": (2**40,), "data": b""}, ("shape (1099511627776,) of float32, but the program says (2, 1)",)),
        ({"header_shape": (2, 1), "data": bytes(8), "dtype": "<f8"}, ("of float64, but",)),
        ({"header_shape": (2, 1), "data": bytes(8), "dtype": "|O"}, ("of object, but",)),
        ({"header_shape": (2, 1), "data": bytes(7)}, ("less than 8 bytes",)),
        ({"header_shape": (2, 1), "data": bytes(2**26)}, ("67108864 bytes of elements, more than 8 bytes",)),
        (
            {"header_shape": (2, 1), "data": bytes(2**26), "method": zipfile.ZIP_DEFLATED},  # a zip of 64 KiB
            ("c2.npy is compressed, which is not read; write it with numpy.savez",),
        ),
    ],
)
def test_a_wrong_npz_is_refused_before_memory_is_taken(header, words, tmp_path):
    path = npz_of(tmp_path, **header)

    def run():
        with pytest.raises(GraphError) as caught:
            load(path)
        for word in ("p.json: node 2: in p.npz", *words):
            assert word in str(caught.value)

    assert peak(run) < 2**22


def test_both_versions_of_npz_headers_and_orders_are_read(tmp_path):
    assert load(npz_of(tmp_path, (2, 1), bytes(8), version=(2, 0))).nodes[2].op.value.tolist() == [[0.0], [0.0]]
    g = Graph()
    save(g.build(g.const(np.zeros((2, 3)))), tmp_path / "f.json", "npz")
    np.savez(tmp_path / "f.npz", c0=np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert load(tmp_path / "f.json").nodes[0].op.value.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_npz_that_is_not_there_or_broken_is_refused(tmp_path):
    path = tmp_path / "p.json"
    save(small(), path, "npz")
    whole = (tmp_path / "p.npz").read_bytes()
    for data in (
        b"",
        b"PK",
        whole[:-30],
        whole.replace(b"c2.npy", b"c9.npy"),
        whole.replace(b"\x93NUMPY", b"\x93nUMPY"),
    ):
        (tmp_path / "p.npz").write_bytes(data)
        with pytest.raises(GraphError, match=r"p.json: node 2: in p.npz: "):
            load(path)
    (tmp_path / "p.npz").unlink()
    with pytest.raises(GraphError, match="No such file"):
        load(path)


def test_a_compressed_npz_is_refused_whatever_it_holds(tmp_path):
    path = tmp_path / "p.json"
    save(small(), path, "npz")
    with np.load(tmp_path / "p.npz") as arrays:
        np.savez_compressed(tmp_path / "p.npz", **arrays)
    with pytest.raises(GraphError, match="compressed, which is not read"):
        load(path)


def test_an_npz_that_claims_more_than_it_has_is_refused(tmp_path):
    path = tmp_path / "p.json"
    save(small(), path, "npz")
    whole = (tmp_path / "p.npz").read_bytes()
    entry = whole.rfind(b"PK\x01\x02")
    for sizes in ((2**31, 2**31), (2**31, 136), (136, 2**31)):  # compressed and not, in the directory
        (tmp_path / "p.npz").write_bytes(whole[: entry + 20] + struct.pack("<II", *sizes) + whole[entry + 28 :])
        with pytest.raises(GraphError, match=r"in p.npz: c2.npy says \d+ bytes, more than there are"):
            load(path)


def test_arrays_of_an_npz_do_not_share_their_bytes(tmp_path):
    """A thousand entries of one megabyte of data would be a gigabyte of arrays."""
    g = Graph()
    program = g.build([g.const(np.zeros(1000)) for _ in range(3)])
    save(program, tmp_path / "p.json", "npz")
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        with archive.open("c0.npy", "w") as file:
            np.lib.format.write_array(file, np.zeros(1000))
        for twin in ("c1.npy", "c2.npy"):
            shared = copy.copy(archive.filelist[0])
            shared.filename = twin
            archive.filelist.append(shared)
    with pytest.raises(GraphError, match=r"node \d: in p.npz: "):
        load(tmp_path / "p.json")


def test_an_npz_of_many_members_is_refused_before_they_are_listed(tmp_path):
    path = tmp_path / "p.json"
    save(small(), path, "npz")
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"m"
    directory = entry * (store.DIRECTORY // len(entry) + 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9, 9, len(directory), 0, 0)
    (tmp_path / "p.npz").write_bytes(directory + end)

    def run():
        with pytest.raises(GraphError, match=r"a directory of \d+ bytes, more than the \d+ of 20000 arrays"):
            load(path)

    assert peak(run) < 2**20


def test_the_limit_of_a_file_can_be_raised(tmp_path):
    g = Graph()
    program = g.build(g.const(np.zeros(1000)))
    save(program, tmp_path / "p.json", "npz")
    with pytest.raises(GraphError, match=r"in p.npz: (\d+) bytes, more than the 8000 .*load\(path, limit=\1\)"):
        load(tmp_path / "p.json", limit=8000)
    for read in (load, Program.load):
        assert to_json(read(tmp_path / "p.json", limit=10_000)) == to_json(program)
    save(program, tmp_path / "q.json")
    with pytest.raises(GraphError, match=r"q.json: \d+ bytes, more than the 8000"):
        load(tmp_path / "q.json", limit=8000)


def test_an_npz_is_only_read_at_its_own_key(tmp_path):
    save(small(), tmp_path / "p.json", "npz")
    for key in ("../../etc/passwd", "c3", 2, None):
        (tmp_path / "q.json").write_text(changed(small(), put("nodes", 2, "params", {"npz": key, "dtype": "float32"})))
        with pytest.raises(GraphError, match=r"node 2: npz is .*, not c2"):
            load(tmp_path / "q.json")


def test_a_bool_that_is_neither_is_refused():
    g = Graph()
    program = g.build(g.const(np.array([True, False])))
    fails(changed(program, put("nodes", 0, "params", "base64", base64.b64encode(b"\1\2").decode())), "neither 0 nor 1")


def test_files_that_are_no_text_or_no_files(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(GraphError, match=r"a.json: 'utf-8' codec"):
        load(tmp_path / "a.json")
    with pytest.raises(GraphError, match="not a file"):
        load("/dev/zero")
    with pytest.raises(OSError, match="No such file"):
        load(tmp_path / "b.json")
    with pytest.raises(GraphError, match="3 bytes, more than the 2 that are read"):
        load(tmp_path / "a.json", limit=2)


def test_a_long_hostile_file_takes_seconds_not_hours():
    inputs = [
        {"op": "input", "args": [], "params": {}, "shape": [], "name": f"n{i}", "dtype": None} for i in range(4000)
    ]
    document = {"format": "ndpool-program", "version": 1, "nodes": inputs, "outputs": [0]}
    start = time.process_time()
    from_json(json.dumps(document))
    fails('["' + '\\"' * 1_000_000, "JSON")
    fails('["' * 500_000, "JSON")
    many = changed(small(), put("nodes", [0] * (store.NODES + 1)))
    fails(many, "not a list of at most")
    assert time.process_time() - start < 10


# -- fuzz ------------------------------------------------------------------------------------------------------------

SEEDS = [json.loads(to_json(program)) for program in (small(), every_op())]
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 9), st.integers(), st.floats(), st.text(max_size=5),
        st.sampled_from([*OPS, *store.DTYPES, "input", "const", "mapped", "base64", "npz", "inf", "AAAA"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["float", "op", "x"]), inner)),
    max_leaves=4,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in keys for found in places(inner, (*path, key)))]


PLACES = [places(seed)[1:] for seed in SEEDS]


@st.composite
def mutants(draw) -> str:
    """The JSON of a valid program with up to three things dropped, replaced, copied or added, perhaps cut."""
    which = draw(st.integers(0, len(SEEDS) - 1))
    document = copy.deepcopy(SEEDS[which])
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(PLACES[which]))
        parent = document
        try:
            for key in path:
                parent = parent[key]
            match draw(st.sampled_from(["drop", "replace", "copy", "add"])):
                case "drop":
                    del parent[last]
                case "replace":
                    parent[last] = draw(VALUES)
                case "copy":
                    source = SEEDS[which]
                    for key in draw(st.sampled_from(PLACES[which])):
                        source = source[key]
                    parent[last] = copy.deepcopy(source)
                case "add":
                    parent[draw(st.sampled_from(["x", "axes", "ties", "padding"]))] = draw(VALUES)
        except (KeyError, IndexError, TypeError):
            pass  # the place has gone with an earlier change
    text = json.dumps(document)
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at] + draw(st.text(alphabet='{}[]",:0-.eNI\\ u\n', max_size=3)) + text[at + draw(st.integers(0, 2)) :]
        )
    return text


def read(text: str) -> bool:
    """Whether the text is a program; if not, it is refused as it should be."""
    try:
        program = from_json(text)
    except GraphError:
        fails(text, "program file: ")
        return False
    assert_same(program, from_json(to_json(program)))
    for node in program.nodes:
        assert all(0 <= a < node.id for a in node.args)
        assert isinstance(node.op, (Input, Const)) == (not node.args)
        if node.args:
            assert tuple(node.op.out_shape(*(program.nodes[a].shape for a in node.args))) == node.shape
    assert program.summary().count("\n") == len(program.nodes) + 2
    return True


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutants())
def test_a_mutant_is_refused_or_a_program(text):
    read(text)


def test_every_single_change_is_refused_or_gives_a_program():
    values = [None, True, 0, 1, 2, -1, 7, 2**40, 2**70, 0.5, "", "x", "relu", "float32", "1/3", [], [0], [2, 3], {}]
    outcomes = Counter()
    for *path, last in PLACES[0]:
        for value in [drop, *values]:
            document = copy.deepcopy(SEEDS[0])
            (drop(*path, last) if value is drop else put(*path, last, value))(document)
            if document != SEEDS[0]:
                outcomes[read(json.dumps(document))] += 1
    assert outcomes[False] > 1000
    assert outcomes[True] > 50


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_truncated_file_is_refused(start, length):
    text = to_json(small())
    cut = text[start % len(text) :][:length]
    if cut != text:
        fails(cut)
