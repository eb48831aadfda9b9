"""A program: an immutable graph that runs forward, pushes tangents through itself and pulls cotangents back.

Reading order: `Program` (what it is, then what it does), `Linearized`. Nodes are in an order in which arguments come
first; every run walks them once, drops a value after its last reader, and adds cotangents in node order, so results do
not depend on anything but the program and its inputs.
What lives elsewhere: nodes and the values of a run (`run`), building (`build`), drawing (`draw`), files (`store`),
self-tests (`check`), `transform`s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..lazy import lazy
from .node import (
    GraphError,
    Shape,
    enter,
    jvp_available,
    leave,
    library,
    run_forward,
    run_linearize,
    vjp_available,
    zeros_like,
)
from .run import Const, Input, Node, Parameter, Run, alone, raised, tangent_of

__all__ = ["Const", "Input", "Linearized", "Node", "Parameter", "Program"]


@dataclass(frozen=True)
class Program:
    """Nodes and which of them are the results. Call it, differentiate it, look at it, change it into another.

    Several inputs are a tuple, or a dict by name; one input may stand alone. Results likewise: one alone, several as a
    tuple. Arrays in give arrays out, nested lists of any scalar give nested lists.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    # -- what it is

    def __repr__(self) -> str:
        inputs = ", ".join(f"{node.label}: {node.shape}" for node in self.inputs)
        return f"Program({len(self.nodes)} nodes, {inputs} -> {', '.join(map(str, self.output_shapes))})"

    @lazy
    def inputs(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if isinstance(node.op, Input))

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return tuple(node.shape for node in self.inputs)

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        return tuple(self.nodes[i].shape for i in self.outputs)

    @lazy
    def needed(self) -> frozenset[int]:
        """The nodes that the outputs depend on."""
        found, todo = set(), list(self.outputs)
        while todo:
            if (i := todo.pop()) not in found:
                found.add(i)
                todo.extend(self.nodes[i].args)
        return frozenset(found)

    @lazy
    def _steps(self) -> tuple[tuple[Node, tuple[int, ...]], ...]:
        """The nodes to compute, and what may be dropped after each."""
        last = {arg: node.id for node in self.nodes if node.id in self.needed for arg in node.args}
        keep = set(self.outputs)
        return tuple(
            (node, tuple({arg for arg in node.args if last[arg] == node.id and arg not in keep}))
            for node in self.nodes
            if node.id in self.needed and not isinstance(node.op, (Input, Const))
        )

    @lazy
    def _active(self) -> frozenset[int]:
        """The needed nodes that depend on an input, other than through an op that stops derivatives."""
        found = {node.id for node in self.inputs}
        for node, _ in self._steps:
            if any(arg in found for arg in node.args) and not getattr(node.op, "stops", False):
                found.add(node.id)
        return frozenset(found)

    def preflight(self, derivative: str = "jvp") -> None:
        """Raise, before anything runs, if a node that needs a jvp (or vjp) has none."""
        has = {"jvp": jvp_available, "vjp": vjp_available}[derivative]
        missing = [node.label for node, _ in self._steps if node.id in self._active and not has(node.op)]
        if missing:
            raise GraphError(
                f"program: no {derivative} for {', '.join(missing)}; define {derivative} on the op, or detach"
            )

    # -- what it does

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The outputs at these inputs, by position or by name."""
        if inputs and named:
            raise GraphError(f"program: give {', '.join(n.label for n in self.inputs)} all by position or all by name")
        run = Run(self, named if named else inputs)
        env = self._walk(run.values, lambda node, xs: run_forward(node.op, xs))
        return run.results([env[i] for i in self.outputs])

    def _walk(
        self, env: dict[int, Any], step: Callable[[Node, tuple[Any, ...]], Any], *beside: dict[int, Any]
    ) -> dict[int, Any]:
        """env[node] = step(node, its arguments) for every node to compute; drops what no later node reads."""
        for node, drop in self._steps:
            env[node.id] = step(node, tuple(env[a] for a in node.args))
            for a in drop:
                del env[a]
                for table in beside:
                    table.pop(a, None)
        return env

    def jvp(self, primals: Any, tangents: Any) -> Any:
        """The tangents of the outputs, for tangents of the inputs (None: zero)."""
        self.preflight("jvp")
        run = Run(self, primals)
        moved = run.tangents_of_inputs(tangents)

        def step(node: Node, xs: tuple[Any, ...]) -> Any:
            if node.id not in self._active or not any(a in moved for a in node.args):
                return run_forward(node.op, xs)
            at = run_linearize(node.op, xs)
            dxs = (moved[a] if a in moved else zeros_like(x) for a, x in zip(node.args, xs, strict=True))
            moved[node.id] = at.jvp(*dxs)
            return at.y

        env = self._walk(run.values, step, moved)
        return run.results([moved[i] if i in moved else zeros_like(env[i]) for i in self.outputs])

    def vjp(self, primals: Any, cotangents: Any) -> Any:
        """The cotangents of the inputs, for cotangents of the outputs."""
        self.preflight("vjp")
        return self.linearize(primals)._pull(cotangents, spend=True)

    def linearize(self, primals: Any) -> Linearized:
        """One forward pass that keeps residuals only; then jvp and vjp as often as wanted."""
        run = Run(self, primals)
        linear: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}

        def step(node: Node, xs: tuple[Any, ...]) -> Any:
            if node.id not in self._active:
                return run_forward(node.op, xs)
            at = run_linearize(node.op, xs)
            linear[node.id] = at.jvp, at.vjp
            return at.y

        env = self._walk(run.values, step)
        return Linearized(run.results([env[i] for i in self.outputs]), self, run, linear)

    def jacobian(self, primals: Any) -> Any:
        """d output / d input, of shape output shape + input shape: by jvp if the inputs are fewer, else by vjp.

        A tuple over outputs of tuples over inputs, each level left out where there is one.
        """
        sizes_in, sizes_out = ([math.prod(s) for s in shapes] for shapes in (self.input_shapes, self.output_shapes))
        forwards = sum(sizes_in) <= sum(sizes_out)
        self.preflight("jvp" if forwards else "vjp")
        at = self.linearize(primals)
        moving, still = (sizes_in, self.output_shapes) if forwards else (sizes_out, self.input_shapes)
        shapes = self.input_shapes if forwards else self.output_shapes
        blocks: list[list[Any]] = []  # by moving part, by still part: (elements of the moving part, *still shape)
        for part, size in enumerate(moving):
            rows = []
            for e in range(size):
                basis = tuple(at._run.basis(shape, e if i == part else None) for i, shape in enumerate(shapes))
                got = at._push(basis) if forwards else at._pull(basis, spend=False)
                rows.append([enter(g) for g in (got if isinstance(got, tuple) and len(still) > 1 else (got,))])
            blocks.append([at._run.stacked([row[j] for row in rows], still[j]) for j in range(len(still))])
        table = []
        for o, out in enumerate(self.output_shapes):
            row = []
            for i, inp in enumerate(self.input_shapes):
                block = blocks[i][o] if forwards else blocks[o][i]
                flat = _transpose(block) if forwards else block
                row.append(leave(library(flat).reshape(flat, (*out, *inp))))
            table.append(alone(row))
        return alone(table)

    def hvp(self, primals: Any, tangents: Any) -> Any:
        """The Hessian of the one scalar output times `tangents`: vjp on dual numbers, exact."""
        if len(self.outputs) != 1 or math.prod(self.output_shapes[0]) != 1:
            raise GraphError(f"hvp: needs one output with one element, not shapes {self.output_shapes}")
        self.preflight("vjp")
        run = Run(self, primals)
        moved = run.tangents_of_inputs(tangents)
        at = self.linearize(tuple(raised(run.values[n.id], moved.get(n.id)) for n in self.inputs))
        one = raised(run.basis(self.output_shapes[0], 0), None)
        got = at._pull(one, spend=True)
        parts = got if len(self.inputs) > 1 else (got,)
        return alone([leave(tangent_of(enter(part))) for part in parts])

    # -- looked at and changed: each in its own module

    def check(self, **options: Any) -> Any:
        """Test adjointness and dual-number agreement of every node and of the whole: see `graph.check`."""
        from .check import check

        return check(self, **options)

    def summary(self) -> str:
        """A table: node, op, shapes, parameters, bytes."""
        from .draw import summary

        return summary(self)

    def to_svg(self) -> str:
        """A drawing of the graph, arguments above, shapes on the edges."""
        from .draw import svg

        return svg(self)

    def _repr_html_(self) -> str:
        return self.to_svg()

    def to_json(self) -> str:
        """The program as versioned JSON, constants inside: see `graph.store`."""
        from .store import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Program:
        """The inverse of `to_json`; nothing is executed, everything is checked."""
        from .store import from_json

        return from_json(text)

    def save(self, path: str | Path, constants: Literal["inline", "npz"] = "inline") -> None:
        """Write `to_json` to a file; with constants="npz" the arrays go to an .npz of the same stem beside it."""
        from .store import save

        save(self, path, constants)

    @staticmethod
    def load(path: str | Path, limit: int = 2**32) -> Program:
        """The program that `save` wrote; nothing is executed, everything is checked."""
        from .store import load

        return load(path, limit)

    def prune(self) -> Program:
        """Without the nodes that no output depends on (inputs stay)."""
        from .transform import prune

        return prune(self)

    def fold_constants(self) -> Program:
        """With every node that depends on constants alone computed now."""
        from .transform import fold_constants

        return fold_constants(self)

    def replace(self, change: Callable[[Any], Any]) -> Program:
        """With `change(op)` in place of each op; shapes are checked again."""
        from .transform import replace

        return replace(self, change)

    def compose(self, after: Program) -> Program:
        """after(self(x)): the outputs of this program are the inputs of the other."""
        from .transform import compose

        return compose(self, after)

    def upto(self, node: int | str) -> Program:
        """The part that computes one node, by number or name."""
        from .transform import upto

        return upto(self, node)

    def batched(self, n: int, inputs: tuple[str, ...] | None = None) -> Program:
        """For n samples at once: a leading axis on `inputs` (all but parameters by default) and what reads them."""
        from .transform import batched

        return batched(self, n, inputs)


def _transpose(block: Any) -> Any:
    return library(block).permute_dims(block, (*range(1, block.ndim), 0)) if block.ndim > 1 else block


@dataclass(frozen=True, repr=False)
class Linearized:
    """A program at a point: the outputs `y`, and `jvp` and `vjp` from the residuals kept."""

    y: Any
    _program: Program
    _run: Run
    _linear: dict[int, tuple[Callable[..., Any], Callable[..., Any]]]

    def jvp(self, tangents: Any) -> Any:
        """The tangents of the outputs."""
        self._program.preflight("jvp")
        return self._push(tangents)

    def vjp(self, cotangents: Any) -> Any:
        """The cotangents of the inputs."""
        self._program.preflight("vjp")
        return self._pull(cotangents, spend=False)

    def _push(self, tangents: Any) -> Any:
        moved, nodes = self._run.tangents_of_inputs(tangents), self._program.nodes

        def tangent(i: int) -> Any:
            return moved[i] if i in moved else self._run.basis(nodes[i].shape, None)

        for node, drop in self._program._steps:
            if node.id in self._linear and any(a in moved for a in node.args):
                moved[node.id] = self._linear[node.id][0](*map(tangent, node.args))
            for a in drop:
                moved.pop(a, None)
        return self._run.results([tangent(i) for i in self._program.outputs])

    def _pull(self, cotangents: Any, spend: bool) -> Any:
        program = self._program
        pulled: dict[int, Any] = {}
        outs = tuple(program.nodes[i] for i in program.outputs)
        for node, g in zip(outs, self._run.spread(cotangents, outs, "cotangents"), strict=True):
            if g is not None:
                g = self._run.tangent(node, g, "cotangent of")
                pulled[node.id] = pulled[node.id] + g if node.id in pulled else g
        for node, _ in reversed(program._steps):
            g = pulled.pop(node.id, None)
            if g is None or node.id not in program._active:
                continue
            take = self._linear.pop if spend else self._linear.__getitem__
            for arg, dx in zip(node.args, take(node.id)[1](g), strict=True):
                if arg in program._active:
                    pulled[arg] = pulled[arg] + dx if arg in pulled else dx
        return self._run.results(
            [
                pulled[node.id] if node.id in pulled else self._run.basis(node.shape, None, dtype)
                for node, dtype in zip(program.inputs, self._run.dtypes, strict=True)
            ]
        )
