"""The laws as Triton functions: `lift`, `merge`, `finish` and `weigh` of blocks of elements.

A state is a tuple of planes, blocks of one shape:

    max, min that choose     (value, tap)                   max, min that share   (value, sharers, tangent)
    sum, mean                (sum,)                         smooth max, Lp        (m, s, tangent), as in the spec
    quick                    (value,)                       relative              (s, tangent)

and the tangent is there in a jvp alone. `identity` changes nothing it is merged with, so what is not read needs no
branch: for a choice it is the lowest number with the tap that wins if all are that low. That holds for the first of
equals with NaN above all; the other rules of max and min know by a tap of -1, or 0 sharers, that nothing was read yet.

LAW is (name, ties, ignore NaN, parameter), the parameter being |beta| or p: a smooth min is the smooth max of -x. No
sizes, strides or positions here.
"""

# Triton compiles these functions from their source. An else after a return is no matter of taste there: without it, the
# branch that is not taken is compiled, too.
# ruff: noqa: RET505
import triton
import triton.language as tl

from .releases import constexpr_function

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@constexpr_function
def is_extreme(law):
    return law[0] == "max" or law[0] == "min"


@constexpr_function
def shares(law):
    return law[1] == "all" or law[1] == "split"


@constexpr_function
def is_plain(law):
    """Whether the identity is enough to leave out what is not read: no plane says whether anything was read."""
    return not is_extreme(law) or (law[1] in ("first", "any") and not law[2])


@constexpr_function
def quick(law):
    """The law for a forward that needs no tap: of equals any, by the device's own maximum."""
    return (law[0], "any", False, law[3]) if is_extreme(law) and is_plain(law) else law


@constexpr_function
def is_quick(law):
    return law[1] == "any"


@constexpr_function
def relative(law):
    """A smooth max whose terms are all relative to one number, so that they are made once and added up."""
    return ("relative", "", False, law[3])


@constexpr_function
def largest(law):
    """What makes the number that terms are relative to."""
    return ("max", "any", False, law[3])


@constexpr_function
def is_relative(law):
    return law[0] == "relative"


@constexpr_function
def is_hasty(law):
    """Whether it stands in for another law, for values on which both agree."""
    return is_quick(law) or is_relative(law)


@constexpr_function
def is_linear(law):
    return law[0] == "sum" or law[0] == "mean"


@constexpr_function
def lowest(law, dtype):
    """What no number is below (above, for a min)."""
    least = law[0] == "max"
    if dtype.is_floating():
        return float("-inf") if least else float("inf")
    bits = dtype.primitive_bitwidth
    if dtype.is_int_unsigned():
        return 0 if least else 2**bits - 1
    return -(2 ** (bits - 1)) if least else 2 ** (bits - 1) - 1


@constexpr_function
def bits_of_minus_zero(dtype):
    return -(2 ** (dtype.primitive_bitwidth - 1))


@triton.jit
def bits(x):
    """The bits of floats as an integer: that of -0 is the least there is. 0 for an integer, which has no -0."""
    if x.dtype.is_floating():
        return x.to(tl.int64 if x.dtype.primitive_bitwidth == 64 else tl.int32, bitcast=True)
    else:
        return tl.full(x.shape, 0, tl.int32)


@triton.jit
def beats(b, a, LAW: tl.constexpr):
    """Whether b is above a, strictly; a NaN is above all numbers, or below."""
    if not b.dtype.is_floating():
        return b > a if LAW[0] == "max" else b < a
    elif LAW[2]:
        return ~(a >= b if LAW[0] == "max" else a <= b) & (b == b)
    else:
        return ~(b <= a if LAW[0] == "max" else b >= a) & (a == a)


@triton.jit
def same(a, b):
    """Equal, or both NaN."""
    equal = a == b
    if a.dtype.is_floating():
        equal = equal | ((a != a) & (b != b))
    return equal


@triton.jit
def takes(b, a, LAW: tl.constexpr):
    """Whether a later b replaces a: the first, or the last, of equals wins."""
    if LAW[1] == "last":
        return ~beats(a, b, LAW)
    else:
        return beats(b, a, LAW)


@triton.jit
def power(q, P: tl.constexpr):
    """q^P for q >= 0."""
    if P == 0:
        return q * 0 + 1
    elif P == 1:
        return q
    elif P == 2:
        return q * q
    elif P == 0.5:
        return tl.sqrt(q)
    else:
        return tl.exp2(P * tl.log2(q))


@triton.jit
def sign(x):
    """0 for 0, NaN for NaN."""
    one = tl.where(x < 0, -1.0, x).to(x.dtype)
    return tl.where(x > 0, 1.0, one).to(x.dtype)


@triton.jit
def ratio(least, most, LAW: tl.constexpr):
    """What the term of `least` is of that of `most`; equals have the ratio 1, infinities too."""
    if LAW[0] == "smooth_max":
        by = tl.exp2((least - most) * (LAW[3] * LOG2E))
    else:
        by = power(least / most, LAW[3])
    return tl.where(least == most, 1.0, by).to(least.dtype)


