"""The native engine alone: what its threads, instruction sets, layouts and residuals may not change, and its limits.

That it computes what the spec says is `test_agreement`'s to show; here it is compared with itself, with exact numbers,
and with the reference where values are extreme.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import ndpool
from ndpool import PoolError
from ndpool.engines import choose, native, reference, signature
from ndpool.spec import SUM, Axis, Law, Window, adaptive, each, lp, maximum, mean, sliding, smooth_max, whole

from . import cases
from .cases import (
    BFLOAT16,
    EXTREMES,
    INTEGERS,
    LAWS,
    NORMS,
    SMOOTH,
    SUMS,
    assert_close,
    assert_exact,
    assert_same_zeros,
)

if not native.available():
    pytest.skip(f"the native engine is not in use: {native.reason()}", allow_module_level=True)

F32, F64 = np.dtype("float32"), np.dtype("float64")


@contextmanager
def running(threads: int = 0, isa: str | None = None) -> Iterator[None]:
    """Another number of threads or instruction set, and the old ones after."""
    threads_before, isa_before = native.threads(), native.isa()
    try:
        native.set_threads(threads)
        native.use(isa or isa_before)
        yield
    finally:
        native.set_threads(threads_before)
        native.use(isa_before)


def assert_same_bits(got: Any, want: Any, note: Any = "") -> None:
    """A NaN is a NaN, else every bit; big-endian arrays by value."""
    got, want = np.asarray(got), np.asarray(want)
    got, want = (np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="), copy=False)) for a in (got, want))
    assert (got.dtype, got.shape) == (want.dtype, want.shape), note
    same = got.view(f"u{got.itemsize}") == want.view(f"u{got.itemsize}")
    if got.dtype.kind in "fV":
        same |= np.isnan(got) & np.isnan(want)
    assert same.all(), (note, f"{np.count_nonzero(~same)} of {same.size} differ", got[~same][:4], want[~same][:4])


def run_python(script: str, timeout: float = 120, **env: str) -> str:
    """What a Python of its own prints; it must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NDPOOL_")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=kept | env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def plane(axis: Callable[[int], Any], *sizes: int) -> Window:
    """Batch axes, then two pooled alike."""
    return Window((*map(each, sizes[:-2]), *map(axis, sizes[-2:])))


# -- threads and instruction sets -------------------------------------------------------------------------------------


def big_windows(counted: bool) -> dict[str, Window]:
    """Large enough for several units of work, most for several bands of one image."""

    def slide(k: int, s: int, p: int, d: int = 1, ceil: bool = False) -> Callable[[int], Any]:
        return lambda n: sliding(n, k, s, (p, p), d, ceil, counted)

    return {
        "small": plane(slide(3, 2, 1), 3, 5, 200, 190),
        "long": plane(slide(31, 1, 15), 1, 210, 190),
        "dilated": plane(slide(3, 1, 2, d=2), 2, 200, 190),
        "ceil": plane(slide(4, 3, 1, ceil=True), 2, 3, 161, 99),
        "adaptive": plane(lambda n: adaptive(n, 37), 3, 200, 190),
        "global": plane(whole, 2, 3, 200, 190),
        "line": Window((each(2), slide(5, 2, 2)(300000))),
        "long line": Window((each(2), slide(63, 60, 31)(100000))),
        "space": Window((each(1), *map(slide(3, 2, 1), (40, 50, 60)))),
        "channels last": Window((slide(3, 2, 1)(60), slide(5, 1, 0)(50), each(48))),
    }


BIG_LAWS = {
    name: LAWS[name]
    for name in (
        "max first propagate", "max last ignore", "min first ignore", "max split propagate", "min all ignore",
        "sum", "mean", "mean over 3", "lp 1", "lp 2", "lp 2.5", "smooth max", "smooth min",
    )
}  # fmt: skip
BIG_DTYPES = tuple(map(np.dtype, ("float32", "float64", "float16", BFLOAT16, "uint8", "int64")))


