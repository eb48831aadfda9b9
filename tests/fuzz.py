"""The native engine against the reference (small cases) or the portable engine (larger ones), on random everything.

    python -m tests.fuzz --seconds 120             until the time is up or two engines disagree (exit status 1)
    python -m tests.fuzz --seed 5 --case 1234      one case again

A case is a function of (seed, number): window, law, dtype, values, layout of every array, threads and instruction
set. Cases run in a child process, so that one that crashes is named too; arrays end or begin at pages that nobody may
touch, so that reading beside them is a crash.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import math
import mmap
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ndpool.engines import native, portable, reference
from ndpool.errors import PoolError
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

from .cases import BFLOAT16, BOOL, COMPLEX, FLOATS, INTEGERS, KINDS, NANS, TIES, UNSIGNED, pooled

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

# -- what is run -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    window: Window
    law: Law
    x: Array
    dx: Array
    dy: Array
    axes: tuple[int, ...]
    isa: str
    threads: int

    def __str__(self) -> str:
        law = f"{self.law.name}{self.law.params}"
        arrays = ", ".join(f"{a}: {_laid(getattr(self, a))}" for a in ("x", "dx", "dy"))
        return f"{law} over {self.window.axes} of {arrays}; axes {self.axes}, {self.isa}, {self.threads} threads"


def _laid(a: Array) -> str:
    return f"{a.dtype} {a.shape} by {a.strides}"


def draw(rng: Rng) -> Case:
    """A case; large ones are rarer."""
    most = int(rng.choice([60, 600, 6_000, 120_000], p=[0.35, 0.35, 0.2, 0.1]))
    law = draw_law(rng)
    counted = not law.picks and bool(rng.integers(2))
    window = draw_window(rng, most, counted)
    while (
        not native.serves(window, law, np.dtype(np.uint8 if law.no_derivative else np.float32))
        or _outputs(window) > 4 * most
    ):
        window = draw_window(rng, most, counted)
    dtypes = [d for d in KINDS[law.name] if d not in COMPLEX]
    dtype = dtypes[rng.integers(len(dtypes))]
    moved = FLOATS[rng.integers(len(FLOATS))] if dtype in (*INTEGERS, BOOL) else dtype
    moving = partial(draw_tangents, rng, law, moved)
    others = [i for i in range(len(window.axes)) if rng.integers(4) == 0]
    return Case(
        window,
        law,
        draw_input(rng, window, law, dtype),
        lay(rng, moving(window.shape)),
        lay(rng, moving(window.out_shape)),
        tuple(sorted({*pooled(window), *others})),
        str(rng.choice(native.isas())),
        int(rng.integers(1, 4)),
    )


def draw_law(rng: Rng) -> Law:
    sharp = float(rng.choice([0.01, 1.0, 2.0, 7.5, 50.0, 1000.0]))
    laws = [
        maximum(TIES[rng.integers(4)], NANS[rng.integers(2)]),
        minimum(TIES[rng.integers(4)], NANS[rng.integers(2)]),
        SUM,
        mean(None if rng.integers(3) else int(rng.integers(1, 12))),
        smooth_max(sharp if rng.integers(2) else -sharp),
        lp(float(rng.choice([1, 1.5, 2, 2.5, 3, 4, 7]))),
        mode("smallest" if rng.integers(2) else "first"),
    ]
    return laws[rng.choice(7, p=[0.25, 0.15, 0.1, 0.15, 0.15, 0.1, 0.1])]


def draw_window(rng: Rng, most: int, counted: bool) -> Window:
    """1 to 5 axes of up to 40 positions each (more, if there is one), with up to `most` positions in all."""
    rank, left = int(rng.integers(1, 6)), most
    axes = []
    for i in range(rank):
        largest = min(left, 40 if rank > 1 else most)
        n = int(rng.integers(1, largest + 1)) if i + 1 < rank or rng.integers(3) else largest
        axes.append(draw_axis(rng, max(n, 1), counted))
        left = max(1, left // max(n, 1))
    return Window(tuple(axes[i] for i in rng.permutation(rank)))


def draw_axis(rng: Rng, n: int, counted: bool) -> Axis:
    kind = rng.choice(["each", "slide", "long", "adaptive", "whole"], p=[0.25, 0.4, 0.15, 0.1, 0.1])
    if kind == "each":
        return each(n)
    if kind == "adaptive":
        return adaptive(n, int(rng.integers(1, min(2 * n, 300) + 1)))
    if kind == "whole":
        return whole(n)
    kernel = int(rng.integers(1, 6)) if kind == "slide" else int(rng.integers(1, min(n + 4, 300) + 1))
    stride = int(rng.choice([1, 2, 3, kernel, kernel + 1])) if rng.integers(4) else int(rng.integers(1, 12))
    dilation = 1 if rng.integers(3) else int(rng.integers(2, 5))
    lo, hi = (0 if rng.integers(2) else int(rng.integers(0, kernel + 2)) for _ in range(2))
    hi += max(0, dilation * (kernel - 1) + 1 - n - lo - hi)
    return sliding(n, kernel, stride, (lo, hi), dilation, bool(rng.integers(2)), counted)


def _outputs(window: Window) -> int:
    return math.prod(window.out_shape)


# -- values ------------------------------------------------------------------------------------------------------------


def draw_input(rng: Rng, window: Window, law: Law, dtype: np.dtype[Any]) -> Array:
    how = rng.choice(["laid", "broadcast", "overlapping"], p=[0.8, 0.1, 0.1])
    values = partial(draw_values, rng, window, law, dtype)
    if how == "laid":
        return lay(rng, values(window.shape))
    if how == "broadcast":
        few = tuple(n if rng.integers(2) else 1 for n in window.shape)
        return np.broadcast_to(lay(rng, values(few)), window.shape)
    steps = [int(rng.integers(-3, 4)) for _ in window.shape]
    reach = [(n - 1) * s for n, s in zip(window.shape, steps, strict=True)]
    below, above = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    line = values((below + above + 1,))
    return np.lib.stride_tricks.as_strided(line[below:], window.shape, [s * line.itemsize for s in steps])


def draw_values(rng: Rng, window: Window, law: Law, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        ends = [info.min, info.min + 1, 0, info.max - 1, info.max]
        if rng.integers(3) == 0:
            return rng.choice(np.array(ends, dtype), shape)
        if rng.integers(3) == 0:
            return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return rng.integers(0 if dtype in UNSIGNED else -3, 4, shape).astype(dtype)
    taps = math.prod(int(axis.span(np.arange(axis.outputs))[1].max()) for axis in window.axes)
    largest = float(np.finfo(np.float32 if dtype == BFLOAT16 else dtype).max) / 8 / max(1, taps)
    how = rng.choice(["ties", "normal", "offset", "large", "constant", "denormal"])
    if how == "denormal" and law.name == "lp" and small(window):  # the spec's derivative divides by a rounded y
        how = "normal"
    x = {
        "ties": lambda: rng.choice([-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0], shape),
        "normal": lambda: rng.normal(size=shape),
        "offset": lambda: rng.normal(size=shape) + 1e4,
        "denormal": lambda: rng.integers(-50, 51, shape) * _least(dtype),
        "large": lambda: rng.uniform(-1, 1, shape) * largest,
        "constant": lambda: np.full(shape, float(rng.choice([-1.0, 0.0, -0.0, 7.25]))),
    }[how]()
    # an unread NaN is the portable engine's to get right first: no specials where it is the oracle of a rounded sum
    if rng.integers(3) == 0 and (small(window) or law.name in ("max", "min", "sum", "mean")):
        share = float(rng.choice([0.01, 0.2, 0.7, 1.0]))
        x = np.where(rng.random(shape) < share, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), x)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _least(dtype: np.dtype[Any]) -> float:
    return {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}.get(dtype.name, 2.0**-1074)


def draw_tangents(rng: Rng, law: Law, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Whole numbers, whose sums are exact in any order, where they are only added; infinities and NaN there too."""
    if law.name in ("smooth_max", "lp"):
        return rng.normal(size=shape).astype(dtype)
    t = rng.integers(-3, 4, shape).astype(float)
    if rng.integers(4) == 0:
        t = np.where(rng.random(shape) < 0.05, rng.choice([np.nan, np.inf, -np.inf], shape), t)
    return t.astype(dtype)


