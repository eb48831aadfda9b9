"""Pooling in torch's own operations, differentiated by torch: the fallback for every device, dtype and tensor subclass.

A pass replaces one axis by its outputs: `_taps` lays the positions that each output reads side by side, a law folds
them. Passes go from the last axis to the first, which keeps row-major order among equals. What an output does not
read is a position that it does, read again: a max needs no mask, and no sentinel exists.

Everything is traceable with symbolic sizes, so torch.compile makes kernels of it. Gradients of overlapping windows are
summed by torch's index_add and scatter_add: on a GPU they are deterministic where torch.use_deterministic_algorithms
asks for it. Results lie contiguous, whatever x does. Shared ties (ties="all" and "split") have no derivative at
infinite winners here, and smooth max and Lp none at infinite taps; the native engine has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor

from ..errors import PoolError, PoolTypeError
from ..spec import Axis, Law
from .pooling import Pooling, read

Passes = list[tuple[int, Axis]]  # the axes that are pooled, counted from the end, last first


def pool(x: Tensor, text: str) -> Tensor:
    """The values of all outputs, in x's dtype."""
    pooling = read(text)
    passes = _passes(pooling, x)
    if any(axis.size == 0 for _, axis in passes):
        return x.new_zeros(pooling.outputs(x.shape))
    if pooling.law.name not in LAWS:
        raise PoolTypeError(f"{pooling.op} has no form in torch's operations; pool a NumPy array instead")
    y = LAWS[pooling.law.name](x, passes, pooling, *pooling.law.params)
    return y.clone() if y is x else y


def winners(x: Tensor, text: str) -> tuple[Tensor, Tensor]:
    """The values and where each was taken from: flat row-major positions among the pooled axes; -1 for nothing."""
    pooling = read(text)
    passes = _passes(pooling, x)
    if any(axis.size == 0 for _, axis in passes):
        shape = pooling.outputs(x.shape)
        return x.new_zeros(shape), x.new_full(shape, -1, dtype=torch.int64)
    places = _places(x, passes, pooling)
    reads = _where_read(passes, x)
    return _chosen(x, places, pooling, reads), places if reads is None else torch.where(reads, places, -1)


@cache
def let_in() -> None:
    """Let torch.compile put `pool` and `winners` into its graph whole; what follows it there sees through them."""
    for function in (pool, winners):
        torch.compiler.allow_in_graph(function)


# -- windows -----------------------------------------------------------------------------------------------------------


def _passes(pooling: Pooling, x: Tensor) -> Passes:
    shape = tuple(x.shape)
    known = all(type(n) is int for n in shape)  # not a tracer's symbols: then the op looks for windows without a tap
    axes = pooling.op.window(shape).axes if known else pooling.op.axes_over(shape)
    found = [(a, axes[a]) for a in sorted(pooling.axes, reverse=True)]
    return [(a, axis) for a, axis in found if not axis.is_identity]


def _along(vector: Tensor, a: int) -> Tensor:
    """Shaped to broadcast along axis `a`."""
    return vector.reshape(vector.shape + (1,) * (-a - 1))


def _taps(axis: Axis, a: int, x: Tensor) -> tuple[Callable[[Tensor], Any], Tensor]:
    """What lays taps side by side on axis `a` (outputs before it), and which of them are read."""
    first, length = axis.span(torch.arange(axis.outputs, device=x.device))
    longest = axis.tap_bounds[1]
    tap = torch.arange(longest, device=x.device)
    again = torch.minimum(tap, (length - 1).clamp(min=0)[:, None])
    index = (first[:, None] + axis.dilation * again).clamp(0, axis.size - 1).reshape(-1)

    def lay(t: Tensor) -> Any:
        return t.index_select(a, index).unflatten(a, (axis.outputs, longest))

    return lay, _along(tap < length[:, None], a)


def _where_read(passes: Passes, x: Tensor, counted: bool = False) -> Tensor | None:
    """The outputs that read (or count) anything; None if all do."""
    if all(axis.surely_reads for _, axis in passes):
        return None
    return reduce(torch.logical_and, [_along(_count(axis, x, counted) > 0, a) for a, axis in passes])


def _count(axis: Axis, x: Tensor, counted: bool = True) -> Tensor:
    return axis.span(torch.arange(axis.outputs, device=x.device), axis.margin if counted else (0, 0))[1]  # type: ignore[no-any-return]


