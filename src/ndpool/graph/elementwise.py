"""Elementwise functions: one table of name, value and derivative; arrays and single scalars of any kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engines.base import Linear
from ..spec import scalar
from ..spec.scalar import Interval
from .glue import Glue
from .node import Shape, exact, library


class ArrayMaths:
    """The functions that rows use, on arrays; `branch` takes the first where x <= 0, else the second (also for NaN)."""

    def __init__(self, xp: Any):
        self.exp, self.log, self.log1p, self.sqrt, self.tanh = xp.exp, xp.log, xp.log1p, xp.sqrt, xp.tanh
        self.xp = xp

    def branch(self, x: Any, low: Callable[[], Any], high: Callable[[], Any]) -> Any:
        return self.xp.where(x <= 0, low(), high())

    def step(self, x: Any) -> Any:
        return self.xp.where(x <= 0, self.xp.zeros_like(x), self.xp.ones_like(x))


class ScalarMaths:
    """The same on one scalar, which brings its own exp and log."""

    exp, log = staticmethod(scalar.exp), staticmethod(scalar.log)

    @staticmethod
    def log1p(x: Any) -> Any:
        return math.log1p(x) if isinstance(x, float) else scalar.log(1 + x)

    @staticmethod
    def sqrt(x: Any) -> Any:
        return math.nan if scalar.less(x, 0) else scalar.root(x, 2)

    @staticmethod
    def tanh(x: Any) -> Any:
        if isinstance(x, float):
            return math.tanh(x)
        e = scalar.exp(-2 * x if scalar.greater(x, 0) else 2 * x)
        return (1 - e) / (1 + e) if scalar.greater(x, 0) else (e - 1) / (e + 1)

    @staticmethod
    def branch(x: Any, low: Callable[[], Any], high: Callable[[], Any]) -> Any:
        return high() if scalar.greater(x, 0) or scalar.is_nan(x) else low()

    @staticmethod
    def step(x: Any) -> Any:
        if isinstance(x, Interval) and x.lo <= 0 < x.hi:
            return Interval(0, 1)
        return int(scalar.greater(x, 0) or scalar.is_nan(x))


@dataclass(frozen=True)
class Row:
    """f and f', where f' may use x and y = f(x). Every f here is monotone, which makes intervals tight, and its values
    lie `within` bounds that rounding outwards must not cross: sqrt(sqrt(x)) near 0 would have no answer."""

    value: Callable[[Any, Any], Any]
    slope: Callable[[Any, Any, Any], Any]
    within: tuple[float, float] = (-math.inf, math.inf)


def _sigmoid(m: Any, x: Any) -> Any:
    if isinstance(x, Interval):
        return x.monotone(lambda end: float(_sigmoid(m, end)), (0, 1))
    return m.branch(x, lambda: (e := m.exp(x)) / (1 + e), lambda: 1 / (1 + m.exp(-x)))


TABLE = {
    "neg": Row(lambda m, x: -x, lambda m, x, y: -1),
    "exp": Row(lambda m, x: m.exp(x), lambda m, x, y: y),
    "log": Row(lambda m, x: m.log(x), lambda m, x, y: 1 / x),
    "sqrt": Row(lambda m, x: m.sqrt(x), lambda m, x, y: 1 / (2 * y), (0, math.inf)),
    "relu": Row(lambda m, x: m.branch(x, lambda: 0 * m.step(x), lambda: x), lambda m, x, y: m.step(x), (0, math.inf)),
    "sigmoid": Row(_sigmoid, lambda m, x, y: y * (1 - y), (0, 1)),
    "tanh": Row(lambda m, x: m.tanh(x), lambda m, x, y: 1 - y * y, (-1, 1)),
    "softplus": Row(
        lambda m, x: m.branch(x, lambda: m.log1p(m.exp(x)), lambda: x + m.log1p(m.exp(-x))),
        lambda m, x, y: _sigmoid(m, x),
        (0, math.inf),
    ),
}


def _scalar_value(row: Row, x: Any) -> Any:
    if isinstance(x, Interval) and row not in (TABLE["exp"], TABLE["log"]):  # which intervals have, with their limits
        return x.monotone(lambda end: float(row.value(ScalarMaths, end)), row.within)
    return row.value(ScalarMaths, x)


@dataclass(frozen=True)
class Elementwise(Glue):
    """y = f(x) for the row `function` of the table; y' = f'(x) x'."""

    function: str

    @property
    def name(self) -> str:
        return self.function

    def out_shape(self, shape: Shape) -> Shape:
        return shape

    def forward(self, x: Any) -> Any:
        row = TABLE[self.function]
        with np.errstate(all="ignore"):  # a branch is computed on both sides and taken on one; ends may be infinite
            if exact(x):
                return np.frompyfunc(lambda v: _scalar_value(row, v), 1, 1)(x)
            return row.value(ArrayMaths(library(x)), x)

    def linearize(self, x: Any) -> Linear:
        row, y = TABLE[self.function], self.forward(x)
        with np.errstate(all="ignore"):
            if exact(x):
                slope = np.frompyfunc(lambda v, w: row.slope(ScalarMaths, v, w), 2, 1)(x, y)
            else:
                slope = row.slope(ArrayMaths(library(x)), x, y)
        return Linear(y, lambda dx: slope * dx, lambda dy: slope * dy)

    def batched(self, flags: tuple[bool, ...], shapes: tuple[Shape, ...]) -> Elementwise:
        return self
