"""The kernels: `gather` (an output's taps: forward, jvp, what a vjp hands back), `scatter` (an input's readers: vjp,
in gather form), `pick` (which tap won: jvp of a choice, and where it was).

Each serves every law, rank and layout. AXES is the geometry, a tuple an axis (`FIELDS`), pooled or not, in the order of
memory; elements beside one another that no window joins are LANES, and all axes before are the lead, of any size.
Geometry is compiled in: its divisions are by constants, checks that always hold are left out, and loops over axes and
taps are unrolled. Every loop runs in the order of the window, so neither the block nor the lead changes a bit.

No law here, and no geometry beyond `Axis.span`, restated for blocks of indices with operands that are not negative,
because Triton's // rounds towards 0.
"""

# Functions of constants are plain Python, but may call no function that Triton does not know.
# An else after a return is needed: without it, the branch that is not taken is compiled, too.
# ruff: noqa: B007, RET505, SIM102, SIM110
import triton
import triton.language as tl

from .laws import (
    among,
    bits,
    bits_of_minus_zero,
    finish,
    is_extreme,
    is_linear,
    is_plain,
    is_quick,
    lift,
    lowest,
    merge,
    moved,
    quick,
    share,
    together,
    weigh,
)  # fmt: skip

# What an axis is, by position in its tuple: as `Axis` has it, with the taps before clipping, the margin on both sides,
# the most readers of a position, and whether some taps are not read.
FIELDS = (
    "size",
    "outputs",
    "stride",
    "per",
    "taps",
    "dilation",
    "lo",
    "extent",
    "before",
    "after",
    "readers",
    "checked",
)


# -- geometry, while compiling -----------------------------------------------------------------------------------------


@triton.constexpr_function
def field(axis, name):
    i = 0
    for known in FIELDS:
        if known == name:
            return axis[i]
        i = i + 1
    return None


@triton.constexpr_function
def of(axes, a, name):
    return field(axes[a], name)


@triton.constexpr_function
def step(axes, a, lanes, name):
    """How far apart neighbours on axis `a` are."""
    for axis in axes[a + 1 :]:
        lanes = lanes * field(axis, name)
    return lanes


@triton.constexpr_function
def volume(axes, name, after=-1):
    """The product of a field over all axes, or those after one."""
    n = 1
    for axis in axes[after + 1 :]:
        n = n * field(axis, name)
    return n


@triton.constexpr_function
def cell_of(cells, a):
    """How many neighbours on axis `a` a thread takes."""
    return cells[a] or 1