def _or_zero(y: Tensor, reads: Tensor | None) -> Tensor:
    return y if reads is None else torch.where(reads, y, 0)


def _wide(x: Tensor) -> Tensor:
    """Short floats are summed in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _with_margins(x: Tensor, passes: Passes) -> tuple[Tensor, Passes]:
    """x with the zeros that count put into it."""
    widened = []
    for a, axis in passes:
        before, after = axis.margin
        if before or after:
            x = torch.nn.functional.pad(x, (0, 0) * (-a - 1) + (before, after))
        widened.append((a, axis.with_margin_inside()))
    return x, widened


# -- laws --------------------------------------------------------------------------------------------------------------


def _unbeaten(taps: Tensor, a: int, law: Law) -> Tensor:
    """The taps that no other beats; a NaN beats all, or where it is ignored none."""
    best, worst = EXTREMES[law.name]  # the worst is compared with, and never a value
    _, nan_rule = law.params
    if not taps.is_floating_point():
        return taps == best(taps, a, keepdim=True)
    nan = taps.isnan()
    if nan_rule == "ignore":
        return (taps == best(torch.where(nan, worst, taps), a, keepdim=True)) | nan.all(a, keepdim=True)
    top = best(taps, a, keepdim=True)
    return torch.where(top.isnan(), nan, taps == top)


def _places(x: Tensor, passes: Passes, pooling: Pooling) -> Tensor:
    """Where each output's winner lies, among all positions of the pooled axes."""
    ties, _ = pooling.law.params
    value = x.detach()
    value = value.to(torch.uint8) if value.dtype is torch.bool else value
    sizes = [x.shape[a] for a in pooling.rows]
    place = torch.zeros((1,) * x.ndim, dtype=torch.int64, device=x.device)
    for i, a in enumerate(pooling.rows):
        place = place + _along(torch.arange(sizes[i], device=x.device), a) * math.prod(sizes[i + 1 :])
    place = place.expand(x.shape)
    for a, axis in passes:
        lay, _ = _taps(axis, a, x)
        taps, places = lay(value), lay(place)
        unbeaten = _unbeaten(taps, a, pooling.law).to(torch.uint8)
        if ties == "last":
            won = unbeaten.shape[a] - 1 - unbeaten.flip(a).argmax(a, keepdim=True)
        else:
            won = unbeaten.argmax(a, keepdim=True)
        value, place = taps.gather(a, won).squeeze(a), places.gather(a, won).squeeze(a)
    return place


def _chosen(x: Tensor, places: Tensor, pooling: Pooling, reads: Tensor | None) -> Tensor:
    last = tuple(range(-len(pooling.rows), 0))
    flat, at = (t.movedim(pooling.rows, last).flatten(-len(last)) for t in (x, places))
    y = flat.gather(-1, at).unflatten(-1, [places.shape[a] for a in pooling.rows]).movedim(last, pooling.rows)
    return _or_zero(y, reads)


def _extreme(x: Tensor, passes: Passes, pooling: Pooling, ties: str, nan: str) -> Tensor:
    reads = _where_read(passes, x)
    if pooling.law.one_winner:
        return _chosen(x, _places(x, passes, pooling), pooling, reads)
    # the value, a zero that moves against all who share it, and how many they are; -0.0 - 0.0 keeps its sign
    value = x.detach().to(torch.uint8) if x.dtype is torch.bool else x.detach()
    zero = _wide(x.detach() - x if x.is_floating_point() else torch.zeros_like(x, dtype=torch.float32))
    zero = torch.where(value.isfinite(), zero, 0)
    share = torch.ones_like(zero)
    for a, axis in passes:
        lay, there = _taps(axis, a, x)
        taps = lay(value)
        unbeaten = _unbeaten(taps, a, pooling.law) & there
        zero, share = (torch.where(unbeaten, lay(t), 0).sum(a) for t in (zero, share))
        value = taps.gather(a, unbeaten.to(torch.uint8).argmax(a, keepdim=True)).squeeze(a)
    y = value.to(x.dtype)
    if x.is_floating_point():
        y = y - (zero / share if ties == "split" else zero).to(x.dtype)
    return _or_zero(y, reads)


