// Laws: what is made of the taps. A state is a few numbers (planes); `merge` joins the states of two runs of taps, the
// earlier first, and is all that a fold needs. The rest stands at both ends of a fold:
//
//   shift_index(state, i)      adds i to the index of the winner, if the law keeps one
//   value(state, divisor)      the output, and its tangent:
//   tangent(state)
//   handed_back(state, dy)     what an output with the cotangent dy hands back to all of its taps, and
//   tap_cotangent(folded, x)   what a tap x makes of all that its readers handed back
//
// The cotangent of a tap is a fold too, of what its readers hand back; `backward()` is the law of that fold. No taps,
// sizes or strides here. The input of a min, or of a smooth max with beta < 0, arrives with its sign flipped.
#pragma once
#include "vec.h"

namespace ndpool {
namespace {

template <class X, int PLANES> struct State {
  X at[PLANES];
};

template <class T> constexpr bool is_float = std::is_floating_point_v<T>;

// the same in all lanes, as a mask
template <class X> INLINE Ints<X> truth(bool b) { return splat<Ints<X>>(b ? -1 : 0); }

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

// What a law says about itself, as most laws would.
struct Plain {
  // what its states are
  static constexpr bool has_index = false;        // plane 1 is the index of a tap
  static constexpr bool state_is_result = false;  // the planes are the value, and the tangent if there are two
  static constexpr bool divides = false;          // the value is plane 0 over a number, which the last pass may apply
  static constexpr unsigned tap_planes = 1;       // as bits: what a tap brings along; other planes begin as `constant`
  static constexpr int tangent_plane = 0;         // the one among them that is dx; 0 for none
  static constexpr bool lifts = false;            // `lift` changes x and dx before they are planes
  // what its merges are
  static constexpr bool idempotent = false;    // merging a tap again changes nothing, and any cut of a window will do
  static constexpr bool merges_zeros = false;  // padding that counts changes the state
  static constexpr bool any_order = false;     // merging in another order changes no bit
  static constexpr bool is_linear = false;     // its derivative does not depend on x
  static constexpr bool tells_zeros = false;   // of zeros with both signs, the first stands: `restore_first_zero`
  // which ways of folding it needs; the others are not compiled
  static constexpr bool folds_lines = true;     // side by side: not where taps must keep their order, nor over readers
  static constexpr bool folds_readers = false;  // the axes of a vjp, which have phases
  // what its loops are worth
  static constexpr bool cheap_merge = false;              // a merge is a few instructions: several go side by side
  static constexpr bool unrolls_small_windows = false;    // loops for the usual numbers of taps are worth their code
  static constexpr bool leaves_constants_unread = false;  // and so is a first pass that does not read constant planes