# -- layouts -----------------------------------------------------------------------------------------------------------

libc = ctypes.CDLL(None)


def guarded(size: int, at_end: bool) -> Array:
    """That many bytes that end, or begin, at a page that may not be touched."""
    page = mmap.PAGESIZE
    inside = -(-max(size, 1) // page) * page
    whole_map = np.frombuffer(mmap.mmap(-1, inside + 2 * page), np.uint8)
    for guard in (0, inside + page):
        libc.mprotect(ctypes.c_void_p(whole_map.ctypes.data + guard), ctypes.c_size_t(page), 0)
    start = page + (inside - size if at_end else 0)
    return whole_map[start : start + size]


def lay(rng: Rng, a: Array) -> Array:
    """The same values in some other order of axes, direction, spacing and alignment; read-only at times."""
    if rng.integers(4) == 0:
        return a
    rank, some = a.ndim, lambda odds: rng.integers(odds) == 0
    order = rng.permutation(rank) if some(2) else np.arange(rank)
    steps = [int(rng.integers(2, 4)) if some(8) else 1 for _ in range(rank)]
    shifted = int(rng.integers(1, a.itemsize)) if a.itemsize > 1 and some(4) else 0
    in_memory = [a.shape[i] * steps[i] for i in order]
    size = math.prod(in_memory) * a.itemsize
    room = guarded(size + shifted, at_end=some(2))
    held = np.ndarray(in_memory, a.dtype, room.data, offset=shifted if some(2) else 0)
    held = held.transpose(np.argsort(order))[tuple(slice(None, None, s) for s in steps)]
    if rank:
        held = held[tuple(slice(None, None, -1 if some(6) else 1) for _ in range(rank))]
    held[...] = a
    held.flags.writeable = not some(8)
    return held


# -- comparing ---------------------------------------------------------------------------------------------------------


class Disagreement(Exception):
    pass


def check(case: Case) -> None:
    law = case.law
    before = [a.tobytes() for a in (case.x, case.dx, case.dy)]
    got = run(case, native_engine(case))
    for isa, threads in ((case.isa, 1 if case.threads > 1 else 2), (native.isas()[-1], case.threads)):
        again = run(case, native_engine(case, isa, threads))
        for name, value in got.items():
            if not _same_bits(value, again[name]):
                raise Disagreement(f"{name} has other bits with {isa} and {threads} threads")
    if [a.tobytes() for a in (case.x, case.dx, case.dy)] != before:
        raise Disagreement("an input was written to")
    want = run(case, oracle(case))
    if got.keys() != want.keys():
        raise Disagreement(f"native: {got.get('error')}, want: {want.get('error')}")
    if "error" in got:
        return
    if not _same_bits(got["forward"], got.get("y", got["forward"])):
        raise Disagreement("forward and linearize have other bits")
    plan = native.bind(case.window, law, case.x) if "jvp" in got else None
    if plan and plan.one_pass and case.dx.dtype == case.x.dtype:
        y, dy = plan.value_and_jvp(case.x, case.dx)
        if not (_same_bits(y, got["y"]) and _same_bits(dy, got["jvp"])):
            raise Disagreement("in one pass, values and tangents have other bits")
    chosen = law.picks
    whole_numbers = law.name == "sum" or (chosen and law.params[0] != "split")
    scales = {} if chosen and whole_numbers else scale(case)
    for name, value in want.items():
        moved = name in ("jvp", "vjp")
        if whole_numbers if moved else chosen:
            same(name, got[name], value, signs=not moved)
        else:
            close(name, got[name], value, scales.get(name, value), tolerance(case))


def _same_bits(a: Any, b: Any) -> bool:
    """Every bit, the sign of zeros among them; a NaN is a NaN, since compilers may swap the terms of a sum."""
    if isinstance(a, str) or a.dtype not in FLOATS:
        return bool(np.array_equal(a, b))
    return bool(
        np.array_equal(*(np.where(np.isnan(v), v.dtype.type(np.nan), v).view(f"u{v.itemsize}") for v in (a, b)))
    )


def native_engine(case: Case, isa: str = "", threads: int = 0) -> Any:
    native.use(isa or case.isa)
    native.set_threads(threads or case.threads)
    return native


def oracle(case: Case) -> Any:
    """The spec where that takes no time; else array operations, sums in numbers longer than those compared."""
    if small(case.window):
        return reference
    return Portable(case.law.picks or case.x.dtype in INTEGERS)


def small(window: Window) -> bool:
    """Whether the reference takes no time over it."""
    return math.prod(int(axis.span(np.arange(axis.outputs))[1].sum()) for axis in window.axes) < 1000


class Portable:
    """The portable engine, on long doubles where results are rounded."""

    def __init__(self, as_is: bool):
        self.as_is = as_is

    def linearize(self, window: Window, law: Law, x: Array) -> Any:
        at = portable.linearize(window, law, self._wide(x))
        return portable.Linear(
            at.y.astype(x.dtype),
            lambda dx: at.jvp(self._wide(dx)).astype(dx.dtype),
            lambda dy: at.vjp(self._wide(dy)).astype(dy.dtype),
        )

    def forward(self, window: Window, law: Law, x: Array) -> Array:
        return portable.forward(window, law, self._wide(x)).astype(x.dtype)

    def winners(self, window: Window, law: Law, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
        return portable.winners(window, law, x, axes)

    def _wide(self, a: Array) -> Array:
        return np.array(a) if self.as_is else np.array(a.astype(np.longdouble))


def run(case: Case, engine: Any) -> dict[str, Any]:
    """All that an engine makes of a case, by name; or its error."""
    window, law = case.window, case.law
    if engine is native:
        x, dx, dy = case.x, case.dx, case.dy
    else:
        x, dx, dy = (np.array(a, order="C") for a in (case.x, case.dx, case.dy))
    try:
        results = {"forward": engine.forward(window, law, x)} if engine is native else {}
        steps = (law.divides and x.dtype in INTEGERS) or (law.first and x.dtype in (*INTEGERS, BOOL))
        if steps or law.no_derivative:
            return results or {"forward": engine.forward(window, law, x)}
        at = engine.linearize(window, law, x)
        results |= {"forward": results.get("forward", at.y), "y": at.y, "jvp": at.jvp(dx), "vjp": at.vjp(dy)}
        if law.name in ("max", "min"):
            results["winners y"], results["winners"] = engine.winners(window, law, x, case.axes)
        return results
    except PoolError as error:
        return {"error": str(error)}


def scale(case: Case) -> dict[str, Array]:
    """What errors are relative to: the same sums of the sizes of their terms."""
    law, engine = case.law, Portable(as_is=False)
    x, dx, dy = (np.array(a).astype(np.longdouble) for a in (case.x, np.abs(case.dx), np.abs(case.dy)))
    at = engine.linearize(case.window, law, x if law.name in ("max", "min", "smooth_max") else np.abs(x))
    y = at.y
    if law.name == "smooth_max":  # y = m + log(s) / beta, and both terms are rounded
        unpadded = Window(tuple(replace(axis, margin=(0, 0)) for axis in case.window.axes))
        y = engine.forward(unpadded, maximum(), np.where(np.isfinite(x), np.abs(x), 0)) + 12 / abs(law.params[0])
    return {"y": y, "forward": y, "jvp": at.jvp(dx), "vjp": at.vjp(dy)}


def tolerance(case: Case) -> float:
    """In units of the last place of what sums are kept in; `tests/test_native.py` has the tight bounds."""
    return {"sum": 30.0, "mean": 30.0, "max": 30.0, "min": 30.0}.get(case.law.name, 1000.0)


def same(name: str, got: Array, want: Array, signs: bool) -> None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        raise Disagreement(f"{name} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
    a, b = _comparable(got), _comparable(want)
    bad = ~((a == b) | ((a != a) & (b != b)))
    if signs and a.dtype.kind == "f":
        bad |= (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    _report(name, bad, a, b)


def close(name: str, got: Array, want: Array, scale: Array, ulps: float) -> None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        raise Disagreement(f"{name} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
    dtype = got.dtype
    if dtype in INTEGERS:
        return same(name, got, want, False)
    a, b, s = (v.astype(np.longdouble) for v in (got, want, np.asarray(scale)))
    sums = np.finfo(np.float64 if dtype == np.float64 else np.float32)
    last = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype.name, 0.0)
    s = np.where(np.isfinite(s), s, np.abs(b))
    within = np.abs(a - b) <= ulps * float(sums.eps) * s + last * np.abs(b) + 64 * _least(dtype) + 64 * float(sums.tiny)
    return _report(name, ~(within | (a == b) | ((a != a) & (b != b))), a, b)


def _report(name: str, bad: Array, got: Array, want: Array) -> None:
    if bad.any():
        i = np.unravel_index(int(np.argmax(bad)), bad.shape)
        raise Disagreement(f"{name}[{', '.join(map(str, i))}] is {got[i]}, not {want[i]} ({int(bad.sum())} differ)")


def _comparable(a: Array) -> Array:
    return a.astype(np.float32) if a.dtype == BFLOAT16 else a


# -- running -----------------------------------------------------------------------------------------------------------


def one(seed: int, number: int) -> str:
    """What is wrong with a case, or nothing."""
    case = draw(np.random.default_rng((seed, number)))
    try:
        with np.errstate(all="ignore"):
            check(case)
    except Disagreement as error:
        return f"{error}\n{case}"
    except Exception:
        return f"{traceback.format_exc()}\n{case}"
    return ""


def many(seed: int, first: int, seconds: float, at: Any, failed: Any) -> None:
    """Case after case until the time is up or one fails; `at` says which one runs."""
    faulthandler.enable()
    end = time.monotonic() + seconds
    at.value = first
    while time.monotonic() < end and not failed.value:
        if wrong := one(seed, at.value):
            print(wrong)
            failed.value = True
        else:
            at.value += 1


def main(arguments: list[str] | None = None, out: Callable[[str], Any] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="the native engine against the others")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--case", type=int, default=None, help="one case again")
    given = parser.parse_args(arguments)
    if not native.available():
        out(f"the native engine is not in use: {native.reason()}")
        return 1
    seed = time.time_ns() % 2**32 if given.seed is None else given.seed
    if given.case is not None:
        case = draw(np.random.default_rng((seed, given.case)))
        out(str(case))
        wrong = one(seed, given.case)
        out(wrong or "agrees")
        return 1 if wrong else 0
    out(f"seed {seed}")
    fork = multiprocessing.get_context("fork")
    at, failed = fork.Value("q", 0, lock=False), fork.Value("b", False, lock=False)
    child = fork.Process(target=many, args=(seed, 0, given.seconds, at, failed))
    child.start()
    child.join()
    if child.exitcode:
        out(f"the process ended with {child.exitcode}")
    if child.exitcode or failed.value:
        out(f"again: python -m tests.fuzz --seed {seed} --case {at.value}")
    out(f"{at.value} cases agree")
    return 1 if child.exitcode or failed.value else 0


if __name__ == "__main__":
    sys.exit(main())
