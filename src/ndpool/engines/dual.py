"""Dual numbers of arrays: what `spec.Dual` is to scalars, for whole arrays of any library.

`DualArray(value, tangent)` is an array with a namespace of its own, so the portable engine, which asks for nothing but
array operations, differentiates itself: forward on dual arrays is jvp, and vjp on dual arrays is second order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..errors import PoolTypeError

Array = Any

# functions that act on value and tangent alike
LINEAR = {
    "astype", "broadcast_to", "concat", "expand_dims", "matrix_transpose", "mean", "permute_dims", "reshape", "squeeze",
    "stack", "sum", "take",
}  # fmt: skip

# functions of values alone: comparisons, tests, positions and constants
STILL = {
    "all", "any", "argmax", "argmin", "argsort", "asarray", "ceil", "equal", "floor", "full_like", "greater",
    "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "not_equal", "ones_like", "round", "sign", "trunc", "zeros_like",
}  # fmt: skip


class DualArray:
    """value + tangent e, e**2 = 0; compared by value.

    >>> import numpy as np
    >>> x = DualArray(np.array([1.0, 2.0]), np.array([1.0, 0.0]))
    >>> (x * x).tangent
    array([2., 0.])
    """

    __array_ufunc__ = None  # NumPy arrays leave mixed operations to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Array, tangent: Array):
        self.value, self.tangent = value, tangent

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return dual_namespace(self.value.__array_namespace__())

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: self.value.device)

    def __repr__(self) -> str:
        return f"DualArray({self.value!r}, {self.tangent!r})"

    def __getitem__(self, key: Any) -> DualArray:
        return DualArray(self.value[key], self.tangent[key])

    def __add__(self, other: Any) -> DualArray:
        return DualArray(self.value + value(other), self.tangent + tangent(other))

    def __mul__(self, other: Any) -> DualArray:
        return DualArray(self.value * value(other), self.tangent * value(other) + self.value * tangent(other))

    def __truediv__(self, other: Any) -> DualArray:
        y = self.value / value(other)
        return DualArray(y, (self.tangent - y * tangent(other)) / value(other))

    def __rtruediv__(self, other: Any) -> DualArray:
        y = other / self.value
        return DualArray(y, -y * self.tangent / self.value)

    def __pow__(self, p: Any) -> DualArray:
        slope = p * self.value ** (p - 1) if p else 0  # not 0 times 0 ** -1
        return DualArray(self.value**p, slope * self.tangent)

    def __matmul__(self, other: Any) -> DualArray:
        return DualArray(self.value @ value(other), self.tangent @ value(other) + self.value @ tangent(other))

    def __rmatmul__(self, other: Any) -> DualArray:
        return DualArray(other @ self.value, other @ self.tangent)

    def __neg__(self) -> DualArray:
        return DualArray(-self.value, -self.tangent)

    def __sub__(self, other: Any) -> DualArray:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> DualArray:
        return (-self).__add__(other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> Any:
        return self.value == value(other)

    def __ne__(self, other: object) -> Any:
        return self.value != value(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > value(other)

    def __lt__(self, other: Any) -> Any:
        return self.value < value(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= value(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= value(other)


def value(x: Any) -> Any:
    """x without its outermost tangent."""
    return x.value if isinstance(x, DualArray) else x


def tangent(x: Any) -> Any:
    """The outermost tangent of x: zeros for a plain array, 0 for a number."""
    if isinstance(x, DualArray):
        return x.tangent
    return x.__array_namespace__().zeros_like(x) if hasattr(x, "__array_namespace__") else 0


def point(x: Any) -> Any:
    """x without any tangent: a constant that a stable formula may shift by."""
    return point(x.value) if isinstance(x, DualArray) else x


@lru_cache
def dual_namespace(xp: Any) -> DualNamespace:
    """The namespace of dual arrays over `xp`."""
    return DualNamespace(xp)


def plain_namespace(xp: Any) -> Any:
    """The library under any duals."""
    return plain_namespace(xp.base) if isinstance(xp, DualNamespace) else xp


class DualNamespace:
    """The array-API functions that ndpool uses, on dual arrays; everything else is the underlying library's."""

    def __init__(self, xp: Any):
        self.base, self.__name__ = xp, f"dual {xp.__name__}"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.base, name)
        if name in LINEAR:
            return _linear(found)
        return _plain(found, name) if callable(found) and not isinstance(found, type) else found

    def where(self, condition: Array, a: Any, b: Any) -> Any:
        condition = point(condition)
        kept = self.base.where(condition, value(a), value(b))
        if not isinstance(a, DualArray) and not isinstance(b, DualArray):
            return kept
        return DualArray(kept, self.base.where(condition, tangent(a), tangent(b)))

    def maximum(self, a: Any, b: Any) -> Any:
        return self._extreme(self.base.maximum, a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._extreme(self.base.minimum, a, b)

    def _extreme(self, extreme: Callable[..., Any], a: Any, b: Any) -> Any:
        p = point(a)
        return self.where((extreme(p, point(b)) == p) | (p != p), a, b)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def subtract(self, a: Any, b: Any) -> Any:
        return a - b

    def multiply(self, a: Any, b: Any) -> Any:
        return a * b

    def divide(self, a: Any, b: Any) -> Any:
        return a / b

    def negative(self, x: Any) -> Any:
        return -x

    def square(self, x: Any) -> Any:
        return x * x

    def pow(self, x: Any, p: Any) -> Any:
        return x**p

    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def exp(self, x: Any) -> Any:
        return self._chain("exp", x, lambda y: y)

    def log(self, x: Any) -> Any:
        return self._chain("log", x, lambda y: 1 / x.value)

    def log1p(self, x: Any) -> Any:
        return self._chain("log1p", x, lambda y: 1 / (1 + x.value))

    def sqrt(self, x: Any) -> Any:
        return self._chain("sqrt", x, lambda y: 0.5 / y)

    def tanh(self, x: Any) -> Any:
        return self._chain("tanh", x, lambda y: 1 - y * y)

    def abs(self, x: Any) -> Any:
        return self._chain("abs", x, lambda y: self.base.sign(x.value))

    def _chain(self, name: str, x: Any, slope: Callable[[Any], Any]) -> Any:
        f = getattr(self.base, name)
        if not isinstance(x, DualArray):
            return f(x)
        y = f(x.value)
        return DualArray(y, slope(y) * x.tangent)


def _linear(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        parts = x if isinstance(x, (list, tuple)) else [x]
        if not any(isinstance(part, DualArray) for part in parts):
            return f(x, *args, **kwargs)
        if isinstance(x, (list, tuple)):
            values, tangents = [value(part) for part in x], [tangent(part) for part in x]
            return DualArray(f(values, *args, **kwargs), f(tangents, *args, **kwargs))
        return DualArray(f(x.value, *args, **kwargs), f(x.tangent, *args, **kwargs))

    return call


def _plain(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """f of the values, if it is one of those without a tangent; another would lose it, and says so."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if name not in STILL and any(isinstance(a, DualArray) for a in args):
            raise PoolTypeError(f"dual arrays have no {name}; write it with + - * / ** exp log sqrt tanh abs where sum")
        return f(*(value(a) for a in args), **kwargs)

    return call