@triton.jit
def term(x, top, LAW: tl.constexpr):
    """The term of x, relative to `top`."""
    return tl.exp2((x - top) * (LAW[3] * LOG2E))


@triton.jit
def beyond(top, sums):
    """Relative sums as states of the smooth max."""
    states = ()
    for n in tl.static_range(len(sums)):
        states = states + ((top,) + sums[n],)
    return states


@triton.jit
def unless_safe(low, s, made, ACC: tl.constexpr):
    """The bits of -0 where a relative sum is near where floats end, else `low`. Far from there terms are as good as
    relative to the largest."""
    return tl.where(made & ~((s >= 2.0**-40) & (s <= 2.0**40)), bits_of_minus_zero(ACC), low).to(low.dtype)


@triton.jit
def slope(least, most, LAW: tl.constexpr):
    """What a tangent beside `least` counts for beside `most`."""
    if LAW[0] == "smooth_max":
        return ratio(least, most, LAW)
    else:
        return tl.where(least == most, 1.0, power(least / most, LAW[3] - 1)).to(least.dtype)


@triton.jit
def lift(x, dx, tap, there, LAW: tl.constexpr, JVP: tl.constexpr):
    """The state of one tap, where it is read; of none, elsewhere."""
    if is_linear(LAW):
        state = (x,)  # what is not read was loaded as 0
    elif is_relative(LAW):
        state = (tl.where(there, x, 0.0).to(x.dtype),)
        if JVP:
            state = state + (tl.where(there, x * dx, 0.0).to(x.dtype),)
    elif is_extreme(LAW):
        if is_plain(LAW):
            state = (tl.where(there, x, lowest(LAW, x.dtype)).to(x.dtype),)
            if not is_quick(LAW):
                state = state + (tap,)
        elif shares(LAW):
            state = (x, there.to(tl.int32))
            if JVP:
                state = state + (tl.where(there, dx, 0.0).to(dx.dtype),)
        else:
            state = (x, tl.where(there, tap, -1))
    else:
        if LAW[0] == "smooth_max":
            m = tl.where(there, x, float("-inf")).to(x.dtype)
            t = dx
        else:
            m = tl.where(there, tl.abs(x), 0.0).to(x.dtype)
            t = sign(x) * dx if JVP else dx
        state = (m, there.to(x.dtype))
        if JVP:
            state = state + (tl.where(there, t, 0.0).to(x.dtype),)
    return state


@triton.jit
def merge(a, b, LAW: tl.constexpr):
    """The state of both, the earlier first."""
    if is_linear(LAW) or is_relative(LAW):
        state = (a[0] + b[0],)
        if len(a) == 2:
            state = state + (a[1] + b[1],)
    elif is_extreme(LAW):
        if is_quick(LAW):
            state = (larger(a[0], b[0]) if LAW[0] == "max" else smaller(a[0], b[0]),)
        elif shares(LAW):
            later = (b[1] > 0) & ((a[1] == 0) | beats(b[0], a[0], LAW))
            earlier = (a[1] > 0) & ((b[1] == 0) | beats(a[0], b[0], LAW))
            state = (tl.where(later, b[0], a[0]), tl.where(later, 0, a[1]) + tl.where(earlier, 0, b[1]))
            if len(a) == 3:
                state = state + ((tl.where(later, 0.0, a[2]) + tl.where(earlier, 0.0, b[2])).to(a[2].dtype),)
        else:
            later = takes(b[0], a[0], LAW)
            if not is_plain(LAW):
                later = (b[1] >= 0) & ((a[1] < 0) | later)
            state = (tl.where(later, b[0], a[0]), tl.where(later, b[1], a[1]))
    else:
        later = b[0] > a[0]  # a NaN makes the ratio, and with it the sum, a NaN
        most = tl.where(later, b[0], a[0])
        least = tl.where(later, a[0], b[0])
        by = ratio(least, most, LAW)
        state = (most, tl.where(later, b[1], a[1]) + tl.where(later, a[1], b[1]) * by)
        if len(a) == 3:
            by = slope(least, most, LAW)
            state = state + (tl.where(later, b[2], a[2]) + tl.where(later, a[2], b[2]) * by,)
    return state


@triton.jit
def among(states, LAW: tl.constexpr):
    """The state of several, in order; terms are taken relative to the largest of all at once."""
    if is_linear(LAW) or is_relative(LAW) or is_extreme(LAW):
        state = states[0]
        for i in tl.static_range(1, len(states)):
            state = merge(state, states[i], LAW)
        return state
    else:
        m = states[0][0]
        for i in tl.static_range(1, len(states)):
            m = tl.maximum(m, states[i][0])
        s = states[0][1] * ratio(states[0][0], m, LAW)
        for i in tl.static_range(1, len(states)):
            s = s + states[i][1] * ratio(states[i][0], m, LAW)
        if len(states[0]) == 3:
            t = states[0][2] * slope(states[0][0], m, LAW)
            for i in tl.static_range(1, len(states)):
                t = t + states[i][2] * slope(states[i][0], m, LAW)
            return (m, s, t)
        else:
            return (m, s)