  template <class S, class I> INLINE void shift_index(S &, I) const {}
  template <class S, class T> INLINE void restore_first_zero(S &, const T *, i64, i64) const {}
};

// The largest tap, the first of equals, NaN above all: the value alone. Any other order keeps the winner, too.
template <class E> struct Select : Plain {
  using T = E;
  static constexpr int planes = 1;
  static constexpr bool state_is_result = true, idempotent = true, any_order = !is_float<T>, cheap_merge = true,
                        tells_zeros = is_float<T>,
                        unrolls_small_windows = std::is_same_v<T, float> || sizeof(T) == 1;
  static constexpr T constant[1] = {0};
  template <class X> INLINE void merge(State<X, 1> &a, const State<X, 1> &b) const {
    X q = b.at[0], most = larger<X>(q, a.at[0]);
    a.at[0] = choose<X>(is_nan(q), q, most);
  }
  template <class X> INLINE void merge_unordered(State<X, 1> &a, const State<X, 1> &b) const { merge(a, b); }
  // After taps were merged out of order: of zeros with both signs, the first stands.
  template <class X> INLINE void restore_first_zero(State<X, 1> &s, const T *taps, i64 n, i64 step) const {
    if constexpr (!tells_zeros) return;
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
  static constexpr int planes = 2;
  static constexpr bool has_index = true, idempotent = true, cheap_merge = true,
                        leaves_constants_unread = !LAST && !IGNORE,
                        unrolls_small_windows = leaves_constants_unread && std::is_same_v<T, float>;
  static constexpr T constant[2] = {0, 0};
  template <class X> INLINE void merge(State<X, 2> &a, const State<X, 2> &b) const {
    Ints<X> taken = takes<LAST, IGNORE>(b.at[0], a.at[0]);
    for (int i = 0; i < 2; i++) a.at[i] = choose<X>(taken, b.at[i], a.at[i]);
  }
  // for taps out of order: of equals, the one with the lower or the higher index
  template <class X> INLINE void merge_unordered(State<X, 2> &a, const State<X, 2> &b) const {
    Ints<X> i = bits(a.at[1]), j = bits(b.at[1]);
    Ints<X> taken = beats<IGNORE>(b.at[0], a.at[0]) | ((!beats<IGNORE>(a.at[0], b.at[0])) & (LAST ? j > i : j < i));
    for (int p = 0; p < 2; p++) a.at[p] = choose<X>(taken, b.at[p], a.at[p]);
  }
  template <class X> INLINE void shift_index(State<X, 2> &s, Int<T> bias) const {
    s.at[1] = from_bits<X>(Ints<X>(bits(s.at[1]) + bias));
  }
};

// The largest tap and its tangent, if taps are merged in order: among equals, nothing tells which came first.
template <class E, bool LAST, bool IGNORE> struct Follow : Winner<E, LAST, IGNORE> {
  using T = E;
  static constexpr bool has_index = false, state_is_result = true, leaves_constants_unread = false, folds_lines = false;
  static constexpr unsigned tap_planes = 3;
  static constexpr int tangent_plane = 1;
  template <class S, class I> INLINE void shift_index(S &, I) const {}
};

// The largest tap, and sums over all taps equal to it: their number, their tangents.
template <class E, bool IGNORE, int PLANES> struct Share : Plain {
  using T = E;
  static constexpr unsigned tap_planes = PLANES == 3 ? 5 : 1;
  static constexpr int tangent_plane = PLANES == 3 ? 2 : 0;
  static constexpr bool folds_readers = PLANES == 2;
  using Backward = Share<T, !IGNORE, 2>;  // a tap wins where no reader's value is larger: the least value, reversed
  static constexpr int planes = PLANES;
  static constexpr T constant[3] = {0, 1, 1};
  bool split;
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    Ints<X> later = beats<IGNORE>(b.at[0], a.at[0]), earlier = beats<IGNORE>(a.at[0], b.at[0]);
    for (int i = 1; i < PLANES; i++) a.at[i] = choose<X>(later, X{}, a.at[i]) + choose<X>(earlier, X{}, b.at[i]);
    a.at[0] = choose<X>(later, b.at[0], a.at[0]);
  }
  template <class X> INLINE void merge_unordered(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }
  template <class X> INLINE X value(const State<X, 3> &s, X) const { return s.at[0]; }
  template <class X> INLINE X tangent(const State<X, 3> &s) const { return split ? s.at[2] / s.at[1] : s.at[2]; }
  Backward backward() const { return {{}, split}; }
  template <class X> INLINE State<X, 2> handed_back(const State<X, 2> &s, X dy) const {
    return {-s.at[0], split ? dy / s.at[1] : dy};
  }
  template <class X> INLINE X tap_cotangent(const State<X, 2> &s, X x) const {
    return choose<X>((s.at[0] == -x) | (is_nan(s.at[0]) & is_nan(x)), s.at[1], X{});
  }
};

template <class E, int PLANES> struct Add : Plain {
  using T = E;
  static constexpr int planes = PLANES;
  static constexpr bool is_linear = true, any_order = !is_float<T>, divides = is_float<T>, folds_readers = is_float<T>,
                        cheap_merge = true, unrolls_small_windows = sizeof(T) == 4 || sizeof(T) == 2;
  static constexpr T constant[2] = {0, 0};
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    for (int i = 0; i < PLANES; i++) a.at[i] += b.at[i];
  }
  template <class X> INLINE void merge_unordered(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }
  template <class X> INLINE X value(const State<X, PLANES> &s, X divisor) const { return s.at[0] / divisor; }
  Add backward() const { return {}; }
};

// A sum of terms, each kept relative to the largest: state (m, s, ...) stands for s times the term of m. `Ratio` says
// what the lesser m's term is of the greater's; equals have the ratio 1, infinities too. Where it `vanishes`, the
// lesser tangent (`vanishing_plane`, if there is one) is nothing at all, even if it is infinite or NaN.
template <class E, int PLANES, class Ratio, bool NANS_ARE_EQUAL = false> struct Relative : Plain {
  using T = E;
  static constexpr unsigned tap_planes = PLANES == 3 ? 5 : 1;
  static constexpr int tangent_plane = PLANES == 3 ? 2 : 0;
  static constexpr int planes = PLANES;
  static constexpr bool folds_lines = false, folds_readers = true;  // by itself it is the law of a vjp
  static constexpr T constant[3] = {0, 1, 1};
  Ratio ratio;
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    if constexpr (Ratio::inlines_merge)
      merge_inline(a, b);
    else
      merge_called(a, b);
  }
  template <class X> INLINE void merge_unordered(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }

