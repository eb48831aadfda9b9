"""The builder: a `Graph` grows by `push`, a `Var` names one value of it, `build` makes an immutable `Program`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import integer, named
from ..engines import dtypes
from ..errors import PoolError
from .node import GraphError, NodeOp, Shape, enter, op_name
from .program import Const, Input, Node, Parameter, Program
from .table import OPS, find


@dataclass(frozen=True)
class Var:
    """One value of a graph: the node that makes it, its shape and, if fixed, its dtype. Arithmetic builds nodes."""

    graph: Graph
    id: int

    __array_ufunc__ = None  # array + var builds a node too

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.id]

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> str | None:
        return self.node.dtype

    def __repr__(self) -> str:
        return f"Var({self.node.label}, shape={self.shape}{f', dtype={self.dtype}' if self.dtype else ''})"

    def __hash__(self) -> int:
        return hash((id(self.graph), self.id))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Var) and other.graph is self.graph and other.id == self.id

    def __add__(self, other: Any) -> Var:
        return self.graph._arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Var:
        return self.graph._arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Var:
        return self.graph._arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Var:
        return self.graph._arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Var:
        return self.graph._arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Var:
        return self.graph._arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Var:
        return self.graph._arithmetic("div", self, other)

    def __rtruediv__(self, other: Any) -> Var:
        return self.graph._arithmetic("div", other, self)

    def __matmul__(self, other: Any) -> Var:
        return self.graph._arithmetic("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Var:
        return self.graph._arithmetic("matmul", other, self)

    def __neg__(self) -> Var:
        return self.graph.neg(self)


class Graph:
    """Build a program one node at a time; shapes are checked at each call.

    `graph.<op>(*vars, *arguments)` pushes the op of that name: `max_pool`, `conv`, `relu`, `add`, ...

    >>> g = Graph()
    >>> x = g.input((3, 32, 32), name="x")
    >>> h = g.max_pool(x, 3, stride=2, padding=1)
    >>> h
    Var(max_pool 1, shape=(3, 16, 16))
    >>> program = g.build(g.global_avg_pool(h, keepdims=False))
    >>> program.output_shapes
    ((3,),)
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._inputs: set[str] = set()

    def input(self, shape: Sequence[int], name: str | None = None, dtype: Any = None) -> Var:
        """A value given when the program runs; `dtype` fixes its element type."""
        return self._given(Input(), shape, name, dtype)

    def parameter(self, shape: Sequence[int], name: str | None = None, dtype: Any = None) -> Var:
        """An input that is a weight: `summary` counts it, and `batched` gives all samples the same."""
        return self._given(Parameter(), shape, name, dtype)

    def _given(self, op: Input, shape: Sequence[int], name: str | None, dtype: Any) -> Var:
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            raise GraphError(f"{op.name}: {_no_sizes(shape)}")
        with named(op.name):
            sizes = tuple(integer("shape", n, 0) for n in shape)
        name = name or f"x{len(self._inputs)}"
        if name in self._inputs:
            raise GraphError(f"{op.name}: the name {name!r} is taken; inputs need different names")
        self._inputs.add(name)
        return self._append(op, (), sizes, None if dtype is None else dtypes.name(_dtype(dtype)), name)

    def const(self, value: Any, name: str | None = None) -> Var:
        """A fixed value: an array (copied), or a nested list or number of any scalar. Its dtype is that of the run."""
        array = enter(value)
        if not isinstance(array, np.ndarray):
            raise GraphError(f"const: {type(value).__qualname__} is not a NumPy array, a nested list or a number")
        array = array.copy()
        array.flags.writeable = False
        return self._append(Const(array), (), array.shape, None, name)

    def push(self, op: Any, *args: Var, name: str | None = None) -> Var:
        """Append a node that applies `op` (anything with out_shape, forward, jvp, vjp) to `args`."""
        label = f"{op_name(op)} {len(self.nodes)}"
        if not isinstance(op, NodeOp):
            raise GraphError(f"{label}: {op!r} has no out_shape and forward; see the NodeOp protocol")
        if getattr(op, "return_indices", False):
            raise GraphError(f"{label}: return_indices=True gives two values; a node has one, so leave it out")
        for arg in args:
            self._own(label, arg)
        shapes = tuple(arg.shape for arg in args)
        try:
            inspect.signature(op.out_shape).bind(*shapes)
        except TypeError as error:
            raise GraphError(f"{label}: wrong number of arguments, {len(args)} given: {error}") from None
        try:
            shape = tuple(op.out_shape(*shapes))
        except (PoolError, TypeError) as error:
            said = str(error).removeprefix(f"{op_name(op)}: ")
            raise GraphError(f"{label}{_listed(args)}: {said}") from error
        fixed = sorted({arg.dtype for arg in args if arg.dtype})
        if len(fixed) > 1:
            raise GraphError(f"{label}: arguments have the dtypes {' and '.join(fixed)}; make them equal")
        return self._append(op, tuple(arg.id for arg in args), shape, fixed[0] if fixed else None, name)

    def build(self, outputs: Var | Sequence[Var]) -> Program:
        """The program that computes `outputs` from this graph's inputs."""
        wanted = (outputs,) if isinstance(outputs, Var) else tuple(outputs)
        if not wanted:
            raise GraphError("build: no outputs; name at least one variable")
        for var in wanted:
            self._own("build", var)
        return Program(tuple(self.nodes), tuple(var.id for var in wanted))

    def __getattr__(self, name: str) -> Callable[..., Var]:
        op = find(name)
        if op is None:
            raise AttributeError(f"Graph has no op {name!r}; it has {', '.join(sorted(OPS))}")

        def call(*args: Any, name: str | None = None, **kwargs: Any) -> Var:
            split = next((i for i, arg in enumerate(args) if not isinstance(arg, Var)), len(args))
            label = f"{call.__name__} {len(self.nodes)}"
            try:
                made = op(*args[split:], **kwargs)
            except PoolError as error:
                said = str(error).removeprefix(f"{call.__name__}: ")
                raise GraphError(f"{label}{_listed(args[:split])}: {said}") from error
            except TypeError as error:
                raise GraphError(f"{label}: {error}; values that are not variables go through graph.const") from error
            return self.push(made, *args[:split], name=name)

        call.__name__ = name
        return call

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *OPS]

    def _arithmetic(self, name: str, a: Any, b: Any) -> Var:
        a, b = (v if isinstance(v, Var) else self.const(v) for v in (a, b))
        return self.push(OPS[name](), a, b)

    def _own(self, label: str, var: Any) -> None:
        if not isinstance(var, Var):
            raise GraphError(f"{label}: {var!r} is not a variable; wrap numbers and arrays with graph.const")
        if var.graph is not self:
            raise GraphError(f"{label}: {var!r} belongs to another graph; build both parts in one, or compose programs")
        if not 0 <= var.id < len(self.nodes):
            raise GraphError(f"{label}: the graph has no variable {var.id}, only {len(self.nodes)}")

    def _append(self, op: Any, args: tuple[int, ...], shape: Shape, dtype: str | None, name: str | None) -> Var:
        self.nodes.append(Node(len(self.nodes), op, args, shape, dtype, name))
        return Var(self, len(self.nodes) - 1)


def _no_sizes(shape: Any) -> str:
    """What to say of a shape that is none."""
    if isinstance(getattr(shape, "shape", None), tuple) and shape.shape:
        sizes = tuple(shape.shape)
        return f"shape is an array, not its sizes; use {sizes} here, and give the array when the program runs"
    example = f"({shape},)" if hasattr(shape, "__index__") else "a tuple like (3, 32, 32), and () for a single number"
    return f"shape={shape!r} is not a sequence of sizes; use {example}"


def _listed(args: Sequence[Var]) -> str:
    return " on " + ", ".join(f"{arg.node.label}: {arg.shape}" for arg in args) if args else ""


def _dtype(dtype: Any) -> Any:
    if isinstance(dtype, str):
        import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
    return dtype if hasattr(dtype, "itemsize") and not isinstance(dtype, type) else np.dtype(dtype)