@triton.jit
def moved(state, by, LAW: tl.constexpr):
    """A state whose taps are counted from `by` earlier."""
    if is_extreme(LAW) and not shares(LAW) and not is_quick(LAW):
        if is_plain(LAW):
            return (state[0], state[1] + by)
        else:
            return (state[0], tl.where(state[1] < 0, -1, state[1] + by))
    else:
        return state


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def earlier(a, i, b, j):
    """The larger of two, a NaN above all; of equals the one with the lower number."""
    later = (b > a) | ((b == a) & (j < i))
    if a.dtype.is_floating():
        later = later | ((b != b) & ((a == a) | (j < i)))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def earlier_number(a, i, b, j):
    """The same with a NaN below all."""
    later = (b > a) | ((b == a) & (j < i))
    if a.dtype.is_floating():
        later = later | ((a != a) & ((b == b) | (j < i)))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def opposite(v):
    """The other way around: the least becomes the largest."""
    if v.dtype.is_floating():
        return v * -1.0  # -v is 0 - v, which has but one zero
    else:
        return (-1 if v.dtype.is_int_signed() else lowest(("min",), v.dtype)) - v


@triton.jit
def best(v, number, axis: tl.constexpr, LAW: tl.constexpr):
    """The best on an axis, and its number: of equals the lowest."""
    if LAW[0] == "min":
        v = opposite(v)
    if LAW[2]:
        v, number = tl.reduce((v, number), axis, earlier_number)
    else:
        v, number = tl.reduce((v, number), axis, earlier)
    if LAW[0] == "min":
        v = opposite(v)
    return v, number


@triton.jit
def together(state, axis: tl.constexpr, LAW: tl.constexpr):
    """The states side by side on an axis as one, in no order: a tie goes by the number of the tap."""
    if is_linear(LAW):
        return (tl.sum(state[0], axis),)
    elif is_extreme(LAW):
        if is_quick(LAW):
            return (tl.reduce(state[0], axis, larger if LAW[0] == "max" else smaller),)
        elif is_plain(LAW):
            return best(state[0], state[1], axis, LAW)
        else:
            none: tl.constexpr = 2147483647  # the number of what was not read
            there = state[1] > 0 if shares(LAW) else state[1] >= 0
            number = tl.where(there, 0 if shares(LAW) else -state[1] if LAW[1] == "last" else state[1], none)
            worst: tl.constexpr = lowest(LAW, state[0].dtype)
            if LAW[2] and state[0].dtype.is_floating():
                worst: tl.constexpr = float("nan")
            v, n = best(tl.where(there, state[0], worst).to(state[0].dtype), number, axis, LAW)
            if shares(LAW):
                unbeaten = there & same(state[0], tl.expand_dims(v, axis))
                all_of = (v, tl.sum(tl.where(unbeaten, state[1], 0), axis))
                if len(state) == 3:
                    t = tl.where(unbeaten, state[2], 0.0).to(state[2].dtype)
                    all_of = all_of + (tl.sum(t, axis),)
                return all_of
            else:
                return (v, tl.where(n == none, -1, -n if LAW[1] == "last" else n))
    else:
        m = tl.max(state[0], axis)
        by = tl.expand_dims(m, axis)
        s = tl.sum(state[1] * ratio(state[0], by, LAW), axis)
        if len(state) == 3:
            return (m, s, tl.sum(state[2] * slope(state[0], by, LAW), axis))
        else:
            return (m, s)


@triton.jit
def finish(state, count, LAW: tl.constexpr):
    """The value; `count` divides a mean."""
    if LAW[0] == "mean":
        return state[0] / count
    elif LAW[0] == "smooth_max":
        return state[0] + tl.log2(state[1]) * (LN2 / LAW[3])
    elif LAW[0] == "lp":
        return state[0] * power(state[1], 1 / LAW[3])
    else:
        return state[0]


@triton.jit
def share(g, s, LAW: tl.constexpr):
    """g over what all taps together count for."""
    if LAW[0] == "smooth_max":
        return g / s
    elif LAW[0] == "lp":
        return g / power(s, 1 - 1 / LAW[3])
    elif LAW[1] == "split":
        return g / s.to(g.dtype)
    else:
        return g


@triton.jit
def weigh(g, x, m, LAW: tl.constexpr):
    """What of g, an output's share, belongs to a tap x of it; m is the output's first plane."""
    if is_extreme(LAW):
        return tl.where(same(x, m), g, 0.0).to(g.dtype)
    elif LAW[0] == "smooth_max":
        by = tl.exp2((x - m) * (LAW[3] * LOG2E))
        return g * tl.where(x == m, 1.0, by).to(g.dtype)
    else:
        a = tl.abs(x)
        by = power(a / m, LAW[3] - 1)
        return sign(x) * g * tl.where(a == m, 1.0, by).to(g.dtype)
