"""The glue between pooling nodes: constants, arithmetic, reductions, reshaping, matmul, cross-entropy.

One rule an op, written as its linearization: the value, the tangent and the cotangents stand side by side. Each rule is
array operations only, so it runs on every library, on dual arrays (second order) and on object arrays (any scalar).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..arguments import LIMIT, axes_tuple, flag, integer
from ..engines import dtypes
from ..engines.along import cut
from ..engines.base import Linear
from ..engines.dual import point
from ..ops import GlobalSmoothMaxPool
from ..spec.scalar import primal
from .node import GraphError, Shape, enter, exact, leave, library, zeros_like


class Glue(ABC):
    """forward, jvp and vjp of an op that gives its linearization."""

    @abstractmethod
    def linearize(self, *xs: Any) -> Linear:
        """y, jvp(*dxs) and vjp(dy) at xs."""

    def forward(self, *xs: Any) -> Any:
        return self.linearize(*xs).y

    def jvp(self, *xs_dxs: Any) -> Any:
        n = len(xs_dxs) // 2
        return self.linearize(*xs_dxs[:n]).jvp(*xs_dxs[n:])

    def vjp(self, *xs_dy: Any) -> Any:
        return self.linearize(*xs_dy[:-1]).vjp(xs_dy[-1])


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of them broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise GraphError("sizes must be equal or 1 from the last axis on") from None


def unbroadcast(g: Any, shape: Shape) -> Any:
    """The transpose of broadcasting to g's shape: sums over the axes that were repeated."""
    g = enter(g)
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    axes = (*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 and g.shape[i + extra] != 1))
    return library(g).reshape(total(g, axes), shape)


def total(x: Any, axes: tuple[int, ...], keepdims: bool = False) -> Any:
    """The sum over `axes`, short floats in float32."""
    xp = library(x)
    return _widely(xp, lambda a: enter(xp.sum(a, axis=axes, keepdims=keepdims)), x) if axes else x


def product(a: Any, b: Any) -> Any:
    """The matrix product over the last two axes, short floats in float32."""
    xp = library(a, b)
    return _widely(xp, lambda p, q: enter(xp.matmul(p, q)), a, b)


def _widely(xp: Any, f: Callable[..., Any], *xs: Any) -> Any:
    """f(*xs), computed in the type that sums are kept in."""
    dtype = xs[0].dtype
    if dtypes.kind(dtype) != "real" or dtypes.wide(xp, dtype) == dtype:
        return f(*xs)
    return xp.astype(f(*(xp.astype(x, dtypes.wide(xp, dtype)) for x in xs)), dtype)


class Arithmetic(Glue):
    """Two arguments, broadcast."""

    def out_shape(self, a: Shape, b: Shape) -> Shape:
        return broadcast(a, b)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        longest = max(map(len, shapes))
        aligned = all(len(shape) == longest for flag, shape in zip(flags, shapes, strict=True) if flag)
        return self if aligned else None


@dataclass(frozen=True)
class Add(Arithmetic):
    """y = a + b."""

    name = "add"

    def linearize(self, a: Any, b: Any) -> Linear:
        sa, sb = a.shape, b.shape
        return Linear(a + b, lambda da, db: da + db, lambda g: (unbroadcast(g, sa), unbroadcast(g, sb)))


@dataclass(frozen=True)
class Sub(Arithmetic):
    """y = a - b."""

    name = "sub"

    def linearize(self, a: Any, b: Any) -> Linear:
        sa, sb = a.shape, b.shape
        return Linear(a - b, lambda da, db: da - db, lambda g: (unbroadcast(g, sa), unbroadcast(-g, sb)))


@dataclass(frozen=True)
class Mul(Arithmetic):
    """y = a b;  y' = a' b + a b'."""

    name = "mul"

    def linearize(self, a: Any, b: Any) -> Linear:
        return Linear(
            a * b,
            lambda da, db: da * b + a * db,
            lambda g: (unbroadcast(g * b, a.shape), unbroadcast(g * a, b.shape)),
        )


@dataclass(frozen=True)
class Div(Arithmetic):
    """y = a / b;  y' = (a' - y b') / b."""

    name = "div"

    def linearize(self, a: Any, b: Any) -> Linear:
        y, sa = a / b, a.shape
        return Linear(
            y,
            lambda da, db: (da - y * db) / b,
            lambda g: (unbroadcast(g / b, sa), unbroadcast(-g * y / b, b.shape)),
        )