@triton.constexpr_function
def cells_along(axes, cells, a, name):
    return -(-of(axes, a, name) // cell_of(cells, a))


@triton.constexpr_function
def cell_size(cells, after=-1):
    n = 1
    for cell in cells[after + 1 :]:
        n = n * (cell or 1)
    return n


@triton.constexpr_function
def row_of(cells):
    """A cell that is one row of it."""
    return (1,) * (len(cells) - 1) + (cells[-1],)


@triton.constexpr_function
def held_of(cells, taps):
    """A cell of as many rows as the first axis has taps."""
    return (taps,) + cells[1:]


@triton.constexpr_function
def within_cell(cells, e, a):
    """Where on axis `a` the e-th of a cell lies."""
    for b in range(len(cells) - 1, a, -1):
        e = e // (cells[b] or 1)
    return e % (cells[a] or 1)


@triton.constexpr_function
def rows(axes, a, march):
    """How many rows `march` neighbouring outputs read together."""
    return (march - 1) * of(axes, a, "stride") + (of(axes, a, "taps") - 1) * of(axes, a, "dilation") + 1


@triton.constexpr_function
def tap_of(axes, a, u, r):
    """Which tap of the r-th output position u is, both counted from the first output's start; -1 for none."""
    _, _, stride, _, taps, d, *_ = axes[a]
    j = u - r * stride
    return -1 if j < 0 or j % d or j // d >= taps else j // d


@triton.constexpr_function
def read_by_any(axes, a, u, march):
    """Whether any of `march` outputs reads it."""
    _, _, stride, _, taps, d, *_ = axes[a]
    for r in range(march):
        j = u - r * stride
        if j >= 0 and j % d == 0 and j // d < taps:
            return True
    return False


@triton.constexpr_function
def power_of_two(n):
    """The least that is not below n."""
    p = 1
    while p < n:
        p = p * 2
    return p


@triton.constexpr_function
def slack(axes, vector):
    """How far before the first tap of the last axis a vector starts that lies on a multiple of its length."""
    return -of(axes, len(axes) - 1, "lo") % vector


@triton.constexpr_function
def vectors(axes, march, vector):
    """How many vectors the taps of `march` neighbouring outputs of the last axis lie in."""
    return -(-(slack(axes, vector) + rows(axes, len(axes) - 1, march)) // vector)


@triton.constexpr_function
def vector_used(axes, v, march, vector):
    for e in range(v * vector, (v + 1) * vector):
        if read_by_any(axes, len(axes) - 1, e - slack(axes, vector), march):
            return True
    return False


@triton.constexpr_function
def element(axes, q, j, vector):
    """Where in those vectors tap j of the q-th output lies."""
    a = len(axes) - 1
    return slack(axes, vector) + q * of(axes, a, "stride") + j * of(axes, a, "dilation")


@triton.constexpr_function
def is_checked(axes, a, march):
    """Whether `march` neighbouring outputs may reach beyond the input."""
    return of(axes, a, "checked") or of(axes, a, "outputs") % march != 0


@triton.constexpr_function
def any_checked(axes):
    for axis in axes:
        if field(axis, "checked"):
            return True
    return False


@triton.constexpr_function
def counts_zeros(axes, law):
    """Whether padding is taps of the value 0 that change the state."""
    for axis in axes:
        if law[0] == "smooth_max" and (field(axis, "before") or field(axis, "after")):
            return True
    return False


@triton.constexpr_function
def is_known(axes, cells, a):
    """Whether a cell of inputs is whole strides, so that who reads which of them is known while compiling."""
    return cells[a] > 0 and cells[a] % of(axes, a, "stride") == 0


@triton.constexpr_function
def first_reader(axes, a, vector):
    """The first output, from that of a cell's first input on and on a multiple of `vector`, that may read the cell."""
    m = (of(axes, a, "lo") - (of(axes, a, "taps") - 1) * of(axes, a, "dilation")) // of(axes, a, "stride")
    return m // vector * vector


@triton.constexpr_function
def readings(axes, cells, a, vector):
    """How often a cell looks along axis `a` for who reads it."""
    if not is_known(axes, cells, a):
        return of(axes, a, "readers")
    v = vector if a == len(axes) - 1 else 1
    last = (cells[a] - 1 + of(axes, a, "lo")) // of(axes, a, "stride")
    return -(-(last + 1 - first_reader(axes, a, v)) // v)


@triton.constexpr_function
def all_readings(axes, cells, vector):
    n = 1
    for a in range(len(axes)):
        n = n * readings(axes, cells, a, vector)
    return n


@triton.constexpr_function
def reading(axes, cells, t, a, vector):
    """The output, from that of the cell's first input on, that the t-th look along axis `a` finds; where readers are
    asked, which of them."""
    for b in range(len(axes) - 1, a, -1):
        t = t // readings(axes, cells, b, vector)
    t = t % readings(axes, cells, a, vector)
    if not is_known(axes, cells, a):
        return t
    v = vector if a == len(axes) - 1 else 1
    return first_reader(axes, a, v) + t * v


@triton.constexpr_function
def known_taps(axes, cells, t, vector):
    """Which taps the inputs of a cell are of the `vector` outputs that the t-th look finds, output by output: the digits
    that are known while compiling; -1 for none. In one piece, because it is asked often."""
    ms = ()
    for a in range(len(axes)):
        ms = ms + (reading(axes, cells, t, a, vector),)
    known = ()
    for a in range(len(axes)):
        known = known + (is_known(axes, cells, a),)
    n = cell_size(cells)
    found = ()
    for v in range(vector):
        for e in range(n):
            tap = 0
            size = n
            for a in range(len(axes)):
                _, _, stride, _, taps, d, lo, *_ = axes[a]
                size = size // (cells[a] or 1)
                j = e // size % (cells[a] or 1)
                if known[a]:
                    j = j + lo - (ms[a] + (v if a == len(axes) - 1 else 0)) * stride
                    if j < 0 or j % d or j // d >= taps:
                        tap = -1
                    j = j // d
                tap = tap * taps + j if tap >= 0 else -1
            found = found + (tap,)
    return found


@triton.constexpr_function
def finds_any(axes, cells, t, vector):
    """Whether any output that the t-th look finds reads any input of the cell."""
    return max(known_taps(axes, cells, t, vector)) >= 0


@triton.constexpr_function
def earliest(axes, a):
    """The first output, from that of a cell's first input on, that reads an input of the cell."""
    return -((of(axes, a, "extent") - 1 - of(axes, a, "lo")) // of(axes, a, "stride"))


@triton.constexpr_function
def readers_of(axes, cells):
    """How many outputs of each axis read a cell of whole strides."""
    n = ()
    for a in range(len(axes)):
        n = n + ((cells[a] - 1 + of(axes, a, "lo")) // of(axes, a, "stride") - earliest(axes, a) + 1,)
    return n


@triton.constexpr_function
def is_tap(axes, cells, readers, e, n):
    """Whether the e-th input of a cell is a tap of the n-th of its readers."""
    for a in range(len(axes)):
        _, _, stride, _, taps, d, lo, *_ = axes[a]
        j = within_cell(cells, e, a) + lo - (earliest(axes, a) + within_cell(readers, n, a)) * stride
        if j < 0 or j % d or j // d >= taps:
            return False
    return True


@triton.constexpr_function
def checked(axes):
    """The axes, every tap of which may lie beyond the input: there are outputs before the first and after the last."""
    made = ()
    for axis in axes:
        made = made + (axis[:-1] + (1,),)
    return made


@triton.constexpr_function
def from_first(axes):
    """The axes, positions on the first counted from the start of an output's window: none before output 0's."""
    first = ()
    for i in range(len(FIELDS)):
        first = first + (0 if FIELDS[i] == "lo" else axes[0][i],)
    return (first,) + axes[1:]


# -- geometry of blocks ------------------------------------------------------------------------------------------------


@triton.jit
def started(c, AXES: tl.constexpr, a: tl.constexpr):
    """Where the window of output c starts, before clipping."""
    at = c * of(AXES, a, "stride")
    if of(AXES, a, "per") > 1:
        at = at // of(AXES, a, "per")
    return at - of(AXES, a, "lo")


@triton.jit
def stopped(c, AXES: tl.constexpr, a: tl.constexpr):
    """Where it stops."""
    at = c * of(AXES, a, "stride") + of(AXES, a, "extent")
    if of(AXES, a, "per") > 1:
        at = (at + (of(AXES, a, "per") - 1)) // of(AXES, a, "per")
    return at - of(AXES, a, "lo")


@triton.jit
def within(position, c, before, after, AXES: tl.constexpr, a: tl.constexpr):
    """Whether a position of output c's window lies in the input, or in that margin of it."""
    inside = (position >= -before) & (position < of(AXES, a, "size") + after)
    if of(AXES, a, "per") > 1:
        inside = inside & (position < stopped(c, AXES, a))
    return inside


@triton.jit
def counted(c, AXES: tl.constexpr, a: tl.constexpr):
    """How many positions output c counts on axis a, and the first tap that lies in the input."""
    start = started(c, AXES, a)
    d = of(AXES, a, "dilation")
    skipped = (tl.maximum(-of(AXES, a, "before") - start, 0) + (d - 1)) // d
    stop = tl.minimum(stopped(c, AXES, a), of(AXES, a, "size") + of(AXES, a, "after"))
    n = tl.maximum((tl.maximum(stop - start, 0) + (d - 1)) // d - skipped, 0)
    return n, (tl.maximum(-start, 0) + (d - 1)) // d


@triton.jit
def count_all(cs, AXES: tl.constexpr):
    """How many positions an output counts."""
    n = tl.full(cs[0].shape, 1, cs[0].dtype)
    for a in tl.static_range(len(AXES)):
        n = n * counted(cs[a], AXES, a)[0]
    return n


@triton.jit
def first_tap(cs, AXES: tl.constexpr):
    """The first tap that is read."""
    tap = tl.full(cs[0].shape, 0, tl.int32)
    for a in tl.static_range(len(AXES)):
        tap = tap * of(AXES, a, "taps")
        if of(AXES, a, "checked"):
            tap = tap + counted(cs[a], AXES, a)[1].to(tl.int32)
    return tap


@triton.jit
def cells_at(i, AXES: tl.constexpr, LANES: tl.constexpr, CELLS: tl.constexpr, SIDE: tl.constexpr):
    """The i-th cells of that side of the window: the first position on each axis, the lane, and which of the lead."""
    rest = i // LANES
    ps = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        ps = (rest % cells_along(AXES, CELLS, a, SIDE) * cell_of(CELLS, a),) + ps
        rest = rest // cells_along(AXES, CELLS, a, SIDE)
    return ps, i % LANES, rest


@triton.jit
def further(ps, a: tl.constexpr, by: tl.constexpr):
    """Positions `by` further along axis a. Not by `replaced`: Triton 3.6 takes a tuple of blocks for one of states."""
    return ps[:a] + (ps[a] + by,) + ps[a + 1 :]


@triton.jit
def address(ps, lane, lead, AXES: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr):
    """Where positions lie on that side of the window."""
    at = lane + lead * (volume(AXES, SIDE) * LANES)
    for a in tl.static_range(len(AXES)):
        at = at + ps[a] * step(AXES, a, LANES, SIDE)
    return at


@triton.jit
def block(total, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Indices of this program, and which are there."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    i = start * BLOCK + tl.arange(0, BLOCK)
    return i, i < total


# -- vectors of a thread -----------------------------------------------------------------------------------------------
#
# A tile of N columns is N elements beside one another in memory for each row, which one thread loads at once; split
# into columns it is N blocks, so neighbouring outputs share what they read in registers.


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


# -- an output's taps --------------------------------------------------------------------------------------------------


@triton.jit
def line_start(c, AXES: tl.constexpr, VECTOR: tl.constexpr):
    """Where on the last axis the first vector of output c's taps starts."""
    L: tl.constexpr = len(AXES) - 1
    if VECTOR == 1:
        return started(c, AXES, L)
    else:  # in one step, so that the compiler sees it lies on a multiple of the vector
        return c * of(AXES, L, "stride") - (of(AXES, L, "lo") + slack(AXES, VECTOR))


@triton.jit
def first_tap_at(cs, AXES: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr):
    """Where the first vector of an output's taps lies. The others lie at constant distances from it, which addresses
    have room for."""
    at = line_start(cs[len(AXES) - 1], AXES, VECTOR) * LANES
    for a in tl.static_range(len(AXES) - 1):
        at = at + started(cs[a], AXES, a) * step(AXES, a, LANES, "size")
    return at


@triton.jit
def line(x, dx, inside, there, c, LAW: tl.constexpr, PUSH: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
         AXES: tl.constexpr, LANES: tl.constexpr, OUT: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The states of OUT neighbouring outputs, from their taps on one line of the last axis, to which x and dx point;
    and the least of the bits that were read, where the law is quick."""
    L: tl.constexpr = len(AXES) - 1
    K: tl.constexpr = of(AXES, L, "taps")
    F: tl.constexpr = slack(AXES, VECTOR)
    start = line_start(c, AXES, VECTOR)
    other: tl.constexpr = lowest(LAW, ACC) if is_extreme(LAW) and is_plain(LAW) else 0
    nothing = tl.full(c.shape, 0, ACC)
    no_tap = tl.full(c.shape, 0, tl.int32)
    yes = tl.full(c.shape, 1, tl.int1)
    low = bits(nothing)
    xs = ()
    ts = ()
    theres = ()
    for v in tl.static_range(vectors(AXES, OUT, VECTOR)):
        if vector_used(AXES, v, OUT, VECTOR):
            p = start + v * VECTOR
            ok = inside
            if is_checked(AXES, L, OUT):
                ok = ok & within(p, c, 0, 0, AXES, L)
            elements = loaded(x + v * (VECTOR * LANES), ok, other, VECTOR)
            for e in tl.static_range(VECTOR):
                value = elements[e].to(ACC)
                if FLIP:
                    value = -value
                xs = xs + (value,)
                if is_quick(LAW) and read_by_any(AXES, L, v * VECTOR + e - F, OUT):
                    low = tl.minimum(low, bits(value))
                if counts_zeros(AXES, LAW):
                    counts = there
                    if of(AXES, L, "checked"):
                        counts = there & within(p + e, c, of(AXES, L, "before"), of(AXES, L, "after"), AXES, L)
                    theres = theres + (counts,)
                elif any_checked(AXES) and not is_linear(LAW) and not (is_extreme(LAW) and is_plain(LAW)):
                    theres = theres + (ok,)
                else:
                    theres = theres + (yes,)
            if PUSH:
                elements = loaded(dx + v * (VECTOR * LANES), ok, 0, VECTOR)
                for e in tl.static_range(VECTOR):
                    ts = ts + (elements[e].to(ACC),)
            else:
                ts = xs
        else:
            for e in tl.static_range(VECTOR):
                xs = xs + (nothing,)
                ts = ts + (nothing,)
                theres = theres + (yes,)
    states = ()
    if is_extreme(LAW) and of(AXES, L, "stride") == 1 and of(AXES, L, "dilation") == 1 and K > OUT and OUT > 1:
        # what all of them read is merged once; what some read before and after it, step by step
        ones = ()
        for e in tl.static_range(K + OUT - 1):
            ones = ones + (lift(xs[F + e], ts[F + e], no_tap + e, theres[F + e], LAW, PUSH),)
        core = ones[OUT - 1]
        for e in tl.static_range(OUT, K):
            core = merge(core, ones[e], LAW)
        states = (core,)
        for q in tl.static_range(OUT - 2, -1, -1):
            core = merge(ones[q], core, LAW)
            states = (core,) + states
        after = ones[K]
        for q in tl.static_range(1, OUT):
            if q > 1:
                after = merge(after, ones[K + q - 1], LAW)
            # taps are counted from the output's own first
            states = replaced(states, q, moved(merge(states[q], after, LAW), -q, LAW))
    else:
        for q in tl.static_range(OUT):
            ones = ()
            for j in tl.static_range(K):
                one = lift(
                    xs[element(AXES, q, j, VECTOR)], ts[element(AXES, q, j, VECTOR)], no_tap + j,
                    theres[element(AXES, q, j, VECTOR)], LAW, PUSH,
                )  # fmt: skip
                ones = ones + (one,)
            states = states + (among(ones, LAW),)
    return states, low


@triton.jit
def folded(x, dx, inside, there, cs, a: tl.constexpr, LAW: tl.constexpr, PUSH: tl.constexpr, FLIP: tl.constexpr,
           ACC: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The states of a cell of outputs, from axis `a` on: what each row makes, merged into every output that reads the
    row. And the least bits, as `line` has them."""
    if a == len(AXES) - 1:
        return line(x, dx, inside, there, cs[a], LAW, PUSH, FLIP, ACC, AXES, LANES, cell_of(CELLS, a), VECTOR)
    else:
        N: tl.constexpr = cell_size(CELLS, a)
        states = ()
        low = bits(tl.full(cs[a].shape, 0, ACC))
        for u in tl.static_range(rows(AXES, a, cell_of(CELLS, a))):
            if read_by_any(AXES, a, u, cell_of(CELLS, a)):
                p = started(cs[a], AXES, a) + u
                row = inside
                row_there = there
                if is_checked(AXES, a, cell_of(CELLS, a)):
                    row = inside & within(p, cs[a], 0, 0, AXES, a)
                    row_there = there & within(p, cs[a], of(AXES, a, "before"), of(AXES, a, "after"), AXES, a)
                lines, least = folded(
                    x + u * step(AXES, a, LANES, "size"), dx + u * step(AXES, a, LANES, "size"), row, row_there, cs,
                    a + 1, LAW, PUSH, FLIP, ACC, AXES, LANES, CELLS, VECTOR,
                )  # fmt: skip
                low = tl.minimum(low, least)
                for r in tl.static_range(cell_of(CELLS, a)):
                    for q in tl.static_range(N):
                        if tap_of(AXES, a, u, r) >= 0:
                            one = moved(lines[q], tap_of(AXES, a, u, r) * volume(AXES, "taps", a), LAW)
                            if tap_of(AXES, a, u, r) == 0:
                                states = states + (one,)
                            else:
                                states = replaced(states, r * N + q, merge(states[r * N + q], one, LAW))
        return states, low


@triton.jit
def finished(
    state, g, cs, LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, FLIP: tl.constexpr, DIVISOR: tl.constexpr,
    EMPTY: tl.constexpr,
):  # fmt: skip
    """What `gather` stores of a state: the value, and what goes beside it."""
    n = tl.full(cs[0].shape, 1, state[0].dtype)
    if EMPTY or DIVISOR == 0:
        n = count_all(cs, AXES).to(n.dtype)
    kept = n
    if MODE == "push":
        value = share(state[2], state[1], LAW)
    elif MODE == "turn":
        value = state[0]
        kept = share(g, state[1], LAW)
    elif DIVISOR == 0:
        value = finish(state, tl.maximum(n, 1), LAW)
    else:
        value = finish(state, DIVISOR, LAW)
    if MODE == "winners":
        kept = state[1]
        if any_checked(AXES) and is_plain(LAW):  # nothing is above the lowest: all that is read is that low
            kept = tl.where(value == lowest(LAW, value.dtype), first_tap(cs, AXES), kept)
        if EMPTY:
            kept = tl.where(n > 0, kept, 0)
    if FLIP and MODE == "forward":
        value = -value
    if EMPTY:
        value = tl.where(n > 0, value, 0).to(value.dtype)
    return value, kept


@triton.jit
def put(
    states, cs, there, i, base, lane, lead, dx, y, b,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Stores what `gather` makes of a row of neighbouring outputs."""
    L: tl.constexpr = len(AXES) - 1
    OUT: tl.constexpr = cell_of(CELLS, L)
    EVEN: tl.constexpr = of(AXES, L, "outputs") % OUT == 0
    left = of(AXES, L, "outputs") - cs[L]
    at = i if cell_size(CELLS) == 1 else address(cs, lane, lead, AXES, LANES, "outputs")
    gs = ()
    if MODE == "turn":
        gs = taken(dx, at, there, left, LANES, OUT, EVEN)
    values = ()
    kept = ()
    for q in tl.static_range(OUT):
        cs_q = further(cs, L, q)
        g = gs[q].to(ACC) if MODE == "turn" else states[q][0]
        value, beside = finished(states[q], g, cs_q, LAW, MODE, AXES, FLIP, DIVISOR, EMPTY)
        values = values + (value,)
        if INNER > 0:  # one axis is pooled here: where its winner lies, the earlier pass' lies
            won = base
            for a in tl.static_range(len(AXES)):
                p = started(cs_q[a], AXES, a)
                if of(AXES, a, "taps") > 1:
                    p = p + beside * of(AXES, a, "dilation")
                won = won + p * step(AXES, a, LANES, "size")
            read = there & (left > q)
            if EMPTY:
                read = read & (count_all(cs_q, AXES) > 0)
            beside = beside * INNER + unsigned(tl.load(dx + won, mask=read, other=0), dx)
        kept = kept + (beside,)
    store(y, at, values, there, left, LANES, OUT, EVEN)
    if MODE == "winners" or MODE == "turn":
        store(b, at, kept, there, left, LANES, OUT, EVEN)


@triton.jit
def cell_put(
    x, dx, y, b, i, ok, cs, lane, lead,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Makes and stores a cell of outputs, all rows of it known while compiling; the least bits, as `line` has them."""
    OUT: tl.constexpr = cell_of(CELLS, len(AXES) - 1)
    base = lane + lead * (volume(AXES, "size") * LANES)
    at = base + first_tap_at(cs, AXES, LANES, VECTOR)
    yes = tl.full(i.shape, 1, tl.int1)
    PUSH: tl.constexpr = MODE == "push"
    states, low = folded(x + at, dx + at, ok, yes, cs, 0, LAW, PUSH, FLIP, ACC, AXES, LANES, CELLS, VECTOR)
    for r in tl.static_range(cell_size(CELLS) // OUT):
        cs_r = ()
        there = ok
        for a in tl.static_range(len(AXES)):
            cs_r = cs_r + (cs[a] + within_cell(CELLS, r * OUT, a),)
            if within_cell(CELLS, r * OUT, a) > 0 and of(AXES, a, "outputs") % cell_of(CELLS, a) != 0:
                there = there & (cs_r[a] < of(AXES, a, "outputs"))
        put(states[r * OUT : (r + 1) * OUT], cs_r, there, i, base, lane, lead, dx, y, b, LAW, MODE, AXES, LANES, FLIP,
            DIVISOR, EMPTY, INNER, ACC, CELLS)  # fmt: skip
    return low


@triton.jit
def one_by_one(
    x, dx, y, b, i, ok, cs, lane, lead,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """The same row by row: for a program that seldom runs, and shall not hold registers."""
    L: tl.constexpr = len(AXES) - 1
    for r in range(cell_size(CELLS) // cell_of(CELLS, L)):
        rest = r
        cs_r = (cs[L],)
        there = ok
        for a in tl.static_range(L - 1, -1, -1):
            cs_r = (cs[a] + rest % cell_of(CELLS, a),) + cs_r
            there = there & (cs_r[0] < of(AXES, a, "outputs"))
            rest = rest // cell_of(CELLS, a)
        cell_put(x, dx, y, b, i, there, cs_r, lane, lead, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER, ACC,
                     row_of(CELLS), VECTOR)  # fmt: skip


@triton.jit
def marched(
    x, dx, y, b, i, ok, cs, lane, lead,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """The same step by step along the first axis: what the last rows made is held, and every row is read once."""
    L: tl.constexpr = len(AXES) - 1
    K: tl.constexpr = of(AXES, 0, "taps")
    N: tl.constexpr = cell_size(CELLS, 0)
    OUT: tl.constexpr = cell_of(CELLS, L)
    PUSH: tl.constexpr = MODE == "push"
    base = lane + lead * (volume(AXES, "size") * LANES)
    at = base + first_tap_at(cs, AXES, LANES, VECTOR)
    zero = tl.full(i.shape, 0, ACC)
    no_tap = tl.full(i.shape, 0, tl.int32)
    yes = tl.full(i.shape, 1, tl.int1)
    low = bits(zero)
    held = ()
    for n in tl.static_range((K - 1) * N):
        held = held + (lift(zero, zero, no_tap, ~yes, LAW, PUSH),)
    for u in range(cell_of(CELLS, 0) + K - 1):
        p = started(cs[0], AXES, 0) + u
        row = ok & within(p, cs[0], 0, 0, AXES, 0)
        row_there = within(p, cs[0], of(AXES, 0, "before"), of(AXES, 0, "after"), AXES, 0)
        at_u = at + u * step(AXES, 0, LANES, "size")
        states, least = folded(
            x + at_u, dx + at_u, row, row_there, cs, 1, LAW, PUSH, FLIP, ACC, AXES, LANES, CELLS, VECTOR
        )
        low = tl.minimum(low, least)
        c = cs[0] + (u - (K - 1))
        done = ok & (u >= K - 1) & (c < of(AXES, 0, "outputs"))
        for r in tl.static_range(N // OUT):
            made = ()
            for q in tl.static_range(OUT):
                ones = ()
                for j in tl.static_range(K - 1):
                    ones = ones + (moved(held[j * N + r * OUT + q], j * volume(AXES, "taps", 0), LAW),)
                ones = ones + (moved(states[r * OUT + q], (K - 1) * volume(AXES, "taps", 0), LAW),)
                made = made + (among(ones, LAW),)
            cs_r = (c,)
            there = done
            for a in tl.static_range(1, len(AXES)):
                cs_r = cs_r + (cs[a] + within_cell(CELLS, r * OUT, a),)
                if within_cell(CELLS, r * OUT, a) > 0 and of(AXES, a, "outputs") % cell_of(CELLS, a) != 0:
                    there = there & (cs_r[a] < of(AXES, a, "outputs"))
            put(made, cs_r, there, i, base, lane, lead, dx, y, b, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER,
                ACC, CELLS)  # fmt: skip
        held = held[N:] + states
    return low


@triton.jit
def gather(
    x, dx, y, b, total,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr,
    VECTOR: tl.constexpr, MARCH: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A cell of outputs, CELLS along each axis, for a block of everything else; with MARCH, step by step along the
    first.

    MODE says what is stored: "forward" the value in y; "winners" and the tap in b; "push" the tangent along dx;
    "turn" what the law's vjp needs of an output, its m in y and in b its share of dx, which is a cotangent there.
    With INNER, x is what an earlier pass made, and dx which of INNER taps won there: the tap in b is that of both.

    A forward of a max of more than a few taps is the maximum that the device has. That takes +0 for above -0, so where
    a -0 was read all is made again.
    """
    i, ok = block(total, BLOCK, WIDE)
    cs, lane, lead = cells_at(i, AXES, LANES, CELLS, "outputs")
    HASTE: tl.constexpr = quick(LAW) if MODE == "forward" and volume(AXES, "taps") > 8 else LAW
    if UNROLL:
        if MARCH:
            low = marched(x, dx, y, b, i, ok, cs, lane, lead, HASTE, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER,
                          ACC, CELLS, VECTOR)  # fmt: skip
        else:
            low = cell_put(x, dx, y, b, i, ok, cs, lane, lead, HASTE, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER,
                           ACC, CELLS, VECTOR)  # fmt: skip
        if is_quick(HASTE) and ACC.is_floating():
            if tl.min(low, 0) == bits_of_minus_zero(ACC):
                tl.debug_barrier()  # what was stored is stored over
                one_by_one(x, dx, y, b, i, ok, cs, lane, lead, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER, ACC,
                           CELLS, VECTOR)  # fmt: skip
    else:
        base = lane + lead * (volume(AXES, "size") * LANES)
        yes = tl.full((BLOCK,), 1, tl.int1)
        no_tap = tl.full((BLOCK,), 0, tl.int32)
        PUSH: tl.constexpr = MODE == "push"
        acc = lift(tl.full((BLOCK,), 0, ACC), tl.full((BLOCK,), 0, ACC), no_tap, ~yes, LAW, PUSH)
        for t in range(volume(AXES, "taps")):
            at = base
            inside = ok
            there = yes
            rest_t = t
            for a in tl.static_range(len(AXES) - 1, -1, -1):
                p = started(cs[a], AXES, a) + rest_t % of(AXES, a, "taps") * of(AXES, a, "dilation")
                rest_t = rest_t // of(AXES, a, "taps")
                at = at + p * step(AXES, a, LANES, "size")
                inside = inside & within(p, cs[a], 0, 0, AXES, a)
                there = there & within(p, cs[a], of(AXES, a, "before"), of(AXES, a, "after"), AXES, a)
            if not counts_zeros(AXES, LAW):
                there = inside
            v = tl.load(x + at, mask=inside, other=0).to(ACC)
            if FLIP:
                v = -v
            t_v = v
            if PUSH:
                t_v = tl.load(dx + at, mask=inside, other=0).to(ACC)
            acc = merge(acc, lift(v, t_v, no_tap + t, there, LAW, PUSH), LAW)
        put((acc,), cs, ok, i, base, lane, lead, dx, y, b, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER, ACC,
            CELLS)  # fmt: skip


@triton.jit
def beside(x, dx, base, cs, ok, t, LAW: tl.constexpr, PUSH: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
           AXES: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The states of SIDE taps of each output, from tap t on."""
    tap = t + tl.arange(0, SIDE)
    at = base[:, None] + tap[None, :] * 0
    inside = ok[:, None] & (tap < volume(AXES, "taps"))[None, :]
    there = inside
    rest = tap
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        j = rest % of(AXES, a, "taps")
        rest = rest // of(AXES, a, "taps")
        p = started(cs[a], AXES, a)[:, None] + (j * of(AXES, a, "dilation"))[None, :]
        at = at + p * step(AXES, a, LANES, "size")
        if of(AXES, a, "checked"):
            inside = inside & within(p, cs[a][:, None], 0, 0, AXES, a)
            there = there & within(p, cs[a][:, None], of(AXES, a, "before"), of(AXES, a, "after"), AXES, a)
    if not counts_zeros(AXES, LAW):
        there = inside
    v = tl.load(x + at, mask=inside, other=0).to(ACC)
    if FLIP:
        v = -v
    t_v = v
    if PUSH:
        t_v = tl.load(dx + at, mask=inside, other=0).to(ACC)
    return lift(v, t_v, tl.full(v.shape, 0, tl.int32) + tap[None, :], there, LAW, PUSH)


@triton.jit
def unravelled(x, first, total, N: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK windows of N elements that lie one after another, as columns: loaded as they lie, then turned."""
    k = tl.arange(0, SIDE * BLOCK)
    flat = tl.load(x + first * N + k, mask=(k < BLOCK * N) & (k < (total - first) * N), other=0)
    at = tl.minimum(k % BLOCK * N + k // BLOCK, BLOCK * N - 1)
    return tl.reshape(tl.gather(flat, at.to(tl.int32), 0), (SIDE, BLOCK))


@triton.jit
def collect(
    x, dx, y, b, total,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, ACC: tl.constexpr, SIDE: tl.constexpr, FLAT: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same as `gather` for large windows that hardly overlap: a block of outputs, SIDE taps side by side. FLAT: the
    windows lie one after another, and are loaded at once."""
    i, ok = block(total, BLOCK, WIDE)
    PUSH: tl.constexpr = MODE == "push"
    TAPS: tl.constexpr = volume(AXES, "taps")
    cs, lane, lead = cells_at(i, AXES, LANES, (1,) * len(AXES), "outputs")
    if FLAT:
        first = tl.program_id(0)
        if WIDE:
            first = first.to(tl.int64)
        v = unravelled(x, first * BLOCK, total, TAPS, SIDE, BLOCK).to(ACC)
        if FLIP:
            v = -v
        t_v = v
        if PUSH:
            t_v = unravelled(dx, first * BLOCK, total, TAPS, SIDE, BLOCK).to(ACC)
        tap = tl.arange(0, SIDE)[:, None] + tl.full((SIDE, BLOCK), 0, tl.int32)
        there = tap < TAPS
        if is_linear(LAW):
            v = tl.where(there, v, 0).to(ACC)
        state = together(lift(v, t_v, tap, there, LAW, PUSH), 0, LAW)
    else:
        base = lane + lead * (volume(AXES, "size") * LANES)
        acc = beside(x, dx, base, cs, ok, 0, LAW, PUSH, FLIP, ACC, AXES, LANES, SIDE)
        if TAPS <= 8 * SIDE:
            for t in tl.static_range(SIDE, TAPS, SIDE):
                acc = merge(acc, beside(x, dx, base, cs, ok, t, LAW, PUSH, FLIP, ACC, AXES, LANES, SIDE), LAW)
        else:
            for t in range(SIDE, TAPS, SIDE):
                acc = merge(acc, beside(x, dx, base, cs, ok, t, LAW, PUSH, FLIP, ACC, AXES, LANES, SIDE), LAW)
        state = together(acc, 1, LAW)
    g = state[0]
    if MODE == "turn":
        g = tl.load(dx + i, mask=ok, other=0).to(ACC)
    value, kept = finished(state, g, cs, LAW, MODE, AXES, FLIP, DIVISOR, EMPTY)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=ok)
    if MODE == "winners" or MODE == "turn":
        tl.store(b + i, kept.to(b.dtype.element_ty), mask=ok)


# -- an input's readers ------------------------------------------------------------------------------------------------


@triton.jit
def reader(p, m, AXES: tl.constexpr, a: tl.constexpr):
    """The m-th candidate, from the last back, for an output that reads position p: the output, the tap, and whether."""
    if of(AXES, a, "per") > 1:
        c = ((p + 1) * of(AXES, a, "per") - 1) // of(AXES, a, "stride") - m
        reads = (c >= 0) & ((c + 1) * of(AXES, a, "stride") > p * of(AXES, a, "per"))
        j = p - c * of(AXES, a, "stride") // of(AXES, a, "per")
    else:
        last = (p + of(AXES, a, "lo")) // of(AXES, a, "stride")
        c = tl.minimum(last, of(AXES, a, "outputs") - 1) - m
        j = (p + of(AXES, a, "lo")) - c * of(AXES, a, "stride")
        reads = (c >= 0) & (j < of(AXES, a, "extent"))
        if of(AXES, a, "dilation") > 1:
            reads = reads & (j % of(AXES, a, "dilation") == 0)
            j = j // of(AXES, a, "dilation")
    return c, j, reads


@triton.jit
def unsigned(tap, residual):
    """A residual's tap as a number: torch has no unsigned words beyond a byte."""
    tap = tap.to(tl.int32)
    if residual.dtype.element_ty == tl.int16:
        tap = tap & 0xFFFF
    return tap


@triton.jit
def scatter(
    x, dy, m, residual, dx, total,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr,
    MARCH: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of a block of cells: the sum of what their readers hand them, in the order of the readers.

    A cell is CELLS inputs along each axis. Whole strides: which tap of which output an input is, is known while
    compiling, and VECTOR outputs of the last axis are read at once. A part of a stride: the cell has one reader, which
    is asked for; 0: so has each input. MODE: "spread" by the residual; "linear" over the count; "turned" by what
    `gather` stored in its "turn". With INNER, the residual is of this axis and of later passes' INNER taps, and m is
    where theirs goes. With MARCH the cells go along the first axis step by step, and every output is read once.
    """
    i, ok = block(total, BLOCK, WIDE)
    L: tl.constexpr = len(AXES) - 1
    ACROSS: tl.constexpr = cell_of(CELLS, L)
    N: tl.constexpr = cell_size(CELLS)
    EVEN: tl.constexpr = of(AXES, L, "size") % ACROSS == 0
    ps, lane, lead = cells_at(i, AXES, LANES, CELLS, "size")
    base = lane + lead * (volume(AXES, "outputs") * LANES)
    left = of(AXES, L, "size") - ps[L]
    if MARCH:
        K: tl.constexpr = of(AXES, 0, "taps")
        HELD: tl.constexpr = held_of(CELLS, K)
        ROW: tl.constexpr = cell_size(CELLS, 0)
        ROOM: tl.constexpr = from_first(AXES)
        LOOKS: tl.constexpr = all_readings(ROOM, HELD, VECTOR) // (2 * K - 1)
        accs = ()
        for e in tl.static_range(K * ROW):
            accs = accs + (tl.full((BLOCK,), 0, ACC),)
        for u in range(cell_of(CELLS, 0) + K - 1):
            c = ps[0] + (of(AXES, 0, "lo") - (K - 1)) + u
            for t in tl.static_range((K - 1) * LOOKS, K * LOOKS):  # the looks that find output c
                if finds_any(ROOM, HELD, t, VECTOR):
                    accs = given(
                        accs, (), dy, m, residual, base, ok, replaced(ps, 0, c), t, t, LAW, MODE, ROOM, AXES, LANES,
                        DIVISOR, 0, ACC, HELD, VECTOR,
                    )  # fmt: skip
            p = ps[0] + (u - (K - 1))
            done = ok & (u >= K - 1) & (p < of(AXES, 0, "size"))
            for r in tl.static_range(ROW // ACROSS):
                ps_r = (p,)
                there = done
                for a in tl.static_range(1, len(AXES)):
                    ps_r = ps_r + (ps[a] + within_cell(CELLS, r * ACROSS, a),)
                    if within_cell(CELLS, r * ACROSS, a) > 0 and of(AXES, a, "size") % cell_of(CELLS, a) != 0:
                        there = there & (ps_r[a] < of(AXES, a, "size"))
                at = address(ps_r, lane, lead, AXES, LANES, "size")
                store(dx, at, accs[r * ACROSS : (r + 1) * ACROSS], there, left, LANES, ACROSS, EVEN)
            accs = accs[ROW:]
            for e in tl.static_range(ROW):
                accs = accs + (tl.full((BLOCK,), 0, ACC),)
    else:
        ats = ()  # where the rows of the cell lie, and whether they are there
        theres = ()
        for r in tl.static_range(N // ACROSS):
            there = ok
            ps_r = ()
            for a in tl.static_range(len(AXES)):
                ps_r = ps_r + (ps[a] + within_cell(CELLS, r * ACROSS, a),)
                if within_cell(CELLS, r * ACROSS, a) > 0 and of(AXES, a, "size") % cell_of(CELLS, a) != 0:
                    there = there & (ps_r[a] < of(AXES, a, "size"))
            ats = ats + (i if N == 1 else address(ps_r, lane, lead, AXES, LANES, "size"),)
            theres = theres + (there,)
        accs = ()
        xs = ()
        for r in tl.static_range(N // ACROSS):
            row = ()
            if MODE == "turned":
                row = taken(x, ats[r], theres[r], left, LANES, ACROSS, EVEN)
            for e in tl.static_range(ACROSS):
                accs = accs + (tl.full((BLOCK,), 0, ACC),)
                if MODE == "turned":
                    v = row[e].to(ACC)
                    if FLIP:
                        v = -v
                    xs = xs + (v,)
        if INNER > 0:
            for e in tl.static_range(N):
                accs = accs + (tl.full((BLOCK,), 0, tl.int32),)
        if UNROLL:
            for t in tl.static_range(all_readings(AXES, CELLS, VECTOR)):
                if finds_any(AXES, CELLS, t, VECTOR):
                    accs = given(
                        accs, xs, dy, m, residual, base, ok, ps, t, t, LAW, MODE, AXES, AXES, LANES, DIVISOR, INNER,
                        ACC, CELLS, VECTOR,
                    )  # fmt: skip
        else:
            for t in range(volume(AXES, "readers")):
                accs = given(
                    accs, xs, dy, m, residual, base, ok, ps, t, 0, LAW, MODE, AXES, AXES, LANES, DIVISOR, INNER, ACC,
                    CELLS, VECTOR,
                )  # fmt: skip
        for r in tl.static_range(N // ACROSS):
            store(dx, ats[r], accs[r * ACROSS : (r + 1) * ACROSS], theres[r], left, LANES, ACROSS, EVEN)
            if INNER > 0:
                store(m, ats[r], accs[N + r * ACROSS : N + (r + 1) * ACROSS], theres[r], left, LANES, ACROSS, EVEN)


@triton.jit
def given(
    accs, xs, dy, m, residual, base, ok, ps, t, T: tl.constexpr,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, COUNTED: tl.constexpr, LANES: tl.constexpr,
    DIVISOR: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What the inputs of a cell have when the VECTOR outputs that the t-th look finds have given theirs; T is t where
    it is known while compiling. COUNTED are the axes that say how many positions an output counts."""
    N: tl.constexpr = cell_size(CELLS)
    TAPS: tl.constexpr = known_taps(AXES, CELLS, T, VECTOR)
    at = base
    reads = ok
    tap = tl.full(base.shape, 0, tl.int32)
    cs = ()
    rest = t
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        if is_known(AXES, CELLS, a):
            c = ps[a] // of(AXES, a, "stride") + reading(AXES, CELLS, T, a, VECTOR)
            reads = reads & (c >= 0) & (c < of(AXES, a, "outputs"))
        else:
            c, j, there = reader(ps[a], of(AXES, a, "readers") - 1 - rest % of(AXES, a, "readers"), AXES, a)
            reads = reads & there
            tap = tap + (j * volume(AXES, "taps", a)).to(tl.int32)
        rest = rest // readings(AXES, CELLS, a, VECTOR)
        at = at + c * step(AXES, a, LANES, "outputs")
        cs = (c,) + cs
    gs = loaded(dy + at, reads, 0, VECTOR)
    wons = gs
    tops = gs
    if MODE == "spread":
        wons = loaded(residual + at, reads, 0, VECTOR)
    if MODE == "turned":
        tops = loaded(m + at, reads, 0, VECTOR)
    for v in tl.static_range(VECTOR):
        g = gs[v].to(ACC)
        if MODE == "linear":
            if DIVISOR == 0:
                n = count_all(further(cs, len(AXES) - 1, v), COUNTED)
                g = g / tl.maximum(n, 1).to(ACC)
            elif DIVISOR != 1:
                g = g / DIVISOR
        won = tap
        inner = tap
        if MODE == "spread":
            won = unsigned(wons[v], residual)
            if INNER > 0:
                inner = won % INNER
                won = won // INNER
            won = won - tap
        for e in tl.static_range(N):
            if TAPS[v * N + e] >= 0:
                if MODE == "spread":
                    mine = won == TAPS[v * N + e]
                    # an addition that takes place or not; who does not read has 0 to give
                    accs = replaced(accs, e, tl.where(mine, accs[e] + g, accs[e]))
                    if INNER > 0:
                        # All who won here by this input won there by the same tap; but an output that nobody won
                        # by, which has nothing to hand on, names any.
                        accs = replaced(accs, N + e, tl.where(mine & (g != 0), inner, accs[N + e]))
                elif MODE == "turned":
                    one = weigh(g, xs[e], tops[v].to(ACC), LAW)
                    accs = replaced(accs, e, accs[e] + tl.where(reads, one, 0.0).to(ACC))
                else:
                    accs = replaced(accs, e, accs[e] + g)
    return accs


@triton.jit
def lay(
    dy, residual, dx, total,
    MODE: tl.constexpr, N: tl.constexpr, DIVISOR: tl.constexpr, ACC: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same as `scatter` for windows of N inputs that lie one after another: VECTOR neighbours have one reader, or
    two."""
    i, ok = block(total, BLOCK, WIDE)
    c = i * VECTOR // N
    tap = i * VECTOR - c * N
    both = ok & (tap + (VECTOR - 1) >= N)
    g = tl.load(dy + c, mask=ok, other=0).to(ACC)
    h = tl.load(dy + c + 1, mask=both, other=0).to(ACC)
    won = c
    after = c
    if MODE == "spread":
        won = unsigned(tl.load(residual + c, mask=ok, other=0), residual)
        after = unsigned(tl.load(residual + c + 1, mask=both, other=0), residual) + N
    elif DIVISOR != 1:
        g = g / DIVISOR
        h = h / DIVISOR
    values = ()
    for e in tl.static_range(VECTOR):
        if MODE == "spread":
            value = tl.where(tap + e == won, g, tl.where(tap + e == after, h, 0.0)).to(ACC)
        else:
            value = tl.where(tap + e < N, g, h)
        values = values + (value,)
    store(dx, i * VECTOR, values, ok, i, 1, VECTOR, True)


@triton.jit
def pull(
    x, dy, dx, total,
    LAW: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
    CELLS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of a block of cells, whole strides, by a law that weighs its taps: the states of the few outputs
    that read a cell are made anew, instead of stored by one kernel and read by another."""
    i, ok = block(total, BLOCK, WIDE)
    L: tl.constexpr = len(AXES) - 1
    ACROSS: tl.constexpr = cell_of(CELLS, L)
    EVEN: tl.constexpr = of(AXES, L, "size") % ACROSS == 0
    READERS: tl.constexpr = readers_of(AXES, CELLS)
    ps, lane, lead = cells_at(i, AXES, LANES, CELLS, "size")
    left = of(AXES, L, "size") - ps[L]
    cs = ()
    for a in tl.static_range(len(AXES)):
        cs = cs + (ps[a] // of(AXES, a, "stride") + earliest(AXES, a),)
    at = lane + lead * (volume(AXES, "size") * LANES) + first_tap_at(cs, AXES, LANES, 1)
    yes = tl.full((BLOCK,), 1, tl.int1)
    states, _ = folded(x + at, x + at, ok, yes, cs, 0, LAW, False, FLIP, ACC, checked(AXES), LANES, READERS, 1)
    ats = ()
    theres = ()
    xs = ()
    accs = ()
    for r in tl.static_range(cell_size(CELLS) // ACROSS):
        there = ok
        ps_r = ()
        for a in tl.static_range(len(AXES)):
            ps_r = ps_r + (ps[a] + within_cell(CELLS, r * ACROSS, a),)
            if within_cell(CELLS, r * ACROSS, a) > 0 and of(AXES, a, "size") % cell_of(CELLS, a) != 0:
                there = there & (ps_r[a] < of(AXES, a, "size"))
        ats = ats + (address(ps_r, lane, lead, AXES, LANES, "size"),)
        theres = theres + (there,)
        row = taken(x, ats[r], there, left, LANES, ACROSS, EVEN)
        for e in tl.static_range(ACROSS):
            xs = xs + (-row[e].to(ACC) if FLIP else row[e].to(ACC),)
            accs = accs + (tl.full((BLOCK,), 0, ACC),)
    for n in tl.static_range(cell_size(READERS)):
        reads = ok
        cs_n = ()
        for a in tl.static_range(len(AXES)):
            cs_n = cs_n + (cs[a] + within_cell(READERS, n, a),)
            reads = reads & (cs_n[a] >= 0) & (cs_n[a] < of(AXES, a, "outputs"))
        g = tl.load(dy + address(cs_n, lane, lead, AXES, LANES, "outputs"), mask=reads, other=0).to(ACC)
        g = share(g, states[n][1], LAW)
        for e in tl.static_range(cell_size(CELLS)):
            if is_tap(AXES, CELLS, READERS, e, n):
                one = weigh(g, xs[e], states[n][0], LAW)
                accs = replaced(accs, e, accs[e] + tl.where(reads, one, 0.0).to(ACC))
    for r in tl.static_range(cell_size(CELLS) // ACROSS):
        store(dx, ats[r], accs[r * ACROSS : (r + 1) * ACROSS], theres[r], left, LANES, ACROSS, EVEN)


# -- runs: a long window along one axis --------------------------------------------------------------------------------
#
# As a window slides its winner never goes back, so the outputs that an input won lie side by side: a run. Its sum is a
# scan, whatever the window's length.


@triton.jit
def joined(before, s, after, t):
    """Two pieces of a line: the position that won last, -1 for none, and what its run has in all."""
    return tl.maximum(before, after), tl.where((before == after) | (after < 0), s + t, t)


@triton.jit
def named(dy, residual, at, c, ok, AXES: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, KEY: tl.constexpr):
    """What outputs hand on, and the position that they hand it to (with INNER, and which of its taps won there); -1 for
    those that hand on nothing, which may name any."""
    g = tl.load(dy + at, mask=ok, other=0).to(ACC)
    tap = unsigned(tl.load(residual + at, mask=ok, other=0), residual)
    key = (started(c, AXES, 0) * INNER).to(KEY) + tap
    return g, tl.where(g != 0, key, -1)


@triton.jit
def runs(
    dy, residual, m, dx, lines,
    AXES: tl.constexpr, LANES: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, KEY: tl.constexpr,
    STRETCH: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of STRETCH inputs of a block of lines, by the residual; LONG outputs may read them. The rest is as
    in `scatter`: INNER is 1 where there is no earlier pass."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    STRETCHES: tl.constexpr = (of(AXES, 0, "size") + STRETCH - 1) // STRETCH
    along: tl.constexpr = 1 if LANES == 1 else 0  # neighbours in memory are neighbours in the block
    n = pid // STRETCHES * BLOCK + tl.arange(0, BLOCK)
    there = tl.expand_dims(n < lines, along)
    first = pid % STRETCHES * STRETCH
    stop = tl.minimum(first + STRETCH, of(AXES, 0, "size"))
    base = tl.expand_dims(n // LANES * (of(AXES, 0, "size") * LANES) + n % LANES, along)
    p = tl.expand_dims(first + tl.arange(0, power_of_two(STRETCH)), 1 - along)
    tl.store(dx + (base + p * LANES), tl.zeros((1, 1), dx.dtype.element_ty), mask=there & (p < stop))

    lo: tl.constexpr = of(AXES, 0, "lo")
    stride: tl.constexpr = of(AXES, 0, "stride")
    reader = tl.maximum(first + (lo + stride - of(AXES, 0, "extent")), 0) // stride
    end = tl.minimum((stop - 1 + lo) // stride + 1, of(AXES, 0, "outputs"))
    c = tl.expand_dims(reader + tl.arange(0, LONG), 1 - along)
    at = tl.expand_dims(n // LANES * (of(AXES, 0, "outputs") * LANES) + n % LANES, along) + c * LANES
    g, key = named(dy, residual, at, c, there & (c < end), AXES, INNER, ACC, KEY)
    _, after = named(dy, residual, at + LANES, c + 1, there & (c + 1 < end), AXES, INNER, ACC, KEY)
    won, total = tl.associative_scan((key, g), along, joined)
    last = (c + 1 == end) | ((after >= 0) & (after != won))
    p = (won // INNER).to(base.dtype)
    kept = there & (c < end) & last & (won >= 0) & (p >= first) & (p < stop)
    tl.debug_barrier()  # the zeros are stored over
    tl.store(dx + (base + p * LANES), total.to(dx.dtype.element_ty), mask=kept)
    if INNER > 1:
        tl.store(m + (base + p * LANES), (won % INNER).to(m.dtype.element_ty), mask=kept)


# -- which tap won -----------------------------------------------------------------------------------------------------


@triton.jit
def pick(
    residual, dx, y, total,
    STEPS: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, EMPTY: tl.constexpr, CELLS: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The tangent of what won, for a block of rows of neighbouring outputs; with STEPS its position instead, by the step
    of each axis, and -1 where nothing is read."""
    i, ok = block(total, BLOCK, WIDE)
    L: tl.constexpr = len(AXES) - 1
    OUT: tl.constexpr = cell_of(CELLS, L)
    EVEN: tl.constexpr = of(AXES, L, "outputs") % OUT == 0
    cs, lane, lead = cells_at(i, AXES, LANES, CELLS, "outputs")
    left = of(AXES, L, "outputs") - cs[L]
    at = i if OUT == 1 else address(cs, lane, lead, AXES, LANES, "outputs")
    taps = taken(residual, at, ok, left, LANES, OUT, EVEN)
    base = lane + lead * (volume(AXES, "size") * LANES)
    values = ()
    for q in tl.static_range(OUT):
        tap = unsigned(taps[q], residual)
        cs_q = further(cs, L, q)
        there = ok
        if not EVEN:
            there = there & (left > q)
        if EMPTY:
            there = there & (count_all(cs_q, AXES) > 0)
        won = base
        place = tl.full((BLOCK,), 0, tl.int64)
        for a in tl.static_range(L, -1, -1):
            j = tap % of(AXES, a, "taps") * of(AXES, a, "dilation")
            tap = tap // of(AXES, a, "taps")
            if STEPS is None:
                won = won + started(cs_q[a], AXES, a) * step(AXES, a, LANES, "size") + j * step(AXES, a, LANES, "size")
            else:
                place = place + (started(cs_q[a], AXES, a) + j).to(tl.int64) * STEPS[a]
        if STEPS is None:
            values = values + (tl.load(dx + won, mask=there, other=0),)
        else:
            values = values + (tl.where(there, place, -1),)
    store(y, at, values, ok, left, LANES, OUT, EVEN)
