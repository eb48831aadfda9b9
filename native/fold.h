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
  To block;           // scratch for doubling: the positions that windows cover, times m, a plane
  T *phases;          // scratch for phases: a row of outputs
  i64 pieces, from_step, to_step;  // how many such inputs, and how far apart they and their outputs lie

  // to[j] = merge over t of from[j * stride + t * gap]
  template <int STRIDE> void across(To to, From from, i64 n, i64 taps, i64 gap, i64 stride, I bias, I step) const {
    auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      i64 t = 1;
      State<X, PLANES> a;
      if (STRIDE == 2 && Law::light && gap == 1 && taps > 1) {  // neighbouring taps come from the same two vectors
        State<X, PLANES> b;
        auto pair = [&](i64 at) INLINE_LAMBDA {
          for (int i = 0; i < PLANES; i++)
            if (READ >> i & 1) load_pair<X>(from.at[i] + at, a.at[i], b.at[i]);
            else a.at[i] = b.at[i] = splat<X>(Law::constant[i]);
        };
        pair(j * 2);
        law.tap(a, bias);
        law.tap(b, I(bias + step));
        law.merge(a, b);
        for (t = 2; t + 1 < taps; t += 2) {
          auto merged = a;
          pair(j * 2 + t);
          law.tap(a, I(bias + I(t) * step));
          law.tap(b, I(bias + I(t + 1) * step));
          law.merge(merged, a);
          law.merge(merged, b);
          a = merged;
        }
      } else {
        a = load<Law, READ, X, STRIDE>(from, j * stride);
        law.tap(a, bias);
      }
      for (; t < taps; t++) {
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

  static constexpr int ABREAST = 64 / sizeof(T);  // states kept side by side, whatever the width of a vector
  static constexpr i64 LONG = 16 * ABREAST;       // from there on four parts go abreast, too
  static constexpr i64 LONGEST = 4096;            // from there on halves are merged: sums do not drift

  // how a long line is cut: into `parts` of `size`, the last of what is left
  struct Cut {
    int parts;
    i64 size;
    explicit Cut(i64 n) : parts(n > LONGEST ? 2 : n > LONG ? 4 : 1) { size = ((n + parts - 1) / parts + ABREAST - 1) / ABREAST * ABREAST; }
  };

  template <class X> INLINE State<X, PLANES> tap_at(From from, i64 at, i64 t, I bias) const {
    auto s = load<Law, READ, X>(from, at);
    law.tap(s, I(bias + I(t) * I(tap_step)));
    return s;
  }

  // one after another, as two or four parts are put together
  template <class X> INLINE void put_together(State<X, PLANES> *parts, int n) const {
    for (int i = 0; i + 1 < n; i += 2) law.merge(parts[i], parts[i + 1]);
    if (n == 4) law.merge(parts[0], parts[2]);
  }

  // n taps side by side
  void line(To to, From from, i64 n, I bias) const {
    using X = Vec<T>;
    constexpr int N = LANES<X>, WAYS = ABREAST / N;
    static_assert(WAYS >= 1);
    Cut cut(n);
    if (cut.parts == 2) {
      T room[2][PLANES];
      State<One<T>, PLANES> parts[2];
      for (int i = 0; i < 2; i++) {
        To half;
        for (int plane = 0; plane < PLANES; plane++) half.at[plane] = &room[i][plane];
        line(half, from + i * cut.size, i ? n - cut.size : cut.size, I(bias + I(i * cut.size) * I(tap_step)));
        parts[i] = load<Law, ALL<Law>, One<T>>(half, 0);
      }
      put_together(parts, 2);
      return save<Law, One<T>>(to, 0, parts[0]);
    }
    Ints<X> index;
    for (int i = 0; i < N; i++) index[i] = I(I(i) * I(tap_step));
    auto fetch = [&](i64 t) INLINE_LAMBDA {
      auto s = tap_at<X>(from, t, t, bias);
      if constexpr (Law::indexed) s.at[1] = from_bits<X>(bits(s.at[1]) + index);
      return s;
    };
    State<One<T>, PLANES> parts[4];
    if (cut.parts == 4) {
      State<X, PLANES> acc[4][WAYS];
      auto each_way = [&](auto body) INLINE_LAMBDA {
        times<4 * WAYS, Law::light && WAYS <= 4>([&](int i) INLINE_LAMBDA { body(i / WAYS, i % WAYS); });
      };
      i64 common = (n - 3 * cut.size) / ABREAST * ABREAST, j = ABREAST;  // the last part may be shorter
      each_way([&](int part, int w) INLINE_LAMBDA { acc[part][w] = fetch(part * cut.size + w * N); });
      for (; j < common; j += ABREAST)
        each_way([&](int part, int w) INLINE_LAMBDA { law.merge(acc[part][w], fetch(part * cut.size + j + w * N)); });
#pragma GCC unroll 1
      for (int part = 0; part < 4; part++)
        parts[part] = finish_line(acc[part], from, part * cut.size, j, part == 3 ? n - 3 * cut.size : cut.size, bias, fetch);
      put_together(parts, 4);
    } else {
      State<X, PLANES> acc[WAYS];
      if (n >= ABREAST)
        for (int w = 0; w < WAYS; w++) acc[w] = fetch(w * N);
      parts[0] = n >= ABREAST ? finish_line(acc, from, 0, ABREAST, n, bias, fetch) : short_line(from, n, bias);
    }
    if constexpr (Law::signs) law.settle(parts[0], from.at[0], n, 1);
    save<Law, One<T>>(to, 0, parts[0]);
  }

  // What is left of a line from tap `at` on, where `done` of its n taps are in acc; then all lanes as one.
  template <int WAYS, class Fetch>
  State<One<T>, PLANES> finish_line(State<Vec<T>, PLANES> (&acc)[WAYS], From from, i64 at, i64 done, i64 n, I bias, Fetch fetch) const {
    using X = Vec<T>;
    constexpr int N = LANES<X>;
    for (; done + ABREAST <= n; done += ABREAST)
      times<WAYS, Law::light && WAYS <= 4>([&](int w) INLINE_LAMBDA { law.merge(acc[w], fetch(at + done + w * N)); });
    if (done < n) {
      alignas(64) T room[PLANES][ABREAST];
      To side;
      for (int i = 0; i < PLANES; i++) side.at[i] = room[i];
      int w = 0;
      for (; done + N <= n; done += N, w++) law.merge(acc[w], fetch(at + done));
      if (done < n) {
        save<Law, X>(side, 0, acc[w]);
        for (i64 i = 0; done + i < n; i++) {
          auto a = load<Law, ALL<Law>, One<T>>(side, i);
          law.merge(a, tap_at<One<T>>(from, at + done + i, at + done + i, bias));
          save<Law, One<T>>(side, i, a);
        }
        acc[w] = load<Law, ALL<Law>, X>(side, 0);
      }
    }
    if constexpr (Law::light) {
      for (int half = WAYS / 2; half > 0; half /= 2)
        for (int w = 0; w < half; w++) law.join(acc[w], acc[w + half]);
      return one_lane(acc[0]);
    } else {
      T room[PLANES][ABREAST];
      To side;
      for (int i = 0; i < PLANES; i++) side.at[i] = room[i];
      for (int w = 0; w < WAYS; w++) save<Law, X>(side, w * N, acc[w]);
      State<One<T>, PLANES> lanes[ABREAST];
      for (int i = 0; i < ABREAST; i++) lanes[i] = load<Law, ALL<Law>, One<T>>(side, i);
      return halved<One<T>>(lanes, ABREAST);
    }
  }

  template <class X> INLINE State<One<T>, PLANES> one_lane(const State<X, PLANES> &s) const {
    if constexpr (LANES<X> == 1) return s;
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

  // the same for m elements side by side: the same states meet in the same order
  void lines(To to, From from, i64 n, I bias) const {
    each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA { column<decltype(kind)>(to + j, from + j, n, bias); });
  }

  template <class X> void column(To to, From from, i64 n, I bias) const {
    Cut cut(n);
    State<X, PLANES> parts[4];
    if (cut.parts > 1) {
      for (int i = 0; i < cut.parts; i++) {
        T room[PLANES][LANES<X>];
        To part;
        for (int plane = 0; plane < PLANES; plane++) part.at[plane] = room[plane];
        i64 size = i == cut.parts - 1 ? n - i * cut.size : cut.size;
        column_part<X>(part, from + i * cut.size * row, size, I(bias + I(i * cut.size) * I(tap_step)), cut.parts == 2);
        parts[i] = load<Law, ALL<Law>, X>(part, 0);
      }
      put_together(parts, cut.parts);
    } else {
      column_part<X>(to, from, n, bias, false);
      parts[0] = load<Law, ALL<Law>, X>(to, 0);
    }
    if constexpr (Law::signs) law.settle(parts[0], from.at[0], n, row);
    save<Law, X>(to, 0, parts[0]);
  }

  template <class X> void column_part(To to, From from, i64 n, I bias, bool again) const {
    if (again) return column<X>(to, from, n, bias);
    State<X, PLANES> side[ABREAST];
    i64 width = n < ABREAST ? n : ABREAST;
    if constexpr (Law::light && PLANES == 1 && ABREAST <= 16)
      if (n >= ABREAST) {  // all in registers
        times<ABREAST, true>([&](int i) INLINE_LAMBDA { side[i] = tap_at<X>(from, i * row, i, bias); });
        for (i64 left = n - ABREAST, t = ABREAST; left > 0; left -= ABREAST, t += ABREAST)
          times<ABREAST, true>([&](int i) INLINE_LAMBDA {
            if (i < left) law.merge(side[i], tap_at<X>(from, (t + i) * row, t + i, bias));
          });
        times<ABREAST - 1, true>([&](int i) INLINE_LAMBDA {  // halves meet, then quarters, ...
          int half = ABREAST / 2, first = 0;
          while (i - first >= half) first += half, half /= 2;
          law.join(side[i - first], side[i - first + half]);
        });
        return save<Law, X>(to, 0, side[0]);
      }
    for (i64 t = 0; t < width; t++) side[t] = tap_at<X>(from, t * row, t, bias);
    for (i64 t = width; t < n; t++) law.merge(side[t % ABREAST], tap_at<X>(from, t * row, t, bias));
    save<Law, X>(to, 0, halved<X>(side, width));
  }

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
  // Windows are not clipped here: beyond the ends lie taps that change nothing, so all windows of a phase are alike.

  static int top_bit(i64 n) { return 63 - __builtin_clzll((unsigned long long)n); }
  static i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

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
    for (i64 o = this->from; o < this->to && (Law::indexed || axis.gaps); o++) {
      To out = to + (o - this->from) * m;
      if (axis.length[o] == 0) zero(out, m);
      if constexpr (Law::indexed) {
        I start = I(I(floor_div(axis.start[o], axis.step)) * I(tap_step)), *index = reinterpret_cast<I *>(out.at[1]);
        for (i64 j = 0; axis.length[o] && j < m; j++) index[j] = I(index[j] - start);
      }
    }
  }

  // The block begins as a copy, with winners numbered along the axis, and idle taps at both ends.
  void begin(From from, i64 low, i64 high) const {
    for (int i = 0; i < PLANES; i++) {
      T *plane = block.at[i] + (base - low) * m;
      if (READ >> i & 1) copy_rows(plane, from.at[i]);
      else fill_rows(plane, Law::constant[i]);
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
    }
  }
  void copy_rows(T *to, const T *from) const {
    if (row == m) std::memcpy(to, from, size_t(held * m) * sizeof(T));
    else
      for (i64 r = 0; r < held; r++) std::memcpy(to + r * m, from + r * row, size_t(m) * sizeof(T));
  }
  void fill_rows(T *to, T value) const {
    for (i64 j = 0; j < held * m; j++) to[j] = value;
  }
  void number_rows(I *to) const {
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
      if (Law::overlaps) all.across(into, blocks, many, two ? 2 : 1, gap, stride, 0, 0);
      else append(into, blocks, many, stride, !more);
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
