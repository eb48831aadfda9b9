"""Geometry: `Axis.span` restated for blocks of indices, and which taps and readers neighbours share.

AXES is a tuple an axis (`FIELDS`), pooled or not, in the order of memory; elements beside one another that no window
joins are LANES, and all axes before are the lead, of any size. All of AXES is known while compiling: divisions are by
constants, checks that always hold are left out. CELLS is how many neighbours of each axis a thread takes.

No law here, and nothing that is loaded or stored. Operands of // are not negative, because Triton's rounds towards 0.
"""

# Functions of constants are plain Python, but may call no function that Triton does not know.
# An else after a return is needed: without it, the branch that is not taken is compiled, too.
# ruff: noqa: SIM110
import triton
import triton.language as tl

from .releases import constexpr_function, keyed

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


@constexpr_function
def field(axis, name):
    i = 0
    for known in FIELDS:
        if known == name:
            return axis[i]
        i = i + 1
    return None


@constexpr_function
def of(axes, a, name):
    return field(axes[a], name)


@constexpr_function
def step(axes, a, lanes, name):
    """How far apart neighbours on axis `a` are."""
    for axis in axes[a + 1 :]:
        lanes = lanes * field(axis, name)
    return lanes


@constexpr_function
def volume(axes, name, after=-1):
    """The product of a field over all axes, or those after one."""
    n = 1
    for axis in axes[after + 1 :]:
        n = n * field(axis, name)
    return n


@constexpr_function
def cell_of(cells, a):
    """How many neighbours on axis `a` a thread takes."""
    return cells[a] or 1


