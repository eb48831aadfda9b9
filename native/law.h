// Laws: what is made of the taps. A state is a few numbers (planes); `merge` joins the states of two runs of taps, the
// earlier first, and is all that `fold.h` needs. `lift`, `finish` and `weigh` stand at both ends:
//
//   lift(x, dx)     the state of one tap                     finish: value(state), tangent(state)
//   turn(state, dy) what an output hands to its taps         weigh: land(turned, x), what a tap makes of it
//
// The cotangent of a tap is a fold too, of what its readers hand it: `Turned` is the law of that fold. No taps, sizes
// or strides here; the input of a min, or of a smooth max with beta < 0, arrives with its sign flipped.
#pragma once
#include "vec.h"

namespace ndpool {
namespace {

template <class X, int PLANES> struct State {
  X at[PLANES];
};

template <class T> constexpr bool is_float = std::is_floating_point_v<T>;

template <class X> INLINE Ints<X> is_nan(X a) {
  if constexpr (is_float<Element<X>>)
    return a != a;
  else
    return Ints<X>{};
}

// Whether b beats a. NaN beats all numbers, or is beaten by all.
template <bool IGNORE, class X> INLINE Ints<X> beats(X b, X a) {
  if constexpr (!is_float<Element<X>>)
    return b > a;
  else if constexpr (IGNORE)
    return (b > a) | ((a != a) & (b == b));
  else
    return (!(b <= a)) & (a == a);
}

// Whether a later b replaces a: the first, or the last, of equals wins.
template <bool LAST, bool IGNORE, class X> INLINE Ints<X> takes(X b, X a) {
  if constexpr (!LAST)
    return beats<IGNORE>(b, a);
  else if constexpr (!is_float<Element<X>>)
    return b >= a;
  else if constexpr (IGNORE)
    return (b >= a) | (a != a);
  else
    return (b >= a) | (b != b);
}

// What most laws have in common.
struct Plain {
  static constexpr bool overlaps = false;        // whether a tap may be merged twice
  static constexpr bool indexed = false;         // whether plane 1 is the index of a tap
  static constexpr bool light = false;           // whether a merge is a few instructions
  static constexpr bool hot = false;             // whether it is worth loops of its own for small windows
  static constexpr bool spares_reads = false;    // whether constant planes are worth a loop that does not read them
  static constexpr bool signs = false;           // whether equal values may differ in sign
  static constexpr bool chooses = false;         // whether the state is the value
  static constexpr bool follows = false;         // whether the state is the value and its tangent
  static constexpr bool divides = false;         // whether the value is the state over a number
  static constexpr bool lifts = false;           // whether the state of a tap is more than x and dx
  static constexpr bool counts_padding = false;  // whether zeros change the state
  static constexpr bool looks_at_x = true;       // whether the derivative depends on x
  static constexpr unsigned lifted = 1;          // planes that a tap brings along; the others begin as `constant`
  static constexpr int moved = 0;                // the plane of dx; 0 for none
  template <class S, class I> INLINE void tap(S &, I) const {}
};

// The largest tap, the first of equals, NaN above all: the value alone. Any other order keeps the winner, too.
template <class E> struct Select : Plain {
  using T = E;
  static constexpr int planes = 1;
  static constexpr bool overlaps = true, signs = is_float<T>, chooses = true, light = true,
                        hot = std::is_same_v<T, float> || sizeof(T) == 1;
  static constexpr T constant[1] = {0};
  template <class X> INLINE void merge(State<X, 1> &a, const State<X, 1> &b) const {
    X q = b.at[0], most = larger<X>(q, a.at[0]);
    a.at[0] = choose<X>(is_nan(q), q, most);
  }
  template <class X> INLINE void join(State<X, 1> &a, const State<X, 1> &b) const { merge(a, b); }
  template <class X> INLINE X value(const State<X, 1> &s, X) const { return s.at[0]; }
  // after taps were merged out of order: of zeros with both signs, the first stands
  template <class X> INLINE void settle(State<X, 1> &s, const T *taps, i64 n, i64 step) const {
    T lanes[LANES<X>];
    save<X>(lanes, s.at[0]);
    for (int l = 0; l < LANES<X>; l++)
      for (i64 i = 0; lanes[l] == 0 && i < n; i++)
        if (taps[l + i * step] == 0) {
          lanes[l] = taps[l + i * step];
          break;
        }
    s.at[0] = load<X>(lanes);
  }
};

// The largest tap and which one it is.
template <class E, bool LAST, bool IGNORE> struct Winner : Plain {
  using T = E;
  static constexpr bool spares_reads = !LAST && !IGNORE, hot = spares_reads && std::is_same_v<T, float>;
  static constexpr int planes = 2;
  static constexpr bool overlaps = true, indexed = true, light = true;
  static constexpr T constant[2] = {0, 0};
  template <class X> INLINE void merge(State<X, 2> &a, const State<X, 2> &b) const {
    Ints<X> taken = takes<LAST, IGNORE>(b.at[0], a.at[0]);
    for (int i = 0; i < 2; i++) a.at[i] = choose<X>(taken, b.at[i], a.at[i]);
  }
  // for taps out of order: of equals, the one with the lower or the higher index
  template <class X> INLINE void join(State<X, 2> &a, const State<X, 2> &b) const {
    Ints<X> i = bits(a.at[1]), j = bits(b.at[1]);
    Ints<X> taken = beats<IGNORE>(b.at[0], a.at[0]) | ((!beats<IGNORE>(a.at[0], b.at[0])) & (LAST ? j > i : j < i));
    for (int p = 0; p < 2; p++) a.at[p] = choose<X>(taken, b.at[p], a.at[p]);
  }
  template <class X> INLINE void tap(State<X, 2> &s, Int<T> bias) const {
    s.at[1] = from_bits<X>(Ints<X>(bits(s.at[1]) + bias));
  }
};

// The largest tap and its tangent, if taps are merged in order: among equals, nothing tells which came first.
template <class E, bool LAST, bool IGNORE> struct Follow : Winner<E, LAST, IGNORE> {
  using T = E;
  static constexpr bool indexed = false, spares_reads = false, follows = true;
  static constexpr unsigned lifted = 3;
  static constexpr int moved = 1;
  template <class S, class I> INLINE void tap(S &, I) const {}
  template <class X> INLINE X value(const State<X, 2> &s, X) const { return s.at[0]; }
  template <class X> INLINE X tangent(const State<X, 2> &s) const { return s.at[1]; }
};

// The largest tap, and sums over all taps equal to it: their number, their tangents.
template <class E, bool IGNORE, int PLANES> struct Share : Plain {
  using T = E;
  static constexpr unsigned lifted = PLANES == 3 ? 5 : 1;
  static constexpr int moved = PLANES == 3 ? 2 : 0;
  using Turned = Share<T, !IGNORE, 2>;  // a tap wins where no reader's value is larger: the least value, reversed
  static constexpr int planes = PLANES;
  static constexpr T constant[3] = {0, 1, 1};
  bool split;
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    Ints<X> later = beats<IGNORE>(b.at[0], a.at[0]), earlier = beats<IGNORE>(a.at[0], b.at[0]);
    for (int i = 1; i < PLANES; i++) a.at[i] = choose<X>(later, X{}, a.at[i]) + choose<X>(earlier, X{}, b.at[i]);
    a.at[0] = choose<X>(later, b.at[0], a.at[0]);
  }
  template <class X> INLINE void join(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }
  template <class X> INLINE X value(const State<X, 3> &s, X) const { return s.at[0]; }
  template <class X> INLINE X tangent(const State<X, 3> &s) const { return split ? s.at[2] / s.at[1] : s.at[2]; }
  Turned turned() const { return {{}, split}; }
  template <class X> INLINE State<X, 2> turn(const State<X, 2> &s, X dy) const {
    return {-s.at[0], split ? dy / s.at[1] : dy};
  }
  template <class X> INLINE X land(const State<X, 2> &s, X x) const {
    return choose<X>((s.at[0] == -x) | (is_nan(s.at[0]) & is_nan(x)), s.at[1], X{});
  }
};

template <class E, int PLANES> struct Add : Plain {
  using T = E;
  static constexpr int planes = PLANES;
  static constexpr bool looks_at_x = false, light = true, hot = sizeof(T) == 4, divides = is_float<T>;
  static constexpr T constant[2] = {0, 0};
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    for (int i = 0; i < PLANES; i++) a.at[i] += b.at[i];
  }
  template <class X> INLINE void join(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }
  template <class X> INLINE X value(const State<X, PLANES> &s, X divisor) const { return s.at[0] / divisor; }
  Add turned() const { return {}; }
};

