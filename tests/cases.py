"""What the tests share: tables of laws, windows, dtypes and op records, and hypothesis strategies for more of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import ndpool
from ndpool.spec import (
    SUM,
    Axis,
    Law,
    Window,
    adaptive,
    each,
    lp,
    maximum,
    mean,
    minimum,
    mode,
    sliding,
    smooth_max,
    whole,
)

from . import examples

settings.register_profile(
    "ndpool",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=examples(50),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ndpool")

# -- laws ------------------------------------------------------------------------------------------------------------

TIES = ("first", "last", "all", "split")
NANS = ("propagate", "ignore")
EXTREMES: dict[str, Law] = {
    f"{name} {ties} {nan}": law(ties, nan)
    for name, law in {"max": maximum, "min": minimum}.items()
    for ties in TIES
    for nan in NANS
}
SUMS: dict[str, Law] = {"sum": SUM, "mean": mean(), "mean over 3": mean(3)}
NORMS: dict[str, Law] = {"lp 1": lp(1), "lp 2": lp(2), "lp 2.5": lp(2.5), "lp 4": lp(4)}
SMOOTH: dict[str, Law] = {"smooth max": smooth_max(1.0), "sharp max": smooth_max(50.0), "smooth min": smooth_max(-2)}
LAWS: dict[str, Law] = {**EXTREMES, **SUMS, **NORMS, **SMOOTH}
MODES: dict[str, Law] = {f"mode {ties}": mode(ties) for ties in ("smallest", "first")}  # of labels; no derivative

# -- windows ---------------------------------------------------------------------------------------------------------


def table(counted: bool) -> dict[str, Window]:
    """Windows of rank 0 to 5, batch axes anywhere; `counted` says whether padding is zeros that count."""

    def slide(n: int, k: int, s: int, padding: tuple[int, int] = (0, 0), d: int = 1, ceil: bool = False) -> Axis:
        return sliding(n, k, s, padding, d, ceil, count_padding=counted)

    rows: dict[str, tuple[Axis, ...]] = {
        "no axis": (),
        "batch alone": (each(4),),
        "line": (slide(7, 3, 2),),
        "gaps between windows": (slide(11, 2, 4),),
        "uneven padding": (slide(5, 3, 1, (2, 1)),),
        "windows without a tap": (each(2), slide(3, 2, 1, (4, 3))),
        "dilated": (slide(9, 3, 2, (1, 2), d=2),),
        "ceil mode": (slide(6, 3, 2, (1, 1), ceil=True), each(2)),
        "ceil mode, dilated": (slide(8, 2, 3, (1, 0), d=3, ceil=True),),
        "long": (each(2), slide(40, 17, 3, (5, 8))),
        "long, dilated": (slide(40, 11, 1, (3, 0), d=3),),
        "whole": (each(3), whole(13)),
        "fewer bins": (adaptive(7, 5), each(2)),
        "uneven bins": (adaptive(23, 7),),
        "more bins than inputs": (adaptive(3, 7),),
        "plane": (each(2), each(2), slide(6, 3, 2, (1, 1)), slide(5, 2, 1, (0, 1))),
        "channels last": (slide(5, 3, 2, (1, 1)), slide(4, 2, 2), each(3)),
        "batch in the middle": (adaptive(5, 3), each(2), slide(4, 2, 1)),
        "space": (slide(4, 2, 2), slide(3, 3, 1, (1, 1)), adaptive(4, 3)),
        "rank 4": (slide(3, 2, 1), slide(3, 2, 2, (1, 0)), whole(3), slide(3, 1, 2)),
        "rank 5": (slide(3, 2, 1), adaptive(2, 3), slide(2, 2, 1, (1, 1)), whole(2), slide(3, 2, 1, (0, 1))),
        "empty batch": (each(0), slide(5, 3, 1)),
        "empty channel": (slide(5, 3, 1, (1, 1)), each(0)),
        "empty input": (each(2), slide(0, 2, 1, (1, 2))),
        "whole of nothing": (whole(0), each(2)),
        "bins of nothing": (adaptive(0, 3),),
    }
    return {name: Window(axes) for name, axes in rows.items()}


WINDOWS = {counted: table(counted) for counted in (False, True)}
FEW = {
    counted: {name: rows[name] for name in ("windows without a tap", "uneven bins", "channels last")}
    for counted, rows in WINDOWS.items()
}


def counted_choices(law: Law) -> tuple[bool, ...]:
    """Max, min and mode never read padding; for the other laws both conventions are in use."""
    return (False,) if law.picks else (False, True)


def told_apart(law: Law, table: Mapping[bool, Mapping[str, Window]] = WINDOWS) -> Iterator[tuple[str, bool, Window]]:
    """A table's windows that differ for a law: where nothing is padded, padding that counts changes nothing."""
    for counted in counted_choices(law):
        for name, window in table[counted].items():
            if not counted or window != table[False][name]:
                yield name, counted, window


