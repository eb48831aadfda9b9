"""Programs from programs: each transform keeps what it says it keeps."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from ndpool import Graph, GraphError, MaxPool, PoolError, Program, SmoothMaxPool
from ndpool.graph import Var

from ..cases import RECORDS, SHAPE
from .strategies import (
    ForwardOnly,
    Square,
    as_tuple,
    close,
    floats,
    fractions,
    given,
    of,
    programs,
    seeds,
    several,
    unary,
)


def same_results(p: Program, q: Program, rng: np.random.Generator) -> None:
    """The same value, jvp and vjp, exactly."""
    assert p.input_shapes == q.input_shapes
    assert p.output_shapes == q.output_shapes
    assert [n.name for n in p.inputs] == [n.name for n in q.inputs]
    xs, dxs = several(rng, p.input_shapes), several(rng, p.input_shapes)
    dys = several(rng, p.output_shapes)
    dys = dys if len(dys) > 1 else dys[0]
    assert p(*xs) == q(*xs)
    assert p.jvp(xs, dxs) == q.jvp(xs, dxs)
    assert p.vjp(xs, dys) == q.vjp(xs, dys)


# -- prune ---------------------------------------------------------------------------------------------------------


@given(programs(), seeds)
def test_prune_keeps_the_meaning_and_drops_the_dead(program: Program, rng: np.random.Generator) -> None:
    pruned = program.prune()
    same_results(program, pruned, rng)
    assert len(pruned.needed | {n.id for n in pruned.inputs}) == len(pruned.nodes)
    assert len(pruned.prune().nodes) == len(pruned.nodes)


def test_prune_keeps_inputs_names_and_dtypes() -> None:
    g = Graph()
    x, unused = g.input((2,), "x", "float32"), g.input((3,), "unused", ml_dtypes.bfloat16)
    g.neg(unused, name="dead")
    program = g.build(g.relu(x, name="kept")).prune()
    assert [(n.name, n.dtype) for n in program.nodes] == [("x", "float32"), ("unused", "bfloat16"), ("kept", "float32")]


# -- fold_constants ------------------------------------------------------------------------------------------------


@given(programs(), seeds)
def test_folding_keeps_the_meaning(program: Program, rng: np.random.Generator) -> None:
    folded = program.fold_constants()
    same_results(program, folded, rng)
    for node in folded.nodes:
        if node.op.name not in ("input", "const"):
            assert any(folded.nodes[a].op.name != "const" for a in node.args)


def test_folding_computes_what_depends_on_constants_alone() -> None:
    op = ForwardOnly()
    g = Graph()
    x = g.input((1,))
    weight = g.push(op, g.max_pool(g.const([1, 3, 2, 5]), (2,)) * 2)
    program = g.build(x * weight)
    folded = program.fold_constants()
    assert len(folded.nodes) == 3
    assert op.runs == 1
    assert folded([Fraction(1, 2)]) == [3, 5]
    assert op.runs == 1


def test_folding_a_constant_output() -> None:
    g = Graph()
    g.input((2,))
    folded = g.build(g.const([1, 2]) + 1).fold_constants()
    assert [n.op.name for n in folded.nodes] == ["input", "const"]
    assert folded([0, 0]) == [2, 3]


def smooth(op: Any) -> Any:
    if isinstance(op, MaxPool):
        return SmoothMaxPool(op.kernel_size, op.stride, op.padding, beta=50.0, count_include_pad=False, axes=op.axes)
    return op


def test_replace_every_max_by_a_smooth_max() -> None:
    g = Graph()
    x = g.input((2, 6, 6), "x")
    h = g.max_pool(g.relu(x), 3, stride=2, padding=1, name="pool")
    program = g.build(g.max_pool(h * 2, 2))
    softer = program.replace(smooth)
    assert [n.op.name for n in softer.nodes].count("smooth_max_pool") == 2
    assert "max_pool" not in [n.op.name for n in softer.nodes]
    assert [n.name for n in softer.nodes if n.name] == ["x", "pool"]
    a = floats(np.random.default_rng(0), (2, 6, 6))
    want = SmoothMaxPool(2, beta=50.0)(2 * SmoothMaxPool(3, 2, 1, beta=50.0, count_include_pad=False)(np.maximum(a, 0)))
    close(softer(a), want)
    assert 0 < np.abs(softer(a) - program(a)).max() < 0.2
    assert program(a).max() < softer(a).max()  # the first program is as it was


def test_replace_by_the_same_is_the_same() -> None:
    program = unary(lambda g, x: g.max_pool(g.relu(x), (2,)) * 3, (4,))
    same_results(program, program.replace(lambda op: op), np.random.default_rng(0))


def test_replace_checks_shapes_again() -> None:
    program = unary(lambda g, x: g.max_pool(x, (2,)) + g.const([1, 2]), (4,))
    with pytest.raises(GraphError, match=r"add 3 on .*\(3,\).*\(2,\)"):
        program.replace(lambda op: MaxPool((2,), 1) if isinstance(op, MaxPool) else op)
    with pytest.raises(GraphError, match="NodeOp"):
        program.replace(lambda op: None)


# -- compose and upto ----------------------------------------------------------------------------------------------


@given(programs(steps=4), st.integers(0, 3), seeds)
def test_composition_is_one_after_the_other(first: Program, kind: int, rng: np.random.Generator) -> None:
    g = Graph()
    xs = [g.input(shape, f"y{i}") for i, shape in enumerate(first.output_shapes)]
    builds = (lambda x: x * x, g.relu, lambda x: g.sum(x) + x, lambda x: x)
    then = g.build([builds[kind](x) for x in xs])
    both = first.compose(then)
    xs, dxs = several(rng, first.input_shapes), several(rng, first.input_shapes)
    count = len(first.outputs)
    ys = as_tuple(first(*xs), count)
    assert both(*xs) == then(*ys)
    dys = as_tuple(first.jvp(xs, dxs), count)
    assert both.jvp(xs, dxs) == then.jvp(ys, dys)
    gs = several(rng, then.output_shapes)
    gs = gs if count > 1 else gs[0]
    assert both.vjp(xs, gs) == first.vjp(xs, then.vjp(ys, gs))


def test_composition_needs_fitting_programs() -> None:
    one, two = unary(lambda g, x: x + 1, (2,)), of(lambda g, x, y: x + y, (2,), (2,))
    with pytest.raises(GraphError, match=r"1 outputs for 2 inputs"):
        one.compose(two)
    with pytest.raises(GraphError, match=r"\(2,\).*input x of shape \(3,\)"):
        one.compose(unary(lambda g, x: x, (3,)))


def test_composition_with_one_output_twice_and_an_input_passed_through() -> None:
    g = Graph()
    x = g.input((2,), "x")
    y = x * 2
    both = g.build([y, y]).compose(of(lambda g, a, b: [a - b, b], (2,), (2,)))
    assert both([1, 2]) == ([0, 0], [2, 4])
    assert both.vjp([1, 2], ([1, 1], [1, 1])) == [2, 2]


@given(programs(), st.data(), seeds)
def test_upto_computes_that_node(program: Program, data: Any, rng: np.random.Generator) -> None:
    node = data.draw(st.sampled_from(program.nodes))
    g = Graph()
    g.nodes = list(program.nodes)
    whole = g.build([Var(g, node.id)])
    part = program.upto(node.id)
    same_results(whole, part, rng)
    assert part.output_shapes == (node.shape,)
    same_results(part, program.upto(node.label), rng)


def test_upto_by_name_and_its_errors() -> None:
    program = unary(lambda g, x: g.neg(g.relu(x, name="hidden")) + 1)
    assert program.upto("hidden")([-1, 0, 1]) == [0, 0, 1]
    assert program.upto("x")([1, 2, 3]) == [1, 2, 3]
    for missing in ("nowhere", 99, -1):
        with pytest.raises(GraphError, match="no node"):
            program.upto(missing)


# -- batched -------------------------------------------------------------------------------------------------------


def stacks(program: Program, n: int, xs: Any, flags: tuple[bool, ...], rng: np.random.Generator) -> None:
    """program.batched(n) is n runs of `program`, stacked: value, jvp and vjp; cotangents of the shared are summed."""
    names = tuple(node.label for node, flag in zip(program.inputs, flags, strict=True) if flag)
    batched = program.batched(n) if all(flags) else program.batched(n, inputs=names)
    dxs = tuple(floats(rng, x.shape) for x in xs)
    sample = lambda values, i: tuple(v[i] if f else v for v, f in zip(values, flags, strict=True))  # noqa: E731
    count = len(program.outputs)
    alone = [as_tuple(program(*sample(xs, i)), count) for i in range(n)]
    moved = [as_tuple(program.jvp(sample(xs, i), sample(dxs, i)), count) for i in range(n)]
    dys = tuple(floats(rng, shape) for shape in batched.output_shapes)
    leads = [shape != plain for shape, plain in zip(batched.output_shapes, program.output_shapes, strict=True)]
    for o, shape in enumerate(program.output_shapes):
        assert batched.output_shapes[o] == ((n, *shape) if leads[o] else shape)
    if not all(leads):
        return
    got, got_moved = as_tuple(batched(*xs), count), as_tuple(batched.jvp(xs, dxs), count)
    for o, shape in enumerate(program.output_shapes):
        close(got[o], np.stack([y[o] for y in alone]) if n else np.zeros((0, *shape)), 1e-10)
        close(got_moved[o], np.stack([y[o] for y in moved]) if n else np.zeros((0, *shape)), 1e-10)
    pulled = as_tuple(batched.vjp(xs, dys if count > 1 else dys[0]), len(xs))
    ones = [
        as_tuple(program.vjp(sample(xs, i), tuple(d[i] for d in dys) if count > 1 else dys[0][i]), len(xs))
        for i in range(n)
    ]
    for j, (flag, x) in enumerate(zip(flags, xs, strict=True)):
        parts = [one[j] for one in ones]
        want = (np.stack(parts) if flag else sum(parts)) if n else np.zeros(x.shape)
        close(pulled[j], want, 1e-10)


@st.composite
def some_of(draw: st.DrawFn) -> tuple[Program, tuple[bool, ...]]:
    program = draw(programs(steps=4))
    flags = draw(st.tuples(*[st.booleans()] * len(program.inputs)).filter(any))
    return program, flags


@given(some_of(), st.integers(0, 3), seeds, examples=150)
def test_batching_is_stacking(case: Any, n: int, rng: np.random.Generator) -> None:
    program, flags = case
    xs = tuple(
        floats(rng, (n, *shape) if flag else shape) for shape, flag in zip(program.input_shapes, flags, strict=True)
    )
    stacks(program, n, xs, flags, rng)


BINARY: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "add": (lambda g, a, b: a + b, (2, 3), (3,)),
    "sub, shorter first": (lambda g, a, b: a - b, (3,), (2, 3)),
    "mul, both ways": (lambda g, a, b: a * b, (2, 1), (1, 3)),
    "div, ones": (lambda g, a, b: a / (b * b + 1), (1,), (4, 2, 3)),
    "mul, scalar": (lambda g, a, b: a * b, (), (2,)),
    "concat": (lambda g, a, b: g.concat(a, b), (2, 3), (1, 3)),
    "concat, last": (lambda g, a, b: g.concat(a, b, axis=-1), (2, 3), (2, 1)),
    "conv": (lambda g, a, b: g.conv(a, b, padding=1), (2, 4, 4), (3, 2, 2, 2)),
    "conv, groups": (lambda g, a, b: g.conv(a, b, stride=2, groups=2), (2, 5), (4, 1, 2)),
    "conv, leading": (lambda g, a, b: g.conv(a, b), (3, 2, 4), (1, 2, 2)),
    "cross-entropy": (lambda g, a, b: g.softmax_cross_entropy(a, b), (2, 3), (2, 3)),
    "cross-entropy, vector": (lambda g, a, b: g.softmax_cross_entropy(a, b), (3,), (3,)),
    **{
        f"matmul {a} {b}": (lambda g, a, b: a @ b, a, b)
        for a, b in (
            ((3,), (3,)),
            ((3,), (3, 2)),
            ((2, 3), (3,)),
            ((2, 3), (3, 4)),
            ((3,), (2, 3, 4)),
            ((2, 2, 3), (3,)),
            ((2, 2, 3), (3, 4)),
            ((2, 3), (2, 3, 4)),
            ((2, 2, 3), (2, 3, 4)),
            ((1, 2, 3), (4, 3, 2)),
        )
    },
}


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)], ids=["both", "first", "second"])
@pytest.mark.parametrize("case", BINARY)
def test_batching_of_two_arguments(case: str, flags: tuple[bool, bool], n: int) -> None:
    build, *shapes = BINARY[case]
    rng = np.random.default_rng(n)
    xs = tuple(floats(rng, (n, *s) if f else s) for s, f in zip(shapes, flags, strict=True))
    stacks(of(build, *shapes), n, xs, flags, rng)


UNARY: dict[str, tuple[Any, tuple[int, ...]]] = {
    "sum": (lambda g, x: g.sum(x), (2, 3)),
    "sum, first": (lambda g, x: g.sum(x, axes=0), (2, 3)),
    "mean, kept": (lambda g, x: g.mean(x, axes=(0, -1), keepdims=True), (2, 3, 2)),
    "sum of a scalar": (lambda g, x: g.sum(x), ()),
    "reshape": (lambda g, x: g.reshape(x, (3, -1)), (2, 3)),
    "reshape to a scalar": (lambda g, x: g.reshape(x, ()), (1,)),
    "reshape, flattened, batched": (
        lambda g, x: g.reshape(g.flatten(g.reshape(x, (3, 2, 2)), start=1), (2, 6)),
        (2, 3, 2),
    ),
    "flatten": (lambda g, x: g.flatten(x), (2, 3)),
    "flatten from 1": (lambda g, x: g.flatten(x, start=1), (2, 3, 2)),
    "detach": (lambda g, x: g.detach(x) * x, (2, 3)),
    "relu": (lambda g, x: g.relu(x), (2, 3)),
    "constant": (lambda g, x: x @ g.const(np.eye(3)) + [1, 2, 3], (2, 3)),
    "a user's own": (lambda g, x: g.push(Square(), x), (2, 3)),
    **{name: (lambda g, x, op=op: g.push(op, x), SHAPE) for name, op in RECORDS.items()},
}


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("case", UNARY)
def test_batching_of_one_argument(case: str, n: int) -> None:
    build, shape = UNARY[case]
    rng = np.random.default_rng(n)
    stacks(unary(build, shape), n, (floats(rng, (n, *shape)),), (True,), rng)


def test_batching_twice() -> None:
    program = unary(lambda g, x: g.max_pool(g.flatten(x, start=0), (2,)) * 2, (2, 2))
    twice = program.batched(3).batched(2)
    x = floats(np.random.default_rng(0), (2, 3, 2, 2))
    want = np.stack([np.stack([program(x[i, j]) for j in range(3)]) for i in range(2)])
    close(twice(x), want)
    close(
        twice.vjp(x, want), np.stack([np.stack([program.vjp(x[i, j], want[i, j]) for j in range(3)]) for i in range(2)])
    )


@given(programs(steps=3), seeds, examples=40)
def test_batching_is_exact_over_fractions(program: Program, rng: np.random.Generator) -> None:
    xs = tuple(fractions(rng, (2, *shape)) for shape in program.input_shapes)
    batched, count = program.batched(2), len(program.outputs)
    got = as_tuple(batched(*xs), count)
    alone = [as_tuple(program(*(x[i] for x in xs)), count) for i in range(2)]
    for o in range(count):
        lead = batched.output_shapes[o] != program.output_shapes[o]
        assert got[o] == ([y[o] for y in alone] if lead else alone[0][o])


def test_batched_programs_have_a_second_order() -> None:
    program = unary(lambda g, x: g.sum(g.push(Square(), x) * x), (2,)).batched(2)
    total = program.compose(unary(lambda g, y: g.sum(y), (2,)))
    x = np.array([[1.0, 2], [3, 4]])
    close(total.hvp(x, np.ones((2, 2))), 6 * x)
    assert total.hvp(x.tolist(), np.ones((2, 2)).tolist()) == (6 * x).tolist()


def test_batched_errors() -> None:
    program = of(lambda g, x, y: x + y, (2,), (2,))
    with pytest.raises(GraphError, match=r"no input 'z'; there are x0, x1"):
        program.batched(2, inputs=("z",))
    for bad in (-1, 1.5, True, "2"):
        with pytest.raises(PoolError, match="n="):
            program.batched(bad)


def test_an_output_that_depends_on_no_batched_input_has_no_leading_axis() -> None:
    g = Graph()
    x, y = g.input((2,), "x"), g.input((3,), "y")
    batched = g.build([x * 2, y * 2, g.const([1])]).batched(4, inputs=("x",))
    assert batched.input_shapes == ((4, 2), (3,))
    assert batched.output_shapes == ((4, 2), (3,), (1,))


def test_mapped_names_what_it_maps() -> None:
    batched = unary(lambda g, x: g.push(Square(), x)).batched(2)
    assert "square" in batched.nodes[1].label
    assert math.prod(batched.output_shapes[0]) == 6
