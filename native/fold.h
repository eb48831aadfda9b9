// Folding one axis by a law. A pass sees its input as [positions][m] and makes [outputs][m]: m is everything inside the
// axis, so the middle of a tile merges rows and its last axis merges shifted copies of itself, in the same flat loops.
// The order of merges is a function of the window alone.
#pragma once
#include "kernels.h"
#include "law.h"

namespace ndpool {
namespace {

template <class T, int PLANES> struct Source {
  const T *at[PLANES];
  Source operator+(i64 n) const {
    Source s;
    for (int i = 0; i < PLANES; i++) s.at[i] = at[i] + n;
    return s;
  }
};
template <class T, int PLANES> struct Sink {
  T *at[PLANES];
  Sink operator+(i64 n) const {
    Sink s;
    for (int i = 0; i < PLANES; i++) s.at[i] = at[i] + n;
    return s;
  }
  operator Source<T, PLANES>() const {
    Source<T, PLANES> s;
    for (int i = 0; i < PLANES; i++) s.at[i] = at[i];
    return s;
  }
};

// Which planes are read, as bits; the others are the law's constants.
template <class Law> constexpr unsigned ALL = (1u << Law::planes) - 1;
template <class Law> constexpr unsigned FIRST = Law::spares_reads ? Law::lifted : ALL<Law>;

template <class Law, unsigned READ, class X, int STRIDE = 1>
INLINE State<X, Law::planes> load(const Source<typename Law::T, Law::planes> &from, i64 at) {
  State<X, Law::planes> s;
  for (int i = 0; i < Law::planes; i++)
    s.at[i] = READ >> i & 1 ? load<X, STRIDE>(from.at[i] + at) : splat<X>(Law::constant[i]);
  return s;
}
template <class Law, class X>
INLINE void save(const Sink<typename Law::T, Law::planes> &to, i64 at, const State<X, Law::planes> &s) {
  for (int i = 0; i < Law::planes; i++) save<X>(to.at[i] + at, s.at[i]);
}

template <class Law, unsigned READ> struct Folding {
  using T = typename Law::T;
  using I = Int<T>;
  static constexpr int PLANES = Law::planes;
  using From = Source<T, PLANES>;
  using To = Sink<T, PLANES>;

  const Law &law;
  const Axis &axis;
  i64 from, to;                    // the outputs wanted
  i64 base, held;                  // the first position that is there, and how many
  i64 m, row;                      // elements inside the axis; distance between positions
  i64 tap_step;                    // what one tap adds to a winner's index
  To block;                        // scratch for doubling: the positions that windows cover, times m, a plane
  T *phases;                       // scratch for phases: a row of outputs
  i64 pieces, from_step, to_step;  // how many such inputs, and how far apart they and their outputs lie

  // The taps of a vector of outputs that lie STRIDE apart: from `at` on, every `gap`-th. TAPS: how many, if that is
  // fixed; then they are neighbours.
  template <class X, int STRIDE, int TAPS>
  INLINE State<X, PLANES> along(From from, i64 at, i64 many, i64 gap, I bias, I step) const {
    i64 taps = TAPS ? TAPS : many, t = 1;
    State<X, PLANES> a;
    if (STRIDE == 2 && Law::light && (TAPS || gap == 1) &&
        taps > 1) {  // neighbouring taps come from the same two vectors
      a = merged_pair<X>(from, at, bias, step);
      for (t = 2; t + 1 < taps; t += 2) {
        State<X, PLANES> even, odd;
        load_pairs(from, at + t, even, odd);
        law.tap(even, I(bias + I(t) * step));
        law.tap(odd, I(bias + I(t + 1) * step));
        law.merge(a, even);
        law.merge(a, odd);
      }
    } else {
      a = load<Law, READ, X, STRIDE>(from, at);
      law.tap(a, bias);
    }
    for (; t < taps; t++) {
      auto b = load<Law, READ, X, STRIDE>(from, at + (TAPS ? t : t * gap));
      law.tap(b, I(bias + I(t) * step));
      law.merge(a, b);
    }
    return a;
  }
  template <class X> INLINE State<X, PLANES> merged_pair(From from, i64 at, I bias, I step) const {
    State<X, PLANES> even, odd;
    load_pairs(from, at, even, odd);
    law.tap(even, bias);
    law.tap(odd, I(bias + step));
    law.merge(even, odd);
    return even;
  }
  template <class X> INLINE void load_pairs(From from, i64 at, State<X, PLANES> &even, State<X, PLANES> &odd) const {
    for (int i = 0; i < PLANES; i++)
      if (READ >> i & 1)
        load_pair<X>(from.at[i] + at, even.at[i], odd.at[i]);
      else
        even.at[i] = odd.at[i] = splat<X>(Law::constant[i]);
  }

  // to[j] = merge over t of from[j * stride + t * gap]
  template <int STRIDE> void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      save<Law, X>(to, j, along<X, STRIDE, 0>(from, j * stride, taps, gap, bias, step));
    };
    if (STRIDE == 0 || n == 1)
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
        for (i64 j = 0; j < n; j++) body(One<T>{}, j);
    else
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
        each_vector<T, Law::light>(n, body);
  }

