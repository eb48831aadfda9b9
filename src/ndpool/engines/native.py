"""The native engine: the C++ kernels of the extension `ndpool._native`, for NumPy arrays on the CPU.

A plan holds every decision (which axes lie where in memory, what each output reads, the law, the dtype); it is made
once and kept. A run takes arrays of any strides. Reading order: `Plan` (runs), `formula`.

What may not live here: arithmetic on elements, and geometry beyond asking `Axis.span`. The extension is built when the
package is installed, if a compiler is there; `available` and `reason` say if it is.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import settings
from ..errors import PoolError, PoolTypeError
from ..lazy import lazy
from ..settings import HELD as _SETTINGS
from ..settings import set_threads as set_threads
from ..settings import threads as threads
from ..spec import Axis, Law, Window, adaptive, whole
from . import base
from .base import Linear
from .dtypes import kind, name
from .dual import DualArray
from .layout import Layout

Array = np.ndarray[Any, Any]

NAME = "native"
NOT_BUILT = Path(__file__).parents[1] / "not_built.txt"
FORWARD, WINNERS, JVP, VJP, JVP_BY_WINNER, VJP_BY_WINNER, POSITIONS = range(7)
MODES = {  # by the names that adapters call their operators
    "forward": FORWARD,
    "winners": WINNERS,
    "jvp": JVP,
    "vjp": VJP,
    "jvp_by_winner": JVP_BY_WINNER,
    "vjp_by_winner": VJP_BY_WINNER,
}
NAMES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
TYPES = {dtype: i for i, dtype in enumerate((*NAMES, "uint64"))} | {"bool": NAMES.index("uint8")}
MOST_AXES = 30
MOST_RELATIVES = 32  # plans that one keeps for other arrays: tangents of another dtype or layout
LARGE = 1 << 19  # bytes of a result from which on its memory is worth keeping


@dataclass(frozen=True)
class KernelLaw:
    """A law as `kernels.h` has it: min is max, and beta < 0 is beta > 0, of the flipped input."""

    code: int
    ties: int = 0
    ignore_nan: bool = False
    flip: bool = False
    mean: bool = False
    parameter: float = 0.0
    divisor: int = 1  # 0: what each output counts


def _extreme(flip: bool) -> Callable[[str, str], KernelLaw]:
    ties = {"first": 0, "last": 1, "all": 2, "split": 3}
    return lambda among, nan: KernelLaw(0, ties[among], nan == "ignore", flip)


LAWS: dict[str, Callable[..., KernelLaw]] = {
    "max": _extreme(flip=False),
    "min": _extreme(flip=True),
    "mode": lambda ties: KernelLaw(4, {"first": 0, "smallest": 4}[ties]),
    "sum": lambda: KernelLaw(1),
    "mean": lambda divisor: KernelLaw(1, mean=True, divisor=divisor or 0),
    "smooth_max": lambda beta: KernelLaw(2, flip=beta < 0, parameter=abs(float(beta))),
    "lp": lambda p: KernelLaw(3, parameter=float(p)),
}


# -- is it there -------------------------------------------------------------------------------------------------------


@cache
def load() -> tuple[Any, str]:
    """The extension and "", or None and why there is none."""
    try:
        return importlib.import_module("ndpool._native"), ""
    except ModuleNotFoundError:
        return None, (
            f"the extension was not built when ndpool was installed{_why_not_built()}; install GCC or Clang, "
            "then install ndpool again with NDPOOL_NATIVE=1, which shows what stops the build"
        )
    except ImportError as error:
        return None, f"the extension does not load ({error}); install ndpool again on this machine"


def _why_not_built() -> str:
    """What install/backend.py has written down about that."""
    with suppress(OSError):
        return f" ({NOT_BUILT.read_text(encoding='utf-8')})"
    return ""


@cache
def _load() -> tuple[Any, str]:
    """The same for runs: it keeps as much memory as the settings say."""
    extension, missing = load()
    if extension is not None:
        extension.keep(settings.KEPT_MEMORY.value())
    return extension, missing


@cache
def reason() -> str:
    """Why this engine is not in use and what to do about it, in one sentence; empty if it is."""
    asked = settings.ENGINE.value()
    if asked == "portable":
        return "NDPOOL_ENGINE=portable asks for the portable engine; unset it to use this one"
    _, missing = _load()
    if asked == "native" and missing:
        settings.warn_once([f"NDPOOL_ENGINE=native cannot be used: {missing}; using portable instead"])
    return missing


def available() -> bool:
    """Whether this engine is in use."""
    return not reason()


def isa() -> str:
    """The instruction set in use."""
    return str(_load()[0].isa())


def isas() -> tuple[str, ...]:
    """The instruction sets built in that this processor has, best first."""
    return tuple(reversed(_load()[0].isas()))


def use(isa: str) -> None:
    """Run on another instruction set of `isas()`. The results have the same bits."""
    _load()[0].use(isa)


def kept_memory() -> int:
    """Bytes kept for the next runs: the memory of large results that are gone, and scratch."""
    return int(_load()[0].kept()) if available() else 0


def set_kept_memory(n: int) -> None:
    """Keep up to `n` bytes of the memory of large results that are gone for the next ones, which spares the system's
    clearing of fresh pages; 0 gives all of it back. The default is NDPOOL_KEPT_MEMORY, or 256 MiB."""
    n = settings.memory_to_keep(n)
    if available():
        _load()[0].keep(n)
        _Limit.kept = n


class _Limit:
    kept: int | None = None  # what was set; None: NDPOOL_KEPT_MEMORY, or its default


@contextmanager
def keeping_at_most(n: int) -> Iterator[None]:
    """For a while, keep no more than `n` bytes."""
    before = settings.KEPT_MEMORY.value() if _Limit.kept is None else _Limit.kept
    set_kept_memory(min(n, before))
    try:
        yield
    finally:
        set_kept_memory(before)


# -- running -----------------------------------------------------------------------------------------------------------


def supports(window: Window, law: Law, x: Any) -> bool:
    """Whether the kernels run `law` over `window` on x. They leave alone what is empty, complex, or a plain copy."""
    return type(x) is np.ndarray and serves(window, law, x.dtype)


def takes(law: Law, dtype: Any) -> bool:
    """Whether the kernels run that law on such elements."""
    return law.name in LAWS and name(dtype) in TYPES and kind(dtype) in law.kinds


def serves(window: Window, law: Law, dtype: Any) -> bool:
    """Whether they run it over that window on any memory of such elements, whichever library's."""
    return (
        takes(law, dtype)
        and not (law.picks and any(any(axis.margin) for axis in window.axes))  # ties with zeros that count
        and not (kind(dtype) == "integer" and LAWS[law.name](*law.params).divisor >> 31)
        and 0 not in window.shape
        and 0 not in window.out_shape
        and len(window.axes) <= MOST_AXES
        and not all(axis.is_identity for axis in window.axes)
        and all(map(_fits, window.axes))
        and available()
    )


