"""Op records: what to pool and how, as frozen values that run and differentiate themselves.

A record is a form (which window: `Sliding`, `Adaptive`, `Global`) and a law with its arguments (what is made of it:
`_Max`, `_Min`, `_Mode`, `_Mean`, `_Sum`, `_SmoothMax`, `_Lp`, `_Own`); each public record is one of each, and adds
little. Argument names are PyTorch's where PyTorch has the argument.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, get_args

from .arguments import LIMIT, choice, flag, integer, number
from .engines import namespace, reference
from .errors import PoolTypeError
from .forms import Adaptive, Global, Sliding
from .op import Op, function_name
from .spec import SUM, Dual, Law, lp, maximum, mean, minimum, mode, smooth_max
from .spec.law import Among, Nan, Ties
from .suggest import suggesting

# -- laws and their arguments ----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class _Extreme(Op):
    _: KW_ONLY
    return_indices: bool = False
    ties: Ties = "first"
    nan: Nan = "propagate"

    def _check(self) -> None:
        flag("return_indices", self.return_indices)
        choice("ties", self.ties, get_args(Ties))
        choice("nan", self.nan, get_args(Nan))
        super()._check()


class _Max(_Extreme):
    @property
    def law(self) -> Law:
        return maximum(self.ties, self.nan)


class _Min(_Extreme):
    @property
    def law(self) -> Law:
        return minimum(self.ties, self.nan)


@dataclass(frozen=True, repr=False)
class _Mode(Op):
    _: KW_ONLY
    ties: Among = "smallest"

    def _check(self) -> None:
        choice("ties", self.ties, get_args(Among))
        super()._check()

    @property
    def law(self) -> Law:
        return mode(self.ties)


class _Sum(Op):
    @property
    def law(self) -> Law:
        return SUM


class _Mean(Op):
    @property
    def law(self) -> Law:
        return mean()


@dataclass(frozen=True, repr=False)
class _SmoothMax(Op):
    _: KW_ONLY
    beta: float = 1.0

    def _check(self) -> None:
        number("beta", self.beta)
        super()._check()

    @property
    def law(self) -> Law:
        return smooth_max(self.beta)

    def beta_derivative(self, x: Any) -> Any:
        """dy/dbeta at each output: (sum_t softmax(beta x)_t x_t - y) / beta."""
        at = self.linearize(x)
        if namespace(x) is not None:
            return (at.jvp(x) - at.y) / self.beta
        y = replace(self, beta=Dual(self.beta, 1))(x)  # type: ignore[arg-type]  # a list takes any scalar
        flat, shape = reference.flatten(y)
        return reference.nest([value.tangent if isinstance(value, Dual) else 0 for value in flat], shape)


@dataclass(frozen=True, repr=False)
class _Lp(Op):
    norm_type: float

    def _check(self) -> None:
        p = number("norm_type", self.norm_type)
        self._set(norm_type=int(p) if p == p // 1 and abs(p) < LIMIT else p)
        super()._check()

    @property
    def law(self) -> Law:
        return lp(self.norm_type)


@dataclass(frozen=True, repr=False)
class _Own(Op):
    law: Law

    def _check(self) -> None:
        if not isinstance(self.law, Law):
            raise PoolTypeError(f"law={self.law!r} is not a Law; use ndpool.spec.Law(lift, merge, finish, weigh)")
        super()._check()


@dataclass(frozen=True, repr=False)
class _PaddingCounts(Sliding):
    _: KW_ONLY
    count_include_pad: bool = True

    def _check(self) -> None:
        flag("count_include_pad", self.count_include_pad)
        super()._check()


# -- the records: a form and a law each -------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class MaxPool(Sliding, _Max):
    """The largest value under each window; padding is never read.

    `ties` says whose derivative counts among equals, `nan` whether a NaN wins or loses, `return_indices` adds the flat
    position of each winner among the pooled axes (the first one's with ties="all" or "split", -1 if nothing is read).

    >>> MaxPool(kernel_size=2)([[1, 5, 2], [4, 3, 0]])
    [[5]]
    >>> MaxPool((2,)).vjp([3.0, 3.0], [1.0]), MaxPool((2,), ties="split").vjp([3.0, 3.0], [1.0])
    ([1.0, 0], [0.5, 0.5])
    """


@dataclass(frozen=True, repr=False)
class MinPool(Sliding, _Min):
    """The smallest value under each window; padding is never read. Arguments as in `MaxPool`.

    >>> MinPool(2)([[1, 5], [4, 3]])
    [[1]]
    """


@dataclass(frozen=True, repr=False)
class ModePool(Sliding, _Mode):
    """The most frequent value under each window, for labels: integers and booleans; padding is never read.

    `ties` says which of several: the "smallest", or the "first" in row-major order. There is no derivative.

    >>> ModePool(2)([[7, 3, 5, 5], [3, 7, 9, 5]]), ModePool(2, ties="first")([[7, 3, 5, 5], [3, 7, 9, 5]])
    ([[3, 5]], [[7, 5]])
    """


@dataclass(frozen=True, repr=False)
class AvgPool(_PaddingCounts, _Mean):
    """The mean under each window: the sum over the number of positions, of which padding (zeros) counts.

    `count_include_pad=False` counts input positions only; `divisor_override` divides by that number instead. The mean
    of integers is exact, rounded to nearest, halves to even.

    >>> AvgPool((2,), 2, ceil_mode=True)([1, 2, 3, 4, 5])
    [1.5, 3.5, 5.0]
    """

    _: KW_ONLY
    divisor_override: int | None = None

    def _check(self) -> None:
        if self.divisor_override is not None:
            self._set(divisor_override=integer("divisor_override", self.divisor_override, 1))
        super()._check()

    @property
    def law(self) -> Law:
        return mean(self.divisor_override)


@dataclass(frozen=True, repr=False)
class SumPool(Sliding, _Sum):
    """The sum under each window; padding adds nothing. A sum that an integer dtype cannot hold is an error.

    >>> SumPool(2)([[1, 5], [4, 3]])
    [[13]]
    """


@dataclass(frozen=True, repr=False)
class SmoothMaxPool(_PaddingCounts, _SmoothMax):
    """(1/beta) log sum exp(beta x) under each window, shifted so that it never overflows; beta < 0 is a smooth min.

    Padding is zeros that count; `count_include_pad=False` leaves it out. `beta_derivative(x)` gives dy/dbeta.

    >>> SmoothMaxPool((2,), beta=1000.0)([1e4, 1e4])
    [10000.00069314718]
    """


@dataclass(frozen=True, repr=False)
class LpPool(Sliding, _Lp):
    """The p-norm (sum |x|^p)^(1/p) under each window, for norm_type = p >= 1.

    >>> LpPool(2, (2,))([3.0, -4.0])
    [5.0]
    """


@dataclass(frozen=True, repr=False)
class Pool(Sliding, _Own):
    """A law of your own under each window; `count_include_pad=True` reads padding as zeros."""

    _: KW_ONLY
    count_include_pad: bool = False


@dataclass(frozen=True, repr=False)
class AdaptiveMaxPool(Adaptive, _Max):
    """The largest value in each bin.

    >>> AdaptiveMaxPool((2,))([1, 5, 2])
    [5, 5]
    """


@dataclass(frozen=True, repr=False)
class AdaptiveMinPool(Adaptive, _Min):
    """The smallest value in each bin."""


@dataclass(frozen=True, repr=False)
class AdaptiveModePool(Adaptive, _Mode):
    """The most frequent value in each bin.

    >>> AdaptiveModePool((2,))([1, 5, 5, 2, 2])
    [5, 2]
    """


@dataclass(frozen=True, repr=False)
class AdaptiveAvgPool(Adaptive, _Mean):
    """The mean of each bin.

    >>> AdaptiveAvgPool((2,))([1, 5, 2])
    [3.0, 3.5]
    """


@dataclass(frozen=True, repr=False)
class AdaptiveSumPool(Adaptive, _Sum):
    """The sum of each bin."""


@dataclass(frozen=True, repr=False)
class AdaptiveSmoothMaxPool(Adaptive, _SmoothMax):
    """The log-sum-exp of each bin."""


@dataclass(frozen=True, repr=False)
class AdaptiveLpPool(Adaptive, _Lp):
    """The p-norm of each bin."""


@dataclass(frozen=True, repr=False)
class AdaptivePool(Adaptive, _Own):
    """A law of your own in each bin."""


@dataclass(frozen=True, repr=False)
class GlobalMaxPool(Global, _Max):
    """The largest value of all; among equals each gets the whole derivative (ties="all") unless said otherwise.

    >>> GlobalMaxPool().vjp([[2.0, 7.0], [7.0, 1.0]], [[1.0]])
    [[0, 1.0], [1.0, 0]]
    """

    _: KW_ONLY
    ties: Ties = "all"


@dataclass(frozen=True, repr=False)
class GlobalMinPool(Global, _Min):
    """The smallest value of all; ties as in `GlobalMaxPool`."""

    _: KW_ONLY
    ties: Ties = "all"


@dataclass(frozen=True, repr=False)
class GlobalModePool(Global, _Mode):
    """The most frequent value of all."""


@dataclass(frozen=True, repr=False)
class GlobalAvgPool(Global, _Mean):
    """The mean of all.

    >>> GlobalAvgPool(keepdims=False)([[[1, 2], [3, 4]], [[5, 5], [5, 5]]])
    [2.5, 5.0]
    """


@dataclass(frozen=True, repr=False)
class GlobalSumPool(Global, _Sum):
    """The sum of all."""


@dataclass(frozen=True, repr=False)
class GlobalSmoothMaxPool(Global, _SmoothMax):
    """The log-sum-exp of all."""


@dataclass(frozen=True, repr=False)
class GlobalLpPool(Global, _Lp):
    """The p-norm of all."""


@dataclass(frozen=True, repr=False)
class GlobalPool(Global, _Own):
    """A law of your own over all: the generic global reduction."""


# -- all of them ------------------------------------------------------------------------------------------------------

RECORDS: tuple[type[Op], ...] = (
    MaxPool, MinPool, ModePool, AvgPool, SumPool, SmoothMaxPool, LpPool, Pool,
    AdaptiveMaxPool, AdaptiveMinPool, AdaptiveModePool, AdaptiveAvgPool, AdaptiveSumPool, AdaptiveSmoothMaxPool,
    AdaptiveLpPool, AdaptivePool,
    GlobalMaxPool, GlobalMinPool, GlobalModePool, GlobalAvgPool, GlobalSumPool, GlobalSmoothMaxPool, GlobalLpPool,
    GlobalPool,
)  # fmt: skip

for _record in RECORDS:
    _record.__init__ = suggesting(_record.__init__, function_name(_record.__name__))  # type: ignore[method-assign]
