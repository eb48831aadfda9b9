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
# ruff: noqa: SIM110
import triton
import triton.language as tl

from .laws import finish, is_extreme, is_plain, lift, merge, share, shares, weigh

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
def volume(axes, name, but=-1):
    """The product of a field over all axes, perhaps but one."""
    n = 1
    for a in range(len(axes)):
        n = n * (1 if a == but else field(axes[a], name))
    return n


@triton.constexpr_function
def digit(axes, t, a, name, but=-1):
    """The a-th digit of t, the axes being its radices, perhaps but one."""
    for b in range(len(axes) - 1, a, -1):
        t = t // (1 if b == but else field(axes[b], name))
    return t % field(axes[a], name)


@triton.constexpr_function
def marched(axes):
    """The axis whose outputs share rows of taps: the first that joins any."""
    for a in range(len(axes)):
        if field(axes[a], "taps") > 1:
            return a
    return 0


@triton.constexpr_function
def rows(axes, a, march):
    """How many rows `march` neighbouring outputs read together."""
    return (march - 1) * of(axes, a, "stride") + (of(axes, a, "taps") - 1) * of(axes, a, "dilation") + 1


@triton.constexpr_function
def tap_of_row(axes, a, u, r):
    """Which tap of the r-th output row u is; -1 for none."""
    j = u - r * of(axes, a, "stride")
    d = of(axes, a, "dilation")
    return -1 if j < 0 or j % d or j // d >= of(axes, a, "taps") else j // d


@triton.constexpr_function
def read_by_any(axes, a, u, march):
    for r in range(march):
        if tap_of_row(axes, a, u, r) >= 0:
            return True
    return False


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


# -- an output's taps --------------------------------------------------------------------------------------------------


@triton.jit
def tapped(x, dx, at, inside, there, tap, LAW: tl.constexpr, PUSH: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr):
    """The state of one tap from memory."""
    v = tl.load(x + at, mask=inside, other=0).to(ACC)
    if FLIP:
        v = -v
    t = v
    if PUSH:
        t = tl.load(dx + at, mask=inside, other=0).to(ACC)
    return lift(v, t, tap, there, LAW, PUSH)


@triton.jit
def replaced(tuple_, r: tl.constexpr, value):
    return tuple_[:r] + (value,) + tuple_[r + 1 :]


@triton.jit
def gather(
    x,
    dx,
    y,
    b,
    total,
    LAW: tl.constexpr,
    MODE: tl.constexpr,
    AXES: tl.constexpr,
    LANES: tl.constexpr,
    FLIP: tl.constexpr,
    DIVISOR: tl.constexpr,
    EMPTY: tl.constexpr,
    ACC: tl.constexpr,
    MARCH: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """MARCH outputs along one axis, for a block of everything else.

    MODE says what is stored: "forward" the value in y; "winners" and the tap in b; "push" the tangent along dx;
    "turn" what the law's vjp needs of an output, its m in y and in b its share of dx, which is a cotangent there.
    """
    i, ok = block(total, BLOCK, WIDE)
    PUSH: tl.constexpr = MODE == "push"
    A: tl.constexpr = marched(AXES)
    rest = i // LANES
    base = i % LANES
    out = base
    cs = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        if a == A:
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
        # offsets and checks of the taps on all axes but the marched one
        offsets = ()
        insides = ()
        theres = ()
        for t in tl.static_range(volume(AXES, "taps", A)):
            at = base
            inside = ok
            there = yes
            for a in tl.static_range(len(AXES)):
                if a != A:
                    p = started(cs[a], AXES, a) + digit(AXES, t, a, "taps", A) * of(AXES, a, "dilation")
                    at = at + p * step(AXES, a, LANES, "size")
                    if of(AXES, a, "checked"):
                        inside = inside & within(p, cs[a], 0, 0, AXES, a)
                        if counts_zeros(AXES, LAW):
                            there = there & within(p, cs[a], of(AXES, a, "before"), of(AXES, a, "after"), AXES, a)
            offsets = offsets + (at,)
            insides = insides + (inside,)
            theres = theres + (there,)
        for r in tl.static_range(MARCH):
            first = no_tap
            if any_checked(AXES) and is_extreme(LAW) and is_plain(LAW):
                first = first_tap(replaced(cs, A, cs[A] + r), AXES)
            accs = accs + (lift(zero, zero, first, ~yes, LAW, PUSH),)
        start = started(cs[A], AXES, A)
        for u in tl.static_range(rows(AXES, A, MARCH)):
            if read_by_any(AXES, A, u, MARCH):
                p = start + u
                row = yes
                row_there = yes
                if of(AXES, A, "checked"):
                    row = within(p, cs[A], 0, 0, AXES, A)
                    if counts_zeros(AXES, LAW):
                        row_there = within(p, cs[A], of(AXES, A, "before"), of(AXES, A, "after"), AXES, A)
                state = ()
                for t in tl.static_range(volume(AXES, "taps", A)):
                    inside = insides[t] & row
                    there = theres[t] & row_there if counts_zeros(AXES, LAW) else inside
                    if not any_checked(AXES):
                        there = yes
                    at = offsets[t] + p * step(AXES, A, LANES, "size")
                    one = tapped(x, dx, at, inside, there, no_tap + t, LAW, PUSH, FLIP, ACC)
                    if t == 0:
                        state = one
                    else:
                        state = merge(state, one, LAW)
                for r in tl.static_range(MARCH):
                    if tap_of_row(AXES, A, u, r) >= 0:
                        one = state
                        if is_extreme(LAW) and not shares(LAW):
                            tap = state[1] + tap_of_row(AXES, A, u, r) * volume(AXES, "taps", A)
                            if not is_plain(LAW):
                                tap = tl.where(state[1] < 0, -1, tap)
                            one = (state[0], tap)
                        if tap_of_row(AXES, A, u, r) == 0 and not any_checked(AXES):
                            accs = replaced(accs, r, one)
                        else:
                            accs = replaced(accs, r, merge(accs[r], one, LAW))
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
            one = tapped(x, dx, at, inside, there, no_tap + t, LAW, PUSH, FLIP, ACC)
            acc = merge(acc, one, LAW)
        accs = (acc,)

    for r in tl.static_range(MARCH):
        state = accs[r]
        at = out + r * step(AXES, A, LANES, "outputs")
        stored = ok
        if of(AXES, A, "outputs") % MARCH != 0:
            stored = ok & (cs[A] + r < of(AXES, A, "outputs"))
        n = zero + 1
        if EMPTY or DIVISOR == 0:
            n = count_all(replaced(cs, A, cs[A] + r), AXES).to(ACC)
        if MODE == "push":
            value = share(state[2], state[1], LAW)
        elif MODE == "turn":
            value = state[0]
            g = tl.load(dx + at, mask=stored, other=0).to(ACC)
            tl.store(b + at, share(g, state[1], LAW), mask=stored)
        elif DIVISOR == 0:
            value = finish(state, tl.maximum(n, 1), LAW)
        else:
            value = finish(state, DIVISOR, LAW)
        if FLIP and MODE == "forward":
            value = -value
        if EMPTY:
            value = tl.where(n > 0, value, 0).to(ACC)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=stored)
        if MODE == "winners":
            tap = state[1]
            if EMPTY:
                tap = tl.where(n > 0, tap, 0)
            tl.store(b + at, tap.to(b.dtype.element_ty), mask=stored)


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
def handed(
    dy,
    m,
    residual,
    at,
    reads,
    cs,
    tap,
    x,
    LAW: tl.constexpr,
    MODE: tl.constexpr,
    AXES: tl.constexpr,
    DIVISOR: tl.constexpr,
    ACC: tl.constexpr,
):
    """What one output hands to a tap of it."""
    g = tl.load(dy + at, mask=reads, other=0).to(ACC)
    if MODE == "spread":
        won = tl.load(residual + at, mask=reads, other=0).to(tl.int32)
        if residual.dtype.element_ty == tl.int16:
            won = won & 0xFFFF
        g = tl.where(won == tap, g, 0.0).to(ACC)
    elif MODE == "linear":
        if DIVISOR == 0:
            g = g / tl.maximum(count_all(cs, AXES), 1).to(ACC)
        elif DIVISOR != 1:
            g = g / DIVISOR
    else:
        top = tl.load(m + at, mask=reads, other=0).to(ACC)
        g = tl.where(reads, weigh(g, x, top, LAW), 0.0).to(ACC)
    return g


