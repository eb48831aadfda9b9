"""Which window: the three forms of a record. `Sliding`, `Adaptive` and `Global` read their arguments and make axes.

What every record can do besides is `op.Op`; what is made of a window's taps is the law's, which `ops` adds.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from .arguments import Size, entries, fits, flag, integer, paddings, rank_of, sides, sizes
from .errors import PoolError
from .op import Op
from .spec import Axis, Window, adaptive, each, sliding, whole

Padding = Literal["same"] | int | tuple[int, ...] | tuple[tuple[int, int], ...]
FEW = 4  # as many entries as an axis of channels may have: grey, or red, green, blue and alpha

DEEP = "NCDHW"  # from as many axes on, two are not all that a global op may be meant to pool
LAST = {2: "LC", 3: "HWC", 4: "NHWC", 5: "NDHWC"}  # usual layouts with channels last, by the number of axes


@dataclass(frozen=True, repr=False)
class Sliding(Op):
    """A window of `kernel_size` moves by `stride` (default: the kernel) over the input and its `padding`.

    Each is one int for all pooled axes or a tuple with one an axis; padding may be (before, after) an axis, or "same"
    (outputs = ceil(n / stride)). With ints alone the last two axes are pooled (the only one of a 1-D array).
    """

    kernel_size: Size
    stride: Size | None = None
    padding: Padding = 0
    _: KW_ONLY
    dilation: Size = 1
    ceil_mode: bool = False

    def _check(self) -> None:
        self._set(
            kernel_size=sizes("kernel_size", self.kernel_size, 1),
            stride=None if self.stride is None else sizes("stride", self.stride, 1),
            padding=paddings(self.padding),
            dilation=sizes("dilation", self.dilation, 1),
            ceil_mode=flag("ceil_mode", self.ceil_mode),
        )
        super()._check()
        self._rank()

    def _rank(self) -> int | None:
        return rank_of(
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            **self._named_axes(),
        )

    def _doubt(self, shape: tuple[int, ...]) -> str:
        if self._rank() is not None or self.kernel_size == 1 or len(shape) < 2 or not shape[-1] <= FEW < shape[-2]:
            return ""
        meant = LAST.get(len(shape))
        fix = f"layout={meant!r}" if meant else f"axes={tuple(range(1 - len(shape), -1))}"
        return (
            f"kernel_size={self.kernel_size} pools the last two axes of x, of {shape[-2]} and {shape[-1]} entries; "
            f"if the last are channels, say {fix}, and if not, axes=(-2, -1)"
        )

    @property
    def _counts_padding(self) -> bool:
        return bool(getattr(self, "count_include_pad", False))

    def _axis(self, n: int, i: int, rank: int) -> Axis:
        k, d = (entries(name, getattr(self, name), rank)[i] for name in ("kernel_size", "dilation"))
        s = k if self.stride is None else entries("stride", self.stride, rank)[i]
        p = entries("padding", self.padding, rank)[i]
        if p == "same":
            total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            p = (total // 2, total - total // 2)
        lo, hi = sides(p)
        fits("the padded size", n + lo + hi)
        fits("the kernel's extent", d * (k - 1) + 1)
        return sliding(n, k, s, (lo, hi), d, self.ceil_mode, self._counts_padding)


@dataclass(frozen=True, repr=False)
class Adaptive(Op):
    """`output_size` bins cover the input: bin o is floor(o n/out) up to ceil((o+1) n/out). None keeps an axis' size."""

    output_size: int | tuple[int | None, ...] | None

    def _check(self) -> None:
        given = self.output_size
        if isinstance(given, (tuple, list)):
            self._set(output_size=tuple(None if n is None else integer("output_size", n, 1) for n in given))
        elif given is not None:
            self._set(output_size=integer("output_size", given, 1))
        super()._check()
        self._rank()

    def _rank(self) -> int | None:
        return rank_of(output_size=self.output_size, **self._named_axes())

    def _axis(self, n: int, i: int, rank: int) -> Axis:
        out = entries("output_size", self.output_size, rank)[i]
        return each(n) if out is None else adaptive(n, out)


@dataclass(frozen=True, repr=False)
class Global(Op):
    """One window over all of `axes`, kept as axes of size 1 or dropped (keepdims=False).

    By default the last two, of an array with up to four axes; of more axes, say which.
    """

    _: KW_ONLY
    keepdims: bool = True

    def _check(self) -> None:
        flag("keepdims", self.keepdims)
        super()._check()

    def _pooled(self, ndim: int) -> tuple[int, ...]:
        if self._rank() is None and ndim >= len(DEEP):
            raise PoolError(
                f"x has {ndim} axes, and nothing says which are pooled; use layout={DEEP!r} or axes=(-3, -2, -1) "
                "for the last three, axes=(-2, -1) for the last two"
                if ndim == len(DEEP)
                else f"x has {ndim} axes, and nothing says which are pooled; use axes={tuple(range(2 - ndim, 0))} for "
                "all but the first two, axes=(-2, -1) for the last two"
            )
        return super()._pooled(ndim)

    def _axis(self, n: int, i: int, rank: int) -> Axis:
        return whole(n)

    def _shown(self, window: Window) -> tuple[int, ...]:
        dropped = () if self.keepdims else self.pooled_axes(len(window.axes))
        return tuple(n for i, n in enumerate(window.out_shape) if i not in dropped)