def _mode(x: Tensor, passes: Passes, pooling: Pooling, ties: str) -> Tensor:
    """All taps along a new first axis, row-major, and sorted: a run of equals is counted into one place."""
    reads = _where_read(passes, x)
    taps = (x.to(torch.uint8) if x.dtype is torch.bool else x)[None]
    there = torch.ones((1,) * taps.ndim, dtype=torch.bool, device=x.device)
    for a, axis in reversed(passes):
        lay, read = _taps(axis, a, x)
        laid, read = lay(taps), read.reshape((1,) * (taps.ndim + 1 - read.ndim) + read.shape)
        taps = laid.movedim(a, 1).flatten(0, 1)
        there = (there[:, None] & read.movedim(a, 1)).flatten(0, 1)
    taps, order = taps.sort(dim=0, stable=True)
    there = there.expand(taps.shape).gather(0, order)
    run = torch.cat([torch.zeros_like(order[:1]), (taps[1:] != taps[:-1]).cumsum(0)])
    count = torch.zeros_like(order).scatter_add(0, run, there.long()).gather(0, run)
    often = there & (count == count.amax(0, keepdim=True))
    place = torch.where(often, order if ties == "first" else run, len(taps))
    y = taps.gather(0, place.argmin(0, keepdim=True))[0]
    return _or_zero(y, reads).to(x.dtype)


def _total(x: Any, passes: Passes) -> Any:
    for a, axis in passes:
        lay, there = _taps(axis, a, x)
        x = torch.where(there, lay(x), 0).sum(a)
    return x


def _sum(x: Tensor, passes: Passes, pooling: Pooling, divisor: int | None = 1) -> Any:
    """Sum and mean: divided by `divisor`, or where that is None by what each output counts."""
    n: Any = divisor or 1
    if divisor is None:
        for a, axis in passes:
            n = n * _along(_count(axis, x).clamp(min=1), a)
    if x.is_floating_point() or x.is_complex():
        y = _total(_wide(x), passes)
        return (y if divisor == 1 else y / n).to(x.dtype)
    total = _total(x.long(), passes)
    down = total // n
    rest = 2 * (total - down * n)
    y = down + ((rest > n) | (rest == n) & (down % 2 == 1))  # halves to even
    info = torch.iinfo(x.dtype)
    seen = type(y) is Tensor and not y.is_meta and not torch.compiler.is_compiling()
    if seen and bool(((y < info.min) | (y > info.max)).any()):
        raise PoolError(f"a sum does not fit {str(x.dtype).rpartition('.')[2]}; convert x to a wider type first")
    return y.to(x.dtype)


def _smooth_max(x: Tensor, passes: Passes, pooling: Pooling, beta: float) -> Tensor:
    reads = _where_read(passes, x, counted=True)
    dtype = x.dtype
    x, passes = _with_margins(_wide(x), passes)
    for a, axis in passes:
        lay, there = _taps(axis, a, x)
        taps = lay(x)
        m = (torch.amax if beta > 0 else torch.amin)(taps.detach(), a, keepdim=True)
        m = torch.where(m.isfinite(), m, 0)
        s = torch.where(there, torch.exp(beta * (taps - m)), 0).sum(a)
        x = m.squeeze(a) + s.log() / beta
    return _or_zero(x, reads).to(dtype)


def _lp(x: Tensor, passes: Passes, pooling: Pooling, p: float) -> Tensor:
    reads = _where_read(passes, x, counted=True)
    dtype = x.dtype
    x, passes = _with_margins(_wide(x), passes)
    for a, axis in passes:
        lay, there = _taps(axis, a, x)
        taps = lay(x)
        m = taps.detach().abs().amax(a, keepdim=True)
        m = torch.where(m.isfinite() & (m != 0), m, 1)
        q = taps / m
        powers = q**p if p % 2 == 0 else q.abs() ** p  # an even power needs no abs, whose kink hides the curvature at 0
        s = torch.where(there, powers, 0).sum(a)
        x = torch.where(s == 0, 0, m.squeeze(a) * torch.where(s == 0, 1, s) ** (1 / p))
    x = x.abs() if not passes else x
    return _or_zero(x, reads).to(dtype)


EXTREMES: dict[str, tuple[Callable[..., Tensor], float]] = {
    "max": (torch.amax, -math.inf),
    "min": (torch.amin, math.inf),
}
LAWS: dict[str, Callable[..., Tensor]] = {
    "max": _extreme,
    "min": _extreme,
    "mode": _mode,
    "sum": _sum,
    "mean": _sum,
    "smooth_max": _smooth_max,
    "lp": _lp,
}
