"""What an adapter is: how records run on arrays that no engine takes as they are.

`Adapter` is what `op.Op` asks. `Held` is one for arrays that hold, or can be seen as, an array that records do take:
it opens x, runs the record on what is inside, and wraps the result; a subclass says how to open and how to wrap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..arguments import named
from ..engines import Linear
from ..errors import PoolError, PoolTypeError
from ..spec import Axis, each

if TYPE_CHECKING:
    from ..op import Op

From = tuple[int, Axis | None]  # an axis of x, and what each position reads of it: None if nobody can say


@lru_cache(maxsize=512)
def _changed(op: Op, changes: tuple[tuple[str, Any], ...]) -> Op:
    return replace(op, **dict(changes))


def changed(op: Op, **changes: Any) -> Op:
    """The record with other arguments, remembered."""
    try:
        return _changed(op, tuple(changes.items()))
    except TypeError:  # an argument that has no hash, or a bad one
        return replace(op, **changes)


def values_alone(op: Op) -> Op:
    """The record without `return_indices`."""
    return changed(op, return_indices=False) if getattr(op, "return_indices", False) else op


def positions(axes: Any, names: tuple[Any, ...] | None) -> Any:
    """Axes that may be names, as numbers: `names` are those of x, if its axes have any."""
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    if names is None or not any(isinstance(a, str) for a in given):
        return axes
    for a in given:
        if a not in names:
            raise PoolError(f"axes={axes!r} names {a!r}, but x has {', '.join(map(repr, names))}; use these")
    return tuple(names.index(a) for a in given)


class Adapter(ABC):
    """How records run on arrays of one kind. Results are of that kind, too.

    `pool` and `linearize` are the least that there must be. Errors need no name of the op: it is put before them.
    """

    @abstractmethod
    def pool(self, op: Op, x: Any) -> Any:
        """op(x): values, and with `return_indices` where they were taken from."""

    @abstractmethod
    def linearize(self, op: Op, x: Any) -> Linear:
        """The values at x; jvp and vjp."""

    def forward(self, op: Op, x: Any) -> Any:
        """The values alone."""
        return self.pool(values_alone(op), x)

    def value_and_jvp(self, op: Op, x: Any, dx: Any) -> tuple[Any, Any]:
        """The values at x, and their tangents for the tangent dx."""
        at = self.linearize(op, x)
        return at.y, at.jvp(dx)

    def jacobian(self, op: Op, x: Any) -> Any:
        """The derivative of each output in each input."""
        raise PoolTypeError(f"a {type(x).__name__} has no jacobian here; use a NumPy array")

    def hvp(self, op: Op, x: Any, dx: Any, dy: Any) -> Any:
        """The tangent of vjp(x, dy) for the tangent dx of x."""
        raise PoolTypeError(f"a {type(x).__name__} has no hvp here; use a NumPy array")

    def unpool(self, y: Any, indices: Any, arguments: dict[str, Any]) -> Any:
        """max_unpool(y, indices, **arguments)."""
        raise PoolTypeError(f"y is a {type(y).__name__}, which cannot be unpooled; use a NumPy array")

    def names(self, x: Any) -> tuple[Any, ...] | None:
        """The names of x's axes, if they have any."""
        return None

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    def cut(self, x: Any, parts: tuple[slice, ...]) -> Any:
        """x[parts]."""
        return x[parts]


