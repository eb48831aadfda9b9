"""`ndpool.jax` beside jax.lax.reduce_window and torch: `python -m benchmarks.jax [--quick]`.

Each pooling call of real networks (`calls.NETWORKS`) that reduce_window can say, float32, jitted:

    forward    y = f(x)
    grad       the gradient of sum f(x) w
    jvp        the tangent of f at x along dx

then large windows and smooth max, a call that is not jitted, and what a jitted call costs that does nothing. Ours and
reduce_window run in two layouts, channels first and last (as flax has them), and are compared in each. Everything of a
line runs in turns, and the least time counts. One thread (`--threads`) is a setting of XLA's that is made before JAX is
imported.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np

import ndpool

from . import timing
from .calls import distinct

STEPS = ("forward", "grad", "jvp")
LAST = ", channels last"
PATCHES = "logsumexp of patches"
RIVALS = ("reduce_window", f"reduce_window{LAST}", "torch")
QUICK_CALLS = 30
MOST_BYTES = 32 * 2**20  # of an input
LARGE: dict[str, tuple[ndpool.Op, tuple[int, ...]]] = {
    "31 x 31 max": (ndpool.MaxPool(31, 1, 15), (1, 4, 128, 128)),
    "31 x 31 avg": (ndpool.AvgPool(31, 1, 15), (1, 4, 128, 128)),
    "smooth max": (ndpool.SmoothMaxPool(3, 2, 1), (8, 64, 56, 56)),
    "smooth max 2 x 2": (ndpool.SmoothMaxPool(2), (8, 64, 56, 56)),
}
TINY = (ndpool.MaxPool(2), (1, 1, 4, 4))


@dataclass(frozen=True)
class Slide:
    """A call as reduce_window takes it: over the last axes of channels-first arrays."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    def over(self, last: bool) -> tuple[Any, Any, Any]:
        """Windows, strides and padding for arrays with two more axes; `last`: channels last."""

        def around(one: Any, entries: tuple[Any, ...]) -> tuple[Any, ...]:
            return (one, *entries, one) if last else (one, one, *entries)

        return around(1, self.kernel), around(1, self.stride), around((0, 0), self.pads)


def slide_of(op: ndpool.Op, shape: tuple[int, ...]) -> Slide | None:
    """The call, if all its windows are whole; uneven bins and windows that hang over are beyond reduce_window."""
    axes = [axis.simplified() for axis in op.window(shape).axes[2:]]
    if any(not axis.is_sliding or axis.per > 1 or axis.dilation > 1 for axis in axes):
        return None
    pads = []
    for axis in axes:
        after = (axis.outputs - 1) * axis.stride + axis.extent - axis.lo - axis.size
        pads.append((axis.lo, after))
    if any(after < 0 for _, after in pads):
        pads = [(lo, max(0, after)) for lo, after in pads]
    return Slide(
        tuple(axis.extent for axis in axes), tuple(axis.stride if axis.outputs > 1 else axis.extent for axis in axes),
        tuple(pads),
    )  # fmt: skip


def rival(op: ndpool.Op, slide: Slide, shape: tuple[int, ...], last: bool) -> Callable[[Any], Any] | None:
    """The same pooling by reduce_window."""
    import jax.numpy as jnp
    from jax import lax

    dims, strides, pads = slide.over(last)
    taps = math.prod(slide.kernel)
    window = {"window_dimensions": dims, "window_strides": strides, "padding": pads}
    if isinstance(op, (ndpool.MaxPool, ndpool.AdaptiveMaxPool, ndpool.GlobalMaxPool)):
        return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, **window)
    if isinstance(op, (ndpool.AvgPool, ndpool.AdaptiveAvgPool, ndpool.GlobalAvgPool)):
        counted = op.window(shape).axes[2:]
        counts = np.ones([axis.outputs for axis in counted])
        for i, axis in enumerate(counted):
            counts *= np.array([axis.count(o) for o in range(axis.outputs)]).reshape(
                (-1,) + (1,) * (len(counted) - i - 1)
            )
        divisor: Any = taps if np.all(counts == taps) else counts[..., None] if last else counts
        return lambda x: lax.reduce_window(x, 0.0, lax.add, **window) / jnp.asarray(divisor, x.dtype)
    if isinstance(op, ndpool.LpPool):
        p = op.norm_type
        return lambda x: lax.reduce_window(jnp.abs(x) ** p, 0.0, lax.add, **window) ** (1 / p)
    if isinstance(op, ndpool.SmoothMaxPool):

        def smooth(x: Any) -> Any:
            """Stable: shifted by the largest tap of all; padding is zeros that count."""
            m = lax.stop_gradient(jnp.maximum(x.max(), 0))
            terms = lax.pad(jnp.exp(op.beta * (x - m)), jnp.exp(-op.beta * m), [(lo, hi, 0) for lo, hi in pads])
            total = lax.reduce_window(terms, 0.0, lax.add, dims, strides, "VALID")
            return m + jnp.log(total) / op.beta

        return smooth
    return None


