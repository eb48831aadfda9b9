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
# ruff: noqa: B007, RET505, SIM110
import triton
import triton.language as tl

from .laws import finish, is_extreme, is_linear, is_plain, lift, lowest, merge, share, shares, together, weigh

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
def volume(axes, name, but=-1, nor=-1):
    """The product of a field over all axes, perhaps but for one or two."""
    n = 1
    for a in range(len(axes)):
        n = n * (1 if a in (but, nor) else field(axes[a], name))
    return n


@triton.constexpr_function
def digit(axes, t, a, name, but=-1, nor=-1):
    """The a-th digit of t, the axes being its radices, perhaps but for one or two."""
    for b in range(len(axes) - 1, a, -1):
        t = t // (1 if b in (but, nor) else field(axes[b], name))
    return t % field(axes[a], name)


@triton.constexpr_function
def row_axis(axes):
    """The first axis that joins anything, but for the last one; -1 if there is none."""
    for a in range(len(axes) - 1):
        if field(axes[a], "taps") > 1:
            return a
    return -1


@triton.constexpr_function
def rows(axes, a, march):
    """How many rows `march` neighbouring outputs read together; one where there is no such axis."""
    if a < 0:
        return 1
    return (march - 1) * of(axes, a, "stride") + (of(axes, a, "taps") - 1) * of(axes, a, "dilation") + 1


@triton.constexpr_function
def tap_of(axes, a, u, r):
    """Which tap of the r-th output position u is, both counted from the first output's start; -1 for none."""
    if a < 0:
        return 0
    _, _, stride, _, taps, d, *_ = axes[a]
    j = u - r * stride
    return -1 if j < 0 or j % d or j // d >= taps else j // d


@triton.constexpr_function
def read_by_any(axes, a, u, march):
    """Whether any of `march` outputs reads it."""
    if a < 0:
        return True
    _, _, stride, _, taps, d, *_ = axes[a]
    for r in range(march):
        j = u - r * stride
        if j >= 0 and j % d == 0 and j // d < taps:
            return True
    return False


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
    return a >= 0 and (of(axes, a, "checked") or of(axes, a, "outputs") % march != 0)


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
def first_reader(axes, a, vector):
    """The first output, from that of a cell's first input on and on a multiple of `vector`, that may read the cell."""
    if a < 0:
        return 0
    m = (of(axes, a, "lo") - (of(axes, a, "taps") - 1) * of(axes, a, "dilation")) // of(axes, a, "stride")
    return m // vector * vector