  void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    if (stride == 1)
      across<1>(to, from, n, taps, gap, 1, bias, step);
    else if (stride == 2)
      across<2>(to, from, n, taps, gap, 2, bias, step);
    else
      across<0>(to, from, n, taps, gap, stride, bias, step);
  }

  // Two axes at once: this one along rows, `outer` across them. Pieces are planes; rows lie `row_step` apart.
  template <int STRIDE, int TAPS>
  void planes_of(To to, From from, const Axis &outer, i64 begin, i64 end, i64 first_row, i64 row_step,
                 i64 outer_step) const {
    i64 a = axis.whole_from, b = axis.whole_to, width = axis.outputs, stride = axis.stride;
    I step = I(tap_step);
    for (i64 piece = 0; piece < pieces; piece++, from = from + from_step)
      for (i64 o = begin; o < end; o++, to = to + width) {
        i64 rows = outer.length[o], gap = outer.step * row_step;
        if (rows == 0) {
          for (int i = 0; i < PLANES; i++) std::memset(to.at[i], 0, size_t(width) * sizeof(T));
          continue;
        }
        From top = from + (outer.first[o] - first_row) * row_step;
        I across = I(I((outer.first[o] - outer.start[o]) / outer.step) * I(outer_step));
        auto single = [&](i64 j) {
          if (axis.length[j] == 0) {
            for (int i = 0; i < PLANES; i++) to.at[i][j] = 0;
            return;
          }
          I bias = I(across + skipped(j) * step);
          using X = Small<T>;  // vectors choose without branches
          auto s = along<X, 0, 0>(top, axis.first[j], axis.length[j], axis.step, bias, step);
          for (i64 r = 1; r < rows; r++)
            law.merge(s, along<X, 0, 0>(top, axis.first[j] + r * gap, axis.length[j], axis.step,
                                        I(bias + I(r) * I(outer_step)), step));
          for (int i = 0; i < PLANES; i++) to.at[i][j] = s.at[i][0];
        };
        for (i64 j = 0; j < a; j++) single(j);
        if (a < b) {
          I bias = I(across + skipped(a) * step);
          i64 origin = axis.first[a], many = axis.length[a];
          each_vector<T, true>(b - a, [&](auto kind, i64 j) INLINE_LAMBDA {
            using X = decltype(kind);
            i64 at = origin + j * stride;
            auto s = along<X, STRIDE, TAPS>(top, at, many, axis.step, bias, step);
            for (i64 r = 1; r < rows; r++)
              law.merge(
                  s, along<X, STRIDE, TAPS>(top, at + r * gap, many, axis.step, I(bias + I(r) * I(outer_step)), step));
            save<Law, X>(to, a + j, s);
          });
        }
        for (i64 j = b; j < width; j++) single(j);
      }
  }

  void planes(To to, From from, const Axis &outer, i64 begin, i64 end, i64 first_row, i64 row_step,
              i64 outer_step) const {
    i64 taps = axis.step == 1 && axis.whole_from < axis.whole_to ? axis.length[axis.whole_from] : 0;
    auto go = [&](auto stride, auto fixed) {
      planes_of<decltype(stride)::value, decltype(fixed)::value>(to, from, outer, begin, end, first_row, row_step,
                                                                 outer_step);
    };
    std::integral_constant<int, 0> any;
    std::integral_constant<int, 1> one;
    std::integral_constant<int, 2> two;
    std::integral_constant<int, 3> three;
    if (axis.stride != 2)
      go(one, any);
    else if (taps == 2)
      go(two, two);
    else if (taps == 3)
      go(two, three);
    else
      go(two, any);
  }

  void zero(To to, i64 n) const {
    for (i64 piece = 0; piece < pieces; piece++, to = to + to_step)
      for (int i = 0; i < PLANES; i++) std::memset(to.at[i], 0, size_t(n) * sizeof(T));
  }

  // taps of output o that clipping left out before the first
  I skipped(i64 o) const { return I((axis.first[o] - axis.start[o]) / axis.step); }

  void one(To to, From from, i64 o) const {
    if (axis.length[o] == 0) return zero(to, m);
    From taps = from + (axis.first[o] - base) * row;
    I step = I(tap_step);
    if (axis.lines) {
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, taps = taps + from_step)
        m == 1 && axis.step == 1 ? line(to, taps, axis.length[o], I(skipped(o) * step))
                                 : lines(to, taps, axis.length[o], I(skipped(o) * step));
      return;
    }
    across<1>(to, taps, m, axis.length[o], axis.step * row, 1, I(skipped(o) * step), step);
  }

  // -- many consecutive elements to one state
  // ---------------------------------------------------------------------------

  static constexpr int ABREAST = 64 / sizeof(T);  // states kept side by side, whatever the width of a vector
  static constexpr i64 LONGEST = 4096;            // beyond, halves are merged: sums do not drift
  static constexpr i64 LONG = Law::light ? 16 * ABREAST : LONGEST + 1;  // from there on four times as many side by side
  static constexpr int MANY = Law::light ? 4 * ABREAST : ABREAST;
  static i64 first_half(i64 n) { return (n / 2 + 4 * ABREAST - 1) / (4 * ABREAST) * (4 * ABREAST); }

  template <class X> INLINE State<X, PLANES> tap_at(From from, i64 at, i64 t, I bias) const {
    auto s = load<Law, READ, X>(from, at);
    law.tap(s, I(bias + I(t) * I(tap_step)));
    return s;
  }

  // n taps side by side
  void line(To to, From from, i64 n, I bias) const {
    State<One<T>, PLANES> s = n < ABREAST    ? short_line(from, n, bias)
                              : n < LONG     ? abreast<ABREAST>(from, n, bias)
                              : n <= LONGEST ? abreast<MANY>(from, n, bias)
                                             : longest_line(from, n, bias);
    if constexpr (Law::signs) law.settle(s, from.at[0], n, 1);
    save<Law, One<T>>(to, 0, s);
  }

  State<One<T>, PLANES> longest_line(From from, i64 n, I bias) const {
    i64 half = first_half(n);
    auto part = [&](i64 at, i64 count) {
      I on = I(bias + I(at) * I(tap_step));
      return count <= LONGEST ? abreast<MANY>(from + at, count, on) : longest_line(from + at, count, on);
    };
    auto a = part(0, half);
    law.merge(a, part(half, n - half));
    return a;
  }

  template <int SIDE> State<One<T>, PLANES> abreast(From from, i64 n, I bias) const {
    using X = Vec<T>;
    constexpr int N = LANES<X>, WAYS = SIDE / N;
    constexpr bool WRITTEN_OUT = Law::light && WAYS <= 8;
    Ints<X> index;
    for (int i = 0; i < N; i++) index[i] = I(I(i) * I(tap_step));
    auto fetch = [&](i64 t) INLINE_LAMBDA {
      auto s = tap_at<X>(from, t, t, bias);
      if constexpr (Law::indexed) s.at[1] = from_bits<X>(bits(s.at[1]) + index);
      return s;
    };
    State<X, PLANES> acc[WAYS];
    times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { acc[w] = fetch(w * N); });
    i64 done = SIDE;
    for (; done + SIDE <= n; done += SIDE)
      times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { law.merge(acc[w], fetch(done + w * N)); });
    if constexpr (Law::light && PLANES == 1) {  // the rest goes on in the same lanes; those that get nothing stay idle
      for (int w = 0; w < WAYS && done + w * N < n; w++) {
        i64 left = n - done - w * N;
        if (left >= N) {
          law.merge(acc[w], fetch(done + w * N));
          continue;
        }
        T some[N];
        save<X>(some, Law::overlaps ? acc[w].at[0] : splat<X>(Law::idle(T(0), 0)));
        for (i64 i = 0; i < left; i++) some[i] = from.at[0][done + w * N + i];
        law.merge(acc[w], State<X, PLANES>{{load<X>(some)}});
      }
      times<WAYS - 1, WRITTEN_OUT>([&](int i) INLINE_LAMBDA { join_pair(acc, i, WAYS); });
      return one_lane(acc[0]);
    }
    alignas(64) T room[PLANES][SIDE];
    To side;
    for (int i = 0; i < PLANES; i++) side.at[i] = room[i];
    times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { save<Law, X>(side, w * N, acc[w]); });
    each_once<T>(n - done, [&](auto kind, i64 i) INLINE_LAMBDA {  // the rest goes on in the same places
      using Y = decltype(kind);
      auto a = load<Law, ALL<Law>, Y>(side, i);
      if constexpr (LANES<Y> == N)
        law.merge(a, fetch(done + i));
      else
        law.merge(a, tap_at<Y>(from, done + i, done + i, bias));
      save<Law, Y>(side, i, a);
    });
    if constexpr (Law::light) {
      times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { acc[w] = load<Law, ALL<Law>, X>(side, w * N); });
      times<WAYS - 1, WRITTEN_OUT>([&](int i) INLINE_LAMBDA { join_pair(acc, i, WAYS); });
      return one_lane(acc[0]);
    } else {
      for (int half = SIDE / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) {
          auto a = load<Law, ALL<Law>, One<T>>(side, i);
          law.join(a, load<Law, ALL<Law>, One<T>>(side, i + half));
          save<Law, One<T>>(side, i, a);
        }
      return load<Law, ALL<Law>, One<T>>(side, 0);
    }
  }

  // The i-th meeting of `width` states, a power of two, whose halves meet, then the halves of the first half, ...
  template <class S> INLINE void join_pair(S *states, int i, int width) const {
    int half = width / 2, first = 0;
    while (i - first >= half) first += half, half /= 2;
    law.join(states[i - first], states[i - first + half]);
  }

  template <class X> INLINE State<One<T>, PLANES> one_lane(const State<X, PLANES> &s) const {
    if constexpr (LANES<X> == 1)
      return s;
    else {
      State<Half<X>, PLANES> low, high;
      for (int i = 0; i < PLANES; i++) low.at[i] = halve<X>(s.at[i], 0), high.at[i] = halve<X>(s.at[i], 1);
      law.join(low, high);
      return one_lane<Half<X>>(low);
    }
  }

  // fewer taps than lanes
  State<One<T>, PLANES> short_line(From from, i64 n, I bias) const {
    State<One<T>, PLANES> side[ABREAST];
    for (i64 t = 0; t < n; t++) side[t] = tap_at<One<T>>(from, t, t, bias);
    return halved<One<T>>(side, n);
  }

  template <class X> INLINE State<X, PLANES> halved(State<X, PLANES> *side, i64 width) const {
    while (width > 1) {
      i64 half = (width + 1) / 2;
      for (i64 i = 0; i < width - half; i++) law.join(side[i], side[i + half]);
      width = half;
    }
    return side[0];
  }

  // The same for m elements side by side: the same states meet in the same order, row after row as they lie in memory.
  void lines(To to, From from, i64 n, I bias) const {
    if (n > LONGEST) return longest_lines(to, from, n, bias, 0);
    i64 most = side_by_side(n), width = n < most ? n : most, gap = axis.step * row;
    for (i64 t = 0; t < width; t++)
      each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        auto a = tap_at<X>(from, t * gap + j, t, bias);
        if (t + most < n) law.merge(a, tap_at<X>(from, (t + most) * gap + j, t + most, bias));
        save<Law, X>(block, t * m + j, a);
      });
    for (i64 t = 2 * most; t < n; t++)
      each_once<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        auto a = load<Law, ALL<Law>, X>(block, t % most * m + j);
        law.merge(a, tap_at<X>(from, t * gap + j, t, bias));
        save<Law, X>(block, t % most * m + j, a);
      });
    while (width > 1) {
      i64 half = (width + 1) / 2;
      each_once<T>((width - half) * m, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        auto a = load<Law, ALL<Law>, X>(block, j);
        law.join(a, load<Law, ALL<Law>, X>(block, half * m + j));
        save<Law, X>(block, j, a);
      });
      width = half;
    }
    each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto s = load<Law, ALL<Law>, X>(block, j);
      if constexpr (Law::signs) law.settle(s, from.at[0] + j, n, gap);
      save<Law, X>(to, j, s);
    });
  }
  static i64 least_of(i64 a, i64 b) { return a < b ? a : b; }
  void longest_lines(To to, From from, i64 n, I bias, int level) const {
    if (n <= LONGEST) return lines(to, from, n, bias);
    i64 half = first_half(n);
    To second = block + (MANY + level) * m;
    longest_lines(to, from, half, bias, level + 1);
    longest_lines(second, from + half * axis.step * row, n - half, I(bias + I(half) * I(tap_step)), level + 1);
    each_once<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto a = load<Law, ALL<Law>, X>(to, j);
      law.merge(a, load<Law, ALL<Law>, X>(second, j));
      save<Law, X>(to, j, a);
    });
  }
  static i64 side_by_side(i64 n) { return n < LONG ? ABREAST : MANY; }
  static i64 rows_of_block(i64 taps) {
    i64 rows = MANY;
    for (; taps > LONGEST / 2; taps /= 2) rows++;  // one for each halving
    return rows;
  }

  // -- windows that repeat
  // ----------------------------------------------------------------------------------------------

  void run(To to, From from) const {
    bool dealt = axis.phases > 1 && m == 1 && this->to - this->from >= DEALT;
    if (axis.doubles || dealt) {  // these need scratch: one piece at a time
      Folding one = *this;
      one.pieces = 1;
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
        axis.doubles ? one.doubling(to, from) : one.window_by_window(to, from);
      return;
    }
    bool all_alike = axis.size == 1 && m == 1 && !axis.gaps && !Law::indexed;
    all_alike ? repeat(to, from) : window_by_window(to, from);
  }

  static constexpr i64 DEALT = 48;  // outputs from which on phases are worth rows of their own

  void window_by_window(To to, From from) const {
    i64 a = clamp(axis.whole_from), b = clamp(axis.whole_to);
    bool alike = axis.phases == 1 ? m == 1 || (axis.stride == 1 && row == m) : m == 1 && this->to - this->from >= DEALT;
    if (!alike || a >= b || axis.lines) a = b = this->to;
    for (i64 o = this->from; o < a; o++) one(to + (o - this->from) * m, from, o);
    if (a < b) axis.phases == 1 ? slide(to, from, a, b) : interleaved(to, from, a, b);
    for (i64 o = b; o < this->to; o++) one(to + (o - this->from) * m, from, o);
  }

  i64 clamp(i64 o) const { return o < from ? from : o > to ? to : o; }

  void slide(To to, From from, i64 a, i64 b) const {
    I step = I(tap_step);
    across(to + (a - this->from) * m, from + (axis.first[a] - base) * row, (b - a) * m, axis.length[a], axis.step * row,
           m == 1 ? axis.stride : 1, I(skipped(a) * step), step);
  }

  // one input position, read by all
  void repeat(To to, From from) const {
    i64 n = this->to - this->from;
    for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
      each_vector<T, Law::light>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        auto one = load<Law, READ, One<T>>(from, 0);
        for (int i = 0; i < PLANES; i++) save<X>(to.at[i] + j, splat<X>(one.at[i]));
      });
  }

  // the transpose of a stride: each phase is a row of its own, then they are dealt out in turn
  void interleaved(To to, From from, i64 a, i64 b) const {
    i64 P = axis.phases;
    a = (a + P - 1) / P * P, b = b / P * P;
    if (a >= b) a = b = clamp(axis.whole_to);
    i64 whole_from = clamp(axis.whole_from), whole_to = clamp(axis.whole_to);
    for (i64 o = whole_from; o < a; o++) one(to + (o - this->from), from, o);
    for (i64 o = b; o < whole_to; o++) one(to + (o - this->from), from, o);
    i64 n = (b - a) / P;
    if (n == 0) return;
    To room;
    for (int i = 0; i < PLANES; i++) room.at[i] = phases + i * (this->to - this->from);
    for (i64 r = 0; r < P; r++) {
      i64 o = a + r;
      if (axis.length[o] == 0)
        zero(room + r * n, n);
      else
        across<1>(room + r * n, from + (axis.first[o] - base), n, axis.length[o], axis.step, 1, 0, 0);
    }
    for (int i = 0; i < PLANES; i++) {
      T *out = to.at[i] + (a - this->from);
      const T *in = room.at[i];
      if (P == 2)
        each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          interleave<X>(out + 2 * j, load<X>(in + j), load<X>(in + n + j));
        });
      else
        for (i64 q = 0; q < n; q++)
          for (i64 r = 0; r < P; r++) out[q * P + r] = in[r * n + q];
    }
  }

  // -- long windows: blocks of 2, 4, 8, ... positions, made in place
  // ------------------------------------------------------ Windows are not clipped here: beyond the ends lie taps that
  // change nothing, so all windows of a phase are alike.

  static int top_bit(i64 n) { return 63 - __builtin_clzll((unsigned long long)n); }
  static i64 floor_div(i64 a, i64 b) { return b == 1 ? a : a >= 0 ? a / b : -((b - 1 - a) / b); }

  // The positions that windows [from, to) cover before clipping.
  static void cover(const Axis &axis, i64 from, i64 to, i64 &low, i64 &high) {
    low = high = axis.start[from];
    for (i64 r = 0; r < axis.phases && from + r < to; r++) {
      i64 a = from + r, b = to - 1 - r;
      if (axis.start[a] < low) low = axis.start[a];
      i64 end = axis.start[b] + (axis.taps[b] - 1) * axis.step + 1;
      if (end > high) high = end;
    }
  }

  // Positions that scratch must hold to fold outputs [from, to) of an axis.
  static i64 block_rows(const Axis &axis, i64 from, i64 to) {
    if (axis.lines) return rows_of_block(axis.most_taps);
    if (!axis.doubles || from >= to) return 0;
    i64 low, high;
    cover(axis, from, to, low, high);
    return high - low;
  }

  void doubling(To to, From from) const {
    i64 low, high;
    cover(axis, this->from, this->to, low, high);
    begin(from, low, high);
    i64 span = high - low;
    for (int level = 0; (i64(1) << level) <= axis.most_taps; level++) {
      for (i64 o = this->from; o < this->to && o < this->from + axis.phases; o++) join(to, o, low, level);
      i64 size = i64(1) << level, hop = size * axis.step, left = span - (2 * size - 1) * axis.step;
      if (2 * size <= axis.most_taps && left > 0)
        each_once<T>(left * m, [&](auto kind, i64 q) INLINE_LAMBDA {  // what is read lies ahead of what is written
          using X = decltype(kind);
          auto s = load<Law, ALL<Law>, X>(block, q);
          law.merge(s, load<Law, ALL<Law>, X>(block, q + hop * m));
          save<Law, X>(block, q, s);
        });
    }
    if constexpr (Law::indexed) number_from_starts(reinterpret_cast<I *>(to.at[1]));
    for (i64 o = this->from; axis.gaps && o < this->to; o++)
      if (axis.length[o] == 0) zero(to + (o - this->from) * m, m);
  }

  // Winners are numbered along the axis; now each from where its window starts.
  void number_from_starts(I *index) const {
    if (m == 1 && axis.step == 1 && axis.slides) {
      I first = I(axis.start[from]);
      for (i64 j = 0; j < to - from; j++) index[j] = I(index[j] - I(first + I(j) * I(axis.stride)) * I(tap_step));
      return;
    }
    for (i64 o = from; o < to; o++) {
      I start = I(I(floor_div(axis.start[o], axis.step)) * I(tap_step)), *row = index + (o - from) * m;
      for (i64 j = 0; j < m; j++) row[j] = I(row[j] - start);
    }
  }

  // The block begins as a copy, with winners numbered along the axis, and idle taps at both ends.
  void begin(From from, i64 low, i64 high) const {
    times<PLANES, true>([&](int i) {
      T *plane = block.at[i] + (base - low) * m;
      if (READ >> i & 1)
        copy_rows(plane, from.at[i]);
      else
        fill_rows(plane, Law::constant[i]);
      if (Law::indexed && i == 1) number_rows(reinterpret_cast<I *>(plane));
      // a position beyond the ends is like one that is there and that the same windows read
      auto fill = [&](i64 q, i64 there) {
        T *at = block.at[i] + (q - low) * m;
        bool read = there >= base && there < base + held;
        for (i64 j = 0; j < m; j++) at[j] = read ? Law::idle(block.at[i][(there - low) * m + j], i) : T(0);
      };
      for (i64 q = low; q < base; q++) fill(q, base + (q - base - floor_div(q - base, axis.step) * axis.step));
      i64 end = base + held - 1;
      for (i64 q = end + 1; q < high; q++) fill(q, end - (end - q - floor_div(end - q, axis.step) * axis.step));
    });
  }
  void copy_rows(T *to, const T *from) const {
    if (row == m)
      std::memcpy(to, from, size_t(held * m) * sizeof(T));
    else
      for (i64 r = 0; r < held; r++) std::memcpy(to + r * m, from + r * row, size_t(m) * sizeof(T));
  }
  void fill_rows(T *to, T value) const {
    for (i64 j = 0; j < held * m; j++) to[j] = value;
  }
  void number_rows(I *to) const {
    if (m == 1 && axis.step == 1) {
      for (i64 r = 0; r < held; r++) to[r] = I(to[r] + I(I(base) + I(r)) * I(tap_step));
      return;
    }
    for (i64 r = 0; r < held; r++) {
      I here = I(I(floor_div(base + r, axis.step)) * I(tap_step));
      for (i64 j = 0; j < m; j++) to[r * m + j] = I(to[r * m + j] + here);
    }
  }

  // Give the outputs of one phase, from o on, what the blocks of 2^level positions have for them.
  void join(To to, i64 o, i64 low, int level) const {
    i64 n = axis.taps[o], size = i64(1) << level, gap = 0, count = (this->to - o + axis.phases - 1) / axis.phases;
    if (n == 0 || size > n) return;
    To out = to + (o - this->from) * m;
    From in = block;
    in = in + (axis.start[o] - low) * m;
    bool two = false, more = false;
    if constexpr (Law::overlaps) {  // two blocks cover the window: a tap does not beat itself
      if (top_bit(n) != level) return;
      gap = (n - size) * axis.step * m, two = gap > 0;
    } else {  // the bits of n, the lowest first, one block after another
      if (!(n & size)) return;
      i64 done = n & (size - 1);
      in = in + done * axis.step * m, more = done > 0;
    }
    Folding<Law, ALL<Law>> all{law, axis, this->from, this->to, base, held, m, m, 0, block, phases, 1, 0, 0};
    auto give = [&](To into, From blocks, i64 many, i64 stride) {
      if (Law::overlaps)
        all.across(into, blocks, many, two ? 2 : 1, gap, stride, 0, 0);
      else
        append(into, blocks, many, stride, !more);
    };
    if (axis.phases == 1 && m == 1) return give(out, in, count, axis.stride);
    if (axis.phases == 1 && axis.stride == 1) return give(out, in, count * m, 1);
    for (i64 q = 0; q < count; q++) give(out + q * axis.phases * m, in + q * axis.stride * m, m, 1);
  }

  void append(To to, From from, i64 n, i64 stride, bool first) const {
    auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto b = load<Law, ALL<Law>, X>(from, j * stride);
      if (!first) {
        auto a = load<Law, ALL<Law>, X>(to, j);
        law.merge(a, b);
        b = a;
      }
      save<Law, X>(to, j, b);
    };
    if (stride == 1) return each_once<T>(n, body);
    for (i64 j = 0; j < n; j++) body(One<T>{}, j);
  }
};

}  // namespace
}  // namespace ndpool