@triton.jit
def scatter(
    x,
    dy,
    m,
    residual,
    dx,
    total,
    LAW: tl.constexpr,
    MODE: tl.constexpr,
    AXES: tl.constexpr,
    LANES: tl.constexpr,
    FLIP: tl.constexpr,
    DIVISOR: tl.constexpr,
    ACC: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The cotangent of a block of inputs: the sum of what their readers hand them.

    MODE: "spread" by the residual; "linear" over the count; "turned" by what `gather` stored in its "turn".
    """
    i, ok = block(total, BLOCK, WIDE)
    rest = i // LANES
    lane = i % LANES
    ps = ()
    for a in tl.static_range(len(AXES) - 1, -1, -1):
        ps = (rest % of(AXES, a, "size"),) + ps
        rest = rest // of(AXES, a, "size")
    base = lane + rest * (volume(AXES, "outputs") * LANES)
    acc = tl.full((BLOCK,), 0, ACC)
    v = acc
    if MODE == "turned":
        v = tl.load(x + i, mask=ok, other=0).to(ACC)
        if FLIP:
            v = -v
    if UNROLL:
        for t in tl.static_range(volume(AXES, "readers")):
            at = base
            reads = ok
            tap = tl.full((BLOCK,), 0, i.dtype)
            cs = ()
            for a in tl.static_range(len(AXES)):
                c, j, there = reader(ps[a], of(AXES, a, "readers") - 1 - digit(AXES, t, a, "readers"), AXES, a)
                at = at + c * step(AXES, a, LANES, "outputs")
                tap = tap * of(AXES, a, "taps") + j
                reads = reads & there
                cs = cs + (c,)
            acc += handed(dy, m, residual, at, reads, cs, tap, v, LAW, MODE, AXES, DIVISOR, ACC)
    else:
        for t in range(volume(AXES, "readers")):
            at = base
            reads = ok
            tap = tl.full((BLOCK,), 0, i.dtype)
            rest_t = t
            cs = ()
            for a in tl.static_range(len(AXES) - 1, -1, -1):
                c, j, there = reader(ps[a], of(AXES, a, "readers") - 1 - rest_t % of(AXES, a, "readers"), AXES, a)
                rest_t = rest_t // of(AXES, a, "readers")
                at = at + c * step(AXES, a, LANES, "outputs")
                tap = tap + j * step(AXES, a, 1, "taps")
                reads = reads & there
                cs = (c,) + cs
            acc += handed(dy, m, residual, at, reads, cs, tap, v, LAW, MODE, AXES, DIVISOR, ACC)
    tl.store(dx + i, acc.to(dx.dtype.element_ty), mask=ok)


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
    tap = tl.load(residual + i, mask=ok, other=0).to(tl.int32)
    if residual.dtype.element_ty == tl.int16:
        tap = tap & 0xFFFF
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