def forward(window: Window, law: Law, x: Array) -> Array:
    """The values of all outputs, in x's dtype."""
    return bind(window, law, x).forward(x)


def linearize(window: Window, law: Law, x: Array) -> Linear:
    """The values, and jvp and vjp at x."""
    return bind(window, law, x).linearize(x)


def winners(window: Window, law: Law, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """The values and where each was taken from: flat row-major positions within `axes`; -1 where nothing is read."""
    return bind(window, law, x).winners(x, axes)


def bind(window: Window, law: Law, x: Array) -> Plan:
    """The plan for arrays that lie as x does."""
    return Plan(window, law, x.dtype, x.strides)


class Plan(base.Plan):
    """A window, a law, a dtype and a layout, with every decision made; runs on any array that lies like that."""

    def __init__(self, window: Window, law: Law, dtype: np.dtype[Any], strides: tuple[int, ...], axes: Any = ()):
        self.window, self.law, self.dtype, self.axes = window, law, dtype, axes
        steps = _steps(axes, window)
        self.layout = layout = Layout(window, strides, steps)
        self.pooled, self.out_shape, self.back = layout.pooled, layout.out_shape, layout.back
        self.native, _ = _load()
        folded = [_merged([window.axes[i] for i in group]) for group in layout.pooled_groups]
        taps = [axis.taps for axis in folded]
        rows = sorted(range(len(folded)), key=lambda g: layout.pooled_groups[g][-1])  # row-major, as the caller has it
        tap_steps = [0] * len(folded)
        for at, g in enumerate(rows):
            tap_steps[g] = math.prod(taps[h] for h in rows[at + 1 :])
        self.residual = np.min_scalar_type(max(math.prod(taps) - 1, 0))
        to = LAWS[law.name](*law.params)
        self.type = TYPES[name(dtype)]
        self.handle = self.native.plan(
            to.code, to.ties, to.ignore_nan, to.flip, to.mean, self.type, to.parameter, to.divisor,
            math.prod(window.axes[i].size for i in layout.lanes), layout.walked,
            [window.axes[i].size for i in layout.lead], list(reversed(rows)), tap_steps,
            [steps.get(group[-1], 0) for group in layout.pooled_groups],
            [formula(axis) for axis in folded],
        )  # fmt: skip

        # where equals share the derivative, the kernels have it of real numbers only
        self.differentiates = not law.no_derivative and (not (law.winners and law.first) or kind(dtype) == "real")
        self._relatives: dict[Any, Plan] = {}

    @lazy
    def one_pass(self) -> bool:
        """Of real numbers, and where a max meets its taps in order."""
        plain = kind(self.dtype) == "real" and self.dtype.isnative
        return plain and (not self.law.winners or bool(self.native.in_order(self.handle)))

    def value_and_jvp(self, x: Array, dx: Array) -> tuple[Array, Array]:
        if self.law.linear:
            return self.forward(x), self._relative(dx.dtype, dx.strides).forward(dx)
        y, dy = _empty(self.out_shape, x.dtype), _empty(self.out_shape, dx.dtype)
        self._run(JVP, dx, self.layout.laid(x), self.layout.laid(dx), dy, y)
        return self._shown(y), self._shown(dy)

    def _relative(
        self, dtype: np.dtype[Any], strides: tuple[int, ...], law: Law | None = None, axes: tuple[int, ...] = ()
    ) -> Plan:
        """The plan of the same window for other arrays: tangents, or those whose positions within `axes` are wanted."""
        key = dtype, strides, axes  # a law of its own comes with axes
        found = self._relatives.get(key)
        if found is None:
            if len(self._relatives) >= MOST_RELATIVES:
                self._relatives.clear()
            found = self._relatives[key] = Plan(self.window, law or self.law, dtype, strides, axes)
        return found

    def forward(self, x: Array) -> Array:
        x = self.layout.laid(x) if self.layout.copies else x
        y = self._run(FORWARD, x, x, None, _empty(self.out_shape, x.dtype))
        return y if self.back is None else y.transpose(self.back)

    def write(self, x: Array, out: Array) -> None:
        y = out.transpose(self.layout.order)
        if not (y.flags.c_contiguous and y.dtype.isnative and _code(y.dtype)[1]) or np.may_share_memory(x, out):
            out[...] = self.forward(x)
        else:
            self._run(FORWARD, x, self.layout.laid(x), None, y)

    def winners(self, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
        numbering = self._relative(self.dtype, x.strides, self.law.first or self.law, axes)
        y, residual = numbering._winners(x)
        return numbering._shown(y), numbering.positions(residual)

    def positions(self, residual: Array) -> Array:
        """Flat positions within the plan's `axes` of the winners in a dense residual; -1 where nothing is read."""
        places = _empty(self.out_shape, np.int64)
        self.run(POSITIONS, self.type, residual, None, places)
        places, steps = self._shown(places), _steps(self.axes, self.window)
        for i in set(steps) - set(self.pooled):  # no window joins these: the output's own index
            own = np.arange(self.window.axes[i].size) * steps[i]
            places = np.where(places < 0, places, places + own.reshape((-1,) + (1,) * (len(self.window.axes) - i - 1)))
        return places

    def linearize(self, x: Array) -> Linear:
        """A max keeps which tap won, a byte per output for up to 256 taps; a sum keeps nothing; other laws keep x."""
        if self.law.no_derivative:
            raise PoolTypeError(self.law.no_derivative)
        if not self.differentiates:
            raise PoolError(f"the kernels share no derivative among equals of {name(self.dtype)}; ask the next engine")
        if self.law.linear:
            return Linear(
                self.forward(x),
                _Moving(lambda dx: self._relative(dx.dtype, dx.strides).forward(dx)),
                _Moving(lambda dy: self._like_x(dy)._back(VJP, None, dy)),
            )
        if self.law.one_winner:
            y, residual = self._winners(x)
            return Linear(
                self._shown(y),
                _Moving(lambda dx: self._ahead(JVP_BY_WINNER, residual, dx)),
                _Moving(lambda dy: self._back(VJP_BY_WINNER, residual, dy)),
            )
        native = x.dtype.newbyteorder("=")
        y, seen = self.forward(x), np.array(self.layout.laid(x), native, order="K")  # x may change before it is needed
        return Linear(y, _Moving(lambda dx: self._ahead(JVP, seen, dx)), _Moving(lambda dy: self._back(VJP, seen, dy)))

    def _winners(self, x: Array) -> tuple[Array, Array]:
        y, residual = _empty(self.out_shape, x.dtype), _empty(self.out_shape, self.residual)
        return self._run(WINNERS, x, self.layout.laid(x), None, y, residual), residual

    def _ahead(self, mode: int, x: Array, dx: Array) -> Array:
        return self._shown(self._run(mode, dx, x, self.layout.laid(dx), _empty(self.out_shape, dx.dtype)))

    def _back(self, mode: int, x: Array | None, dy: Array) -> Array:
        return self._shown(self._run(mode, dy, x, self.layout.laid(dy), _empty(self.layout.in_shape, dy.dtype)))

    def _like_x(self, dy: Array) -> Plan:
        """The plan for inputs of dy's dtype that lie as this plan's do."""
        strides = [0] * len(self.window.axes)
        step = dy.itemsize
        for i in reversed(self.layout.order):
            strides[i], step = step, step * self.window.axes[i].size
        return self._relative(dy.dtype, tuple(strides))

    def _run(self, mode: int, moved: Array, x: Any, a: Any, y: Array, b: Any = None) -> Array:
        """`moved` has the dtype of tangents; x and a as `kernels.h` has them; y and b are dense results. Gives y."""
        code, plain = _code(moved.dtype)
        if not plain:
            if not y.dtype.isnative:
                return self._run(mode, moved, x, a, _empty(y.shape, y.dtype.newbyteorder("=")), b).astype(y.dtype)
            self.run(mode, code, _buffer(x), _buffer(a), _buffer(y), b)
        elif not self.native.run(self.handle, mode, code, x, a, y, b, _SETTINGS.threads or threads()):
            raise self.does_not_fit()
        return y

    def run(self, mode: int, moved: int, x: Any, a: Any, y: Any, b: Any = None, most: int = 0) -> None:
        """The kernels themselves, on buffers: x and a of any strides that the layout can walk, y and b (and a residual)
        dense in the layout's order, whatever their strides say; `most` threads, or as many as are set."""
        if not self.native.run(self.handle, mode, moved, x, a, y, b, most or _SETTINGS.threads or threads()):
            raise self.does_not_fit()

    def does_not_fit(self) -> PoolError:
        """What is raised where an integer sum overflows."""
        return PoolError(f"a sum does not fit {name(self.dtype)}; convert x to a wider type first")

    def _shown(self, a: Array) -> Array:
        """A dense result in the caller's order of axes."""
        return a if self.back is None else a.transpose(self.back)


class _Moving:
    """A linear function of arrays, on the parts of a dual array too. Not a closure: one that calls itself would keep
    residuals alive until the next garbage collection."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[Array], Array]):
        self.run = run

    def __call__(self, a: Any) -> Any:
        return DualArray(self(a.value), self(a.tangent)) if isinstance(a, DualArray) else self.run(a)


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Memory for a result. Large ones lie in blocks that the extension keeps for the next when they are gone."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.empty(shape, dtype) if size < LARGE else np.ndarray(shape, dtype, _load()[0].block(size))


@lru_cache
def _code(dtype: np.dtype[Any]) -> tuple[int, bool]:
    """The extension's number for a dtype (0 if it is not one of tangents), and whether its arrays go as they are."""
    return TYPES.get(name(dtype), 0), dtype.isnative and dtype.kind != "V"


def _buffer(a: Array | None) -> Array | None:
    """The array as one with a buffer of numbers that the processor has."""
    if a is None:
        return None
    a = a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))
    return a.view(np.uint16) if a.dtype.kind == "V" else a  # bfloat16 has no buffer of its own


