"""Vectors of a thread: elements beside one another, loaded and stored at once.

A tile of N columns is N elements beside one another in memory for each row, which one thread loads at once; split
into columns it is N blocks, so neighbouring outputs share what they read in registers.
"""

# ruff: noqa: RET505
import triton
import triton.language as tl

from .releases import keyed


@keyed
@triton.jit
def split(tile, N: tl.constexpr):
    """The columns of a tile."""
    if N == 1:
        return (tl.reshape(tile, (tile.shape[0],)),)
    else:
        even, odd = tl.split(tl.reshape(tile, (tile.shape[0], N // 2, 2)))
        evens = split(even, N // 2)
        odds = split(odd, N // 2)
        columns = ()
        for i in tl.static_range(N // 2):
            columns = columns + (evens[i], odds[i])
        return columns


@keyed
@triton.jit
def join(columns, N: tl.constexpr):
    """The tile of those columns."""
    if N == 1:
        return tl.reshape(columns[0], (columns[0].shape[0], 1))
    else:
        evens = ()
        odds = ()
        for i in tl.static_range(N // 2):
            evens = evens + (columns[2 * i],)
            odds = odds + (columns[2 * i + 1],)
        return tl.reshape(tl.join(join(evens, N // 2), join(odds, N // 2)), (columns[0].shape[0], N))


@triton.jit
def loaded(x, mask, other, N: tl.constexpr):
    """N elements beside one another, as blocks."""
    if N == 1:
        return (tl.load(x, mask=mask, other=other),)
    else:
        return split(tl.load(x[:, None] + tl.arange(0, N)[None, :], mask=mask[:, None], other=other), N)


@triton.jit
def taken(x, at, mask, left, STEP: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr):
    """N elements STEP apart, of which `left` are there; beside one another and all of them, at once."""
    if N & (N - 1) == 0 and EVEN and STEP == 1:
        return loaded(x + at, mask, 0, N)
    else:
        values = ()
        for n in tl.static_range(N):
            there = mask
            if not EVEN:
                there = mask & (left > n)
            values = values + (tl.load(x + at + n * STEP, mask=there, other=0),)
        return values


@triton.jit
def store(y, at, values, mask, left, STEP: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr):
    """N values STEP apart, of which `left` are there; beside one another and all of them, at once."""
    if N > 1 and N & (N - 1) == 0 and EVEN and STEP == 1:
        tile = join(values, N).to(y.dtype.element_ty)
        tl.store(y + (at[:, None] + tl.arange(0, N)[None, :]), tile, mask=mask[:, None])
    else:
        for n in tl.static_range(N):
            there = mask
            if not EVEN:
                there = mask & (left > n)
            tl.store(y + at + n * STEP, values[n].to(y.dtype.element_ty), mask=there)


@triton.jit
def replaced(columns, r: tl.constexpr, value):
    return columns[:r] + (value,) + columns[r + 1 :]


@triton.jit
def restated(states, r: tl.constexpr, state, N: tl.constexpr, PLANES: tl.constexpr):
    """The same of N states; how many planes they have must be said, for Triton 3.6 does not tell (a, b) from ((a,), b)
    among what a function was compiled for."""
    return states[:r] + (state,) + states[r + 1 :]


@triton.jit
def unsigned(tap, residual):
    """A residual's tap as a number: torch has no unsigned words beyond a byte."""
    tap = tap.to(tl.int32)
    if residual.dtype.element_ty == tl.int16:
        tap = tap & 0xFFFF
    return tap