// A sum of terms, each kept relative to the largest: state (m, s, ...) stands for s times the term of m. `Ratio` says
// what the lesser m's term is of the greater's; equals have the ratio 1, infinities too.
template <class E, int PLANES, class Ratio, bool NANS_ARE_EQUAL = false> struct Relative : Plain {
  using T = E;
  static constexpr unsigned lifted = PLANES == 3 ? 5 : 1;
  static constexpr int moved = PLANES == 3 ? 2 : 0;
  static constexpr int planes = PLANES;
  static constexpr T constant[3] = {0, 1, 1};
  Ratio ratio;
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    if constexpr (Ratio::near)
      merge_near(a, b);
    else
      merge_far(a, b);
  }
  template <class X> INLINE void join(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }

 private:
  template <class X> INLINE void merge_near(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    Ints<X> later = b.at[0] > a.at[0];
    X most = larger<X>(b.at[0], a.at[0]), least = smaller<X>(a.at[0], b.at[0]);  // a NaN is one of them
    Ints<X> equal = least == most;
    if constexpr (NANS_ARE_EQUAL) equal |= is_nan(least) & is_nan(most);
    X by[3];
    ratio.template of<X, PLANES>(least, most, equal, by);  // of a NaN and a number it is a NaN, and so is the sum
    for (int i = 1; i < PLANES; i++)
      a.at[i] = choose<X>(later, b.at[i], a.at[i]) + choose<X>(later, a.at[i], b.at[i]) * by[i];
    a.at[0] = most;
  }
  template <class X> __attribute__((noinline)) void merge_far(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    merge_near(a, b);
  }
};