@constexpr_function
def cells_along(axes, cells, a, name):
    return -(-of(axes, a, name) // cell_of(cells, a))


@constexpr_function
def cell_size(cells, after=-1):
    n = 1
    for cell in cells[after + 1 :]:
        n = n * (cell or 1)
    return n


@constexpr_function
def row_of(cells):
    """A cell that is one row of it."""
    return (1,) * (len(cells) - 1) + (cells[-1],)


@constexpr_function
def held_of(cells, taps):
    """A cell of as many rows as the first axis has taps."""
    return (taps, *cells[1:])


@constexpr_function
def within_cell(cells, e, a):
    """Where on axis `a` the e-th of a cell lies."""
    for b in range(len(cells) - 1, a, -1):
        e = e // (cells[b] or 1)
    return e % (cells[a] or 1)


@constexpr_function
def rows(axes, a, march):
    """How many rows `march` neighbouring outputs read together."""
    return (march - 1) * of(axes, a, "stride") + (of(axes, a, "taps") - 1) * of(axes, a, "dilation") + 1


@constexpr_function
def tap_of(axes, a, u, r):
    """Which tap of the r-th output position u is, both counted from the first output's start; -1 for none."""
    _, _, stride, _, taps, d, *_ = axes[a]
    j = u - r * stride
    return -1 if j < 0 or j % d or j // d >= taps else j // d


@constexpr_function
def read_by_any(axes, a, u, march):
    """Whether any of `march` outputs reads it."""
    _, _, stride, _, taps, d, *_ = axes[a]
    for r in range(march):
        j = u - r * stride
        if j >= 0 and j % d == 0 and j // d < taps:
            return True
    return False


@constexpr_function
def power_of_two(n):
    """The least that is not below n."""
    p = 1
    while p < n:
        p = p * 2
    return p


@constexpr_function
def slack(axes, vector):
    """How far before the first tap of the last axis a vector starts that lies on a multiple of its length."""
    return -of(axes, len(axes) - 1, "lo") % vector


@constexpr_function
def vectors(axes, march, vector):
    """How many vectors the taps of `march` neighbouring outputs of the last axis lie in."""
    return -(-(slack(axes, vector) + rows(axes, len(axes) - 1, march)) // vector)


@constexpr_function
def vector_used(axes, v, march, vector):
    for e in range(v * vector, (v + 1) * vector):
        if read_by_any(axes, len(axes) - 1, e - slack(axes, vector), march):
            return True
    return False


@constexpr_function
def element(axes, q, j, vector):
    """Where in those vectors tap j of the q-th output lies."""
    a = len(axes) - 1
    return slack(axes, vector) + q * of(axes, a, "stride") + j * of(axes, a, "dilation")


@constexpr_function
def is_checked(axes, a, march):
    """Whether `march` neighbouring outputs may reach beyond the input."""
    return of(axes, a, "checked") or of(axes, a, "outputs") % march != 0


@constexpr_function
def any_checked(axes):
    for axis in axes:
        if field(axis, "checked"):
            return True
    return False


@constexpr_function
def counts_zeros(axes, law):
    """Whether padding is taps of the value 0 that change the state."""
    for axis in axes:
        if law[0] in ("smooth_max", "relative") and (field(axis, "before") or field(axis, "after")):
            return True
    return False


@constexpr_function
def is_known(axes, cells, a):
    """Whether a cell of inputs is whole strides, so that who reads which of them is known while compiling."""
    return cells[a] > 0 and cells[a] % of(axes, a, "stride") == 0


@constexpr_function
def first_reader(axes, a, vector):
    """The first output, from that of a cell's first input on and on a multiple of `vector`, that may read the cell."""
    m = (of(axes, a, "lo") - (of(axes, a, "taps") - 1) * of(axes, a, "dilation")) // of(axes, a, "stride")
    return m // vector * vector


@constexpr_function
def readings(axes, cells, a, vector):
    """How often a cell looks along axis `a` for who reads it."""
    if not is_known(axes, cells, a):
        return of(axes, a, "readers")
    v = vector if a == len(axes) - 1 else 1
    last = (cells[a] - 1 + of(axes, a, "lo")) // of(axes, a, "stride")
    return -(-(last + 1 - first_reader(axes, a, v)) // v)


@constexpr_function
def all_readings(axes, cells, vector):
    n = 1
    for a in range(len(axes)):
        n = n * readings(axes, cells, a, vector)
    return n


@constexpr_function
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


@constexpr_function
def known_distance(axes, cells, lanes, t, vector):
    """How far the outputs that the t-th look finds are from that of the cell's first input, where that is known."""
    away = 0
    for a in range(len(axes)):
        if is_known(axes, cells, a):
            away = away + reading(axes, cells, t, a, vector) * step(axes, a, lanes, "outputs")
    return away


@constexpr_function
def known_taps(axes, cells, t, vector):
    """Which taps the inputs of a cell are of the `vector` outputs that the t-th look finds, output by output: the
    digits that are known while compiling; -1 for none. In one piece, because it is asked often."""
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


@constexpr_function
def finds_any(axes, cells, t, vector):
    """Whether any output that the t-th look finds reads any input of the cell."""
    return max(known_taps(axes, cells, t, vector)) >= 0


@constexpr_function
def earliest(axes, a):
    """The first output, from that of a cell's first input on, that reads an input of the cell."""
    return -((of(axes, a, "extent") - 1 - of(axes, a, "lo")) // of(axes, a, "stride"))


@constexpr_function
def readers_of(axes, cells):
    """How many outputs of each axis read a cell of whole strides."""
    n = ()
    for a in range(len(axes)):
        n = n + ((cells[a] - 1 + of(axes, a, "lo")) // of(axes, a, "stride") - earliest(axes, a) + 1,)
    return n


@constexpr_function
def is_tap(axes, cells, readers, e, n):
    """Whether the e-th input of a cell is a tap of the n-th of its readers."""
    for a in range(len(axes)):
        _, _, stride, _, taps, d, lo, *_ = axes[a]
        j = within_cell(cells, e, a) + lo - (earliest(axes, a) + within_cell(readers, n, a)) * stride
        if j < 0 or j % d or j // d >= taps:
            return False
    return True


@constexpr_function
def strides_of(axes):
    """The least cell of whole strides."""
    n = ()
    for axis in axes:
        n = n + (field(axis, "stride"),)
    return n


@constexpr_function
def checked(axes):
    """The axes, every tap of which may lie beyond the input: there are outputs before the first and after the last."""
    made = ()
    for axis in axes:
        made = made + (axis[:-1] + (1,),)
    return made


@constexpr_function
def from_first(axes):
    """The axes, positions on the first counted from the start of an output's window: none before output 0's."""
    first = ()
    for i in range(len(FIELDS)):
        first = first + (0 if FIELDS[i] == "lo" else axes[0][i],)
    return (first, *axes[1:])


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
    """Positions `by` further along axis a."""
    return ps[:a] + (ps[a] + by,) + ps[a + 1 :]


@triton.jit
def row_at(ps, ok, r: tl.constexpr, AXES: tl.constexpr, CELLS: tl.constexpr, SIDE: tl.constexpr):
    """The r-th row of a cell whose first is at ps: where it starts, and whether it is there."""
    ps_r = ()
    for a in tl.static_range(len(AXES)):
        ps_r = ps_r + (ps[a] + within_cell(CELLS, r * cell_of(CELLS, len(AXES) - 1), a),)
        if within_cell(CELLS, r * cell_of(CELLS, len(AXES) - 1), a) > 0 and of(AXES, a, SIDE) % cell_of(CELLS, a) != 0:
            ok = ok & (ps_r[a] < of(AXES, a, SIDE))
    return ps_r, ok


@triton.jit
def address(ps, lane, lead, AXES: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr):
    """Where positions lie on that side of the window."""
    at = lane + lead * (volume(AXES, SIDE) * LANES)
    for a in tl.static_range(len(AXES)):
        at = at + ps[a] * step(AXES, a, LANES, SIDE)
    return at


@keyed
@triton.jit
def block(total, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Indices of this program, and which are there."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    i = start * BLOCK + tl.arange(0, BLOCK)
    return i, i < total