class Held(Adapter):
    """Arrays that hold, or can be seen as, an array which records take: `values` opens x, `wrap` closes a result."""

    @abstractmethod
    def values(self, x: Any) -> Any:
        """The array in x."""

    @abstractmethod
    def wrap(self, x: Any, y: Any, axes: tuple[From, ...]) -> Any:
        """The array y, made of x, as one of x's kind; `axes` says for each of its axes where its positions are from."""

    def in_order(self, name: str, t: Any, names: tuple[Any, ...] | None) -> Any:
        """A tangent with its axes in the order of `names`; errors call it `name`."""
        return t

    def numbered(self, op: Op, x: Any) -> Op:
        """The record with numbers for the names of x's axes."""
        axes = positions(op.axes, self.names(x))
        return op if axes is op.axes else changed(op, axes=axes)

    def pool(self, op: Op, x: Any) -> Any:
        op, values = self.numbered(op, x), self.values(x)
        result, axes = op(values), kept(op, values.shape)
        if isinstance(result, tuple):
            return tuple(self.wrap(x, part, axes) for part in result)
        return self.wrap(x, result, axes)

    def linearize(self, op: Op, x: Any) -> Linear:
        op, values = values_alone(self.numbered(op, x)), self.values(x)
        at, axes, still = op.linearize(values), kept(op, values.shape), every(values.shape)

        def jvp(dx: Any) -> Any:
            return self.wrap(x, at.jvp(self._tangent(op, "dx", dx, x, still)), axes)

        def vjp(dy: Any) -> Any:
            return self.wrap(x, at.vjp(self._tangent(op, "dy", dy, x, axes)), still)

        return Linear(self.wrap(x, at.y, axes), jvp, vjp)

    def value_and_jvp(self, op: Op, x: Any, dx: Any) -> tuple[Any, Any]:
        op, values = values_alone(self.numbered(op, x)), self.values(x)
        tangent = self._tangent(op, "dx", dx, x, every(values.shape))
        y, dy = op.value_and_jvp(values, tangent)
        axes = kept(op, values.shape)
        return self.wrap(x, y, axes), self.wrap(x, dy, axes)

    def jacobian(self, op: Op, x: Any) -> Any:
        """Of the arrays inside: its axes are those of two arrays, for which there are no names."""
        return values_alone(self.numbered(op, x)).jacobian(self.values(x))

    def hvp(self, op: Op, x: Any, dx: Any, dy: Any) -> Any:
        op, values = values_alone(self.numbered(op, x)), self.values(x)
        still, axes = every(values.shape), kept(op, values.shape)
        moved, pulled = self._tangent(op, "dx", dx, x, still), self._tangent(op, "dy", dy, x, axes)
        return self.wrap(x, op.hvp(values, moved, pulled), still)

    def _tangent(self, op: Op, name: str, t: Any, x: Any, axes: tuple[From, ...]) -> Any:
        """The array in a tangent, of x's kind or plain, whose axes are x's `axes`."""
        from . import find

        with named(op.name):
            adapter = find(t, name)
            if adapter is None:
                return t
            if adapter is not self:
                raise PoolTypeError(f"{name} is a {type(t).__name__}, but x is a {type(x).__name__}; use the same kind")
            names = self.names(x)
            return self.values(t if names is None else self.in_order(name, t, tuple(names[a] for a, _ in axes)))

    def unpool(self, y: Any, indices: Any, arguments: dict[str, Any]) -> Any:
        from ..unpool import max_unpool, pooled_axes
        from . import find

        arguments = arguments | {"axes": positions(arguments["axes"], self.names(y))}
        if find(indices, "indices") not in (self, None):
            raise PoolTypeError(
                f"indices is a {type(indices).__name__}, but y is a {type(y).__name__}; use the same kind for both"
            )
        places = indices if find(indices) is None else self.values(self.in_order("indices", indices, self.names(y)))
        values = self.values(y)
        out = max_unpool(values, places, **arguments)
        pooled = pooled_axes(arguments, len(values.shape))
        return self.wrap(y, out, tuple((a, None if a in pooled else each(n)) for a, n in enumerate(out.shape)))

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(self.values(x).shape)

    def cut(self, x: Any, parts: tuple[slice, ...]) -> Any:
        values = self.values(x)
        axes = tuple(
            (a, Axis(n, part.stop - part.start, lo=-part.start) if part != slice(None) else each(n))
            for a, (n, part) in enumerate(zip(values.shape, parts, strict=True))
        )
        return self.wrap(x, values[parts], axes)


def kept(op: Op, shape: tuple[int, ...]) -> tuple[From, ...]:
    """Where the axes of op's result are from."""
    window = op.window(tuple(shape))
    dropped = () if getattr(op, "keepdims", True) else op.pooled_axes(len(shape))
    return tuple((a, axis) for a, axis in enumerate(window.axes) if a not in dropped)


def every(shape: tuple[int, ...]) -> tuple[From, ...]:
    """The axes of x itself."""
    return tuple((a, each(n)) for a, n in enumerate(shape))