template <class T> struct ExpRatio {
  static constexpr bool near = sizeof(T) == 4;  // whether a merge is worth a copy wherever one is made
  T octaves, inverse;                           // beta in powers of two; 1 / beta
  explicit ExpRatio(double beta) : inverse(T(1 / beta)) {
    constexpr double most = sizeof(T) == 4 ? 3.4e38 : 1.7e308;
    octaves = T(beta < most / LOG2_E ? beta * LOG2_E : most);
  }
  template <class X, int PLANES> INLINE void of(X least, X most, Ints<X> equal, X *by) const {
    by[1] = by[2] = power_of_two<X>(choose<X>(equal, X{}, least - most) * octaves);
  }
};

template <class E, int PLANES> struct SmoothMax : Relative<E, PLANES, ExpRatio<E>> {
  using T = E;
  static constexpr bool counts_padding = true, spares_reads = PLANES == 2;
  using Turned = Relative<T, 2, ExpRatio<T>, true>;  // a NaN that is alone in its windows has all of their derivative
  Turned turned() const { return {{}, this->ratio}; }
  template <class X> INLINE State<X, PLANES> lift(X x, X dx) const {
    State<X, PLANES> s;
    s.at[0] = x, s.at[1] = splat<X>(1);
    if constexpr (PLANES == 3) s.at[2] = dx;
    return s;
  }
  template <class X> INLINE X value(const State<X, PLANES> &s, X) const {
    return s.at[0] + log_positive<X>(s.at[1]) * this->ratio.inverse;
  }
  template <class X> INLINE X tangent(const State<X, PLANES> &s) const { return s.at[2] / s.at[1]; }
  template <class X> INLINE State<X, 2> turn(const State<X, 2> &s, X dy) const { return {-s.at[0], dy / s.at[1]}; }
  template <class X> INLINE X land(const State<X, 2> &s, X x) const {
    X m = -s.at[0];  // at or above x
    X below = choose<X>((x == m) | (is_nan(x) & is_nan(m)), X{}, x - m);
    return s.at[1] * power_of_two<X>(below * this->ratio.octaves);
  }
};