def big_values(rng: np.random.Generator, window: Window, law: Law, dtype: np.dtype) -> np.ndarray:
    """Where a value is chosen, ties and NaN; where values are summed, bits in every place; sums that fit."""
    if law.name in ("max", "min"):
        return cases.values(rng, window.shape, dtype, specials=True)
    if dtype in INTEGERS:
        taps = math.prod(max(axis.count(o) for o in (0, axis.outputs // 2)) for axis in window.axes)
        return (rng.random(window.shape) < 30 / max(taps, 60)).astype(dtype) * 2
    return rng.normal(size=window.shape).astype(dtype)


def everything(window: Window, law: Law, x: np.ndarray, dx: np.ndarray, dy: np.ndarray) -> dict[str, np.ndarray]:
    """All that the engine makes of x."""
    made = {"forward": native.forward(window, law, x)}
    if not (law.divides and x.dtype in INTEGERS) and native.bind(window, law, x).differentiates:
        at = native.linearize(window, law, x)
        made |= {"y": at.y, "jvp": at.jvp(dx), "vjp": at.vjp(dy)}
    if law.winners:
        made["value"], made["place"] = native.winners(window, law, x, cases.pooled(window))
    return made


@pytest.mark.parametrize("law", BIG_LAWS)
def test_threads_and_instruction_sets_change_no_bit(law: str) -> None:
    plainest = native.isas()[-1]
    ways = [(threads, native.isa()) for threads in (2, 7)] + [(2, isa) for isa in native.isas() if isa != plainest]
    extreme = BIG_LAWS[law].name in ("max", "min")  # they read no padding
    shared = extreme and BIG_LAWS[law].params[0] in ("all", "split")  # whose derivatives of integers run elsewhere
    for name, window in big_windows(counted=not extreme).items():
        for dtype in (d for d in BIG_DTYPES if d in cases.KINDS[BIG_LAWS[law].name]):
            if (shared and dtype in INTEGERS) or (
                BIG_LAWS[law].name == "lp" and dtype.itemsize == 2 and name != "small"
            ):
                continue
            rng = np.random.default_rng(len(name))
            x = big_values(rng, window, BIG_LAWS[law], dtype)
            moved = F64 if dtype in INTEGERS else dtype
            dx, dy = (rng.normal(size=shape).astype(moved) for shape in (window.shape, window.out_shape))
            with running(1, plainest):
                want = everything(window, BIG_LAWS[law], x, dx, dy)
            if "y" in want:
                assert_same_bits(want["y"], want["forward"], (name, dtype.name, "forward and linearize"))
            for threads, isa in dict.fromkeys(ways):
                with running(threads, isa):
                    got = everything(window, BIG_LAWS[law], x, dx, dy)
                for part in want:
                    assert_same_bits(got[part], want[part], (name, dtype.name, threads, isa, part))


# -- layouts ----------------------------------------------------------------------------------------------------------


def _unaligned(a: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape)


def _read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


# each makes of a C-contiguous array of four axes one that lies otherwise, maybe of another shape
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran": np.asfortranarray,
    "channels last": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "reversed": lambda a: a[::-1, :, ::-1, ::-1],
    "reversed lanes": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)[:, ::-1],
    "broadcast batch": lambda a: np.broadcast_to(a[:1], a.shape),
    "broadcast rows": lambda a: np.broadcast_to(a[:, :, :1], a.shape),
    "one number": lambda a: np.broadcast_to(a[0, 0, 0, 0], a.shape),
    "every other element": lambda a: np.repeat(a, 2, axis=3)[..., ::2],
    "every other row": lambda a: np.repeat(a, 2, axis=2)[:, :, 1::2],
    "transposed batch axes": lambda a: np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1),
    "transposed pooled axes": lambda a: np.ascontiguousarray(a.swapaxes(2, 3)).swapaxes(2, 3),
    "batch innermost": lambda a: np.ascontiguousarray(a.transpose(2, 1, 3, 0)).transpose(3, 1, 0, 2),
    "unaligned": _unaligned,
    "overlapping": lambda a: np.lib.stride_tricks.sliding_window_view(a[0, 0], (21, 18)),
    "read-only": _read_only,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian, reversed": lambda a: a.astype(a.dtype.newbyteorder(">"))[..., ::-1],
    "axes of one element": lambda a: a[:1, :, :, :1].transpose(1, 0, 2, 3),
}
LAYOUT_LAWS = {
    "max": maximum(),
    "max split": maximum("split"),
    "mean": mean(),
    "smooth max": smooth_max(2.0),
    "lp": lp(2),
}
LAYOUT_AXES: dict[str, Callable[[int], Any]] = {
    "small": lambda n: sliding(n, 3, 2, (1, 1), count_padding=False),
    "long": lambda n: sliding(n, 17, 1, (8, 8)),
    "bins": lambda n: adaptive(n, 5),
    "global": whole,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("law", LAYOUT_LAWS)
def test_every_layout_gives_the_bits_of_the_contiguous_array(law: str, layout: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in (F32, F64, np.dtype("float16")):
        x = LAYOUTS[layout](rng.normal(size=(3, 4, 26, 23)).astype(dtype))
        plain = np.array(x, dtype, order="C")
        for name, axis in LAYOUT_AXES.items():
            window = plane(axis, *x.shape)
            dx, dy = (rng.normal(size=shape).astype(dtype) for shape in (window.shape, window.out_shape))
            got, want = (native.linearize(window, LAYOUT_LAWS[law], a) for a in (x, plain))
            note = (dtype.name, name)
            assert got.y.dtype == x.dtype, note
            assert_same_bits(native.forward(window, LAYOUT_LAWS[law], x), want.y, note)
            assert_same_bits(got.y, want.y, note)
            assert_same_bits(got.jvp(dx), want.jvp(dx), note)
            assert_same_bits(got.vjp(dy), want.vjp(dy), note)
            # tangents that lie otherwise than x
            laid_dx = LAYOUTS[layout](dx) if layout not in ("overlapping", "axes of one element") else dx[::-1][::-1]
            laid_dy = np.asfortranarray(dy)
            assert_same_bits(want.jvp(laid_dx), want.jvp(np.array(laid_dx, dtype, order="C")), note)
            assert_same_bits(want.vjp(laid_dy), want.vjp(dy), note)
            assert_same_bits(got.vjp(laid_dy), want.vjp(dy), note)
        if law == "max":
            window = plane(LAYOUT_AXES["small"], *x.shape)
            got, want = (native.winners(window, LAYOUT_LAWS[law], a, (2, 3)) for a in (x, plain))
            assert_same_bits(got[0], want[0], layout)
            assert np.array_equal(got[1], want[1]), layout


@pytest.mark.parametrize("law", ["max", "mean", "smooth max"])
def test_every_layout_of_a_bfloat16_and_an_integer_array_gives_its_bits(law: str) -> None:
    for dtype in (BFLOAT16, np.dtype("uint8"), np.dtype("int64")):
        if dtype not in cases.KINDS[LAYOUT_LAWS[law].name]:
            continue
        for layout in (name for name in LAYOUTS if dtype != BFLOAT16 or "big-endian" not in name):
            a = (np.random.default_rng(2).normal(size=(3, 4, 26, 23)) * 9 + 40).astype(dtype)
            x = LAYOUTS[layout](a)
            for axis in LAYOUT_AXES.values():
                window = plane(axis, *x.shape)
                want = native.forward(window, LAYOUT_LAWS[law], np.array(x, dtype, order="C"))
                assert_same_bits(native.forward(window, LAYOUT_LAWS[law], x), want, (dtype.name, layout))


# -- batches ----------------------------------------------------------------------------------------------------------

BATCHED: dict[str, ndpool.Op] = {
    "max": ndpool.MaxPool(3, 2, 1),
    "mean": ndpool.AvgPool(3, 1, 1, count_include_pad=False),
    "long mean": ndpool.AvgPool(31, 1, 15),
    "sum of bins": ndpool.AdaptiveSumPool(7),
    "global sum": ndpool.GlobalSumPool(),
    "global smooth max": ndpool.GlobalSmoothMaxPool(beta=3.0),
    "smooth max": ndpool.SmoothMaxPool(5, 2, 2, beta=-2.0),
    "lp": ndpool.LpPool(2.5, 3, 2),
    "split max": ndpool.MaxPool(5, 1, ties="split"),
}


@pytest.mark.parametrize("op", BATCHED)
def test_results_do_not_depend_on_the_batch(op: str) -> None:
    rng = np.random.default_rng(3)
    for shape in ((5, 3, 64, 50), (2, 2, 300, 31), (37, 1, 33, 33)):
        x = rng.normal(size=shape).astype(np.float32)
        whole_batch = BATCHED[op].linearize(x)
        dy = rng.normal(size=whole_batch.y.shape).astype(np.float32)
        dx, forward = whole_batch.vjp(dy), BATCHED[op](x)
        for i in range(0, shape[0], 4):
            one = BATCHED[op].linearize(x[i])
            assert_same_bits(forward[i], BATCHED[op](x[i]), (shape, i))
            assert_same_bits(whole_batch.y[i], one.y, (shape, i))
            assert_same_bits(dx[i], one.vjp(dy[i]), (shape, i))
            assert_same_bits(dx[i, :1], BATCHED[op].linearize(x[i, :1]).vjp(dy[i, :1]), (shape, i))


# -- accuracy ---------------------------------------------------------------------------------------------------------


def exact_sum(x: np.ndarray) -> Fraction:
    """Without rounding: 53-bit mantissas are added in two halves for each exponent."""
    mantissas, exponents = np.frexp(x.astype(np.float64).reshape(-1))
    parts = (mantissas * 2.0**53).astype(np.int64)
    total = Fraction(0)
    for e in np.unique(exponents):
        high, low = (int(half[exponents == e].sum()) for half in (parts >> 26, parts & (2**26 - 1)))
        total += Fraction(high * 2**26 + low) * Fraction(2) ** (int(e) - 53)
    return total


SUMMED: dict[str, tuple[Window, int]] = {
    "3x3": (plane(lambda n: sliding(n, 3, 2), 2, 21, 21), 9),
    "31x31": (plane(lambda n: sliding(n, 31, 17), 1, 101, 101), 31 * 31),
    "31x31, overlapping": (plane(lambda n: sliding(n, 31, 1), 1, 34, 34), 31 * 31),
    "global 112x112": (plane(whole, 4, 112, 112), 112 * 112),
    "a line": (Window((whole(10**6),)), 10**6),
    "channels last": (Window((whole(112), whole(112), each(5))), 112 * 112),
    "columns": (Window((whole(20000), each(7))), 20000),
}
DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "noise": lambda rng, shape: rng.normal(size=shape),
    "positive": lambda rng, shape: rng.random(shape),
    "one tenth": lambda rng, shape: np.full(shape, 0.1),
    "1e4 + noise": lambda rng, shape: 1e4 + rng.normal(size=shape),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("window", SUMMED)
def test_sums_do_not_drift(window: str, data: str) -> None:
    """|error| <= ceil(log2 n) eps sum|x| for n taps, as if they were added in pairs; the worst seen is 2/3 of that."""
    geometry, taps = SUMMED[window]
    for dtype in (F32, F64):
        x = DATA[data](np.random.default_rng(4), geometry.shape).astype(dtype)
        bound = math.ceil(math.log2(taps)) * Fraction(float(np.finfo(dtype).eps))
        for law, over in ((SUM, 1), (mean(), taps)):
            y = native.forward(geometry, law, x)
            for o, reads in enumerate(np.array([r for r, _ in geometry]) if taps < 1000 else big_reads(geometry)):
                seen = x.reshape(-1)[reads]
                error = abs(Fraction(float(y.reshape(-1)[o])) - exact_sum(seen) / over)
                part = float(error / (bound * exact_sum(np.abs(seen)) / over))
                assert part <= 1, (dtype.name, law.name, o, part)


def big_reads(window: Window) -> Iterator[np.ndarray]:
    """The taps of windows that are pooled whole, for each output."""
    places = np.arange(math.prod(window.shape)).reshape(window.shape)
    kept = [i for i, axis in enumerate(window.axes) if axis == each(axis.size)]
    yield from np.moveaxis(places, kept, range(len(kept))).reshape(math.prod(window.out_shape), -1)


def exact_smooth_max(taps: list[float], beta: float) -> tuple[Any, Any]:
    """The value, and the size of what is added to make it."""
    m = max(taps) if beta > 0 else min(taps)
    rest = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(beta) * (mpmath.mpf(x) - m)) for x in taps)) / beta
    return m + rest, max(abs(m), abs(rest))