@dataclass(frozen=True)
class Detach(Glue):
    """y = x, y' = 0: stops derivatives."""

    name = "detach"
    stops = True

    def out_shape(self, shape: Shape) -> Shape:
        return shape

    def linearize(self, x: Any) -> Linear:
        still = np.frompyfunc(primal, 1, 1)(x) if exact(x) else point(x)
        return Linear(still, zeros_like, zeros_like)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Detach:
        return self


@dataclass(frozen=True)
class Reduce(Glue):
    """Sum over `axes` (all of them by default), kept as axes of size 1 with keepdims."""

    axes: tuple[int, ...] | int | None = None
    keepdims: bool = False

    name = "sum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", axes_tuple(self.axes))
        flag("keepdims", self.keepdims)

    def _axes(self, rank: int) -> tuple[int, ...]:
        given = range(rank) if self.axes is None else axes_tuple(self.axes) or ()
        found = sorted(a + rank if a < 0 else a for a in given)
        if any(not 0 <= a < rank for a in found) or len(set(found)) < len(found):
            raise GraphError(f"axes={self.axes} must be different axes of {rank}")
        return tuple(found)

    def out_shape(self, shape: Shape) -> Shape:
        axes = self._axes(len(shape))
        return tuple(1 if i in axes else n for i, n in enumerate(shape) if self.keepdims or i not in axes)

    def _count(self, shape: Shape) -> int:
        return 1

    def linearize(self, x: Any) -> Linear:
        xp, shape, axes, n = library(x), x.shape, self._axes(x.ndim), self._count(x.shape)
        kept = tuple(1 if i in axes else size for i, size in enumerate(shape))

        def reduced(t: Any) -> Any:
            s = total(t, axes, self.keepdims)
            return s if n == 1 else s / n

        def spread(g: Any) -> Any:
            g = xp.broadcast_to(xp.reshape(g, kept), shape)
            return g if n == 1 else g / n

        return Linear(reduced(x), reduced, spread)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        rank = len(shapes[0])
        return type(self)(tuple(a - rank for a in self._axes(rank)), self.keepdims)


@dataclass(frozen=True)
class Mean(Reduce):
    """The sum over `axes`, divided by how many there are."""

    name = "mean"

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[a] for a in self._axes(len(shape)))


class Reshaping(Glue):
    """The same elements in row-major order in another shape."""

    @abstractmethod
    def out_shape(self, shape: Shape) -> Shape:
        """The other shape."""

    def linearize(self, x: Any) -> Linear:
        xp, before, after = library(x), x.shape, self.out_shape(x.shape)
        return Linear(xp.reshape(x, after), lambda t: xp.reshape(t, after), lambda g: xp.reshape(g, before))

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        return Reshape(self.out_shape(shapes[0]), keep=1)


@dataclass(frozen=True)
class Reshape(Reshaping):
    """To `shape`, of which one size may be -1; the first `keep` axes stay as they are."""

    shape: tuple[int, ...]
    keep: int = 0

    name = "reshape"

    def __post_init__(self) -> None:
        given = self.shape if isinstance(self.shape, (tuple, list)) else (self.shape,)
        object.__setattr__(self, "shape", tuple(integer("shape", n, -1) for n in given))
        object.__setattr__(self, "keep", integer("keep", self.keep, 0))

    def out_shape(self, shape: Shape) -> Shape:
        have, want = math.prod(shape[self.keep :]), list(self.shape)
        if want.count(-1) == 1 and (rest := math.prod(n for n in want if n >= 0)):
            want[want.index(-1)] = have // rest
        if math.prod(want) != have or any(n < 0 for n in want):
            raise GraphError(f"shape={self.shape} holds {math.prod(want)} elements, not {have}")
        return (*shape[: self.keep], *want)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        return Reshape(self.out_shape(shapes[0])[self.keep :], keep=self.keep + 1)


@dataclass(frozen=True)
class Flatten(Reshaping):
    """All axes from `start` on as one."""

    start: int = 0

    name = "flatten"

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", integer("start", self.start, -LIMIT))

    def out_shape(self, shape: Shape) -> Shape:
        if not -len(shape) <= self.start <= max(0, len(shape) - 1):
            raise GraphError(f"start={self.start} must be an axis of {len(shape)}")
        start = self.start % max(1, len(shape))
        return (*shape[:start], math.prod(shape[start:]))