 private:
  template <class X> INLINE void merge_inline(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    Ints<X> later = b.at[0] > a.at[0];
    X most = larger<X>(b.at[0], a.at[0]), least = smaller<X>(a.at[0], b.at[0]);  // a NaN is one of them
    Ints<X> equal = least == most;
    if constexpr (NANS_ARE_EQUAL) equal |= is_nan(least) & is_nan(most);
    X by[3];
    ratio.template of<X, PLANES>(least, most, equal, by);  // of a NaN and a number it is a NaN, and so is the sum
    for (int i = 1; i < PLANES; i++) {
      X lesser = choose<X>(later, a.at[i], b.at[i]) * by[i];
      if constexpr (Ratio::vanishing_plane > 0)
        if (i == Ratio::vanishing_plane) lesser = choose<X>(ratio.vanishes(most, equal) & is_nan(lesser), X{}, lesser);
      a.at[i] = choose<X>(later, b.at[i], a.at[i]) + lesser;
    }
    a.at[0] = most;
  }
  template <class X> NOINLINE void merge_called(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    merge_inline(a, b);
  }
};

template <class T> struct ExpRatio {
  static constexpr int vanishing_plane = 0;
  static constexpr bool inlines_merge = sizeof(T) == 4;  // whether a merge is worth a copy wherever one is made
  T octaves, inverse;                                    // beta in powers of two; 1 / beta
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
  static constexpr bool folds_lines = true, folds_readers = false, merges_zeros = true,
                        leaves_constants_unread = PLANES == 2;
  using Backward = Relative<T, 2, ExpRatio<T>, true>;  // a NaN that is alone in its windows has all of their derivative
  Backward backward() const { return {{}, this->ratio}; }
  template <class X> INLINE X value(const State<X, PLANES> &s, X) const {
    return s.at[0] + log_positive<X>(s.at[1]) * this->ratio.inverse;
  }
  template <class X> INLINE X tangent(const State<X, PLANES> &s) const { return s.at[2] / s.at[1]; }
  template <class X> INLINE State<X, 2> handed_back(const State<X, 2> &s, X dy) const {
    return {-s.at[0], dy / s.at[1]};
  }
  template <class X> INLINE X tap_cotangent(const State<X, 2> &s, X x) const {
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
  static constexpr bool inlines_merge = false;
  static constexpr int vanishing_plane = 2;
  T p;
  template <class X> INLINE Ints<X> vanishes(X most, Ints<X> equal) const {
    return (most == T(__builtin_inf())) & !equal & truth<X>(p != 1);
  }
  template <class X, int PLANES> INLINE void of(X least, X most, Ints<X> equal, X *by) const {
    X q = choose<X>(equal, splat<X>(1), least / most);
    by[2] = power<X>(q, p - 1);
    by[1] = by[2] * q;
  }
};
template <class T> struct BackwardPowerRatio {  // of negated values: the lesser is the larger in size
  static constexpr bool inlines_merge = false;
  static constexpr int vanishing_plane = 0;
  T p;
  template <class X, int PLANES> INLINE void of(X least, X most, Ints<X> equal, X *by) const {
    by[1] = power<X>(choose<X>(equal, splat<X>(1), most / least), p - 1);
  }
};

template <class X> INLINE X sign(X x) {  // 0 for 0, NaN for NaN
  return choose<X>(x > 0, splat<X>(1), choose<X>(x < 0, splat<X>(-1), x));
}

// A sum of P-th powers of numbers that were float, and (with three planes) of what finite and infinite taps make of
// their tangents. Double holds all powers; the infinite ones are kept as finite numbers beyond all others, so that a
// finite tap's share of the derivative is below what float can tell from 0.
template <class E, int P, int PLANES> struct PowerSum : Plain {
  using T = E;
  static_assert(sizeof(T) == 8 && P >= 1 && P <= 3);
  static constexpr int planes = PLANES, tangent_plane = PLANES == 3 ? 1 : 0;
  static constexpr unsigned tap_planes = PLANES == 3 ? 7 : 1;
  static constexpr bool lifts = true, cheap_merge = true, unrolls_small_windows = PLANES == 1;
  static constexpr T constant[3] = {0, 0, 0};
  using Backward = Add<T, 1>;
  Backward backward() const { return {}; }
  template <class X> INLINE State<X, PLANES> lift(X x, X dx = X{}) const {
    State<X, PLANES> s;
    s.at[0] = limited(x) * slope(x);
    if constexpr (PLANES == 3) {
      Ints<X> infinite = (limited(x) != x) & (x == x);
      X tangent = slope(x) * dx;
      s.at[1] = choose<X>(infinite, X{}, tangent), s.at[2] = choose<X>(infinite, tangent, X{});
    }
    return s;
  }
  template <class X> INLINE void merge(State<X, PLANES> &a, const State<X, PLANES> &b) const {
    for (int i = 0; i < PLANES; i++) a.at[i] += b.at[i];
  }
  template <class X> INLINE void merge_unordered(State<X, PLANES> &a, const State<X, PLANES> &b) const { merge(a, b); }
  template <class X> INLINE X value(const State<X, PLANES> &s, X) const { return root_of<X>(s.at[0]); }
  template <class X> INLINE X tangent(const State<X, PLANES> &s) const {
    return over_slope<X>(s.at[0], P == 1 ? s.at[1] : choose<X>(s.at[0] < MOST_OF_FINITE, s.at[1], s.at[2]));
  }
  template <class X> INLINE State<X, 1> handed_back(const State<X, PLANES> &s, X dy) const {
    return {{over_slope<X>(s.at[0], dy)}};
  }
  template <class X> INLINE X tap_cotangent(const State<X, 1> &s, X x) const { return slope(x) * s.at[0]; }

 private:
  static constexpr T MOST = P == 1 ? T(__builtin_inf()) : P == 2 ? 0x1p450 : 0x1p300;  // its power is 2^900,
  static constexpr T MOST_OF_FINITE = 0x1p800;                                         // far above other sums
  template <class X> static INLINE X limited(X x) {
    return P == 1 ? x : smaller<X>(splat<X>(MOST), larger<X>(splat<X>(-MOST), x));
  }
  template <class X> static INLINE X slope(X x) {  // of |x|^P, over P
    X a = limited(x);
    return P == 1 ? sign(x) : P == 2 ? a : choose<X>(a < 0, -a, a) * a;
  }
  template <class X> static INLINE X over_slope(X s, X tangent) {  // at the norm; 0 has none
    if constexpr (P == 1) return tangent;
    X y = root_of(s);
    return choose<X>(s == 0, tangent, tangent / (P == 2 ? y : y * y));
  }
  template <class X> static INLINE X root_of(X s) {
    if constexpr (P == 1)
      return s;
    else if constexpr (P == 2)
      return root<X>(s, 0.5);
    else {
      X octaves = log_positive<X>(choose<X>(s > 0, s, splat<X>(1))) * T(LOG2_E / 3);  // power_of_two wants none above 0
      X less = power_of_two<X>(choose<X>(octaves > 0, -octaves, octaves));
      return choose<X>(s > 0, choose<X>(octaves > 0, 1 / less, less), s);
    }
  }
};

template <class E, int PLANES> struct Lp : Relative<E, PLANES, PowerRatio<E>> {
  using T = E;
  static constexpr bool folds_lines = true, folds_readers = false, lifts = true, merges_zeros = true;
  using Backward = Relative<T, 2, BackwardPowerRatio<T>>;
  Backward backward() const { return {{}, {this->ratio.p}}; }
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
  template <class X> INLINE State<X, 2> handed_back(const State<X, 2> &s, X dy) const {
    return {-s.at[0], dy / share(s.at[1])};
  }
  template <class X> INLINE X tap_cotangent(const State<X, 2> &s, X x) const {
    X m = -s.at[0], a = choose<X>(x < 0, -x, x);
    return sign(x) * s.at[1] * choose<X>(a == m, splat<X>(1), power<X>(a / m, this->ratio.p - 1));
  }

 private:
  template <class X> INLINE X share(X s) const { return root<X>(s, 1 - 1 / this->ratio.p); }
};

}  // namespace
}  // namespace ndpool
