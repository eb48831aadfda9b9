"""Kernels of outputs: `gather` (an output's taps: forward, jvp, what a vjp hands back), `collect` (the same for large
windows that hardly overlap), `jvp_by_winner` (which tap won: jvp of a choice, and where it was).

Each serves every law, rank and layout; loops over axes and taps are unrolled. The order of merges is a matter of the
window and of the output's place in it, so neither the block nor the lead changes a bit. No law here.
"""

# Functions of constants are plain Python, but may call no function that Triton does not know.
# An else after a return is needed: without it, the branch that is not taken is compiled, too.
# ruff: noqa: B007, RET505, SIM102
import triton
import triton.language as tl

from .geometry import (
    address,
    any_checked,
    block,
    cell_of,
    cell_size,
    cells_at,
    count_all,
    counts_zeros,
    element,
    first_tap,
    further,
    held_of,
    is_checked,
    of,
    read_by_any,
    row_at,
    row_of,
    rows,
    slack,
    started,
    step,
    tap_of,
    vector_used,
    vectors,
    volume,
    within,
)  # fmt: skip
from .laws import (
    among,
    beyond,
    bits,
    bits_of_minus_zero,
    finish,
    is_extreme,
    is_hasty,
    is_linear,
    is_plain,
    is_quick,
    is_relative,
    largest,
    lift,
    lowest,
    merge,
    moved,
    quick,
    relative,
    share,
    term,
    together,
    unless_safe,
)  # fmt: skip
from .releases import constexpr_function, keyed
from .vectors import loaded, replaced, restated, store, taken, unsigned

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


@constexpr_function
def shares_core(axes, out, law):
    """Whether neighbours have many taps in common, and the law may take these first: a short sum is taken in order."""
    last = len(axes) - 1
    slides = of(axes, last, "stride") == 1 and of(axes, last, "dilation") == 1 and of(axes, last, "per") == 1
    many = of(axes, last, "taps") > (max(out, 8) if is_linear(law) else out)
    return slides and many and out > 1 and (is_linear(law) or is_extreme(law))


@triton.jit
def line(x, dx, top, inside, there, c, LAW: tl.constexpr, JVP: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
         AXES: tl.constexpr, LANES: tl.constexpr, OUT: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The states of OUT neighbouring outputs, from their taps on one line of the last axis, to which x and dx point;
    and the least of the bits that were read, where the law is quick. A relative law is so to `top`."""
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
                if is_relative(LAW) and read_by_any(AXES, L, v * VECTOR + e - F, OUT):
                    value = term(value, top, LAW)
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
            if JVP:
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
    if shares_core(AXES, OUT, LAW):
        # what all of them read is merged once; what some read before and after it, step by step
        ones = ()
        for e in tl.static_range(K + OUT - 1):
            ones = ones + (lift(xs[F + e], ts[F + e], no_tap + e, theres[F + e], LAW, JVP),)
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
            one = moved(merge(states[q], after, LAW), -q, LAW)
            states = restated(states, q, one, OUT, len(one))
    else:
        for q in tl.static_range(OUT):
            ones = ()
            for j in tl.static_range(K):
                one = lift(
                    xs[element(AXES, q, j, VECTOR)], ts[element(AXES, q, j, VECTOR)], no_tap + j,
                    theres[element(AXES, q, j, VECTOR)], LAW, JVP,
                )  # fmt: skip
                ones = ones + (one,)
            states = states + (among(ones, LAW),)
    return states, low


@keyed
@triton.jit
def folded(x, dx, top, inside, there, cs, a: tl.constexpr, LAW: tl.constexpr, JVP: tl.constexpr, FLIP: tl.constexpr,
           ACC: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The states of a cell of outputs, from axis `a` on: what each row makes, merged into every output that reads the
    row. And the least bits, as `line` has them."""
    if a == len(AXES) - 1:
        return line(x, dx, top, inside, there, cs[a], LAW, JVP, FLIP, ACC, AXES, LANES, cell_of(CELLS, a), VECTOR)
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
                    x + u * step(AXES, a, LANES, "size"), dx + u * step(AXES, a, LANES, "size"), top, row, row_there,
                    cs, a + 1, LAW, JVP, FLIP, ACC, AXES, LANES, CELLS, VECTOR,
                )  # fmt: skip
                low = tl.minimum(low, least)
                for r in tl.static_range(cell_of(CELLS, a)):
                    for q in tl.static_range(N):
                        if tap_of(AXES, a, u, r) >= 0:
                            one = moved(lines[q], tap_of(AXES, a, u, r) * volume(AXES, "taps", a), LAW)
                            if tap_of(AXES, a, u, r) == 0:
                                states = states + (one,)
                            else:
                                one = merge(states[r * N + q], one, LAW)
                                states = restated(states, r * N + q, one, len(states), len(one))
        return states, low


