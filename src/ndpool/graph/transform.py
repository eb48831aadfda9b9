"""Programs from programs: prune, fold constants, replace ops, compose, cut, batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arguments import integer
from ..engines.base import Linear
from .build import Graph, Var
from .node import (
    GraphError,
    Shape,
    enter,
    jvp_available,
    library,
    op_name,
    run_forward,
    run_linearize,
    vjp_available,
    zeros_like,
)
from .program import Const, Input, Node, Parameter, Program


def copy(
    graph: Graph, program: Program, given: dict[int, Var], change: Callable[[Node], Any] = lambda node: node.op
) -> dict[int, Var]:
    """The needed nodes of `program` again in `graph`, with some given; node id -> variable."""
    made = dict(given)
    for node in program.nodes:
        if node.id in made or (node.id not in program.needed and not isinstance(node.op, Input)):
            continue
        if isinstance(node.op, Input):
            made[node.id] = graph._given(node.op, node.shape, node.name, node.dtype)
        elif isinstance(op := change(node), Const):
            made[node.id] = graph.const(op.value, node.name)
        else:
            made[node.id] = graph.push(op, *(made[a] for a in node.args), name=node.name)
    return made


def prune(program: Program) -> Program:
    """Without the nodes that no output depends on; inputs stay, so the call does."""
    graph = Graph()
    made = copy(graph, program, {})
    return graph.build([made[i] for i in program.outputs])


def fold_constants(program: Program) -> Program:
    """With every node that depends on constants alone computed now."""
    values: dict[int, Any] = {}
    for node in program.nodes:
        if isinstance(node.op, Const):
            values[node.id] = node.op.value
        elif node.args and all(a in values for a in node.args):
            values[node.id] = run_forward(node.op, tuple(values[a] for a in node.args))
    graph = Graph()
    made = copy(graph, program, {}, lambda node: Const(enter(values[node.id])) if node.id in values else node.op)
    return prune(graph.build([made[i] for i in program.outputs]))


def replace(program: Program, change: Callable[[Any], Any]) -> Program:
    """With `change(op)` in place of each op that is not an input or a constant."""
    graph = Graph()
    made = copy(graph, program, {}, lambda node: node.op if isinstance(node.op, Const) else change(node.op))
    return graph.build([made[i] for i in program.outputs])


def compose(first: Program, then: Program) -> Program:
    """then(first(x))."""
    if len(first.outputs) != len(then.inputs):
        raise GraphError(f"compose: {len(first.outputs)} outputs for {len(then.inputs)} inputs; make them as many")
    graph = Graph()
    made = copy(graph, first, {})
    for i, node in zip(first.outputs, then.inputs, strict=True):
        if made[i].shape != node.shape:
            raise GraphError(f"compose: output {made[i]!r} does not fit input {node.label} of shape {node.shape}")
    after = copy(graph, then, {node.id: made[i] for i, node in zip(first.outputs, then.inputs, strict=True)})
    return graph.build([after[i] for i in then.outputs])


def upto(program: Program, node: int | str) -> Program:
    """The part that computes one node, by number or name."""
    found = [n.id for n in program.nodes if node in (n.id, n.name, n.label)]
    if not found:
        raise GraphError(f"upto: no node {node!r}; there are 0 to {len(program.nodes) - 1}")
    return prune(Program(program.nodes, (found[0],)))


def batched(program: Program, n: int, inputs: tuple[str, ...] | None) -> Program:
    """A leading axis of size n on `inputs` and all that depends on them."""
    n = integer("n", n, 0)
    names = [node.label for node in program.inputs]
    unknown = [name for name in inputs or () if name not in names]
    if unknown:
        raise GraphError(f"batched: no input {unknown[0]!r}; there are {', '.join(names)}")
    graph = Graph()
    made: dict[int, Var] = {}
    leading: set[int] = set()
    for node in program.nodes:
        if isinstance(node.op, Input):
            if node.label in inputs if inputs is not None else not isinstance(node.op, Parameter):
                leading.add(node.id)
            made[node.id] = graph._given(node.op, (n,) * (node.id in leading) + node.shape, node.name, node.dtype)
        elif node.id not in program.needed:
            continue
        elif isinstance(node.op, Const):
            made[node.id] = graph.const(node.op.value, node.name)
        else:
            flags = tuple(a in leading for a in node.args)
            op = node.op
            if any(flags):
                leading.add(node.id)
                shapes = tuple(program.nodes[a].shape for a in node.args)
                op = _batched_op(node.op, flags, shapes)
            made[node.id] = graph.push(op, *(made[a] for a in node.args), name=node.name)
    return graph.build([made[i] for i in program.outputs])


def _batched_op(op: Any, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
    own = getattr(op, "batched", None)
    return (own(flags, shapes) if own else None) or Mapped(op, flags)


@dataclass(frozen=True)
class Mapped:
    """`op` on each sample of the arguments whose flag is set: what batching means, for ops that know no faster way."""

    op: Any
    flags: tuple[bool, ...]

    @property
    def name(self) -> str:
        return f"mapped {op_name(self.op)}"

    def _count(self, shapes: tuple[Shape, ...]) -> int:
        return next(shape[0] for flag, shape in zip(self.flags, shapes, strict=True) if flag)

    def _sample(self, xs: tuple[Any, ...], i: int) -> tuple[Any, ...]:
        return tuple(enter(x[i]) if flag else x for flag, x in zip(self.flags, xs, strict=True))

    def out_shape(self, *shapes: Shape) -> Shape:
        inner = (shape[1:] if flag else shape for flag, shape in zip(self.flags, shapes, strict=True))
        return (self._count(shapes), *self.op.out_shape(*inner))

    def forward(self, *xs: Any) -> Any:
        return self.linearize(*xs).y

    def linearize(self, *xs: Any) -> Linear:
        xp, n = library(*xs), self._count(tuple(x.shape for x in xs))
        if n == 0:
            y = xp.zeros(self.out_shape(*(x.shape for x in xs)), dtype=xs[0].dtype)
            return Linear(y, lambda *dxs: y, lambda dy: tuple(zeros_like(x) for x in xs))
        parts = [run_linearize(self.op, self._sample(xs, i)) for i in range(n)]

        def vjp(dy: Any) -> tuple[Any, ...]:
            pulled = list(zip(*(part.vjp(enter(dy[i])) for i, part in enumerate(parts)), strict=True))
            return tuple(
                xp.stack(list(dxs), axis=0) if flag else sum(dxs[1:], dxs[0])
                for flag, dxs in zip(self.flags, pulled, strict=True)
            )

        return Linear(
            xp.stack([part.y for part in parts], axis=0),
            lambda *dxs: xp.stack([part.jvp(*self._sample(dxs, i)) for i, part in enumerate(parts)], axis=0),
            vjp,
        )

    @property
    def jvp(self) -> Callable[..., Any] | None:
        """None where the op has none, so that a preflight finds it missing."""
        n = len(self.flags)
        return (lambda *xs_dxs: self.linearize(*xs_dxs[:n]).jvp(*xs_dxs[n:])) if jvp_available(self.op) else None

    @property
    def vjp(self) -> Callable[..., Any] | None:
        return (lambda *xs_dy: self.linearize(*xs_dy[:-1]).vjp(xs_dy[-1])) if vjp_available(self.op) else None