@dataclass(frozen=True)
class Concat(Glue):
    """The arguments one after another along `axis`."""

    axis: int = 0

    name = "concat"

    def __post_init__(self) -> None:
        object.__setattr__(self, "axis", integer("axis", self.axis, -LIMIT))

    def out_shape(self, *shapes: Shape) -> Shape:
        if not shapes:
            raise GraphError("there is nothing to put together; give at least one variable")
        rank = len(shapes[0])
        if not -rank <= self.axis < rank:
            raise GraphError(f"axis={self.axis} must be an axis of {rank}")
        a = self.axis % rank
        rest = {shape[:a] + shape[a + 1 :] for shape in shapes if len(shape) == rank}
        if len(rest) > 1 or any(len(shape) != rank for shape in shapes):
            raise GraphError(f"all sizes but those of axis {a} must be equal")
        return (*shapes[0][:a], sum(shape[a] for shape in shapes), *shapes[0][a + 1 :])

    def linearize(self, *xs: Any) -> Linear:
        xp, a = library(*xs), self.axis % xs[0].ndim
        ends = np.cumsum([0, *(x.shape[a] for x in xs)]).tolist()
        parts = [slice(i, j) for i, j in pairwise(ends)]
        return Linear(
            xp.concat(list(xs), axis=a),
            lambda *dxs: xp.concat(list(dxs), axis=a),
            lambda g: tuple(cut(g, a, part) for part in parts),
        )

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        return Concat(self.axis % len(shapes[0]) - len(shapes[0])) if all(flags) else None


@dataclass(frozen=True)
class MatMul(Glue):
    """y = a b over the last two axes (one of a vector), leading axes broadcast;  y' = a' b + a b'."""

    name = "matmul"

    def out_shape(self, a: Shape, b: Shape) -> Shape:
        if not a or not b or a[-1] != b[-2 if len(b) > 1 else -1]:
            raise GraphError("the last axis of a must be as long as the last but one (the only one) of b")
        lead = broadcast(a[:-2], b[:-2])
        return (*lead, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))

    def linearize(self, a: Any, b: Any) -> Linear:
        xp = library(a, b)
        # vectors as matrices, so that one rule serves
        wide_a = a if a.ndim > 1 else xp.reshape(a, (1, -1))
        wide_b = b if b.ndim > 1 else xp.reshape(b, (-1, 1))
        out = self.out_shape(a.shape, b.shape)
        lead = broadcast(wide_a.shape[:-2], wide_b.shape[:-2])
        wide_out = (*lead, wide_a.shape[-2], wide_b.shape[-1])

        def vjp(g: Any) -> tuple[Any, Any]:
            g = xp.reshape(g, wide_out)
            da, db = product(g, transposed(wide_b)), product(transposed(wide_a), g)
            return (
                xp.reshape(unbroadcast(da, wide_a.shape), a.shape),
                xp.reshape(unbroadcast(db, wide_b.shape), b.shape),
            )

        def jvp(da: Any, db: Any) -> Any:
            t = product(xp.reshape(da, wide_a.shape), wide_b) + product(wide_a, xp.reshape(db, wide_b.shape))
            return xp.reshape(t, out)

        return Linear(xp.reshape(product(wide_a, wide_b), out), jvp, vjp)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        (fa, fb), (a, b) = flags, shapes
        plain = (len(b) > 1 or not fb) and (len(a) > 1 or (fa and not fb and len(b) == 2) or not fa)
        aligned = (not fa or len(a) >= len(b) or len(a) == 1) and (not fb or len(b) >= len(a))
        return self if plain and aligned and not (fb and len(a) == 1) else None


def transposed(x: Any) -> Any:
    """The last two axes swapped."""
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return library(x).permute_dims(x, order)


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Glue):
    """y = -sum_k target_k log softmax(logits)_k = sum_k target_k (lse(logits) - logits_k), over the last axis."""

    name = "softmax_cross_entropy"

    def out_shape(self, logits: Shape, target: Shape) -> Shape:
        if not logits or logits != target:
            raise GraphError("logits and target must have the same shape, with classes on the last axis")
        return logits[:-1]

    def linearize(self, logits: Any, target: Any) -> Linear:
        xp = library(logits, target)
        lists = exact(logits)
        at = GlobalSmoothMaxPool(axes=-1, beta=1).linearize(leave(logits) if lists else logits)  # log-sum-exp, shifted
        lse = enter(at.y)

        last = (logits.ndim - 1,)

        def jvp(dx: Any, dt: Any) -> Any:
            dlse = enter(at.jvp(leave(dx) if lists else dx))
            return total(target * (dlse - dx) + dt * (lse - logits), last)

        def vjp(g: Any) -> tuple[Any, Any]:
            g = xp.reshape(g, lse.shape)
            weight = g * total(target, last, keepdims=True)
            return enter(at.vjp(leave(weight) if lists else weight)) - g * target, g * (lse - logits)

        return Linear(total(target * (lse - logits), last), jvp, vjp)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Any:
        return self if all(flags) else None
