"""Kernels of inputs, the vjp in gather form: `scatter` (an input's readers), `lay` (windows one after another), `vjp`
(laws that weigh their taps, where few outputs read an input), `runs` and `walk` (long windows along one axis).

Each serves every rank and layout. What an input gets is summed in the order of its readers, or as a tree that the
window alone shapes, so neither the block nor the lead changes a bit; nobody else writes it, so there are no atomics.
"""

# Functions of constants are plain Python, but may call no function that Triton does not know.
# An else after a return is needed: without it, the branch that is not taken is compiled, too.
# ruff: noqa: B007, SIM102
import triton
import triton.language as tl

from .gather import first_tap_at, folded, hasty
from .geometry import (
    address,
    all_readings,
    block,
    cell_of,
    cell_size,
    cells_at,
    checked,
    count_all,
    earliest,
    finds_any,
    from_first,
    further,
    held_of,
    is_known,
    is_tap,
    known_distance,
    known_taps,
    of,
    power_of_two,
    readers_of,
    reading,
    readings,
    row_at,
    started,
    step,
    strides_of,
    volume,
    within_cell,
)  # fmt: skip
from .laws import beyond, bits_of_minus_zero, is_hasty, is_relative, share, term, unless_safe, weigh
from .vectors import loaded, replaced, store, taken, unsigned

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
def scatter(
    x, dy, m, residual, total, earlier, dx,
    LAW: tl.constexpr, MODE: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr,
    DIVISOR: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr,
    MARCH: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of a block of cells: the sum of what their readers hand them, in the order of the readers.

    A cell is CELLS inputs along each axis. Whole strides: which tap of which output an input is, is known while
    compiling, and VECTOR outputs of the last axis are read at once. A part of a stride: the cell has one reader, which
    is asked for; 0: so has each input. MODE: "vjp_by_winner" by the residual; "linear" over the count; "turned" by what
    `gather` stored in its "turn". With INNER, the residual is of this axis and of the INNER taps of earlier passes, and
    `earlier` is where theirs goes. With MARCH the cells go along the first axis step by step, and every output is read
    once.
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
                ps_r, there = row_at(replaced(ps, 0, p), done, r, AXES, held_of(CELLS, 1), "size")
                at = address(ps_r, lane, lead, AXES, LANES, "size")
                store(dx, at, accs[r * ACROSS : (r + 1) * ACROSS], there, left, LANES, ACROSS, EVEN)
            accs = accs[ROW:]
            for e in tl.static_range(ROW):
                accs = accs + (tl.full((BLOCK,), 0, ACC),)
    else:
        ats = ()  # where the rows of the cell lie, and whether they are there
        theres = ()
        for r in tl.static_range(N // ACROSS):
            ps_r, there = row_at(ps, ok, r, AXES, CELLS, "size")
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
                store(
                    earlier, ats[r], accs[N + r * ACROSS : N + (r + 1) * ACROSS], theres[r], left, LANES, ACROSS, EVEN
                )


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
            own = ps[a] // of(AXES, a, "stride")
            c = own + reading(AXES, CELLS, T, a, VECTOR)
            reads = reads & (c >= 0) & (c < of(AXES, a, "outputs"))
            at = at + own * step(AXES, a, LANES, "outputs")
        else:
            c, j, there = reader(ps[a], of(AXES, a, "readers") - 1 - rest % of(AXES, a, "readers"), AXES, a)
            reads = reads & there
            tap = tap + (j * volume(AXES, "taps", a)).to(tl.int32)
            at = at + c * step(AXES, a, LANES, "outputs")
        rest = rest // readings(AXES, CELLS, a, VECTOR)
        cs = (c,) + cs
    AWAY: tl.constexpr = known_distance(AXES, CELLS, LANES, T, VECTOR)  # a constant, which addresses have room for
    gs = loaded(dy + at + AWAY, reads, 0, VECTOR)
    wons = gs
    tops = gs
    if MODE == "vjp_by_winner":
        wons = loaded(residual + at + AWAY, reads, 0, VECTOR)
    if MODE == "turned":
        tops = loaded(m + at + AWAY, reads, 0, VECTOR)
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
        if MODE == "vjp_by_winner":
            won = unsigned(wons[v], residual)
            if INNER > 0:
                inner = won % INNER
                won = won // INNER
            won = won - tap
        for e in tl.static_range(N):
            if TAPS[v * N + e] >= 0:
                if MODE == "vjp_by_winner":
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
    dy, residual, total, dx,
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
    if MODE == "vjp_by_winner":
        won = unsigned(tl.load(residual + c, mask=ok, other=0), residual)
        after = unsigned(tl.load(residual + c + 1, mask=both, other=0), residual) + N
    elif DIVISOR != 1:
        g = g / DIVISOR
        h = h / DIVISOR
    values = ()
    for e in tl.static_range(VECTOR):
        if MODE == "vjp_by_winner":
            value = tl.where(tap + e == won, g, tl.where(tap + e == after, h, 0.0)).to(ACC)
        else:
            value = tl.where(tap + e < N, g, h)
        values = values + (value,)
    store(dx, i * VECTOR, values, ok, i, 1, VECTOR, True)


@triton.jit
def pulled(
    x, dy, dx, ok, ps, lane, lead,
    LAW: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr, ACC: tl.constexpr,
    CELLS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Makes and stores the cotangent of a block of cells; the least bits, as `gather` has them for a relative law."""
    L: tl.constexpr = len(AXES) - 1
    ACROSS: tl.constexpr = cell_of(CELLS, L)
    EVEN: tl.constexpr = of(AXES, L, "size") % ACROSS == 0
    READERS: tl.constexpr = readers_of(AXES, CELLS)
    left = of(AXES, L, "size") - ps[L]
    cs = ()
    for a in tl.static_range(len(AXES)):
        cs = cs + (ps[a] // of(AXES, a, "stride") + earliest(AXES, a),)
    at = lane + lead * (volume(AXES, "size") * LANES) + first_tap_at(cs, AXES, LANES, VECTOR)
    ats = ()
    theres = ()
    xs = ()
    accs = ()
    for r in tl.static_range(cell_size(CELLS) // ACROSS):
        ps_r, there = row_at(ps, ok, r, AXES, CELLS, "size")
        ats = ats + (address(ps_r, lane, lead, AXES, LANES, "size"),)
        theres = theres + (there,)
        row = taken(x, ats[r], there, left, LANES, ACROSS, EVEN)
        for e in tl.static_range(ACROSS):
            xs = xs + (-row[e].to(ACC) if FLIP else row[e].to(ACC),)
            accs = accs + (tl.full(lane.shape, 0, ACC),)
    yes = tl.full(lane.shape, 1, tl.int1)
    top = xs[0]
    for e in tl.static_range(1, len(xs)):
        top = tl.maximum(top, xs[e])
    ROOM: tl.constexpr = checked(AXES)
    states, low = folded(x + at, x + at, top, ok, yes, cs, 0, LAW, False, FLIP, ACC, ROOM, LANES, READERS, VECTOR)
    if is_relative(LAW):
        states = beyond(top, states)
    for n in tl.static_range(cell_size(READERS)):
        reads = ok
        cs_n = ()
        for a in tl.static_range(len(AXES)):
            cs_n = cs_n + (cs[a] + within_cell(READERS, n, a),)
            reads = reads & (cs_n[a] >= 0) & (cs_n[a] < of(AXES, a, "outputs"))
        g = tl.load(dy + address(cs_n, lane, lead, AXES, LANES, "outputs"), mask=reads, other=0).to(ACC)
        if is_relative(LAW):
            g = tl.where(reads, g / states[n][1], 0.0).to(ACC)
            low = unless_safe(low, states[n][1], reads, ACC)
        else:
            g = share(g, states[n][1], LAW)
        for e in tl.static_range(cell_size(CELLS)):
            if is_tap(AXES, CELLS, READERS, e, n):
                if is_relative(LAW):  # the term of an input is the same for all who read it
                    accs = replaced(accs, e, accs[e] + g)
                else:
                    one = weigh(g, xs[e], states[n][0], LAW)
                    accs = replaced(accs, e, accs[e] + tl.where(reads, one, 0.0).to(ACC))
    if is_relative(LAW):
        for e in tl.static_range(cell_size(CELLS)):
            accs = replaced(accs, e, accs[e] * term(xs[e], states[0][0], LAW))
    for r in tl.static_range(cell_size(CELLS) // ACROSS):
        store(dx, ats[r], accs[r * ACROSS : (r + 1) * ACROSS], theres[r], left, LANES, ACROSS, EVEN)
    return low


@triton.jit
def vjp(
    x, dy, total, dx,
    LAW: tl.constexpr, AXES: tl.constexpr, LANES: tl.constexpr, FLIP: tl.constexpr, EMPTY: tl.constexpr,
    ACC: tl.constexpr, CELLS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of a block of cells, whole strides, by a law that weighs its taps: the states of the few outputs
    that read a cell are made anew, instead of stored by one kernel and read by another."""
    i, ok = block(total, BLOCK, WIDE)
    ps, lane, lead = cells_at(i, AXES, LANES, CELLS, "size")
    HASTE: tl.constexpr = hasty(LAW, "jvp", AXES, EMPTY, False)
    low = pulled(x, dy, dx, ok, ps, lane, lead, HASTE, AXES, LANES, FLIP, ACC, CELLS, VECTOR)
    if is_hasty(HASTE):
        if tl.min(low, 0) == bits_of_minus_zero(ACC):
            tl.debug_barrier()  # what was stored is stored over
            for n in range(cell_size(CELLS) // volume(AXES, "stride")):  # stride by stride, as in `one_by_one`
                rest = n
                ps_n = ()
                there = ok
                for a in tl.static_range(len(AXES) - 1, -1, -1):
                    p = ps[a] + rest % (cell_of(CELLS, a) // of(AXES, a, "stride")) * of(AXES, a, "stride")
                    rest = rest // (cell_of(CELLS, a) // of(AXES, a, "stride"))
                    ps_n = (p,) + ps_n
                    there = there & (p < of(AXES, a, "size"))
                pulled(x, dy, dx, there, ps_n, lane, lead, LAW, AXES, LANES, FLIP, ACC, strides_of(AXES), 1)


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
def stretch(lines, AXES: tl.constexpr, STRETCH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """A program's lines, the first input that it takes of them and where it stops, the first output that may read them
    and where to stop with outputs."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    STRETCHES: tl.constexpr = (of(AXES, 0, "size") + STRETCH - 1) // STRETCH
    first = pid % STRETCHES * STRETCH
    stop = tl.minimum(first + STRETCH, of(AXES, 0, "size"))
    stride: tl.constexpr = of(AXES, 0, "stride")
    reader = tl.maximum(first + (of(AXES, 0, "lo") + stride - of(AXES, 0, "extent")), 0) // stride
    end = tl.minimum((stop - 1 + of(AXES, 0, "lo")) // stride + 1, of(AXES, 0, "outputs"))
    return pid // STRETCHES * BLOCK + tl.arange(0, BLOCK), first, stop, reader, end


@triton.jit
def walk(
    dy, residual, lines, earlier, dx,
    AXES: tl.constexpr, LANES: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, KEY: tl.constexpr,
    STRETCH: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same as `runs`, output by output: for lines that lie beside one another."""
    n, first, stop, reader, end = stretch(lines, AXES, STRETCH, BLOCK, WIDE)
    there = n < lines
    base = n // LANES * (of(AXES, 0, "size") * LANES) + n % LANES
    for p in range(first, stop):
        tl.store(dx + (base + p * LANES), tl.zeros((BLOCK,), dx.dtype.element_ty), mask=there)
    tl.debug_barrier()  # the zeros are stored over
    at = n // LANES * (of(AXES, 0, "outputs") * LANES) + n % LANES
    won = tl.full((BLOCK,), -1, KEY)
    total = tl.full((BLOCK,), 0, ACC)
    for c in tl.range(reader, end, loop_unroll_factor=8):
        g, key = named(dy, residual, at + c * LANES, c, there, AXES, INNER, ACC, KEY)
        other = (key >= 0) & (key != won)
        settle(earlier, dx, base, won, total, other, first, stop, LANES, INNER)
        total = tl.where(other, g, total + g)  # who names none hands on 0
        won = tl.where(other, key, won)
    settle(earlier, dx, base, won, total, there, first, stop, LANES, INNER)


@triton.jit
def settle(earlier, dx, base, won, total, over, first, stop, LANES: tl.constexpr, INNER: tl.constexpr):
    """Stores what the runs have that are over and whose input is among those from `first` to `stop`."""
    p = (won // INNER).to(base.dtype)
    kept = over & (won >= 0) & (p >= first) & (p < stop)
    tl.store(dx + (base + p * LANES), total.to(dx.dtype.element_ty), mask=kept)
    if INNER > 1:
        tl.store(earlier + (base + p * LANES), (won % INNER).to(earlier.dtype.element_ty), mask=kept)


@triton.jit
def runs(
    dy, residual, lines, earlier, dx,
    AXES: tl.constexpr, LANES: tl.constexpr, INNER: tl.constexpr, ACC: tl.constexpr, KEY: tl.constexpr,
    STRETCH: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cotangent of STRETCH inputs of a block of lines, by the residual; LONG outputs may read them. The rest is as
    in `scatter`: INNER is 1 where there is no earlier pass."""
    n, first, stop, reader, end = stretch(lines, AXES, STRETCH, BLOCK, WIDE)
    along: tl.constexpr = 1 if LANES == 1 else 0  # neighbours in memory are neighbours in the block
    there = tl.expand_dims(n < lines, along)
    base = tl.expand_dims(n // LANES * (of(AXES, 0, "size") * LANES) + n % LANES, along)
    p = tl.expand_dims(first + tl.arange(0, power_of_two(STRETCH)), 1 - along)
    tl.store(dx + (base + p * LANES), tl.zeros((1, 1), dx.dtype.element_ty), mask=there & (p < stop))
    c = tl.expand_dims(reader + tl.arange(0, LONG), 1 - along)
    at = tl.expand_dims(n // LANES * (of(AXES, 0, "outputs") * LANES) + n % LANES, along) + c * LANES
    g, key = named(dy, residual, at, c, there & (c < end), AXES, INNER, ACC, KEY)
    _, after = named(dy, residual, at + LANES, c + 1, there & (c + 1 < end), AXES, INNER, ACC, KEY)
    won, total = tl.associative_scan((key, g), along, joined)
    last = (c + 1 == end) | ((after >= 0) & (after != won))
    tl.debug_barrier()  # the zeros are stored over
    settle(earlier, dx, base, won, total, there & (c < end) & last, first, stop, LANES, INNER)
