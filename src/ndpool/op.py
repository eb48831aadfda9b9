"""What every op record can do: run on arrays, differentiate itself, say what it reads.

A record is a frozen value: its arguments are read and checked once, when it is made. No law and no form of window is
named here (`ops` and `forms` add them) and no array is touched (engines do that).

The way of a call: `forward`, `_bind` (the window, and the plan of the first engine that supports it: remembered), the
plan. Arrays that no engine takes go to their adapter (`arrays`), which is asked for where there is no plan.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import numpy as np

from . import arrays, engines
from .arguments import (
    Axes,
    axes_tuple,
    choice,
    fits,
    integer,
    layout_letters,
    named,
    pooled_letters,
    resolve_axes,
    resolve_layout,
)
from .engines import Linear, dtypes
from .engines.dual import plain_namespace
from .errors import PoolError, PoolTypeError, warn_once
from .remembered import Plans, plans_of, remember
from .spec import Axis, Law, Window, each


@lru_cache
def function_name(record: str) -> str:
    """`max_pool` for "MaxPool"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", record).lower()


@dataclass(frozen=True, repr=False)
class Op(ABC):
    """What every record can do.

    `axes` are the pooled axes, by number or (of an array that has them) by name; the others (batch, channel, ...) are
    independent. `layout` says the same in letters: "NHWC" pools H and W. With `dtype` x is converted first.
    """

    _: KW_ONLY
    axes: Axes = None
    layout: str | None = None
    dtype: Any = None
    empty: Literal["zero", "error"] = "zero"

    _plans: ClassVar[Plans]  # `_Bound` by signature
    _two: ClassVar[bool]  # whether a call gives indices, too
    wants_lists = True  # in a graph, exact scalars come as nested lists

    def __post_init__(self) -> None:
        with named(self.name):
            self._check()
        self._set(_plans=plans_of(type(self), *vars(self).values()), _two=getattr(self, "return_indices", False))

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(**state)
        self._set(_plans=plans_of(type(self), *vars(self).values()), _two=getattr(self, "return_indices", False))

    def _check(self) -> None:
        self._set(axes=axes_tuple(self.axes, names=True), layout=layout_letters(self.layout))
        if self.axes is not None and self.layout is not None:
            raise PoolError(f"axes={self.axes} and layout={self.layout!r} both say which axes are pooled; give one")
        choice("empty", self.empty, ("zero", "error"))
        law = self.law  # raises on bad law arguments
        if self.dtype is not None:
            self._set(dtype=dtypes.typed(self.dtype))
            dtypes.check(law.kinds, law.name, self.dtype, "the result")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # normalised once, while the record is made

    @property
    def name(self) -> str:
        """The function's name: `max_pool` for MaxPool."""
        return function_name(type(self).__name__)

    if TYPE_CHECKING:  # each record has a law; not set here, because some have it as a field

        @property
        def law(self) -> Law: ...

    def __repr__(self) -> str:
        given = [f for f in fields(self) if f.default is MISSING or getattr(self, f.name) != f.default]
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in sorted(given, key=lambda f: bool(f.kw_only))]
        return f"{type(self).__name__}({', '.join(shown)})"

    # -- geometry

    def _rank(self) -> int | None:
        """How many axes the arguments speak of, if they say."""
        axes = next(iter(self._named_axes().values()))
        return None if axes is None else len(axes)

    def _named_axes(self) -> dict[str, Any]:
        """What names the pooled axes, `axes` or `layout`, by that name: one entry per axis, or None."""
        return {"axes": self.axes} if self.layout is None else {"layout": pooled_letters(self.layout)}

    @abstractmethod
    def _axis(self, n: int, i: int, rank: int) -> Axis:
        """The i-th of `rank` pooled axes, over an input of size n."""

    def pooled_axes(self, ndim: int) -> tuple[int, ...]:
        """The pooled axes of an array of `ndim` axes, ascending."""
        with named(self.name):
            return tuple(sorted(self._pooled(ndim)))

    def _pooled(self, ndim: int) -> tuple[int, ...]:
        """The same in the order that the other arguments list them."""
        if self.layout is not None:
            return resolve_layout(self.layout, ndim)
        return resolve_axes(axes_tuple(self.axes, names=True), self._rank(), ndim)

    def window(self, shape: tuple[int, ...]) -> Window:
        """What each output reads of an array of that shape."""
        with named(self.name):
            window = Window(tuple(self.axes_over(tuple(integer("shape", n, 0) for n in shape))))
            fits("the number of inputs", math.prod(window.shape))
            fits("the number of outputs", math.prod(window.out_shape))
            fits("the number of positions under a window", math.prod(axis.stop(0) + axis.lo for axis in window.axes))
            if self.empty == "error":
                self._reject_empty(window, self._pooled(len(shape)))
        return window

    def axes_over(self, shape: tuple[Any, ...]) -> list[Axis]:
        """The axes of the window. Only arithmetic is asked of the sizes, so a tracer's symbols will do."""
        axes = [each(n) for n in shape]
        pooled = self._pooled(len(shape))
        for i, a in enumerate(pooled):
            try:
                axes[a] = self._axis(shape[a], i, len(pooled))
            except PoolError as error:
                raise PoolError(f"on axis {a}, {error}") from None
        return axes

    def _reject_empty(self, window: Window, pooled: tuple[int, ...]) -> None:
        for a in pooled:
            axis = window.axes[a]
            o = axis.first_empty()
            if o is not None:
                raise PoolError(
                    f"on axis {a}, output {o} reads nothing of an input of size {axis.size}, and empty='error'; "
                    "use less padding, or empty='zero' for 0"
                )

    def batched(self, flags: tuple[bool, ...], shapes: tuple[tuple[int, ...], ...]) -> Op:
        """The same op on an array with one more leading axis: its axes counted from the end."""
        ndim = len(shapes[0])
        return replace(self, axes=tuple(a - ndim for a in self._pooled(ndim)), layout=None)

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result for an input of that shape."""
        return self._shown(self.window(shape))

    def _shown(self, window: Window) -> tuple[int, ...]:
        return window.out_shape

    def consider(self, shape: tuple[int, ...]) -> None:
        """Warn, once, where the arguments mean something on an array of that shape, but hardly what was meant."""
        if said := self._doubt(shape):
            warn_once(self.name, said)

    def _doubt(self, shape: tuple[int, ...]) -> str:
        """What to say then; empty where there is no doubt."""
        return ""

    # -- running

    def __call__(self, x: Any, out: Any = None) -> Any:
        """The pooled values, of x's kind and dtype; with `return_indices`, and where each was taken from.

        `out` is a NumPy array (or two, with indices) that the result is put into, and which is given back.
        """
        if arrays.compiler is not None and arrays.compiler.is_tracing() and arrays.compiler.takes(x):
            return arrays.compiler.run(self, x, out)
        if out is None and not self._two:
            return self.forward(x)
        with named(self.name):
            if out is not None:
                return self._into(out, x)
            bound = self._bind(x)
            if type(bound) is not _Bound:
                return bound.pool(self, x)
            y, indices = bound.plan.winners(x, self.pooled_axes(len(bound.window.axes)))
            return bound.show(y), bound.show(indices)

    def forward(self, x: Any) -> Any:
        """The pooled values alone."""
        bound = self._plans.get(engines.signature(x))
        if bound is None:
            with named(self.name):
                bound = self._bind(x)
                return bound.forward(x) if type(bound) is _Bound else bound.forward(self, x)
        try:  # all questions about such an array have been asked before
            return bound.forward(x)
        except PoolError as error:
            with named(self.name):
                raise error

    def _into(self, out: Any, x: Any) -> Any:
        """The result, in `out`."""
        bound = self._bind(x)
        if type(bound) is not _Bound or type(x) is not np.ndarray or getattr(self, "return_indices", False):
            result = self(x)
            parts = ((out, result),) if not isinstance(result, tuple) else arrays.paired(out, result)
            for array, part in parts:
                arrays.check_out(array, part)
                array[...] = part
            return out
        arrays.check_out(out, x, bound.shape)
        bound.plan.write(x, out if not bound.reshapes else out.reshape(bound.window.out_shape))
        return out

    def _bind(self, x: Any) -> _Bound | arrays.Adapter:
        """Window and plan for x, remembered for arrays like it; or the adapter, where no engine takes x as it is."""
        signature = engines.signature(x)
        bound = self._plans.get(signature)
        if bound is None:
            adapter = arrays.find(x) if signature is None else None
            if adapter or self.dtype is not None:
                return adapter or arrays.CONVERTED
            law, xp = self.law, engines.namespace(x)
            if xp:
                dtypes.check(law.kinds, law.name, x.dtype)
            shape = engines.shape_of(x)
            window = self.window(shape)
            self.consider(shape)
            rounds = bool(xp) and law.divides and dtypes.kind(x.dtype) == "integer"
            bound = _Bound(window, engines.choose(window, law, x), self._shown(window), xp, rounds)
            if signature is not None:
                remember(self._plans, signature, bound)
        return bound

    def _bind_to_derive(self, x: Any) -> _Bound | arrays.Adapter:
        """The same, where there is a derivative."""
        if self.law.no_derivative:
            raise PoolTypeError(self.law.no_derivative)
        return self._bind(x)

    def linearize(self, x: Any) -> Linear:
        """One forward pass; then `.y`, and `.jvp(dx)` and `.vjp(dy)` as often as wanted, from what it kept."""
        with named(self.name):
            bound = self._bind_to_derive(x)
            if type(bound) is not _Bound:
                return bound.linearize(self, x)
            window, plan, dtype = bound.window, bound.plan, getattr(x, "dtype", None)
            if bound.rounds:
                raise PoolTypeError(
                    f"a mean of {dtypes.name(dtype)} is rounded and has no derivative; convert x to float32 first"
                )
            if not plan.differentiates:
                plan = engines.choose(window, self.law, x, derivative=True)
            at, xp, x_type = plan.linearize(x), bound.xp, type(x)
            y, ahead, back = bound.show(at.y), at.jvp, at.vjp
            del at  # the maps keep no values

        def jvp(dx: Any) -> Any:
            with named(self.name):
                if not _alike(dx, x_type, dtype, window.shape):
                    accept("dx", dx, "x", window.shape, xp, dtype)
                return bound.show(ahead(dx))

        def vjp(dy: Any) -> Any:
            with named(self.name):
                if not _alike(dy, x_type, dtype, bound.shape):
                    accept("dy", dy, "y", bound.shape, xp, dtype)
                return back(dy if bound.shape == window.out_shape else plan.reshape(dy, window.out_shape))

        return Linear(y, jvp, vjp)

    def _repr_svg_(self) -> str | None:
        """A picture of what one output reads, for notebooks; none for a record that fits no array."""
        from .picture import window_svg

        try:
            return window_svg(self)
        except PoolError:
            return None

    def value_and_jvp(self, x: Any, dx: Any) -> tuple[Any, Any]:
        """self(x), and its tangent for the tangent `dx` of x (forward mode): in one pass, where the engine has one."""
        with named(self.name):
            bound = self._bind_to_derive(x)
            if type(bound) is not _Bound:
                return bound.value_and_jvp(self, x, dx)
            if bound.plan.one_pass and _alike(dx, type(x), x.dtype, bound.window.shape):
                y, dy = bound.plan.value_and_jvp(x, dx)
                return bound.show(y), bound.show(dy)
        at = self.linearize(x)
        return at.y, at.jvp(dx)

    def jvp(self, x: Any, dx: Any) -> Any:
        """The tangent of self(x) for the tangent `dx` of x (forward mode)."""
        return self.value_and_jvp(x, dx)[1]

    def vjp(self, x: Any, dy: Any) -> Any:
        """The cotangent of x for the cotangent `dy` of self(x) (reverse mode)."""
        return self.linearize(x).vjp(dy)

    def jacobian(self, x: Any) -> Any:
        """The derivative of each output in each input, of shape (*y's shape, *x's shape): as large as that is.

        >>> from ndpool import AvgPool
        >>> AvgPool((2,), stride=1).jacobian([1.0, 5.0, 2.0])
        [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
        """
        with named(self.name):
            bound = self._bind_to_derive(x)
            if type(bound) is not _Bound:
                return bound.jacobian(self, x)
            graph, y = self._in_graph(x)
            return graph.build(y).jacobian(x)

    def hvp(self, x: Any, dx: Any, dy: Any) -> Any:
        """The tangent of vjp(x, dy) for the tangent `dx` of x: the Hessian of <dy, self(x)> times dx.

        >>> from ndpool import LpPool
        >>> [round(h, 3) for h in LpPool(2, (2,)).hvp([3.0, 4.0], [1.0, 0.0], [1.0])]
        [0.128, -0.096]
        """
        with named(self.name):
            bound = self._bind_to_derive(x)
            if type(bound) is not _Bound:
                return bound.hvp(self, x, dx, dy)
            graph, y = self._in_graph(x)
            program = graph.build(graph.sum(y * graph.input(y.shape, "dy")))
            return program.hvp((x, dy), (dx, None))[0]

    def _in_graph(self, x: Any) -> tuple[Any, Any]:
        """A new graph, and the variable in it that is self(x)."""
        from .graph import Graph

        graph = Graph()
        return graph, graph.push(arrays.values_alone(self), graph.input(engines.shape_of(x), "x"))


@final
class _Bound:
    """What runs a record on arrays of one signature, and the shape in which results are shown."""

    def __init__(self, window: Window, plan: engines.Plan, shape: tuple[int, ...], xp: Any, rounds: bool):
        self.window, self.plan, self.shape = window, plan, shape
        self.xp = xp  # the array library, or None
        self.rounds = rounds  # whether values are rounded to integers, so that there is no derivative
        self.reshapes = shape != window.out_shape
        self.forward = self._forward if self.reshapes else plan.forward

    def _forward(self, x: Any) -> Any:
        return self.plan.reshape(self.plan.forward(x), self.shape)

    def show(self, y: Any) -> Any:
        return self.plan.reshape(y, self.shape) if self.reshapes else y


def _alike(a: Any, kind: type[Any], dtype: Any, shape: tuple[int, ...]) -> bool:
    """Whether `a` is plainly of that type, dtype and shape, and a real array; False where it takes a closer look."""
    return type(a) is kind and getattr(dtype, "kind", "") == "f" and a.dtype is dtype and bool(a.shape == shape)


def accept(name: str, tangent: Any, of: str, shape: tuple[int, ...], xp: Any, dtype: Any) -> None:
    """Raise unless `tangent` has that shape and an element type that moves x's, whose library and dtype are given."""
    if plain_namespace(engines.namespace(tangent, name)) is not plain_namespace(xp):
        library = "a nested list" if xp is None else f"an array of {xp.__name__}"
        raise PoolTypeError(f"{name} is a {type(tangent).__name__}, but x is {library}; use the same kind for both")
    if engines.shape_of(tangent, name) != shape:
        size = engines.shape_of(tangent, name)
        raise PoolError(f"{name} has shape {size}, but {of} has {shape}; give it {of}'s shape")
    if xp is None:
        return
    # an integer x moves in steps, but which tap wins, or that all are summed, still says where a tangent goes
    stepped, got, have = dtypes.kind(dtype) in ("bool", "integer"), dtypes.name(tangent.dtype), dtypes.name(dtype)
    if dtypes.kind(tangent.dtype) != "real" if stepped else got != have:
        rule = f"a tangent of {have} is real" if stepped else f"x has {have}"
        fix = "a real dtype" if stepped else have
        raise PoolTypeError(f"{name} has dtype {got}, but {rule}; convert {name} to {fix}")