def by_patches(op: ndpool.SmoothMaxPool, slide: Slide) -> Callable[[Any], Any]:
    """Smooth max that is stable in each window: reduce_window's shift is one for all, so far-off windows underflow."""
    import jax
    from jax import lax

    def pooled(x: Any) -> Any:
        taps = lax.conv_general_dilated_patches(x, slide.kernel, slide.stride, slide.pads)
        taps = taps.reshape(*x.shape[:2], -1, *taps.shape[2:])
        return jax.nn.logsumexp(op.beta * taps, axis=2) / op.beta

    return pooled


def torchs(op: ndpool.Op, slide: Slide) -> Callable[[Any], Any] | None:
    """The same by torch, where it is one call of it."""
    import torch.nn.functional as F

    rank = len(slide.kernel)
    even = all(lo == hi for lo, hi in slide.pads)
    windows = {"kernel_size": slide.kernel, "stride": slide.stride}
    if isinstance(op, ndpool.MaxPool) and even and rank in (1, 2, 3):
        padding = tuple(lo for lo, _ in slide.pads)
        if all(2 * p <= k for p, k in zip(padding, slide.kernel, strict=True)):
            return partial(getattr(F, f"max_pool{rank}d"), **windows, padding=padding)
    if isinstance(op, ndpool.AvgPool) and not any(map(sum, slide.pads)) and rank in (1, 2, 3):
        return partial(getattr(F, f"avg_pool{rank}d"), **windows)
    return None


def contenders(op: ndpool.Op, shape: tuple[int, ...], step: str, jitted: bool) -> dict[str, Callable[[], Any]]:
    """What is timed, each on its own array in its own layout; the results are compared first."""
    import jax
    import jax.numpy as jnp

    import ndpool.jax as npx

    slide = slide_of(op, shape)
    if slide is None:
        return {}
    rng = np.random.default_rng(0)
    x, dx = (rng.standard_normal(shape).astype("float32") for _ in range(2))
    w = rng.standard_normal(op.out_shape(shape)).astype("float32")

    def run(f: Callable[[Any], Any], last: bool) -> tuple[Callable[[], Any], np.ndarray]:
        a, b, c = (jnp.asarray(np.moveaxis(v, 1, -1) if last else v) for v in (x, dx, w))
        steps: dict[str, Callable[..., Any]] = {
            "forward": lambda a, b, c: f(a),
            "grad": lambda a, b, c: jax.grad(lambda a: (f(a) * c).sum())(a),
            "jvp": lambda a, b, c: jax.jvp(f, (a,), (b,))[1],
        }
        g = jax.jit(steps[step]) if jitted else steps[step]
        out = np.asarray(g(a, b, c))
        return lambda: jax.block_until_ready(g(a, b, c)), np.moveaxis(out, -1, 1) if last else out

    found: dict[str, Callable[[], Any]] = {}
    spelled: list[tuple[str, Callable[[Any], Any] | None, bool]] = []
    for last, layout in ((False, ""), (True, LAST)):
        axes = tuple(a - len(shape) - last for a in op.pooled_axes(len(shape)))
        spelled.append((f"ndpool.jax{layout}", partial(npx.apply, replace(op, axes=axes)), last))
        spelled.append((f"reduce_window{layout}", rival(op, slide, shape, last), last))
    if isinstance(op, ndpool.SmoothMaxPool):
        spelled.append((PATCHES, by_patches(op, slide), False))
    want = None
    for name, f, last in spelled:
        if f is None:
            continue
        try:
            found[name], got = run(f, last)
        except (NotImplementedError, TypeError, ValueError) as error:
            print(f"  {name} has no {step} of {op}: {type(error).__name__}", file=sys.stderr)
            continue
        if want is not None and not np.allclose(got, want, 1e-3, 1e-4):
            raise AssertionError(f"{name} differs at {step} of {op} on {shape}")
        want = got if want is None else want
    found |= beside_torch(op, slide, step, x, w)
    return found