# -- max-unpooling -----------------------------------------------------------------------------------------------------

LAST, SUM, ANY = range(3)  # what stays where values meet
UNPOOLED, OVERFLOW, OUTSIDE = 0, 1, 3


def unpools(y: Any, indices: Any) -> bool:
    """Whether the kernel puts such values at such places. An unsigned 64-bit place may not be a signed one."""
    plain = isinstance(y, np.ndarray) and isinstance(indices, np.ndarray)
    return plain and name(y.dtype) in TYPES and name(indices.dtype) != "uint64" and available()


def unpool(values: Array, places: Array, size: int, duplicates: str) -> tuple[Array, int]:
    """Rows of `size`: each value at its place, 0 elsewhere; and UNPOOLED, or what stands in the way."""
    x = _empty((len(values), size), values.dtype.newbyteorder("="))
    outcome = unpool_into(x, values, places, duplicates)
    return x.astype(values.dtype, copy=False), outcome


def unpool_into(x: Array, values: Array, places: Array, duplicates: str) -> int:
    """The same into dense rows of the processor's own numbers."""
    places = np.ascontiguousarray(places, None if places.dtype in (np.int32, np.int64) else np.int64)
    values = np.ascontiguousarray(values)
    meet = LAST if duplicates == "last" else ANY if kind(values.dtype) == "bool" else SUM
    code, sizes = _code(values.dtype)[0], (*values.shape, x.shape[1])
    return int(_load()[0].unpool(_buffer(values), places, _buffer(x), code, meet, *sizes, threads()))