@triton.jit
def top_of(x, ok, cs, LAW: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr, AXES: tl.constexpr,
           LANES: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The largest on one line of a cell's taps that is hardly ever beyond the input: what terms may be relative to."""
    L: tl.constexpr = len(AXES) - 1
    for a in tl.static_range(L):
        x = x + of(AXES, a, "lo") * step(AXES, a, LANES, "size")
        ok = ok & within(started(cs[a], AXES, a) + of(AXES, a, "lo"), cs[a], 0, 0, AXES, a)
    none = tl.full(cs[0].shape, 0, ACC)
    states, _ = line(x, x, none, ok, ok, cs[L], largest(LAW), False, FLIP, ACC, AXES, LANES, cell_of(CELLS, L), VECTOR)
    top = states[0][0]
    for q in tl.static_range(1, len(states)):
        top = tl.maximum(top, states[q][0])
    return top


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
    if MODE == "jvp":
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
    LAW: tl.constexpr, PUT: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr,
    FLIP: tl.constexpr, DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr,
    CELLS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Makes a cell of outputs by one law, all rows of it known while compiling, and stores them by another; the least
    bits, as `line` has them."""
    OUT: tl.constexpr = cell_of(CELLS, len(AXES) - 1)
    base = lane + lead * (volume(AXES, "size") * LANES)
    at = base + first_tap_at(cs, AXES, LANES, VECTOR)
    JVP: tl.constexpr = MODE == "jvp"
    yes = tl.full(i.shape, 1, tl.int1)
    top = tl.full(i.shape, 0, ACC)
    if is_relative(LAW):
        top = top_of(x + at, ok, cs, LAW, FLIP, ACC, AXES, LANES, CELLS, VECTOR)
    states, low = folded(x + at, dx + at, top, ok, yes, cs, 0, LAW, JVP, FLIP, ACC, AXES, LANES, CELLS, VECTOR)
    if is_relative(LAW):
        states = beyond(top, states)
    for r in tl.static_range(cell_size(CELLS) // OUT):
        cs_r, there = row_at(cs, ok, r, AXES, CELLS, "outputs")
        put(states[r * OUT : (r + 1) * OUT], cs_r, there, i, base, lane, lead, dx, y, b, PUT, MODE, AXES, LANES, FLIP,
            DIVISOR, EMPTY, INNER, ACC, CELLS)  # fmt: skip
        if is_relative(LAW):
            for q in tl.static_range(OUT):
                made = there & (cs[len(AXES) - 1] + q < of(AXES, len(AXES) - 1, "outputs"))
                low = unless_safe(low, states[r * OUT + q][1], made, ACC)
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
        at = address(cs_r, lane, lead, AXES, LANES, "outputs")
        cell_put(x, dx, y, b, at, there, cs_r, lane, lead, LAW, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER,
                 ACC, row_of(CELLS), VECTOR)  # fmt: skip


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
    JVP: tl.constexpr = MODE == "jvp"
    base = lane + lead * (volume(AXES, "size") * LANES)
    at = base + first_tap_at(cs, AXES, LANES, VECTOR)
    zero = tl.full(i.shape, 0, ACC)
    no_tap = tl.full(i.shape, 0, tl.int32)
    yes = tl.full(i.shape, 1, tl.int1)
    low = bits(zero)
    held = ()
    for n in tl.static_range((K - 1) * N):
        held = held + (lift(zero, zero, no_tap, ~yes, LAW, JVP),)
    for u in range(cell_of(CELLS, 0) + K - 1):
        p = started(cs[0], AXES, 0) + u
        row = ok & within(p, cs[0], 0, 0, AXES, 0)
        row_there = within(p, cs[0], of(AXES, 0, "before"), of(AXES, 0, "after"), AXES, 0)
        at_u = at + u * step(AXES, 0, LANES, "size")
        states, least = folded(
            x + at_u, dx + at_u, zero, row, row_there, cs, 1, LAW, JVP, FLIP, ACC, AXES, LANES, CELLS, VECTOR
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
            cs_r, there = row_at(replaced(cs, 0, c), done, r, AXES, held_of(CELLS, 1), "outputs")
            put(made, cs_r, there, i, base, lane, lead, dx, y, b, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER,
                ACC, CELLS)  # fmt: skip
        held = held[N:] + states
    return low


@constexpr_function
def hasty(law, mode, axes, empty, march):
    """A law that makes the same in less time, but for rare inputs."""
    if mode == "forward" and volume(axes, "taps") > 4 and is_extreme(law):
        return quick(law)
    if mode in ("forward", "jvp") and law[0] == "smooth_max" and not empty and not march:
        return relative(law)
    return law


@triton.jit
def gather(
    x, dx, total, y, b,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr,
    VECTOR: tl.constexpr, MARCH: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A cell of outputs, CELLS along each axis, for a block of everything else; with MARCH, step by step along the
    first.

    MODE says what is stored: "forward" the value in y; "winners" and the tap in b; "jvp" the tangent along dx;
    "turn" what the law's vjp needs of an output, its m in y and in b its share of dx, which is a cotangent there.
    With INNER, x is what an earlier pass made, and dx which of INNER taps won there: the tap in b is that of both.

    A forward of a max of more than a few taps is the maximum that the device has. That takes +0 for above -0, so where
    a -0 was read all is made again; and where a relative sum is not safe.
    """
    i, ok = block(total, BLOCK, WIDE)
    cs, lane, lead = cells_at(i, AXES, LANES, CELLS, "outputs")
    HASTE: tl.constexpr = hasty(LAW, MODE, AXES, EMPTY, MARCH)
    if UNROLL:
        if MARCH:
            low = marched(x, dx, y, b, i, ok, cs, lane, lead, HASTE, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER,
                          ACC, CELLS, VECTOR)  # fmt: skip
        else:
            low = cell_put(x, dx, y, b, i, ok, cs, lane, lead, HASTE, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY,
                           INNER, ACC, CELLS, VECTOR)  # fmt: skip
        if is_hasty(HASTE) and ACC.is_floating():
            if tl.min(low, 0) == bits_of_minus_zero(ACC):
                tl.debug_barrier()  # what was stored is stored over
                one_by_one(x, dx, y, b, i, ok, cs, lane, lead, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER, ACC,
                           CELLS, VECTOR)  # fmt: skip
    else:
        base = lane + lead * (volume(AXES, "size") * LANES)
        yes = tl.full((BLOCK,), 1, tl.int1)
        no_tap = tl.full((BLOCK,), 0, tl.int32)
        JVP: tl.constexpr = MODE == "jvp"
        acc = lift(tl.full((BLOCK,), 0, ACC), tl.full((BLOCK,), 0, ACC), no_tap, ~yes, LAW, JVP)
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
            if JVP:
                t_v = tl.load(dx + at, mask=inside, other=0).to(ACC)
            acc = merge(acc, lift(v, t_v, no_tap + t, there, LAW, JVP), LAW)
        put((acc,), cs, ok, i, base, lane, lead, dx, y, b, LAW, MODE, AXES, LANES, FLIP, DIVISOR, EMPTY, INNER, ACC,
            CELLS)  # fmt: skip


@triton.jit
def beside(x, dx, low, base, cs, ok, t, LAW: tl.constexpr, JVP: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
           AXES: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The states of SIDE taps of each output, from tap t on; and the least bits, as `line` has them."""
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
    if JVP:
        t_v = tl.load(dx + at, mask=inside, other=0).to(ACC)
    if is_quick(LAW):
        low = tl.minimum(low, bits(v))
    return lift(v, t_v, tl.full(v.shape, 0, tl.int32) + tap[None, :], there, LAW, JVP), low


@triton.jit
def abreast(x, dx, base, cs, ok, LAW: tl.constexpr, JVP: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
            AXES: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The states of a block of outputs, SIDE taps side by side, and the least bits."""
    TAPS: tl.constexpr = volume(AXES, "taps")
    low = bits(tl.full((base.shape[0], SIDE), 0, ACC))
    acc, low = beside(x, dx, low, base, cs, ok, 0, LAW, JVP, FLIP, ACC, AXES, LANES, SIDE)
    if TAPS <= 8 * SIDE:
        for t in tl.static_range(SIDE, TAPS, SIDE):
            one, low = beside(x, dx, low, base, cs, ok, t, LAW, JVP, FLIP, ACC, AXES, LANES, SIDE)
            acc = merge(acc, one, LAW)
    else:
        for t in range(SIDE, TAPS, SIDE):
            one, low = beside(x, dx, low, base, cs, ok, t, LAW, JVP, FLIP, ACC, AXES, LANES, SIDE)
            acc = merge(acc, one, LAW)
    return together(acc, 1, LAW), tl.min(low, 1)


@triton.jit
def unravelled(x, first, total, N: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK windows of N elements that lie one after another, as columns: loaded as they lie, then turned."""
    k = tl.arange(0, SIDE * BLOCK)
    flat = tl.load(x + first * N + k, mask=(k < BLOCK * N) & (k < (total - first) * N), other=0)
    at = tl.minimum(k % BLOCK * N + k // BLOCK, BLOCK * N - 1)
    return tl.reshape(tl.gather(flat, at.to(tl.int32), 0), (SIDE, BLOCK))


@triton.jit
def collect(
    x, dx, total, y, b,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, EMPTY: tl.constexpr, ACC: tl.constexpr, SIDE: tl.constexpr, FLAT: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same as `gather` for large windows that hardly overlap: a block of outputs, SIDE taps side by side. FLAT: the
    windows lie one after another, and are loaded at once."""
    i, ok = block(total, BLOCK, WIDE)
    JVP: tl.constexpr = MODE == "jvp"
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
        if JVP:
            t_v = unravelled(dx, first * BLOCK, total, TAPS, SIDE, BLOCK).to(ACC)
        tap = tl.arange(0, SIDE)[:, None] + tl.full((SIDE, BLOCK), 0, tl.int32)
        there = tap < TAPS
        if is_linear(LAW):
            v = tl.where(there, v, 0).to(ACC)
        state = together(lift(v, t_v, tap, there, LAW, JVP), 0, LAW)
    else:
        base = lane + lead * (volume(AXES, "size") * LANES)
        HASTE: tl.constexpr = quick(LAW) if MODE == "forward" else LAW
        state, low = abreast(x, dx, base, cs, ok, HASTE, JVP, FLIP, ACC, AXES, LANES, SIDE)
        if is_quick(HASTE) and ACC.is_floating():
            if tl.min(low, 0) == bits_of_minus_zero(ACC):
                exact, _ = abreast(x, dx, base, cs, ok, LAW, JVP, FLIP, ACC, AXES, LANES, SIDE)
                state = (exact[0],)
    g = state[0]
    if MODE == "turn":
        g = tl.load(dx + i, mask=ok, other=0).to(ACC)
    value, kept = finished(state, g, cs, LAW, MODE, AXES, FLIP, DIVISOR, EMPTY)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=ok)
    if MODE == "winners" or MODE == "turn":
        tl.store(b + i, kept.to(b.dtype.element_ty), mask=ok)


# -- which tap won -----------------------------------------------------------------------------------------------------


@triton.jit
def jvp_by_winner(
    residual, dx, total, y,
    STEPS: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, EMPTY: tl.constexpr, CELLS: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The tangent of what won, for a block of rows of neighbouring outputs; with STEPS its position instead, by the
    step of each axis, and -1 where nothing is read."""
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