def exact_norm(taps: list[float], p: float) -> tuple[Any, Any]:
    y = mpmath.fsum(abs(mpmath.mpf(x)) ** p for x in taps) ** (1 / mpmath.mpf(p))
    return y, y


# units in the last place; those of a smooth max are of the larger of its two terms, which may cancel
ULPS = 3  # the worst seen is 1.8
PRECISE: dict[str, tuple[Law, Callable[..., Any]]] = {
    **{f"smooth max {b}": (smooth_max(b), exact_smooth_max) for b in (1, 50, -2)},
    **{f"lp {p}": (lp(p), exact_norm) for p in (1, 2, 2.5)},
}
PRECISE_WINDOWS = {
    "3x3": plane(lambda n: sliding(n, 3, 2), 17, 17),
    "31": Window((sliding(120, 31, 7),)),
    "line": Window((each(2), whole(2000))),
}


@pytest.mark.parametrize("data", ["noise", "1e4 + noise"])
@pytest.mark.parametrize("law", PRECISE)
def test_smooth_max_and_norms_are_right_to_a_few_units_in_the_last_place(law: str, data: str) -> None:
    rule, exact = PRECISE[law]
    for name, window in PRECISE_WINDOWS.items():
        for dtype in (F32, F64):
            x = DATA[data](np.random.default_rng(5), window.shape).astype(dtype)
            y, flat = native.forward(window, rule, x), x.reshape(-1).tolist()
            with mpmath.workdps(40):
                for o, (taps, _) in enumerate(window):
                    want, scale = exact([flat[t] for t in taps], rule.params[0])
                    ulps = float(abs(float(y.flat[o]) - want) / scale) / float(np.finfo(dtype).eps)
                    assert ulps <= ULPS, (name, dtype.name, o, ulps)


