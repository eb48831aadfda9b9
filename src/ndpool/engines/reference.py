"""The spec as an engine: nested lists of any scalar, and arrays as the oracle that other engines are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import spec
from ..errors import PoolError, PoolTypeError
from ..spec import Law, Window
from .base import Linear, Plan, namespace
from .dtypes import kind


def flatten(x: Any, name: str = "x") -> tuple[list[Any], tuple[int, ...]]:
    """A nested list as a flat one and its shape; a bare scalar has the shape ().

    >>> flatten([[1, 2, 3], [4, 5, 6]])
    ([1, 2, 3, 4, 5, 6], (2, 3))
    """
    if not isinstance(x, (list, tuple)):
        if getattr(x, "shape", ()):
            raise PoolTypeError(f"{name} is a list of arrays; make it one array, say by numpy.stack({name})")
        return [x], ()
    parts = [flatten(part, name) for part in x]
    shapes = {shape for _, shape in parts}
    if len(shapes) > 1:
        raise PoolError(f"{name} is a ragged nested list, with parts of shapes {sorted(shapes)}; make them equal")
    return [value for flat, _ in parts for value in flat], (len(x), *(shapes.pop() if shapes else ()))


def nest(flat: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """The nested list of that shape: the inverse of `flatten`.

    >>> nest([1, 2, 3, 4, 5, 6], (2, 3))
    [[1, 2, 3], [4, 5, 6]]
    """
    if not shape:
        return flat[0]
    step = math.prod(shape[1:])
    return [nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def cut(x: Any, parts: Sequence[slice]) -> Any:
    """Those parts of a nested list, one slice an axis."""
    return [cut(row, parts[1:]) for row in x[parts[0]]] if parts else x


# -- the engine ------------------------------------------------------------------------------------------------------

NAME = "reference"


def supports(window: Window, law: Law, x: Any) -> bool:
    """Everything that the law is defined on: nested lists of any scalar, and NumPy arrays."""
    xp = namespace(x)
    return xp is None or (xp is np and kind(x.dtype) in law.kinds)


def bind(window: Window, law: Law, x: Any) -> Reference:
    return Reference(window, law)


@dataclass(frozen=True)
class Reference(Plan):
    """The functions below, for one window and law."""

    window: Window
    law: Law

    def forward(self, x: Any) -> Any:
        return forward(self.window, self.law, x)

    def linearize(self, x: Any) -> Linear:
        return linearize(self.window, self.law, x)

    def winners(self, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
        return winners(self.window, self.law, x, axes)

    def reshape(self, a: Any, shape: tuple[int, ...]) -> Any:
        return nest(flatten(a)[0], shape) if namespace(a) is None else np.reshape(a, shape)


def forward(window: Window, law: Law, x: Any) -> Any:
    """The values of all outputs: nested lists for nested lists, an array of x's dtype for an array."""
    return linearize(window, law, x).y


def linearize(window: Window, law: Law, x: Any) -> Linear:
    """The values, and jvp and vjp at x."""
    law = law if law.built_in else _theirs(law)
    flat, _ = scalars(x)
    y, residuals = spec.forward(window, law, flat)
    return Linear(
        restore(y, window.out_shape, x),
        lambda dx: restore(spec.jvp(window, law, flat, residuals, scalars(dx)[0]), window.out_shape, dx),
        lambda dy: restore(spec.vjp(window, law, flat, residuals, scalars(dy)[0]), window.shape, dy),
    )


def _theirs(law: Law) -> Law:
    """A law of the user's own, whose mistakes are reported as theirs."""

    def reported(part: str, wrong: Callable[[Any], str | None] = lambda result: None) -> Callable[..., Any]:
        run = getattr(law, part)

        def call(*args: Any) -> Any:
            try:
                result = run(*args)
            except Exception as error:
                kind = PoolTypeError if isinstance(error, TypeError) else PoolError
                raise kind(f"in your law's {part}: {type(error).__name__}: {error}") from error
            if said := wrong(result):
                raise PoolError(f"in your law's {part}: it gave {result!r}; {said}")
            return result

        return call

    def pair(result: Any) -> str | None:
        return (
            None
            if isinstance(result, (tuple, list)) and len(result) == 2
            else "give (y, r): the value, and what weigh needs"
        )

    def something(result: Any) -> str | None:
        return "give the derivative times its first argument" if result is None else None

    lift, merge = reported("lift"), reported("merge")
    return replace(law, lift=lift, merge=merge, finish=reported("finish", pair), weigh=reported("weigh", something))


def winners(window: Window, law: Law, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """The values and where each was taken from: flat row-major positions within `axes`; -1 where nothing is read."""
    y, residuals = spec.forward(window, law, scalars(x)[0])
    taps = [r[0][0] if r else None for r in residuals]  # None: nothing is read, or a zero that counts has won
    places = [-1 if tap is None else _within(tap, window.shape, axes) for tap in taps]
    like = np.zeros(0, int) if isinstance(x, np.ndarray) else x
    return restore(y, window.out_shape, x), restore(places, window.out_shape, like)


def _within(flat: int, shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """The flat position within `axes` of a flat position in the whole array."""
    place, step = 0, 1
    for i in reversed(range(len(shape))):
        flat, coordinate = divmod(flat, shape[i])
        if i in axes:
            place, step = place + coordinate * step, step * shape[i]
    return place


def scalars(x: Any) -> tuple[list[Any], tuple[int, ...]]:
    """x as a flat list of Python scalars: integers become Fractions, so that an integer mean is exact."""
    if not isinstance(x, np.ndarray):
        return flatten(x)
    flat = x.reshape(-1)
    if kind(x.dtype) in ("bool", "integer"):
        return [Fraction(int(v)) for v in flat], x.shape
    return [complex(v) if kind(x.dtype) == "complex" else float(v) for v in flat], x.shape


def restore(flat: Sequence[Any], shape: tuple[int, ...], like: Any) -> Any:
    """What `scalars` took apart, in the form of `like`: integers are rounded half to even."""
    if not isinstance(like, np.ndarray):
        return nest(flat, shape)
    if kind(like.dtype) == "integer":
        flat = [round(v) for v in flat]
        info = np.iinfo(like.dtype)
        if any(not info.min <= v <= info.max for v in flat):
            raise PoolError(f"a sum does not fit {like.dtype.name}; convert x to a wider type first")
    return np.array(flat, dtype=like.dtype).reshape(shape)