# -- what axes read ----------------------------------------------------------------------------------------------------


def _merged(axes: list[Axis]) -> Axis:
    """Axes that are pooled whole, as one."""
    return axes[0] if len(axes) == 1 else whole(math.prod(axis.size for axis in axes))


def formula(axis: Axis) -> tuple[int, ...] | None:
    """What the extension asks of an axis: size, outputs, stride, taps, dilation, start, and the positions that count
    before and after the input; size and outputs alone for bins. Of a part: those of the whole, then its first output
    and position, each with how many there are. None if it is neither."""
    if axis.of is not None:
        found = formula(axis.of)
        return found and (*found, axis.first, axis.outputs, axis.lo - axis.of.lo, axis.size)
    if axis.is_sliding:
        one = axis.simplified()
        return one.size, one.outputs, one.stride, one.taps, one.dilation, -one.lo, *one.margin
    return (axis.size, axis.outputs) if axis == adaptive(axis.size, axis.outputs) else None


def _fits(axis: Axis) -> bool:
    """Whether the extension has a formula for an axis, and 64 bits are enough for it."""
    axis = axis.of or axis
    found = formula(axis)
    if found is None or len(found) == 2:
        return found is not None and axis.size * axis.outputs < 1 << 62
    return axis.dilation == 1 or axis.stride < 1 << 31


def _steps(axes: tuple[int, ...], window: Window) -> dict[int, int]:
    """Row-major steps of flat positions within `axes`."""
    return {a: math.prod(window.axes[b].size for b in axes[i + 1 :]) for i, a in enumerate(axes)}