# -- special values ---------------------------------------------------------------------------------------------------


def special_rows(dtype: np.dtype) -> np.ndarray:
    """Every special value at every place of a short row, and every pair of them side by side."""
    tiny = float(np.finfo(dtype).smallest_subnormal)
    specials = (math.nan, math.inf, -math.inf, tiny, -tiny, 0.0, -0.0)
    rows = []
    for base in (-1.0, 1.0):
        for i in range(7):
            rows += [[special if j == i else base * (1 + j % 3) for j in range(7)] for special in specials]
        for a in specials:
            rows += [[base, base, a, b, base, base, 2 * base] for b in specials]
    rows += [[a, b] * 3 + [a] for a in specials for b in specials]
    return np.array(rows).astype(dtype)


SPECIAL_AXES = {"sliding": sliding(7, 3, 2, (1, 1), count_padding=False), "bins": adaptive(7, 3), "whole": whole(7)}


@pytest.mark.parametrize("axis", SPECIAL_AXES)
@pytest.mark.parametrize("law", LAWS)
def test_special_values_at_every_place_agree_with_the_reference(law: str, axis: str) -> None:
    chosen = law in EXTREMES
    for dtype in (F32, F64):
        x = special_rows(dtype)
        window = Window((each(len(x)), SPECIAL_AXES[axis]))
        rng = np.random.default_rng(6)
        dx, dy = (cases.tangents(rng, shape, dtype) for shape in (window.shape, window.out_shape))
        got, want = (run(window, LAWS[law], x) for run in (native.linearize, reference.linearize))
        if law in NORMS:  # the reference divides by a norm that was rounded; where that is coarse it is no judge
            dy[coarse := (abs(want.y) > 0) & (abs(want.y) < np.finfo(dtype).smallest_normal)] = 0
        else:
            coarse = np.zeros(window.out_shape, bool)
        (assert_exact if chosen else assert_close)(got.y, want.y, dtype.name)
        assert_same_bits(native.forward(window, LAWS[law], x), got.y, dtype.name)
        if chosen:
            assert_same_zeros(got.y, want.y, dtype.name)
        assert_close(got.jvp(dx)[~coarse], want.jvp(dx)[~coarse], dtype.name)
        assert_close(got.vjp(dy), want.vjp(dy), dtype.name)
        if chosen:
            got, want = (run(window, LAWS[law], x, (1,)) for run in (native.winners, reference.winners))
            assert np.array_equal(got[1], want[1]), dtype.name