@st.composite
def sliding_arguments(draw: st.DrawFn, largest: int = 9) -> dict[str, Any]:
    """Arguments of `sliding` that give at least one output, kernels longer than the input among them."""
    n, k, s, d = (draw(st.integers(low, high)) for low, high in ((0, largest), (1, 5), (1, 4), (1, 3)))
    lo, hi = draw(st.integers(0 if n else 1, 4)), draw(st.integers(0, 4))
    hi += max(0, d * (k - 1) + 1 - n - lo - hi)
    return {"n": n, "kernel": k, "stride": s, "padding": (lo, hi), "dilation": d, "ceil_mode": draw(st.booleans())}


def axes(counted: bool, largest: int = 9) -> st.SearchStrategy[Axis]:
    sizes = st.integers(1, largest)
    return st.one_of(
        sliding_arguments(largest).map(lambda given: sliding(**given, count_padding=counted)),
        st.builds(adaptive, sizes, sizes),
        st.builds(whole, st.integers(0, largest)),
        st.builds(each, st.integers(0, 3)),
    )


@st.composite
def windows(draw: st.DrawFn, counted: bool = False, ranks: tuple[int, int] = (0, 5)) -> Window:
    """Any window that is small enough for the reference engine."""
    rank = draw(st.integers(*ranks))
    largest = {0: 0, 1: 30, 2: 9, 3: 5, 4: 3, 5: 2}[rank]
    return Window(tuple(draw(axes(counted, largest)) for _ in range(rank)))


def pooled(window: Window) -> tuple[int, ...]:
    """The axes that are not batch or channel."""
    return tuple(i for i, axis in enumerate(window.axes) if axis != each(axis.size))


# -- scalars ---------------------------------------------------------------------------------------------------------

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = tuple(map(np.dtype, ("float16", BFLOAT16, "float32", "float64")))
SIGNED = tuple(map(np.dtype, ("int8", "int16", "int32", "int64")))
UNSIGNED = tuple(map(np.dtype, ("uint8", "uint16", "uint32", "uint64")))
INTEGERS = SIGNED + UNSIGNED
COMPLEX = tuple(map(np.dtype, ("complex64", "complex128")))
BOOL = np.dtype(bool)
KINDS = {
    "max": FLOATS + INTEGERS + (BOOL,),
    "min": FLOATS + INTEGERS + (BOOL,),
    "sum": FLOATS + INTEGERS + COMPLEX,
    "mean": FLOATS + INTEGERS + COMPLEX,
    "smooth_max": FLOATS,
    "lp": FLOATS,
    "mode": INTEGERS + (BOOL,),
}
DTYPES = FLOATS + INTEGERS + COMPLEX + (BOOL,)


def usual(law: Law) -> np.dtype:
    """The dtype that a law is tried on everywhere."""
    return np.dtype("float64" if "real" in law.kinds else "int64")


# Sums are exact to the last place or two of the result: short floats are summed in float32.
TOLERANCE = {"float16": 2 * 2.0**-10, "bfloat16": 2 * 2.0**-7, "float32": 1e-5, "float64": 1e-12}
TOLERANCE |= {"complex64": TOLERANCE["float32"], "complex128": TOLERANCE["float64"]}


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, specials: bool = False) -> np.ndarray:
    """Values with many ties, both zeros, and with `specials` NaN and both infinities."""
    dtype = np.dtype(dtype)
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return rng.integers(0 if dtype in UNSIGNED else -3, 4, shape).astype(dtype)
    if dtype in COMPLEX:
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    pool = [-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0]
    return rng.choice(pool + ([math.nan, math.inf, -math.inf] if specials else []), shape).astype(dtype)