@triton.constexpr_function
def readers_of(axes, a, cell, vector):
    """How many outputs from `first_reader` on may read a cell of so many inputs."""
    if a < 0:
        return 1
    last = (cell - 1 + of(axes, a, "lo")) // of(axes, a, "stride")
    return -(-(last + 1 - first_reader(axes, a, vector)) // vector) * vector


@triton.constexpr_function
def known_tap(axes, row, last, ea, e, ma, ml):
    """Which tap input (ea, e) of a cell is of the outputs ma and ml after the cell's own: the digits of those axes that
    are known while compiling; -1 if it is none."""
    tap = 0
    for a in range(len(axes)):
        _, _, stride, _, taps, d, lo, *_ = axes[a]
        tap = tap * taps
        if a in (row, last):
            j = (ea if a == row else e) + lo - (ma if a == row else ml) * stride
            if j < 0 or j % d or j // d >= taps:
                return -1
            tap = tap + j // d
    return tap


@triton.constexpr_function
def reads_cell(axes, a, m, cell, vector):
    """Whether any of `vector` outputs from the m-th on reads any input of the cell."""
    if a < 0:
        return True
    _, _, stride, _, taps, d, lo, *_ = axes[a]
    for e in range(cell):
        for v in range(vector):
            j = e + lo - (m + v) * stride
            if j >= 0 and j % d == 0 and j // d < taps:
                return True
    return False


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
def loaded(x, at, mask, other, N: tl.constexpr):
    """N elements beside one another, as blocks."""
    if N == 1:
        return (tl.load(x + at, mask=mask, other=other),)
    else:
        return split(tl.load(x + (at[:, None] + tl.arange(0, N)[None, :]), mask=mask[:, None], other=other), N)


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
def line(x, dx, at, inside, there, c, tap: tl.constexpr, LAW: tl.constexpr, PUSH: tl.constexpr, FLIP: tl.constexpr,
         ACC: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, OUT: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The states of OUT neighbouring outputs, from their taps on one line of the last axis, the first number `tap`."""
    L: tl.constexpr = len(AXES) - 1
    K: tl.constexpr = of(AXES, L, "taps")
    F: tl.constexpr = slack(AXES, VECTOR)
    # in one step, so that the compiler sees it lies on a multiple of the vector
    start = started(c, AXES, L) if VECTOR == 1 else c * of(AXES, L, "stride") - (of(AXES, L, "lo") + F)
    other: tl.constexpr = lowest(LAW, ACC) if is_extreme(LAW) and is_plain(LAW) else 0
    nothing = tl.full(c.shape, 0, ACC)
    no_tap = tl.full(c.shape, 0, tl.int32)
    yes = tl.full(c.shape, 1, tl.int1)
    xs = ()
    ts = ()
    theres = ()
    for v in tl.static_range(vectors(AXES, OUT, VECTOR)):
        if vector_used(AXES, v, OUT, VECTOR):
            p = start + v * VECTOR
            ok = inside
            if is_checked(AXES, L, OUT):
                ok = ok & within(p, c, 0, 0, AXES, L)
            elements = loaded(x, at + p * LANES, ok, other, VECTOR)
            for e in tl.static_range(VECTOR):
                value = elements[e].to(ACC)
                if FLIP:
                    value = -value
                xs = xs + (value,)
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
                elements = loaded(dx, at + p * LANES, ok, 0, VECTOR)
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
    if is_extreme(LAW) and of(AXES, L, "stride") == 1 and of(AXES, L, "dilation") == 1 and K > 2 * OUT and OUT > 1:
        # what all of them read is merged once; what some read before and after it, step by step
        ones = ()
        for e in tl.static_range(K + OUT - 1):
            ones = ones + (lift(xs[F + e], ts[F + e], no_tap + (tap + e), theres[F + e], LAW, PUSH),)
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
            state = merge(states[q], after, LAW)
            if not shares(LAW):  # taps are counted from the output's own first
                moved = state[1] - q
                if not is_plain(LAW):
                    moved = tl.where(state[1] < 0, -1, moved)
                state = (state[0], moved)
            states = replaced(states, q, state)
    else:
        for q in tl.static_range(OUT):
            state = ()
            for j in tl.static_range(K):
                one = lift(
                    xs[element(AXES, q, j, VECTOR)], ts[element(AXES, q, j, VECTOR)], no_tap + (tap + j),
                    theres[element(AXES, q, j, VECTOR)], LAW, PUSH,
                )  # fmt: skip
                if j == 0:
                    state = one
                else:
                    state = merge(state, one, LAW)
            states = states + (state,)
    return states


@triton.jit
def gather(
    x, dx, y, b, total,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, MARCH: tl.constexpr,
    OUT: tl.constexpr, VECTOR: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """MARCH outputs along the rows by OUT along the last axis, for a block of everything else.

    MODE says what is stored: "forward" the value in y; "winners" and the tap in b; "push" the tangent along dx;
    "turn" what the law's vjp needs of an output, its m in y and in b its share of dx, which is a cotangent there.
    With INNER, x is what an earlier pass made, and dx which of INNER taps won there: the tap in b is that of both.
    """
    i, ok = block(total, BLOCK, WIDE)
    PUSH: tl.constexpr = MODE == "push"
    L: tl.constexpr = len(AXES) - 1
    A: tl.constexpr = row_axis(AXES)
    INSIDE: tl.constexpr = volume(AXES, "taps", A)  # taps of a row
    rest = i // LANES
    base = i % LANES
    out = base
    cs = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        if a == L:
            c = rest % ((of(AXES, a, "outputs") + OUT - 1) // OUT) * OUT
            rest = rest // ((of(AXES, a, "outputs") + OUT - 1) // OUT)
        elif a == A:
            c = rest % ((of(AXES, a, "outputs") + MARCH - 1) // MARCH) * MARCH
            rest = rest // ((of(AXES, a, "outputs") + MARCH - 1) // MARCH)
        else:
            c = rest % of(AXES, a, "outputs")
            rest = rest // of(AXES, a, "outputs")
        cs = (c,) + cs
        out = out + c * step(AXES, a, LANES, "outputs")
    base = base + rest * (volume(AXES, "size") * LANES)
    out = out + rest * (volume(AXES, "outputs") * LANES)

    zero = tl.full((BLOCK,), 0, ACC)
    no_tap = tl.full((BLOCK,), 0, tl.int32)
    yes = tl.full((BLOCK,), 1, tl.int1)
    accs = ()
    if UNROLL:
        # where the lines of a row start, and whether they are there
        offsets = ()
        insides = ()
        theres = ()
        for t in tl.static_range(volume(AXES, "taps", A, L)):
            at = base
            inside = ok
            there = yes
            for a in tl.static_range(len(AXES)):
                if a != A and a != L:
                    p = started(cs[a], AXES, a) + digit(AXES, t, a, "taps", A, L) * of(AXES, a, "dilation")
                    at = at + p * step(AXES, a, LANES, "size")
                    if of(AXES, a, "checked"):
                        inside = inside & within(p, cs[a], 0, 0, AXES, a)
                        there = there & within(p, cs[a], of(AXES, a, "before"), of(AXES, a, "after"), AXES, a)
            offsets = offsets + (at,)
            insides = insides + (inside,)
            theres = theres + (there,)
        for r in tl.static_range(MARCH):
            for q in tl.static_range(OUT):
                first = no_tap
                if any_checked(AXES) and is_extreme(LAW) and is_plain(LAW):
                    at_q = replaced(cs, L, cs[L] + q)
                    if A >= 0:
                        at_q = replaced(at_q, A, cs[A] + r)
                    first = first_tap(at_q, AXES)
                accs = accs + (lift(zero, zero, first, ~yes, LAW, PUSH),)
        for u in tl.static_range(rows(AXES, A, MARCH)):
            if read_by_any(AXES, A, u, MARCH):
                row_at = tl.full((BLOCK,), 0, i.dtype)
                row = yes
                row_there = yes
                if A >= 0:
                    p = started(cs[A], AXES, A) + u
                    row_at = p * step(AXES, A, LANES, "size")
                    if is_checked(AXES, A, MARCH):
                        row = within(p, cs[A], 0, 0, AXES, A)
                        row_there = within(p, cs[A], of(AXES, A, "before"), of(AXES, A, "after"), AXES, A)
                states = ()
                for t in tl.static_range(volume(AXES, "taps", A, L)):
                    lines = line(
                        x, dx, offsets[t] + row_at, insides[t] & row, theres[t] & row_there, cs[L],
                        t * of(AXES, L, "taps"), LAW, PUSH, FLIP, ACC, AXES, LANES, OUT, VECTOR,
                    )  # fmt: skip
                    if t == 0:
                        states = lines
                    else:
                        for q in tl.static_range(OUT):
                            states = replaced(states, q, merge(states[q], lines[q], LAW))
                for r in tl.static_range(MARCH):
                    if tap_of(AXES, A, u, r) >= 0:
                        for q in tl.static_range(OUT):
                            one = states[q]
                            if is_extreme(LAW) and not shares(LAW):
                                moved = one[1] + tap_of(AXES, A, u, r) * INSIDE
                                if not is_plain(LAW):
                                    moved = tl.where(one[1] < 0, -1, moved)
                                one = (one[0], moved)
                            if tap_of(AXES, A, u, r) == 0 and not any_checked(AXES):
                                accs = replaced(accs, r * OUT + q, one)
                            else:
                                accs = replaced(accs, r * OUT + q, merge(accs[r * OUT + q], one, LAW))
    else:
        first = no_tap
        if any_checked(AXES):
            first = first_tap(cs, AXES)
        acc = lift(zero, zero, first, ~yes, LAW, PUSH)
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
            moved = v
            if PUSH:
                moved = tl.load(dx + at, mask=inside, other=0).to(ACC)
            acc = merge(acc, lift(v, moved, no_tap + t, there, LAW, PUSH), LAW)
        accs = (acc,)

    EVEN: tl.constexpr = of(AXES, L, "outputs") % OUT == 0
    left = of(AXES, L, "outputs") - cs[L]
    for r in tl.static_range(MARCH):
        at = out
        stored = ok
        if A >= 0:
            at = out + r * step(AXES, A, LANES, "outputs")
            if of(AXES, A, "outputs") % MARCH != 0:
                stored = ok & (cs[A] + r < of(AXES, A, "outputs"))
        gs = ()
        if MODE == "turn":
            for q in tl.static_range(OUT):
                gs = gs + (tl.load(dx + at + q * LANES, mask=stored & (left > q), other=0).to(ACC),)
        values = ()
        kept = ()
        for q in tl.static_range(OUT):
            state = accs[r * OUT + q]
            cs_q = replaced(cs, L, cs[L] + q)
            if A >= 0:
                cs_q = replaced(cs_q, A, cs[A] + r)
            n = zero + 1
            if EMPTY or DIVISOR == 0:
                n = count_all(cs_q, AXES).to(ACC)
            if MODE == "push":
                value = share(state[2], state[1], LAW)
            elif MODE == "turn":
                value = state[0]
                kept = kept + (share(gs[q], state[1], LAW),)
            elif DIVISOR == 0:
                value = finish(state, tl.maximum(n, 1), LAW)
            else:
                value = finish(state, DIVISOR, LAW)
            if FLIP and MODE == "forward":
                value = -value
            if EMPTY:
                value = tl.where(n > 0, value, 0).to(ACC)
            values = values + (value,)
            if MODE == "winners":
                tap = state[1]
                if EMPTY:
                    tap = tl.where(n > 0, tap, 0)
                if INNER > 0:  # one axis is pooled here: where its winner lies, the earlier pass' lies
                    won = base
                    for a in tl.static_range(len(AXES)):
                        p = started(cs_q[a], AXES, a)
                        if of(AXES, a, "taps") > 1:
                            p = p + tap * of(AXES, a, "dilation")
                        won = won + p * step(AXES, a, LANES, "size")
                    there = stored & (left > q)
                    if EMPTY:
                        there = there & (n > 0)
                    tap = tap * INNER + unsigned(tl.load(dx + won, mask=there, other=0), dx)
                kept = kept + (tap,)
        store(y, at, values, stored, left, LANES, OUT, EVEN)
        if MODE == "winners" or MODE == "turn":
            store(b, at, kept, stored, left, LANES, OUT, EVEN)


@triton.jit
def collect(
    x, dx, y, b, total,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, ACC: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The same as `gather` for large windows that hardly overlap: a block of outputs, SIDE taps side by side."""
    i, ok = block(total, BLOCK, WIDE)
    PUSH: tl.constexpr = MODE == "push"
    rest = i // LANES
    base = i % LANES
    cs = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        cs = (rest % of(AXES, a, "outputs"),) + cs
        rest = rest // of(AXES, a, "outputs")
    base = base + rest * (volume(AXES, "size") * LANES)
    zero = tl.full((BLOCK, SIDE), 0, ACC)
    no_tap = tl.full((BLOCK, SIDE), 0, tl.int32)
    first = no_tap
    if any_checked(AXES):
        first = first + first_tap(cs, AXES)[:, None]
    acc = lift(zero, zero, first, zero != 0, LAW, PUSH)
    for t in range(0, volume(AXES, "taps"), SIDE):
        tap = t + tl.arange(0, SIDE)
        at = base[:, None] + tap[None, :] * 0
        inside = ok[:, None] & (tap < volume(AXES, "taps"))[None, :]
        there = inside
        rest_t = tap
        for a in tl.static_range(len(AXES) - 1, -1, -1):
            j = rest_t % of(AXES, a, "taps")
            rest_t = rest_t // of(AXES, a, "taps")
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
        moved = v
        if PUSH:
            moved = tl.load(dx + at, mask=inside, other=0).to(ACC)
        acc = merge(acc, lift(v, moved, no_tap + tap[None, :], there, LAW, PUSH), LAW)
    state = together(acc, LAW)
    n = tl.full((BLOCK,), 1, ACC)
    if EMPTY or DIVISOR == 0:
        n = count_all(cs, AXES).to(ACC)
    if MODE == "push":
        value = share(state[2], state[1], LAW)
    elif MODE == "turn":
        value = state[0]
        tl.store(b + i, share(tl.load(dx + i, mask=ok, other=0).to(ACC), state[1], LAW), mask=ok)
    elif DIVISOR == 0:
        value = finish(state, tl.maximum(n, 1), LAW)
    else:
        value = finish(state, DIVISOR, LAW)
    if FLIP and MODE == "forward":
        value = -value
    if EMPTY:
        value = tl.where(n > 0, value, 0).to(ACC)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=ok)
    if MODE == "winners":
        tap = state[1]
        if EMPTY:
            tap = tl.where(n > 0, tap, 0)
        tl.store(b + i, tap.to(b.dtype.element_ty), mask=ok)


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
    DIVISOR: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, MARCH: tl.constexpr, CELL: tl.constexpr,
    VECTOR: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of a block of cells: the sum of what their readers hand them, in the order of the readers.

    A cell is MARCH inputs along the rows by CELL along the last axis, whole strides, so that which tap of which output
    an input is, is known while compiling; VECTOR outputs are read at once. MARCH or CELL 0: that axis is asked, input
    by input. MODE: "spread" by the residual; "linear" over the count; "turned" by what `gather` stored in its "turn".
    With INNER, the residual is of this axis and of later passes' INNER taps, and m is where theirs goes.
    """
    i, ok = block(total, BLOCK, WIDE)
    L: tl.constexpr = len(AXES) - 1 if CELL > 0 else -1
    A: tl.constexpr = row_axis(AXES) if MARCH > 0 else -1
    HIGH: tl.constexpr = MARCH if A >= 0 else 1
    ACROSS: tl.constexpr = CELL if L >= 0 else 1
    rest = i // LANES
    lane = i % LANES
    at_x = lane
    ps = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        if a == L:
            p = rest % ((of(AXES, a, "size") + ACROSS - 1) // ACROSS) * ACROSS
            rest = rest // ((of(AXES, a, "size") + ACROSS - 1) // ACROSS)
        elif a == A:
            p = rest % ((of(AXES, a, "size") + HIGH - 1) // HIGH) * HIGH
            rest = rest // ((of(AXES, a, "size") + HIGH - 1) // HIGH)
        else:
            p = rest % of(AXES, a, "size")
            rest = rest // of(AXES, a, "size")
        ps = (p,) + ps
        at_x = at_x + p * step(AXES, a, LANES, "size")
    base = lane + rest * (volume(AXES, "outputs") * LANES)
    at_x = at_x + rest * (volume(AXES, "size") * LANES)
    EVEN: tl.constexpr = L < 0 or of(AXES, len(AXES) - 1, "size") % ACROSS == 0
    left = of(AXES, len(AXES) - 1, "size") - ps[len(AXES) - 1]

    zero = tl.full((BLOCK,), 0, ACC)
    accs = ()
    xs = ()
    for ea in tl.static_range(HIGH):
        for e in tl.static_range(ACROSS):
            accs = accs + (zero,)
            if MODE == "turned":
                there = ok
                if not EVEN:
                    there = there & (left > e)
                at = at_x + e * LANES
                if A >= 0:
                    at = at + ea * step(AXES, A, LANES, "size")
                    there = there & (ps[A] + ea < of(AXES, A, "size"))
                v = tl.load(x + at, mask=there, other=0).to(ACC)
                if FLIP:
                    v = -v
                xs = xs + (v,)
    if INNER > 0:
        for e in tl.static_range(HIGH * ACROSS):
            accs = accs + (tl.full((BLOCK,), 0, tl.int32),)
    if UNROLL:
        for ma in tl.static_range(readers_of(AXES, A, HIGH, 1)):
            if A < 0 or reads_cell(AXES, A, first_reader(AXES, A, 1) + ma, HIGH, 1):
                for t in tl.static_range(volume(AXES, "readers", A, L)):
                    for ml in tl.static_range(0, readers_of(AXES, L, ACROSS, VECTOR), VECTOR):
                        if L < 0 or reads_cell(AXES, L, first_reader(AXES, L, VECTOR) + ml, ACROSS, VECTOR):
                            accs = taken(
                                accs, xs, dy, m, residual, base, ok, ps, t, first_reader(AXES, A, 1) + ma,
                                first_reader(AXES, L, VECTOR) + ml, LAW, MODE, AXES, LANES, DIVISOR, INNER, ACC, A, L,
                                HIGH, ACROSS, VECTOR,
                            )  # fmt: skip
    else:
        for t in range(volume(AXES, "readers")):
            accs = taken(
                accs, xs, dy, m, residual, base, ok, ps, t, 0, 0, LAW, MODE, AXES, LANES, DIVISOR, INNER, ACC, A, L,
                HIGH, ACROSS, VECTOR,
            )  # fmt: skip
    for ea in tl.static_range(HIGH):
        at = at_x
        stored = ok
        if A >= 0:
            at = at_x + ea * step(AXES, A, LANES, "size")
            if of(AXES, A, "size") % HIGH != 0:
                stored = ok & (ps[A] + ea < of(AXES, A, "size"))
        store(dx, at, accs[ea * ACROSS : (ea + 1) * ACROSS], stored, left, LANES, ACROSS, EVEN)
        if INNER > 0:
            inner = accs[(HIGH + ea) * ACROSS : (HIGH + ea + 1) * ACROSS]
            store(m, at, inner, stored, left, LANES, ACROSS, EVEN)


@triton.jit
def taken(
    accs, xs, dy, m, residual, base, ok, ps, t, ma: tl.constexpr, ml: tl.constexpr,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, DIVISOR: tl.constexpr,
    INNER: tl.constexpr, ACC: tl.constexpr, A: tl.constexpr, L: tl.constexpr, HIGH: tl.constexpr,
    ACROSS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What the inputs of a cell have when VECTOR outputs, the ma-th and ml-th from their own on, have given theirs."""
    at = base
    reads = ok
    tap = tl.full(base.shape, 0, tl.int32)
    cs = ()
    rest_t = t
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        if a == A:
            c = ps[a] // of(AXES, a, "stride") + ma
            reads = reads & (c >= 0) & (c < of(AXES, a, "outputs"))
        elif a == L:
            c = ps[a] // of(AXES, a, "stride") + ml
            reads = reads & (c >= 0) & (c < of(AXES, a, "outputs"))
        else:
            nth = rest_t % of(AXES, a, "readers")
            rest_t = rest_t // of(AXES, a, "readers")
            c, j, there = reader(ps[a], of(AXES, a, "readers") - 1 - nth, AXES, a)
            reads = reads & there
            tap = tap + (j * step(AXES, a, 1, "taps")).to(tl.int32)
        at = at + c * step(AXES, a, LANES, "outputs")
        cs = (c,) + cs
    gs = loaded(dy, at, reads, 0, VECTOR)
    wons = gs
    tops = gs
    if MODE == "spread":
        wons = loaded(residual, at, reads, 0, VECTOR)
    if MODE == "turned":
        tops = loaded(m, at, reads, 0, VECTOR)
    for v in tl.static_range(VECTOR):
        g = gs[v].to(ACC)
        if MODE == "linear":
            if DIVISOR == 0:
                n = count_all(replaced(cs, len(AXES) - 1, cs[len(AXES) - 1] + v), AXES)
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
        for ea in tl.static_range(HIGH):
            for e in tl.static_range(ACROSS):
                if known_tap(AXES, A, L, ea, e, ma, ml + v) >= 0:
                    one = g
                    if MODE == "spread":
                        mine = (won == known_tap(AXES, A, L, ea, e, ma, ml + v)) & reads
                        one = tl.where(mine, g, 0.0).to(ACC)
                        if INNER > 0:
                            # All who won here by this input won there by the same tap; but an output that nobody won
                            # by, which has nothing to hand on, names any.
                            at_e = accs[(HIGH + ea) * ACROSS + e]
                            told = tl.where(mine & (g != 0), inner, at_e)
                            accs = replaced(accs, (HIGH + ea) * ACROSS + e, told)
                    elif MODE == "turned":
                        one = weigh(g, xs[ea * ACROSS + e], tops[v].to(ACC), LAW)
                        one = tl.where(reads, one, 0.0).to(ACC)
                    accs = replaced(accs, ea * ACROSS + e, accs[ea * ACROSS + e] + one)
    return accs


# -- which tap won -----------------------------------------------------------------------------------------------------


@triton.jit
def pick(
    residual,
    dx,
    y,
    total,
    STEPS: tl.constexpr,
    AXES: tl.constexpr,
    LANES: tl.constexpr,
    EMPTY: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The tangent of what won, for a block of outputs; with STEPS its position instead, by the step of each axis, and
    -1 where nothing is read."""
    i, ok = block(total, BLOCK, WIDE)
    tap = unsigned(tl.load(residual + i, mask=ok, other=0), residual)
    rest = i // LANES
    at = i % LANES
    place = tl.full((BLOCK,), 0, tl.int64)
    cs = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        c = rest % of(AXES, a, "outputs")
        rest = rest // of(AXES, a, "outputs")
        p = started(c, AXES, a) + tap % of(AXES, a, "taps") * of(AXES, a, "dilation")
        tap = tap // of(AXES, a, "taps")
        at = at + p * step(AXES, a, LANES, "size")
        if STEPS is not None:
            place = place + p.to(tl.int64) * STEPS[a]
        cs = (c,) + cs
    at = at + rest * (volume(AXES, "size") * LANES)
    there = ok
    if EMPTY:
        there = ok & (count_all(cs, AXES) > 0)
    if STEPS is None:
        tl.store(y + i, tl.load(dx + at, mask=there, other=0), mask=ok)
    else:
        tl.store(y + i, tl.where(there, place, -1), mask=ok)