@pytest.mark.parametrize("law", [*NORMS, *SMOOTH])
def test_infinite_tangents_beside_infinite_taps_agree_with_the_reference(law: str) -> None:
    """Where y is infinite a finite tap has no derivative: 0, and not 0 times an infinite tangent."""
    rng = np.random.default_rng(9)
    for axis in (whole(3), sliding(4, 3, 1, (1, 1), 1, False, False), sliding(4, 2)):
        window = Window((axis,))
        for _ in range(100):
            x = rng.choice([1.0, 2.0, -3.0, 0.0, math.inf, -math.inf], window.shape)
            dx = rng.choice([1.0, 2.0, math.inf, -math.inf, math.nan], window.shape)
            with np.errstate(all="ignore"):
                got, want = (e.linearize(window, LAWS[law], x).jvp(dx) for e in (native, reference))
            np.testing.assert_allclose(got, want, 1e-12, 1e-12)


@pytest.mark.parametrize("law", [*SUMS, *NORMS, *SMOOTH])
def test_subnormal_numbers_are_not_flushed_to_zero(law: str) -> None:
    for dtype in (F32, F64):
        tiny = float(np.finfo(dtype).smallest_subnormal)
        x = (np.random.default_rng(7).integers(-1000, 1000, (40, 12)) * tiny).astype(dtype)
        window = Window((each(40), sliding(12, 3, 2, (1, 0))))
        got, want = (run(window, LAWS[law], x) for run in (native.forward, reference.forward))
        if law in SMOOTH:
            assert_close(got, want, dtype.name)
        else:
            assert np.max(np.abs(got - want)) <= 2 * tiny, (dtype.name, got, want)
            assert np.any(got), dtype.name


@pytest.mark.parametrize("law", ["max first propagate", "max last ignore", "sum"])
def test_small_tiles_whose_ends_nobody_reads_agree_with_the_reference(law: str) -> None:
    late, short = (
        Axis(16, 4, stride=6, extent=3, lo=3),
        sliding(7, 2, 2),
    )  # three rows and a column unread
    window = Window((each(37), late, short))
    x = np.random.default_rng(12).integers(-50, 50, window.shape).astype(np.float32)
    got, want = (run(window, LAWS[law], x) for run in (native.linearize, reference.linearize))
    assert np.array_equal(got.y, want.y)
    dy = np.arange(want.y.size, dtype=np.float32).reshape(want.y.shape)
    assert np.array_equal(got.vjp(dy), want.vjp(dy))
    assert np.array_equal(got.jvp(x), want.jvp(x))