def tangents(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Small whole numbers, so that sums of them are exact in every dtype; for integers and bools, of float64."""
    dtype = np.dtype(dtype)
    whole_numbers = rng.integers(-3, 4, shape)
    return whole_numbers.astype(np.float64 if dtype in INTEGERS + (BOOL,) else dtype)


def assert_exact(got: Any, want: Any, note: Any = "") -> None:
    """The same dtype, shape and numbers, NaN where NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), note
    assert np.array_equal(_comparable(got), _comparable(want), equal_nan=got.dtype.kind not in "iub"), (note, got, want)


def assert_same_zeros(got: Any, want: Any, note: Any = "") -> None:
    """The sign of every zero too: which of two equal zeros won is visible."""
    got, want = _comparable(np.asarray(got)), _comparable(np.asarray(want))
    if got.dtype.kind == "f":
        assert np.array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0])), (note, got, want)


def assert_close(got: Any, want: Any, note: Any = "") -> None:
    """Exact for integers and bools, else within the dtype's TOLERANCE; NaN where NaN, inf where inf."""
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.name not in TOLERANCE:
        assert_exact(got, want, note)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape), note
    tolerance = TOLERANCE[want.dtype.name]
    # short floats are summed in float32, so what cancels is off by float32's error and not by the short float's
    np.testing.assert_allclose(
        _comparable(got), _comparable(want), rtol=tolerance, atol=min(tolerance, 1e-5), err_msg=str(note)
    )


def _comparable(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) if a.dtype == BFLOAT16 else a


# -- op records: one of each, with arguments that matter, for arrays of shape SHAPE -----------------------------------

SHAPE = (2, 5, 6)


def add(a: Any, b: Any) -> Any:
    return a + b


def square(x: Any, t: int | None) -> Any:
    return x * x


def total(s: Any, count: int) -> tuple[Any, None]:
    return s, None


def twice(g: Any, x: Any, t: int, r: None) -> Any:
    return g * 2 * x


ENERGY = Law(square, add, total, twice)  # sum of squares: a law of the user's own, of plain functions

RECORDS: dict[str, ndpool.Op] = {
    type(op).__name__: op
    for op in (
        ndpool.MaxPool((3, 2), stride=(2, 1), padding=1, ties="split"),
        ndpool.MinPool(2, padding=((1, 0), (0, 1)), ceil_mode=True, ties="last"),
        ndpool.AvgPool(3, 2, 1, count_include_pad=False),
        ndpool.SumPool(2, dilation=2, stride=1),
        ndpool.SmoothMaxPool((2, 3), 2, (1, 0), beta=2.5),
        ndpool.LpPool(3, 2, axes=(0, 2)),
        ndpool.Pool(ENERGY, 2),
        ndpool.AdaptiveMaxPool((3, 4)),
        ndpool.AdaptiveMinPool((None, 2)),
        ndpool.AdaptiveAvgPool(3),
        ndpool.AdaptiveSumPool((2, 3, 4)),
        ndpool.AdaptiveSmoothMaxPool((4,), beta=-1.5),
        ndpool.AdaptiveLpPool(2, (2, 2)),
        ndpool.AdaptivePool(ENERGY, 2),
        ndpool.GlobalMaxPool(keepdims=False),
        ndpool.GlobalMinPool(axes=1),
        ndpool.GlobalAvgPool(axes=(0, -1)),
        ndpool.GlobalSumPool(keepdims=False, axes=(1,)),
        ndpool.GlobalSmoothMaxPool(beta=3),
        ndpool.GlobalLpPool(2.5),
        ndpool.GlobalPool(ENERGY, keepdims=False),
    )
}

LABELLED: dict[str, ndpool.Op] = {  # records of labels, which have no derivative
    type(op).__name__: op
    for op in (
        ndpool.ModePool((3, 2), stride=(2, 1), padding=1, ties="first"),
        ndpool.AdaptiveModePool((2, 4)),
        ndpool.GlobalModePool(keepdims=False),
    )
}
EVERY = {**RECORDS, **LABELLED}


def fractions(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """A nested list of small Fractions, ties among them."""
    numbers = [Fraction(int(a), int(b)) for a, b in zip(*rng.integers(1, 6, (2, math.prod(shape))), strict=True)]
    return np.array(numbers, dtype=object).reshape(shape).tolist()


def flat(x: Any) -> list[Any]:
    """A nested list's scalars in row-major order."""
    return [value for part in x for value in flat(part)] if isinstance(x, (list, tuple)) else [x]
