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
  i64 from, to;       // the outputs wanted
  i64 base, held;     // the first position that is there, and how many
  i64 m, row;         // elements inside the axis; distance between positions
  i64 tap_step;       // what one tap adds to a winner's index
  To block;           // scratch for doubling: held * m elements a plane
  T *phases;          // scratch for phases: a row of outputs
  i64 pieces, from_step, to_step;  // how many such inputs, and how far apart they and their outputs lie

  // to[j] = merge over t of from[j * stride + t * gap]
  template <int STRIDE> void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto a = load<Law, READ, X, STRIDE>(from, j * stride);
      law.tap(a, bias);
      for (i64 t = 1; t < taps; t++) {
        auto b = load<Law, READ, X, STRIDE>(from, j * stride + t * gap);
        law.tap(b, I(bias + I(t) * step));
        law.merge(a, b);
      }
      save<Law, X>(to, j, a);
    };
    for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
      if constexpr (STRIDE != 0) each_vector<T, Law::light>(n, body);
      else
        for (i64 j = 0; j < n; j++) body(One<T>{}, j);
  }

  void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    if (stride == 1) across<1>(to, from, n, taps, gap, 1, bias, step);
    else if (stride == 2) across<2>(to, from, n, taps, gap, 2, bias, step);
    else across<0>(to, from, n, taps, gap, stride, bias, step);
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
        m == 1 ? line(to, taps, axis.length[o], I(skipped(o) * step)) : lines(to, taps, axis.length[o], I(skipped(o) * step));
      return;
    }
    across<1>(to, taps, m, axis.length[o], axis.step * row, 1, I(skipped(o) * step), step);
  }

  // -- many consecutive elements to one state ---------------------------------------------------------------------------

  static constexpr int ABREAST = 256 / sizeof(T);  // states kept side by side, whatever the width of a vector
  static constexpr i64 LONGEST = 4096;             // beyond, halves are merged: sums do not drift

  void line(To to, From from, i64 n, I bias) const {
    if (n > LONGEST) {
      i64 half = (n / 2 + ABREAST - 1) / ABREAST * ABREAST;
      T room[PLANES];
      To second;
      for (int i = 0; i < PLANES; i++) second.at[i] = room + i;
      line(to, from, half, bias);
      line(second, from + half, n - half, I(bias + I(half) * I(tap_step)));
      auto a = load<Law, ALL<Law>, One<T>>(to, 0);
      law.merge(a, load<Law, ALL<Law>, One<T>>(second, 0));
      return save<Law, One<T>>(to, 0, a);
    }
    using X = Vec<T>;
    constexpr int N = LANES<X>, WAYS = ABREAST / N;
    alignas(64) T room[PLANES][ABREAST];
    To side;
    for (int i = 0; i < PLANES; i++) side.at[i] = room[i];
    Ints<X> index;
    for (int i = 0; i < N; i++) index[i] = I(I(i) * I(tap_step));
    auto fetch = [&](i64 at) INLINE_LAMBDA {
      auto s = load<Law, READ, X>(from, at);
      law.tap(s, I(bias + I(at) * I(tap_step)));
      if constexpr (Law::indexed) s.at[1] = from_bits<X>(bits(s.at[1]) + index);
      return s;
    };
    i64 whole = n / ABREAST * ABREAST, j = 0;
    if (whole > 0) {
      State<X, PLANES> acc[WAYS];
      auto each_way = [&](auto body) INLINE_LAMBDA {
        if constexpr (Law::light)
#pragma GCC unroll 16
          for (int w = 0; w < WAYS; w++) body(w);
        else
#pragma GCC unroll 1
          for (int w = 0; w < WAYS; w++) body(w);
      };
      each_way([&](int w) INLINE_LAMBDA { acc[w] = fetch(w * N); });
      for (j = ABREAST; j < whole; j += ABREAST)
        each_way([&](int w) INLINE_LAMBDA { law.merge(acc[w], fetch(j + w * N)); });
      each_way([&](int w) INLINE_LAMBDA { save<Law, X>(side, w * N, acc[w]); });
    }
    i64 width = whole > 0 ? ABREAST : n;
    each_once<T>(n - whole, [&](auto kind, i64 i) INLINE_LAMBDA {  // the rest goes on in the same places
      using Y = decltype(kind);
      State<Y, PLANES> s;
      if constexpr (LANES<Y> == LANES<X>) s = fetch(whole + i);
      else {
        s = load<Law, READ, Y>(from, whole + i);
        law.tap(s, I(bias + I(whole + i) * I(tap_step)));
      }
      if (whole > 0) {
        auto a = load<Law, ALL<Law>, Y>(side, i);
        law.merge(a, s);
        s = a;
      }
      save<Law, Y>(side, i, s);
    });
    while (width > 1) {
      i64 half = (width + 1) / 2;
      each_once<T>(width - half, [&](auto kind, i64 i) INLINE_LAMBDA {
        using Y = decltype(kind);
        auto a = load<Law, ALL<Law>, Y>(side, i);
        law.join(a, load<Law, ALL<Law>, Y>(side, i + half));
        save<Law, Y>(side, i, a);
      });
      width = half;
    }
    auto s = load<Law, ALL<Law>, One<T>>(side, 0);
    if constexpr (Law::signs) law.settle(s, from.at[0], n, 1);
    save<Law, One<T>>(to, 0, s);
  }

  // the same for m elements side by side: the same states meet in the same order
  void lines(To to, From from, i64 n, I bias) const {
    each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA { column<decltype(kind)>(to + j, from + j, n, bias); });
  }

  template <class X> void column(To to, From from, i64 n, I bias) const {
    if (n > LONGEST) {
      i64 half = (n / 2 + ABREAST - 1) / ABREAST * ABREAST;
      T room[PLANES][LANES<X>];
      To second;
      for (int i = 0; i < PLANES; i++) second.at[i] = room[i];
      column<X>(to, from, half, bias);
      column<X>(second, from + half * row, n - half, I(bias + I(half) * I(tap_step)));
      auto a = load<Law, ALL<Law>, X>(to, 0);
      law.merge(a, load<Law, ALL<Law>, X>(second, 0));
      return save<Law, X>(to, 0, a);
    }
    State<X, PLANES> side[ABREAST];
    auto fetch = [&](i64 t) INLINE_LAMBDA {
      auto s = load<Law, READ, X>(from, t * row);
      law.tap(s, I(bias + I(t) * I(tap_step)));
      return s;
    };
    i64 width = least_of(n, ABREAST);
    for (i64 t = 0; t < width; t++) side[t] = fetch(t);
    for (i64 t = width; t < n; t++) law.merge(side[t % ABREAST], fetch(t));
    while (width > 1) {
      i64 half = (width + 1) / 2;
      for (i64 i = 0; i < width - half; i++) law.join(side[i], side[i + half]);
      width = half;
    }
    if constexpr (Law::signs) law.settle(side[0], from.at[0], n, row);
    save<Law, X>(to, 0, side[0]);
  }
  static i64 least_of(i64 a, i64 b) { return a < b ? a : b; }

  // -- windows that repeat ----------------------------------------------------------------------------------------------

  void run(To to, From from) const {
    if (axis.doubles || axis.phases > 1) {  // these need scratch: one piece at a time
      Folding one = *this;
      one.pieces = 1;
      for (i64 piece = 0; piece < pieces; piece++, to = to + to_step, from = from + from_step)
        axis.doubles ? one.doubling(to, from) : one.window_by_window(to, from);
      return;
    }
    axis.size == 1 && axis.longest == 1 && m == 1 ? repeat(to, from) : window_by_window(to, from);
  }

  void window_by_window(To to, From from) const {
    i64 a = clamp(axis.whole_from), b = clamp(axis.whole_to);
    bool alike = axis.phases == 1 ? m == 1 || (axis.stride == 1 && row == m) : m == 1 && axis.stride == 1;
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
    for (int i = 0; i < PLANES; i++) {
      T v = READ >> i & 1 ? from.at[i][0] : Law::constant[i];
      each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA { save<decltype(kind)>(to.at[i] + j, splat<decltype(kind)>(v)); });
    }
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
      if (axis.length[o] == 0) zero(room + r * n, n);
      else across<1>(room + r * n, from + (axis.first[o] - base), n, axis.length[o], axis.step, 1, 0, 0);
    }
    for (int i = 0; i < PLANES; i++) {
      T *out = to.at[i] + (a - this->from);
      const T *in = room.at[i];
      if (P == 2)
        each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          if constexpr (LANES<X> == 1) out[2 * j] = in[j], out[2 * j + 1] = in[n + j];
          else interleave<X>(out + 2 * j, load<X>(in + j), load<X>(in + n + j));
        });
      else
        for (i64 q = 0; q < n; q++)
          for (i64 r = 0; r < P; r++) out[q * P + r] = in[r * n + q];
    }
  }

  // -- long windows: blocks of 2, 4, 8, ... positions, made in place ------------------------------------------------------

  static int top_bit(i64 n) { return 63 - __builtin_clzll((unsigned long long)n); }
  static i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

  void doubling(To to, From from) const {
    m == 1 ? begin_line(from) : begin_rows(from);
    i64 a = clamp(axis.whole_from), b = clamp(axis.whole_to);
    bool alike = axis.phases == 1 && b - a > 1 && (m == 1 || axis.stride == 1);
    if (!alike) a = b = this->to;
    for (int level = 0;; level++) {
      for (i64 o = this->from; o < a; o++) join(to, o, 1, level);
      if (a < b) join(to, a, b - a, level);
      for (i64 o = b; o < this->to; o++) join(to, o, 1, level);
      i64 hop = (i64(1) << level) * axis.step, left = held - (2 * (i64(1) << level) - 1) * axis.step;
      if ((i64(2) << level) > axis.longest) break;
      if (left > 0)
        each_once<T>(left * m, [&](auto kind, i64 q) INLINE_LAMBDA {  // what is read lies ahead of what is written
          using X = decltype(kind);
          auto s = load<Law, ALL<Law>, X>(block, q);
          law.merge(s, load<Law, ALL<Law>, X>(block, q + hop * m));
          save<Law, X>(block, q, s);
        });
    }
    if constexpr (Law::indexed)
      for (i64 o = this->from; o < this->to; o++) {
        I start = I(I(floor_div(axis.start[o], axis.step)) * I(tap_step));
        I *index = reinterpret_cast<I *>(to.at[1]) + (o - this->from) * m;
        for (i64 j = 0; j < m; j++) index[j] = I(index[j] - start);
      }
  }

  // The block begins as a copy, with winners numbered along the axis.
  void begin_rows(From from) const {
    for (i64 r = 0; r < held; r++) {
      From one = from + r * row;
      I bias = I(I(floor_div(base + r, axis.step)) * I(tap_step));
      each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
        auto s = load<Law, READ, decltype(kind)>(one, j);
        law.tap(s, bias);
        save<Law, decltype(kind)>(block, r * m + j, s);
      });
    }
  }
  void begin_line(From from) const {
    for (int i = 0; i < PLANES; i++)
      if (READ >> i & 1) std::memcpy(block.at[i], from.at[i], size_t(held) * sizeof(T));
      else
        for (i64 r = 0; r < held; r++) block.at[i][r] = Law::constant[i];
    if constexpr (Law::indexed)
      for (i64 r = 0; r < held; r++) {
        I *index = reinterpret_cast<I *>(block.at[1]) + r;
        *index = I(*index + I(floor_div(base + r, axis.step)) * I(tap_step));
      }
  }

  // Give `count` outputs from o on what the blocks of 2^level positions have for them.
  void join(To to, i64 o, i64 count, int level) const {
    i64 n = axis.length[o], size = i64(1) << level, stride = m == 1 ? axis.stride : 1;
    To out = to + (o - this->from) * m;
    From in = block;
    in = in + (axis.first[o] - base) * m;
    if (n == 0) {
      if (level == 0) zero(out, m * count);
    } else if constexpr (Law::overlaps) {  // two blocks cover the window: a tap does not beat itself
      if (top_bit(n) != level) return;
      i64 gap = (n - size) * axis.step * m;
      Folding<Law, ALL<Law>> all{law, axis, this->from, this->to, base, held, m, m, 0, block, phases, 1, 0, 0};
      if (count == 1) all.template across<1>(out, in, m, gap ? 2 : 1, gap, 1, 0, 0);
      else all.across(out, in, count * m, gap ? 2 : 1, gap, stride, 0, 0);
    } else {  // the bits of n, the lowest first, one block after another
      if (!(n & size)) return;
      i64 done = n & (size - 1);
      append(out, in + done * axis.step * m, count * m, count == 1 ? 1 : stride, done == 0);
    }
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