def beside_torch(op: ndpool.Op, slide: Slide, step: str, x: Any, w: Any) -> dict[str, Callable[[], Any]]:
    try:
        import torch
    except ImportError:
        return {}
    f = torchs(op, slide)
    if f is None or step == "jvp":
        return {}
    leaf, weight = torch.tensor(x, requires_grad=step == "grad"), torch.tensor(w)

    def both() -> Any:
        return torch.autograd.grad((f(leaf) * weight).sum(), leaf)

    return {"torch": both if step == "grad" else lambda: f(leaf)}


@dataclass(frozen=True)
class Line:
    """Milliseconds of each contender, and the ratios that the goals speak of."""

    name: str
    step: str
    times: dict[str, float]

    def ratio(self, of: str) -> float | None:
        """Its time over ours in the same layout."""
        ours = self.times[f"ndpool.jax{LAST if of.endswith(LAST) else ''}"]
        return self.times[of] / ours if of in self.times else None

    def __str__(self) -> str:
        times = "  ".join(f"{name} {t:.4f}" for name, t in self.times.items())
        ratios = "".join(f"{ratio:9.2f}" if (ratio := self.ratio(of)) else " " * 9 for of in RIVALS[:2])
        return f"{ratios}  {self.step:8} {times} ms  {self.name}"


def measured(
    name: str, op: ndpool.Op, shape: tuple[int, ...], step: str, given: argparse.Namespace, jitted: bool = True
) -> Line | None:
    runs = contenders(op, shape, step, jitted)
    if len(runs) < 2:
        return None
    times = timing.measure(runs, given.rounds, given.threads)
    return Line(f"{shape} {op}: {name}", step, {name: t.min_ms for name, t in times.items()})


def sweep(given: argparse.Namespace) -> Iterator[Line]:
    rows = [(calls[0].name, op, sample) for (op, sample), calls in distinct().items() if len(sample) > 1]
    rows = [row for row in rows if re.search(given.only, row[0])]
    if given.quick:
        rows = rows[:: max(1, math.ceil(len(rows) / QUICK_CALLS))]
    for name, op, sample in rows:
        shape = (given.batch, *sample)
        if 4 * math.prod(shape) > MOST_BYTES:
            continue
        for step in given.steps:
            if line := measured(name, op, shape, step, given):
                yield line


def overhead(given: argparse.Namespace) -> None:
    """A jitted call of a tiny pooling, beside one that returns what it is given."""
    import jax
    import jax.numpy as jnp

    import ndpool.jax as npx

    op, shape = TINY
    x = jnp.ones(shape)
    pooled, nothing = jax.jit(partial(npx.apply, op)), jax.jit(lambda x: x)
    runs = {
        "jitted": lambda: pooled(x), "nothing": lambda: nothing(x),
        "eager": lambda: npx.apply(op, x), "eager jnp.add": lambda: jnp.add(x, x),
    }  # fmt: skip
    times = {name: 1e3 * t.min_ms for name, t in timing.measure(runs, given.rounds, given.threads).items()}
    said = ", ".join(f"{name} {t:.1f}" for name, t in times.items())
    print(f"a call on {shape}, microseconds: {said}; jitted over nothing {times['jitted'] - times['nothing']:.1f}")


def shown(lines: list[Line], what: str) -> None:
    for step in STEPS:
        for of in RIVALS:
            found = [(line.ratio(of), line) for line in lines if line.step == step]
            ratios = [ratio for ratio, _ in found if ratio is not None]
            if ratios:
                below = sum(ratio < 1 for ratio in ratios)
                print(
                    f"{what}, {step}: {of} takes {geometric_mean(ratios):.2f} times as long (geometric mean of "
                    f"{len(ratios)} calls; least {min(ratios):.2f}, {below} below 1)"
                )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name has this (a regular expression)")
    parser.add_argument("--quick", action="store_true", help=f"about {QUICK_CALLS} calls")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--no-large", action="store_true", help="networks alone")
    given = parser.parse_args(arguments)
    if given.threads == 1 and "jax" not in sys.modules:
        one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {one}".strip()
    import jax

    from ndpool.jax import ffi

    print(f"ndpool {ndpool.__version__}, JAX {jax.__version__}, {ffi.reason() or 'XLA calls the native engine'}")
    lines = []
    for line in sweep(given):
        lines.append(line)
        print(line, flush=True)
    shown(lines, "networks, jitted")
    if not given.no_large:
        for name, (op, shape) in LARGE.items():
            for step in given.steps:
                if line := measured(name, op, shape, step, given):
                    print(line, flush=True)
        for name, (op, shape) in {"eager": (ndpool.MaxPool(3, 2, 1), (8, 64, 56, 56)), "eager, tiny": TINY}.items():
            for step in given.steps:
                if line := measured(name, op, shape, step, given, jitted=False):
                    print(line, flush=True)
        overhead(given)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
