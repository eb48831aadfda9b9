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
  To block;                        // scratch for long windows: `block_size` elements a plane
  T *phases;                       // scratch for phases: a row of outputs
  i64 pieces, from_step, to_step;  // how many such inputs, and how far apart they and their outputs lie
  T over = 1;                      // what results are divided by, if the law divides

  template <class X> INLINE void give(const To &to, i64 at, State<X, PLANES> s) const {
    if constexpr (Law::divides)
      if (over != 1) s.at[0] = s.at[0] / over;
    save<Law, X>(to, at, s);
  }

  // The taps of a vector of outputs that lie STRIDE apart: from `at` on, every `gap`-th. TAPS: how many, if that is
  // fixed.
  template <class X, int STRIDE, int TAPS>
  INLINE State<X, PLANES> along(From from, i64 at, i64 many, i64 gap, I bias, I step) const {
    i64 taps = TAPS ? TAPS : many, t = 1;
    State<X, PLANES> a;
    if (STRIDE == 2 && Law::light && gap == 1 && taps > 1) {  // neighbouring taps come from the same two vectors
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
      auto b = load<Law, READ, X, STRIDE>(from, at + t * gap);
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
  template <int STRIDE, int TAPS = 0>
  void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      give<X>(to, j, along<X, STRIDE, TAPS>(from, j * stride, taps, gap, bias, step));
    };
    if (STRIDE == 0 || n == 1)
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
        for (i64 j = 0; j < n; j++) body(One<T>{}, j);
    else
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
        each_vector<T, Law::light>(n, body);
  }

  void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    if (stride == 1) {
      if constexpr (Law::hot) {
        if (taps == 3) return across<1, 3>(to, from, n, taps, gap, 1, bias, step);
        if (taps == 5) return across<1, 5>(to, from, n, taps, gap, 1, bias, step);
      }
      across<1>(to, from, n, taps, gap, 1, bias, step);
    } else if (stride == 2)
      across<2>(to, from, n, taps, gap, 2, bias, step);
    else
      across<0>(to, from, n, taps, gap, stride, bias, step);
  }

  // The windows of a row that are unlike their neighbours, at its ends, and the first of the others. They are the same
  // for every row, and looking them up takes as long as folding a few vectors.
  struct Ends {
    static constexpr i64 MOST = 4;
    Clipped whole{}, head[MOST], tail[MOST];
    explicit Ends(const Axis &axis) {
      if (axis.whole_from < axis.whole_to) whole = axis.at(axis.whole_from);
      for (i64 i = 0; i < MOST && i < axis.whole_from; i++) head[i] = axis.at(i);
      for (i64 i = 0; i < MOST && axis.whole_to + i < axis.outputs; i++) tail[i] = axis.at(axis.whole_to + i);
    }
  };

  // A row of outputs, from `rows` rows of inputs that lie `gap` apart; the first of them stands for `across` and each
  // next one for `down` more in a winner's index.
  template <int STRIDE, int TAPS>
  INLINE void row_of(const Ends &ends, To to, From top, i64 rows, i64 gap, I across, I down) const {
    i64 a = axis.whole_from, b = axis.whole_to, stride = axis.stride;
    I step = I(tap_step);
    auto single = [&](i64 j, const Clipped &w) INLINE_LAMBDA {
      if (w.length == 0) {
        for (int i = 0; i < PLANES; i++) to.at[i][j] = 0;
        return;
      }
      I bias = I(across + I(w.skipped) * step);
      using X = Small<T>;  // vectors choose without branches
      auto s = along<X, 0, 0>(top, w.first, w.length, axis.step, bias, step);
      for (i64 r = 1; r < rows; r++)
        law.merge(s, along<X, 0, 0>(top, w.first + r * gap, w.length, axis.step, I(bias + I(r) * down), step));
      State<One<T>, PLANES> one;
      for (int i = 0; i < PLANES; i++) one.at[i] = s.at[i][0];
      give<One<T>>(to, j, one);
    };
    for (i64 j = 0; j < a; j++) single(j, j < Ends::MOST ? ends.head[j] : axis.at(j));
    if (a < b) {
      I bias = I(across + I(ends.whole.skipped) * step);
      i64 origin = ends.whole.first, many = ends.whole.length;
      each_vector<T, true>(b - a, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        i64 at = origin + j * stride;
        auto s = along<X, STRIDE, TAPS>(top, at, many, TAPS ? 1 : axis.step, bias, step);
        for (i64 r = 1; r < rows; r++)
          law.merge(s,
                    along<X, STRIDE, TAPS>(top, at + r * gap, many, TAPS ? 1 : axis.step, I(bias + I(r) * down), step));
        give<X>(to, a + j, s);
      });
    }
    for (i64 j = b; j < axis.outputs; j++) single(j, j - b < Ends::MOST ? ends.tail[j - b] : axis.at(j));
  }

  // Each piece is a row.
  template <int STRIDE, int TAPS> void rows_of(To to, From from) const {
    Ends ends(axis);
    for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
      row_of<STRIDE, TAPS>(ends, to, from, 1, 0, 0, 0);
  }

  // Two axes at once: this one along rows, `outer` across them. Pieces are planes; rows lie `row_step` apart.
  template <int STRIDE, int TAPS>
  void planes_of(To to, From from, const Axis &outer, i64 begin, i64 end, i64 first_row, i64 row_step,
                 i64 outer_step) const {
    Ends ends(axis);
    for (i64 piece = 0; piece < pieces; piece++, from = from + from_step)
      for (i64 o = begin; o < end; o++, to = to + axis.outputs) {
        Clipped rows = outer.at(o);
        if (rows.length == 0) {
          for (int i = 0; i < PLANES; i++) std::memset(to.at[i], 0, size_t(axis.outputs) * sizeof(T));
          continue;
        }
        row_of<STRIDE, TAPS>(ends, to, from + (rows.first - first_row) * row_step, rows.length, outer.step * row_step,
                             I(I(rows.skipped) * I(outer_step)), I(outer_step));
      }
  }

  // The same where elements lie inside both axes: all windows are alike.
  void planes_of_lanes(To to, From from, const Axis &outer, i64 begin, i64 end, i64 first_row, i64 row_step,
                       i64 outer_step) const {
    I step = I(tap_step);
    i64 gap = axis.step * row, down = outer.step * row_step;
    constexpr i64 MOST = 32;
    Clipped few[MOST];  // of the windows along a row: small tiles have no more
    for (i64 j = 0; j < MOST && j < axis.outputs; j++) few[j] = axis.at(j);
    for (i64 piece = 0; piece < pieces; piece++, from = from + from_step)
      for (i64 o = begin; o < end; o++) {
        Clipped column = outer.at(o);
        From top = from + (column.first - first_row) * row_step;
        I across = I(I(column.skipped) * I(outer_step));
        for (i64 j = 0; j < axis.outputs; j++, to = to + m) {
          Clipped w = j < MOST ? few[j] : axis.at(j);
          i64 rows = column.length, taps = w.length;
          if (rows == 0 || taps == 0) {
            for (int i = 0; i < PLANES; i++) std::memset(to.at[i], 0, size_t(m) * sizeof(T));
            continue;
          }
          From corner = top + w.first * row;
          I bias = I(across + I(w.skipped) * step);
          auto go = [&](auto fixed) INLINE_LAMBDA {
            constexpr int TAPS = decltype(fixed)::value;
            each_vector<T, true>(m, [&](auto kind, i64 l) INLINE_LAMBDA {
              using X = decltype(kind);
              auto s = along<X, 1, TAPS>(corner, l, taps, gap, bias, step);
              for (i64 r = 1; r < rows; r++)
                law.merge(s, along<X, 1, TAPS>(corner, l + r * down, taps, gap, I(bias + I(r) * I(outer_step)), step));
              give<X>(to, l, s);
            });
          };
          taps == 2   ? go(std::integral_constant<int, 2>())
          : taps == 3 ? go(std::integral_constant<int, 3>())
                      : go(std::integral_constant<int, 0>());
        }
      }
  }

  // go(stride, taps), both as constants; taps 0: any number
  template <class Go> INLINE void with_row(Go go) const {
    i64 taps = axis.step == 1 && axis.whole_from < axis.whole_to ? axis.length(axis.whole_from) : 0;
    std::integral_constant<int, 0> any;
    std::integral_constant<int, 1> one;
    std::integral_constant<int, 2> two;
    std::integral_constant<int, 3> three;
    std::integral_constant<int, 4> four;
    std::integral_constant<int, 5> five;
    if (axis.stride == 1)
      taps == 3 ? go(one, three) : taps == 5 ? go(one, five) : go(one, any);
    else if (axis.stride == 3)
      go(three, any);
    else if (axis.stride == 4)
      go(four, any);
    else if (taps == 2)
      go(two, two);
    else if (taps == 3)
      go(two, three);
    else
      go(two, any);
  }

  void planes(To to, From from, const Axis &outer, i64 begin, i64 end, i64 first_row, i64 row_step,
              i64 outer_step) const {
    if (m > 1) return planes_of_lanes(to, from, outer, begin, end, first_row, row_step, outer_step);
    with_row([&](auto stride, auto taps) {
      planes_of<decltype(stride)::value, decltype(taps)::value>(to, from, outer, begin, end, first_row, row_step,
                                                                outer_step);
    });
  }

  void rows(To to, From from) const {
    with_row([&](auto stride, auto taps) { rows_of<decltype(stride)::value, decltype(taps)::value>(to, from); });
  }
  // Whether that is all: the whole of an axis whose windows lie alike, and nothing inside it.
  bool has_rows() const {
    return Law::hot && m == 1 && axis.phases == 1 && !axis.lines && axis.stride <= 4 && from == 0 &&
           to == axis.outputs && base == 0;
  }

  void zero(To to, i64 n) const {
    for (i64 piece = 0; piece < pieces; piece++, to = to + to_step)
      for (int i = 0; i < PLANES; i++) std::memset(to.at[i], 0, size_t(n) * sizeof(T));
  }

  void one(To to, From from, i64 o) const {
    Clipped w = axis.at(o);
    if (w.length == 0) return zero(to, m);
    From taps = from + (w.first - base) * row;
    I step = I(tap_step), bias = I(I(w.skipped) * step);
    if (axis.lines) {
      i64 piece = 0;
      if constexpr (Law::light && PLANES == 1)
        if (m == 1 && axis.step == 1 && w.length >= ABREAST && w.length < LONG)
          for (constexpr i64 N = LANES<Vec<T>>; piece + N < pieces;
               piece += N, to = to + N * to_step, taps = taps + N * from_step)
            line_by_line(to, taps, w.length);
      for (; piece < pieces; piece++, to = to + to_step, taps = taps + from_step)
        m == 1 && axis.step == 1 ? line(to, taps, w.length, bias) : lines(to, taps, w.length, bias);
      return;
    }
    across<1>(to, taps, m, w.length, axis.step * row, 1, bias, step);
  }

  // -- many consecutive elements to one state
  // ---------------------------------------------------------------------------

  static constexpr int ABREAST = 64 / sizeof(T);   // states kept side by side, whatever the width of a vector
  static constexpr i64 AHEAD = 32768 / sizeof(T);  // how far on memory is asked for before it is needed
  static constexpr i64 LONGEST = 4096;             // beyond, halves are merged: sums do not drift
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
    give<One<T>>(to, 0, s);
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

  // The first merges of n taps of one plane, down to a vector. What is left over after whole vectors goes on in the
  // same lanes; those that get nothing stay as they are. READS_ON: whether a vector may be read from the last tap on.
  template <int SIDE, bool READS_ON> INLINE State<Vec<T>, 1> side_by_side(From from, i64 n) const {
    using X = Vec<T>;
    constexpr int N = LANES<X>, WAYS = SIDE / N;
    constexpr bool WRITTEN_OUT = WAYS <= 8;
    auto fetch = [&](i64 t) INLINE_LAMBDA { return load<Law, READ, X>(from, t); };
    State<X, 1> acc[WAYS];
    times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { acc[w] = fetch(w * N); });
    i64 done = SIDE;
    for (; done + SIDE <= n; done += SIDE)
      times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { law.merge(acc[w], fetch(done + w * N)); });
    for (int w = 0; w < WAYS && done + w * N < n; w++) {
      i64 left = n - done - w * N;
      X rest, idle = Law::overlaps ? acc[w].at[0] : splat<X>(T(-0.0));  // x + -0 is x, even if x is -0
      if (left >= N) {
        rest = fetch(done + w * N).at[0];
      } else if constexpr (READS_ON) {
        rest = choose<X>(iota<X>() < I(left), fetch(done + w * N).at[0], idle);
      } else {
        T some[N];
        save<X>(some, idle);
        for (i64 i = 0; i < left; i++) some[i] = from.at[0][done + w * N + i];
        rest = load<X>(some);
      }
      law.merge(acc[w], State<X, 1>{{rest}});
    }
    times<WAYS - 1, WRITTEN_OUT>([&](int i) INLINE_LAMBDA { join_pair(acc, i, WAYS); });
    return acc[0];
  }

  // As many lines as a vector has lanes, and one more: once they are turned, their last merges are those of vectors.
  void line_by_line(To to, From from, i64 n) const {
    using X = Vec<T>;
    constexpr int N = LANES<X>;
    X v[N];
    for (int k = 0; k < N; k++) v[k] = side_by_side<ABREAST, true>(from + k * from_step, n).at[0];
    turn_square<X>(v);
    times<N - 1, true>([&](int i) INLINE_LAMBDA { join_pair(reinterpret_cast<State<X, 1> *>(v), i, N); });
    T results[N];
    To here{};
    here.at[0] = results;
    give<X>(here, 0, State<X, 1>{{v[0]}});
    for (int k = 0; k < N; k++) {
      State<One<T>, 1> s{{results[k]}};
      if constexpr (Law::signs) law.settle(s, from.at[0] + k * from_step, n, 1);
      to.at[0][k * to_step] = s.at[0];
    }
  }

  template <int SIDE> State<One<T>, PLANES> abreast(From from, i64 n, I bias) const {
    using X = Vec<T>;
    constexpr int N = LANES<X>, WAYS = SIDE / N;
    constexpr bool WRITTEN_OUT = Law::light && WAYS <= 8;
    if constexpr (Law::light && PLANES == 1) return one_lane(side_by_side<SIDE, false>(from, n));
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
    i64 most = kept(n), width = n < most ? n : most, gap = axis.step * row;
    for (i64 t = 0; t < width; t++)
      each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        auto there = [&](i64 t) INLINE_LAMBDA {  // two rows at a time are more than processors foresee
          __builtin_prefetch(from.at[0] + t * gap + j + AHEAD, 0, 2);
          return tap_at<X>(from, t * gap + j, t, bias);
        };
        auto a = there(t);
        if (t + most < n) law.merge(a, there(t + most));
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
      give<X>(to, j, s);
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
  static i64 kept(i64 n) { return n < LONG ? ABREAST : MANY; }
  static i64 rows_of_block(i64 taps) {
    i64 rows = MANY;
    for (; taps > LONGEST / 2; taps /= 2) rows++;  // one for each halving
    return rows;
  }

  // -- windows that repeat
  // ----------------------------------------------------------------------------------------------

  void run(To to, From from) const {
    Folding one = *this;
    one.pieces = 1;
    bool dealt = axis.phases > 1 && m == 1 && this->to - this->from >= DEALT;
    if (axis.size == 1 && m == 1 && !axis.gaps && !Law::indexed)
      repeat(to, from);
    else if (m == 1 && (axis.turns || axis.blocks) && pieces >= LANES<Vec<T>>)
      turned(to, from);
    else if (dealt || axis.blocks)  // these need scratch: one piece at a time
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step) one.alone(to, from);
    else if (has_rows()) {
      if constexpr (Law::hot) rows(to, from);
    } else
      window_by_window(to, from);
  }
  void alone(To to, From from) const { axis.blocks ? columns(to, from) : window_by_window(to, from); }

  // Rows that lie side by side are columns once they are turned; the last of them perhaps twice.
  void turned(To to, From from) const {
    i64 outputs = this->to - this->from, many;
    To in = block + COLUMN * axis.most_taps, out = in + COLUMN * held;
    for (i64 piece = 0; piece < pieces; piece += many) {
      many = piece + COLUMN <= pieces ? COLUMN : LANES<Vec<T>>;
      if (piece + many > pieces) piece = pieces - many;
      for (int i = 0; i < PLANES; i++)
        if (READ >> i & 1) turn_over<T>(from.at[i] + piece * from_step, many, held, from_step, in.at[i], many);
      Folding columns = *this;
      columns.m = columns.row = many, columns.pieces = 1;
      columns.alone(out, in);
      for (int i = 0; i < PLANES; i++)
        turn_over<T>(out.at[i], outputs, many, many, to.at[i] + piece * to_step, to_step);
    }
  }

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
    Clipped w = axis.at(a);
    I step = I(tap_step);
    across(to + (a - this->from) * m, from + (w.first - base) * row, (b - a) * m, w.length, axis.step * row,
           m == 1 ? axis.stride : 1, I(I(w.skipped) * step), step);
  }

  // one input position, read by all
  void repeat(To to, From from) const {
    i64 n = this->to - this->from;
    for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
      each_vector<T, Law::light>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        give<X>(to, j, load<Law, READ, X, 0>(from, 0));
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
      Clipped w = axis.at(a + r);
      if (w.length == 0)
        zero(room + r * n, n);
      else
        across<1>(room + r * n, from + (w.first - base), n, w.length, axis.step, 1, 0, 0);
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

  // -- long windows that overlap (van Herk, Gil and Werman)
  //
  // Positions are cut into blocks as long as a window, wherever the outputs wanted begin. A window is then the end of
  // one block and the beginning of the next: one merge of a fold backwards and a fold forwards, however long it is.

  static constexpr int MERGED = Law::light ? 4 : 1;      // vectors that go down a column side by side
  static constexpr i64 COLUMN = MERGED * LANES<Vec<T>>;  // their elements

  // Elements that scratch must hold to fold `outputs` of an axis from `held` positions, for at most `pieces` inputs of m
  // elements inside the axis.
  static i64 block_size(const Axis &axis, i64 outputs, i64 held, i64 m, i64 pieces) {
    if (axis.lines) return m * rows_of_block(axis.most_taps);
    if (m == 1 && (axis.turns || axis.blocks) && pieces >= LANES<Vec<T>>)
      return COLUMN * (axis.most_taps + held + outputs);
    return axis.blocks ? least_of(m, COLUMN) * axis.most_taps : 0;
  }

  void columns(To to, From from) const {
    for (i64 o = this->from; o < this->to && o < this->from + axis.phases; o++) {
      To out = to + (o - this->from) * m;
      i64 windows = (this->to - o + axis.phases - 1) / axis.phases;
      auto [start, n] = axis.covers(o);
      if (n == 0) {
        for (i64 w = 0; w < windows; w++) zero(out + w * axis.phases * m, m);
        continue;
      }
      // every `turns`-th window starts a whole number of taps after the one before
      i64 turns = 1;
      while (turns * axis.stride % axis.step) turns++;
      for (i64 w = 0; w < turns && w < windows; w++)
        each_block<T, MERGED>(m, [&, start = start, n = n](auto kind, auto many, i64 j) INLINE_LAMBDA {
          column<decltype(kind), decltype(many)::value>(out + w * axis.phases * m + j, from + j, n,
                                                        start + w * axis.stride, axis.stride * turns / axis.step,
                                                        (windows - w + turns - 1) / turns, turns * axis.phases * m);
        });
    }
  }

  // Windows of n taps, the first of which starts at `start`, the next ones `move` taps further on each; their results
  // lie `to_row` apart.
  template <class X, int MANY>
  __attribute__((noinline)) void column(To to, From from, i64 n, i64 start, i64 move, i64 windows, i64 to_row) const {
    constexpr i64 N = LANES<X>;
    using S = State<X, PLANES>;
    // taps are numbered along the axis; those in [low, high) are there
    i64 k = floor_div(start, axis.step), origin = start - k * axis.step - base, hop = axis.step * row;
    i64 low = -floor_div(origin, axis.step), high = -floor_div(origin - held, axis.step);
    from = from + origin * row;
    auto tap = [&](i64 i, S *s) INLINE_LAMBDA {
      times<MANY, true>([&](int u) INLINE_LAMBDA {
        s[u] = load<Law, READ, X>(from, i * hop + u * N);
        law.tap(s[u], I(I(i) * I(tap_step)));
      });
    };
    S back[MANY]{}, on[MANY]{}, s[MANY];
    for (i64 w = 0; w < windows;) {
      i64 first = floor_div(k, n) * n, end = first + n, there = least_of(end, high);  // the block that k lies in
      i64 i = there - 1, lowest = k > low ? k : low;
      if (i >= lowest) tap(i, back);
      for (; i >= lowest; i--) {
        times<MANY, true>([&](int u) INLINE_LAMBDA { save<Law, X>(block, ((i - first) * MANY + u) * N, back[u]); });
        if (i == lowest) break;
        tap(i - 1, s);
        times<MANY, true>([&](int u) INLINE_LAMBDA {
          law.merge(s[u], back[u]);
          back[u] = s[u];
        });
      }
      i64 next = end > low ? end : low, begun = next;  // of the block after it, [begun, next) are folded
      for (; w < windows && k < end; w++, k += move, to = to + to_row) {
        i64 last = least_of(k + n, high), from_here = k > low ? k : low;
        bool ends = from_here < there;
        for (; next < last; next++) {
          if (next == begun) {
            tap(next, on);
            continue;
          }
          tap(next, s);
          times<MANY, true>([&](int u) INLINE_LAMBDA { law.merge(on[u], s[u]); });
        }
        if (!ends && next == begun) {
          for (int i = 0; i < PLANES; i++) std::memset(to.at[i], 0, sizeof(X) * MANY);
          continue;
        }
        times<MANY, true>([&](int u) INLINE_LAMBDA {
          S all = on[u];
          if (ends) {
            all = load<Law, ALL<Law>, X>(block, ((from_here - first) * MANY + u) * N);
            if (next > begun) law.merge(all, on[u]);
          }
          law.tap(all, I(-I(k) * I(tap_step)));
          give<X>(to, u * N, all);
        });
      }
    }
  }
};

}  // namespace
}  // namespace ndpool