// q^p for 0 <= q <= 1
template <class X> INLINE X power(X q, Element<X> p) {
  using T = Element<X>;
  if (p == 0) return splat<X>(1);
  if (p == 1) return q;
  if (p == 2) return q * q;
  X least = splat<X>(sizeof(T) == 4 ? T(1.17549435e-38f) : T(2.2250738585072014e-308));
  X result = power_of_two<X>(log_positive<X>(choose<X>(q < least, least, q)) * T(p * LOG2_E));
  return choose<X>(q < least, X{}, choose<X>(q != q, q, result));
}
INLINE float square_root(float s) { return __builtin_sqrtf(s); }
INLINE double square_root(double s) { return __builtin_sqrt(s); }

// s^r for s >= 1 and 0 <= r <= 1
template <class X> INLINE X root(X s, Element<X> r) {
  if (r == 0) return splat<X>(1);
  if (r == 1) return s;
  if (r == Element<X>(0.5)) {
    if constexpr (LANES<X> == 1)
      return square_root(s);
    else {
      X v;
      for (int i = 0; i < LANES<X>; i++) v[i] = square_root(s[i]);
      return v;
    }
  }
  using T = Element<X>;
  X small = power_of_two<X>(log_positive<X>(choose<X>(s == s, s, splat<X>(1))) * T(-r * LOG2_E));
  return choose<X>(s == s, 1 / small, s);
}

template <class T> struct PowerRatio {
  static constexpr bool near = false;
  T p;
  template <class X, int PLANES> INLINE void of(X least, X most, Ints<X> equal, X *by) const {
    X q = choose<X>(equal, splat<X>(1), least / most);
    by[2] = power<X>(q, p - 1);
    by[1] = by[2] * q;
  }
};
template <class T> struct TurnedPowerRatio {  // of negated values: the lesser is the larger in size
  static constexpr bool near = false;
  T p;
  template <class X, int PLANES> INLINE void of(X least, X most, Ints<X> equal, X *by) const {
    by[1] = power<X>(choose<X>(equal, splat<X>(1), most / least), p - 1);
  }
};

template <class E, int PLANES> struct Lp : Relative<E, PLANES, PowerRatio<E>> {
  using T = E;
  static constexpr bool lifts = true, counts_padding = true;
  using Turned = Relative<T, 2, TurnedPowerRatio<T>>;
  Turned turned() const { return {{}, {this->ratio.p}}; }
  template <class X> INLINE State<X, PLANES> lift(X x, X dx) const {
    State<X, PLANES> s;
    s.at[0] = choose<X>(x < 0, -x, choose<X>(x == 0, X{}, x)), s.at[1] = splat<X>(1);
    if constexpr (PLANES == 3) s.at[2] = sign(x) * dx;
    return s;
  }
  template <class X> INLINE X value(const State<X, PLANES> &s, X) const {
    return s.at[0] * root<X>(s.at[1], 1 / this->ratio.p);
  }
  template <class X> INLINE X tangent(const State<X, PLANES> &s) const { return s.at[2] / share(s.at[1]); }
  template <class X> INLINE State<X, 2> turn(const State<X, 2> &s, X dy) const {
    return {-s.at[0], dy / share(s.at[1])};
  }
  template <class X> INLINE X land(const State<X, 2> &s, X x) const {
    X m = -s.at[0], a = choose<X>(x < 0, -x, x);
    return sign(x) * s.at[1] * choose<X>(a == m, splat<X>(1), power<X>(a / m, this->ratio.p - 1));
  }

 private:
  template <class X> INLINE X share(X s) const { return root<X>(s, 1 - 1 / this->ratio.p); }
  template <class X> static INLINE X sign(X x) {
    return choose<X>(x > 0, splat<X>(1), choose<X>(x < 0, splat<X>(-1), x));  // 0 for 0, NaN for NaN
  }
};

}  // namespace
}  // namespace ndpool