# -- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_extremes_of_every_integer_type_agree_with_the_reference(dtype: np.dtype) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(8)
    ends = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype)
    window = Window((each(30), sliding(19, 3, 2, (1, 1), count_padding=False)))
    x = ends[rng.integers(0, len(ends), window.shape)]
    for law in (*EXTREMES.values(), mean(), mean(3)):
        got, want = (run(window, law, x) for run in (native.forward, reference.forward))
        assert_exact(got, want, law)
    for law in EXTREMES.values():
        got, want = (run(window, law, x, (0, 1)) for run in (native.winners, reference.winners))
        assert np.array_equal(got[1], want[1]), law
    whole_window = Window((each(2), whole(300)))
    for end in (info.min, info.max):
        x = np.full(whole_window.shape, end, dtype)
        assert_exact(native.forward(whole_window, mean(), x), np.full((2, 1), end, dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_sums_that_fit_are_exact_and_others_raise(dtype: np.dtype) -> None:
    info = np.iinfo(dtype)
    for low, high in ((info.min, info.max), (info.min // 2, info.max // 2), (info.min // 4, info.max // 3)):
        for x in (
            [low, 0, high],
            [high, low, 0],
            [high, 1, 0],
            [low, -1 if low else 0, 0],
            [high, high, low],
            [low, low, high],
        ):
            x = np.array(x).astype(dtype) if dtype.itemsize < 8 else np.array(x, dtype)
            for window in (Window((whole(3),)), Window((sliding(3, 2, 1),)), Window((sliding(3, 3, 1, (2, 2)),))):
                fits = all(info.min <= sum(int(x[t]) for t in taps) <= info.max for taps, _ in window)
                if fits:
                    got, want = (run(window, SUM, x) for run in (native.forward, reference.forward))
                    assert_exact(got, want, x)
                else:
                    with pytest.raises(PoolError, match=f"a sum does not fit {dtype.name}"):
                        native.forward(window, SUM, x)


def test_a_long_sum_that_does_not_fit_raises_wherever_it_is() -> None:
    for dtype in (np.dtype("int8"), np.dtype("int64"), np.dtype("uint64")):
        for place in (0, 7, 398):
            x = np.zeros((400, 300), dtype)
            x[place, 100] = x[place, 101] = np.iinfo(dtype).max
            with pytest.raises(PoolError, match="sum_pool: a sum does not fit"):
                ndpool.SumPool(3)(x)
            x[place, 101] = 0
            assert ndpool.SumPool(3, 1, 1)(x).max() == np.iinfo(dtype).max


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_means_round_half_to_even(dtype: np.dtype) -> None:
    signs = (1,) if np.iinfo(dtype).min == 0 else (1, -1)
    x = np.array([[sign * a, sign * b] for sign in signs for a in range(8) for b in range(8)], dtype)
    want = [[round(Fraction(int(a) + int(b), 2))] for a, b in x]
    assert np.array_equal(native.forward(Window((each(len(x)), whole(2))), mean(), x), np.array(want, dtype))


# -- processes, threads and memory ------------------------------------------------------------------------------------

FORK = """
import os, sys
import numpy as np, ndpool
from ndpool.engines import native
native.set_threads(4)
x = np.random.default_rng(0).normal(size=(8, 300, 300)).astype(np.float32)
op = ndpool.AvgPool(3, 2, 1)
want = op(x)
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if all(np.array_equal(op(x), want) for _ in range(3)) else 1)
    assert np.array_equal(op(x), want)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("same")
"""

WORKERS = """
import multiprocessing
import numpy as np, ndpool
from ndpool.engines import native
native.set_threads(4)
op = ndpool.SmoothMaxPool(3, 2, 1)

def pool(seed):
    return op(np.random.default_rng(seed).normal(size=(4, 300, 300)))

if __name__ == "__main__":
    want = [pool(seed) for seed in range(9)]
    with multiprocessing.get_context("fork").Pool(3) as workers:
        got = workers.map(pool, range(9))
    assert all(np.array_equal(a, b) for a, b in zip(got, want))
    print("same")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("script", [FORK, WORKERS], ids=["os.fork", "multiprocessing"])
def test_a_forked_child_pools_on_threads_of_its_own(script: str) -> None:
    assert run_python(script) == "same"


def test_threads_that_pool_at_once_get_what_one_gets() -> None:
    rng = np.random.default_rng(9)
    ops = (ndpool.MaxPool(3, 2, 1), ndpool.AvgPool(5, 1), ndpool.GlobalSmoothMaxPool(), ndpool.SumPool(31, 1))
    arrays = [rng.normal(size=(4, 200, 150)).astype(np.float32) for _ in range(4)]
    with running(4):
        want = [(op(x), op.vjp(x, np.ones_like(op(x)))) for op in ops for x in arrays]
        got: dict[int, Any] = {}
        start = threading.Barrier(8)

        def work(me: int) -> None:
            start.wait()
            got[me] = [(op(x), op.vjp(x, np.ones_like(op(x)))) for op in ops for x in arrays]

        workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(got) == 8
    for mine in got.values():
        for one, other in zip(mine, want, strict=True):
            assert_same_bits(one[0], other[0])
            assert_same_bits(one[1], other[1])


# Overlapping windows of 20 MB that are much to pool: a run of an hour if nothing stops it.
INTERRUPT = """
import os, signal, threading
import numpy as np, ndpool
base = np.random.default_rng(0).normal(size=(10512, 512)).astype(np.float32)
x = np.lib.stride_tricks.as_strided(base, (5000, 5000, 512, 512), (2048, 2048, 2048, 4))
op = ndpool.GlobalSmoothMaxPool()
want = op(x[:1, :3])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
try:
    op(x)
    print("finished")
except KeyboardInterrupt:
    timer.join()
    assert np.array_equal(op(x[:1, :3]), want)
    print("interrupted")
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_interrupt_ends_a_long_run(threads: str) -> None:
    assert run_python(INTERRUPT, NDPOOL_THREADS=threads) == "interrupted"


SHORT = """
import resource
import numpy as np, ndpool
from ndpool.engines import native
native.set_threads(3)
wide = np.random.default_rng(0).normal(size=(7, 3, 200_000)).astype(np.float16)
ops = (ndpool.SmoothMaxPool(3, 1, 1, axes=(0, 1)), ndpool.GlobalLpPool(2, axes=(0, 1)), ndpool.AvgPool(9, axes=-1))
wants = [op(wide) for op in ops]
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
outcomes = set()
for extra in (0, *(2**i for i in range(18, 30, 2))):
    for op, want in zip(ops, wants):
        resource.setrlimit(resource.RLIMIT_AS, (now + extra, resource.RLIM_INFINITY))
        try:
            got = op(wide)
        except MemoryError:
            got = None
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        outcomes.add("none" if got is None else "right" if np.array_equal(got, want) else "wrong")
        del got
print(*sorted(outcomes))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited as on Linux")
def test_too_little_memory_is_a_memory_error() -> None:
    assert run_python(SHORT) == "none right"


@pytest.fixture
def kept() -> Iterator[None]:
    """No memory kept from before, and the default after."""
    ndpool.set_kept_memory(0)
    ndpool.set_kept_memory(256 << 20)
    yield
    ndpool.set_kept_memory(256 << 20)


def test_memory_of_results_that_are_gone_serves_the_next(kept: None) -> None:
    x = np.zeros((2, 512, 512))
    y = ndpool.max_pool(x, 2)
    place, size = y.ctypes.data, y.nbytes
    assert place % 64 == 0
    assert y.flags.writeable
    scratch = ndpool.kept_memory()
    assert scratch < size  # the scratch of two threads
    del y
    assert ndpool.kept_memory() >= size
    again = ndpool.max_pool(x, 2)
    assert again.ctypes.data == place
    assert ndpool.kept_memory() < size
    del again
    ndpool.set_kept_memory(0)
    assert ndpool.kept_memory() == 0
    del x
    y = ndpool.max_pool(np.ones((2, 512, 512)), 2)
    del y
    assert ndpool.kept_memory() == 0


def test_memory_that_somebody_holds_serves_nobody_else(kept: None) -> None:
    op = ndpool.MaxPool(2)
    held = []
    for i in range(6):
        y = op(np.full((2, 512, 512), float(i)))
        view = y[1, ::2].reshape(-1)[5:] if i % 2 else memoryview(y)
        del y
        held.append((i, view))
    for i, view in held:
        assert (np.asarray(view) == i).all()
    at = op.linearize(np.arange(2.0 * 512 * 512).reshape(2, 512, 512))
    pulled = [at.vjp(np.full(at.y.shape, float(i))) for i in range(3)]
    assert [float(p[0, 1, 1]) for p in pulled] == [0.0, 1.0, 2.0]


def test_no_more_memory_is_kept_than_is_allowed(kept: None) -> None:
    ndpool.set_kept_memory(5 << 20)
    results = [ndpool.max_pool(np.zeros((n, 512, 512)), 2) for n in (1, 2, 3, 4, 5, 6)]
    results.clear()
    assert 0 < ndpool.kept_memory() <= 5 << 20


KEPT = """
import numpy as np, ndpool
y = ndpool.max_pool(np.zeros((4, 1024, 1024)), 2)
del y
print(ndpool.kept_memory())
"""


def test_the_environment_says_how_much_memory_is_kept() -> None:
    assert run_python(KEPT, NDPOOL_KEPT_MEMORY="0") == "0"
    assert 8 << 20 <= int(run_python(KEPT)) <= 9 << 20  # the result, and scratch
    assert run_python(KEPT, NDPOOL_ENGINE="portable") == "0"


HUGE = """
import resource
import numpy as np, ndpool
resource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2)  # what is made beside x is small
x = np.zeros((49152, 65536), np.uint8)
x[0, 0], x[40000, 12345], x[49151, 65535], x[33000, 7], x[45056, 61440] = 3, 9, 7, 9, 5
first = 33000 * 65536 + 7
assert first > 2**31 and x.nbytes == 3 << 30
y, place = ndpool.GlobalMaxPool(return_indices=True)(x)
assert (y.item(), place.item()) == (9, first), (y, place)
y, place = ndpool.GlobalMaxPool(return_indices=True, ties="last")(x)
assert (y.item(), place.item()) == (9, 40000 * 65536 + 12345), (y, place)
y, place = ndpool.MaxPool(2, 4096, return_indices=True)(x)
assert (y[11, 15], place[11, 15]) == (5, 45056 * 65536 + 61440), (y, place)
y = ndpool.MaxPool(2)(x)
assert y.shape == (24576, 32768) and np.count_nonzero(y) == 5
assert (y[0, 0], y[20000, 6172], y[-1, -1], y[16500, 3]) == (3, 9, 7, 9)
assert ndpool.GlobalSumPool()(x.reshape(3, -1, 65536).view(np.int8)).ravel().tolist() == [3, 0, 30]
print("right")
"""


def free_memory() -> int:
    """In bytes; 0 where the system does not say."""
    named = "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if named else 0


@pytest.mark.skipif(free_memory() < 8 << 30, reason="less than 8 GiB of memory is free")
def test_an_array_of_more_than_two_to_the_31_elements_is_pooled() -> None:
    assert run_python(HUGE) == "right"


# -- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "size"), [((16, 16), 1), ((1, 256), 1), ((1, 257), 2), ((256, 256), 2), ((1, 65536), 2), ((257, 256), 4)]
)
def test_a_max_keeps_a_byte_an_output_for_256_taps_and_two_for_65536(kernel: tuple[int, int], size: int) -> None:
    x = np.broadcast_to(np.float32(0), (300, 66000))
    window = Window(tuple(sliding(n, k, 7) for n, k in zip(x.shape, kernel, strict=True)))
    assert native.bind(window, maximum(), x).residual.itemsize == size


@pytest.mark.parametrize("law", ["max", "min", "mean", "sum"])
def test_what_linearize_keeps_does_not_grow_with_the_input(law: str) -> None:
    x = np.random.default_rng(10).normal(size=(8, 4, 128, 128)).astype(np.float32)
    op = {
        "max": ndpool.MaxPool(8),
        "min": ndpool.MinPool(8, ties="last"),
        "mean": ndpool.AvgPool(8),
        "sum": ndpool.SumPool(8),
    }[law]
    outputs = op(x).size
    op.vjp(x, op(x))  # plans are made once
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        at = op.linearize(x)
        kept = tracemalloc.get_traced_memory()[0] - before - at.y.nbytes
        assert at.y.size == outputs
    finally:
        tracemalloc.stop()
    assert kept <= (outputs if law in ("max", "min") else 0) + 8192  # and a few small objects
    assert x.nbytes > 64 * outputs


# -- plans and settings -----------------------------------------------------------------------------------------------


def test_arrays_that_lie_alike_share_a_plan() -> None:
    """And so do equal records."""

    def bound(x: np.ndarray, kernel: int = 3, ties: Any = "first") -> Any:
        op = ndpool.MaxPool((kernel,), 2, 1, ties=ties)
        op(x)
        return op._plans[signature(x)].plan

    x = np.zeros((4, 9), np.float32)
    assert bound(x) is bound(x + 1)
    others = [bound(np.asfortranarray(x)), bound(x.astype(float)), bound(x, kernel=2), bound(x, ties="last")]
    assert len({id(plan) for plan in [bound(x), *others]}) == 5


@pytest.mark.parametrize("law", ["max", "mean", "lp 2"])
def test_values_and_tangents_in_the_other_byte_order(law: str) -> None:
    x, dx = np.arange(12.0).reshape(3, 4) + 1, np.ones((3, 4))
    op = {"max": ndpool.MaxPool(2), "mean": ndpool.AvgPool(2), "lp 2": ndpool.LpPool(2, 2)}[law]
    swapped = x.astype(">f8")
    other = [part.tolist() for part in op.value_and_jvp(swapped, np.ones_like(swapped))]
    assert other == [part.tolist() for part in op.value_and_jvp(x, dx)]


SETTINGS = """
import numpy as np, ndpool
from ndpool.engines import choose, native
op, x = ndpool.MaxPool(2), np.zeros((4, 4))
assert op(x).shape == (2, 2)
print(native.available(), choose(op.window(x.shape), op.law, x).__module__.rpartition('.')[2], native.threads())
"""


def test_the_environment_chooses_engine_and_threads() -> None:
    assert run_python(SETTINGS, NDPOOL_ENGINE="portable", NDPOOL_THREADS="3") == "False portable 3"
    assert run_python(SETTINGS, NDPOOL_THREADS="3") == "True native 3"
    every_core = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert run_python(SETTINGS, NDPOOL_THREADS="0") == f"True native {every_core}"


def test_arrays_of_numpy_run_here() -> None:
    op, x = ndpool.MaxPool(2), np.zeros((4, 4))
    assert isinstance(choose(op.window(x.shape), op.law, x), native.Plan)


def test_a_max_that_reads_nothing_hands_nothing_back_however_long_its_rows() -> None:
    unread, row = Axis(1, 1, stride=7, extent=1, lo=2), Axis(27, 17, extent=18, lo=1)
    x = np.random.default_rng(0).normal(size=(1, 27))
    at = native.linearize(Window((unread, row)), maximum(), x)
    assert not at.y.any()
    assert not at.vjp(np.ones_like(at.y)).any()
    assert not at.jvp(np.ones_like(x)).any()


@pytest.mark.parametrize("law", cases.LAWS)
def test_values_and_tangents_in_one_pass_are_those_of_two(law: str) -> None:
    rng = np.random.default_rng(0)
    for window in cases.WINDOWS[False].values():
        for dtype in (np.float32, np.float64, np.float16):
            x = cases.values(rng, window.shape, dtype, specials=law in cases.EXTREMES)
            if not native.supports(window, cases.LAWS[law], x):
                continue
            plan, dx = native.bind(window, cases.LAWS[law], x), cases.tangents(rng, window.shape, dtype)
            if not plan.one_pass:
                continue
            y, dy = plan.value_and_jvp(x, dx)
            at = plan.linearize(x)
            assert y.tobytes() == at.y.tobytes()
            np.testing.assert_array_equal(dy, at.jvp(dx))


def test_a_max_keeps_to_two_passes_where_its_taps_are_met_out_of_order() -> None:
    x = np.zeros((4, 300), np.float32)
    op = ndpool.GlobalMaxPool(axes=(1,), ties="first")
    assert not native.bind(op.window(x.shape), op.law, x).one_pass
    dx = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    y, dy = op.value_and_jvp(x, dx)
    assert not y.any()
    np.testing.assert_array_equal(dy[:, 0], dx[:, 0])  # the first of equals


@pytest.mark.parametrize("op", [ndpool.MaxPool, ndpool.SumPool])
@pytest.mark.parametrize("shape", [(6, 1, 3), (6, 1), (4, 6, 1)])
def test_a_window_that_hangs_over_the_end_of_an_axis_reads_no_neighbour(op: Any, shape: tuple[int, ...]) -> None:
    """Windows that tile an axis are folded as one long axis with those of its neighbours; this one only seems to tile."""
    x = np.random.default_rng(0).normal(size=shape)
    axis = shape.index(1)
    assert np.array_equal(op((2,), stride=1, padding=((0, 1),), axes=(axis,))(x), x)
