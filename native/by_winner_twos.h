// The vjp of a max whose windows have two or three taps and move on by two, along rows and across them: the most
// frequent pooling there is. Each row of outputs is read once, and hands each row of its windows what that has won:
//
//   taps 0 1 2   row 2 r        even columns: tap 2 of the output before, and tap 0; odd columns: tap 1
//        3 4 5   row 2 r + 1
//        6 7 8   row 2 r + 2,   which waits for the next row of outputs
//
// Rows and columns count from where the first window starts, in the padding. Any further axes must not overlap.
#pragma once
#include "first_lanes.h"
#include "tap_offsets.h"

namespace ndpool {
namespace {

template <class T> struct WindowsByTwo {
  static constexpr i64 SHORTEST_ROW = 6;  // of outputs; in shorter ones each looks its winner up

  static bool serves(const Plan &p) {
    if (!LEAVES_LANES || p.lanes > 1 || p.rank < 2 || p.residual_bytes > 1) return false;
    if (p.axes[p.rank - 1].outputs < SHORTEST_ROW) return false;
    for (int i = 0; i < p.rank; i++) {
      const Axis &a = p.axes[i];
      bool inner = i >= p.rank - 2, moves = inner ? a.stride == 2 && (a.most_taps == 2 || a.most_taps == 3)
                                                  : a.most_taps <= a.stride || a.outputs == 1;
      if (p.order_back[i] != p.rank - 1 - i || !a.slides || a.step != 1 || a.gaps || !moves) return false;
      if (inner && a.origin > 0) return false;
    }
    return true;
  }

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  const Plan &p;
  Part of;    // inputs
  Span span;  // outputs of the outermost axis that read them
  const Axis &rows, &columns;

  WindowsByTwo(const Plan &plan, const Part &part, const Span &outputs)
      : p(plan), of(part), span(outputs), rows(p.axes[p.rank - 2]), columns(p.axes[p.rank - 1]) {}

  void reserve(Scratch &scratch) {
    many = ceil_div(columns.size - columns.origin, 2 * N);
    parts = scratch.take<RowPart>(many);
    waiting = scratch.take<T>(2 * N * many);
    if (scratch.failed) return;
    i64 n = columns.outputs, width = columns.size;
    for (i64 v = 0; v < many; v++) {
      i64 o = v * N, at = columns.origin + 2 * o;
      parts[v] = {.outputs = lanes_between<X>(0, n - o),
                  .before = lanes_between<X>(1 - o, n + 1 - o),
                  .low = lanes_between<X>(-at, width - at),
                  .high = lanes_between<X>(-at - N, width - at - N)};
    }
  }

  // All tiles, from the residuals and the cotangents of all outputs in question, side by side.
  void run(const uint8_t *residual, const T *dy, T *dx) const {
    bool three_rows = rows.most_taps == 3, three = columns.most_taps == 3;
    three_rows ? (three ? run<3, 3>(residual, dy, dx) : run<3, 2>(residual, dy, dx))
               : (three ? run<2, 3>(residual, dy, dx) : run<2, 2>(residual, dy, dx));
  }

 private:
  using X = Vec<T>;
  static constexpr i64 N = LANES<X>;

  // As many outputs of a row as a vector has lanes, and the inputs from where they start: which of them are there.
  struct RowPart {
    Lanes outputs, before, low, high;  // `before`: the outputs before each; the first and the second half of inputs
  };
  RowPart *parts = nullptr;
  T *waiting = nullptr;  // for the next row of outputs: what the last row of windows has won, even and odd columns
  i64 many = 0;          // parts of a row

  template <int ROWS, int COLUMNS> NOINLINE void run(const uint8_t *residual, const T *dy, T *dx) const {
    int outer = p.rank - 2;
    i64 sizes[MOST_AXES], places[MOST_AXES], a_tile = rows.outputs * columns.outputs;
    Part plane{.tile = 0, .tiles = 1, .from = outer > 0 ? 0 : of.from, .to = outer > 0 ? rows.size : of.to};
    Span read = outer > 0 ? Span{0, rows.outputs} : span;
    if (outer == 0) a_tile = (span.last - span.first) * columns.outputs;
    for (int i = outer - 1; i >= 0; i--) {
      sizes[i] = p.axes[i].size, places[i] = a_tile;
      a_tile *= i == 0 ? span.last - span.first : p.axes[i].outputs;
    }
    i64 inputs = (plane.to - plane.from) * columns.size;
    for (i64 tile = 0; tile < of.tiles; tile++, residual += a_tile, dy += a_tile)
      each_place(sizes, outer, outer > 0 ? of.from : 0, outer > 0 ? of.to : 1, [&](const i64 *i) {
        i64 at = 0, tap = 0;
        bool won = true;
        for (int a = 0; a < outer; a++) {
          Clipped by = p.readers[a].at(i[a]);
          won = won && by.length > 0;
          at += (by.first - (a == 0 ? span.first : 0)) * places[a];
          tap += (i[a] - p.axes[a].start(by.first)) * p.tap_steps[a];
        }
        if (won)
          hand_back<ROWS, COLUMNS>(plane, read, residual + at, dy + at, uint8_t(tap), dx);
        else
          std::memset(dx, 0, size_t(inputs) * sizeof(T));
        dx += inputs;
      });
  }

  // Rows [plane.from, plane.to) of inputs, from rows [read.first, read.last) of outputs, whose first tap is `tap`.
  template <int ROWS, int COLUMNS>
  INLINE void hand_back(const Part &plane, const Span &read, const uint8_t *winners, const T *dy, uint8_t tap,
                        T *dx) const {
    i64 n = columns.outputs, width = columns.size, to = rows.origin + 2 * read.first, step = p.tap_steps[p.rank - 2];
    std::memset(waiting, 0, size_t(2 * N * many) * sizeof(T));
    auto place = [&](i64 row) {  // a row in the band, where its windows start; or null
      bool there = row >= plane.from && row < plane.to;
      return there ? dx + (row - plane.from) * width + columns.origin : nullptr;
    };
    auto put = [&](T *row, i64 v, X even, X odd) INLINE_LAMBDA {
      if (row) interleave_some<X>(row + 2 * N * v, even, odd, parts[v].low, parts[v].high);
    };
    for (i64 r = read.first; r < read.last; r++, to += 2, winners += n, dy += n) {
      T *first = place(to), *second = place(to + 1);
      for (i64 v = 0; v < many; v++) {
        const RowPart &part = parts[v];
        i64 o = v * N;
        Bytes<X> won(winners + o, part.outputs), won_before(winners + o - 1, COLUMNS > 2 ? part.before : 0);
        X given = load_some<X>(dy + o, part.outputs),
          given_before = load_some<X>(dy + o - 1, COLUMNS > 2 ? part.before : 0);
        auto add = [&](uint8_t tap, X &even, X &odd) INLINE_LAMBDA {
          if constexpr (COLUMNS > 2)
            even = add_some<X>(even, given_before, won_before.which(uint8_t(tap + 2), part.before));
          even = add_some<X>(even, given, won.which(tap, part.outputs));
          odd = add_some<X>(odd, given, won.which(uint8_t(tap + 1), part.outputs));
        };
        X even{}, odd{};
        if constexpr (ROWS > 2) even = load<X>(waiting + 2 * o), odd = load<X>(waiting + 2 * o + N);
        add(tap, even, odd);
        put(first, v, even, odd);
        even = X{}, odd = X{};
        add(uint8_t(tap + step), even, odd);
        put(second, v, even, odd);
        if constexpr (ROWS > 2) {
          even = X{}, odd = X{};
          add(uint8_t(tap + 2 * step), even, odd);
          save<X>(waiting + 2 * o, even), save<X>(waiting + 2 * o + N, odd);
        }
      }
    }
    for (to = most(to, plane.from); to < plane.to; to++, std::memset(waiting, 0, size_t(2 * N * many) * sizeof(T)))
      for (i64 v = 0; v < many; v++)  // the row that still waits, and rows that nobody reads
        put(place(to), v, load<X>(waiting + 2 * N * v), load<X>(waiting + 2 * N * v + N));
  }
#else
  WindowsByTwo(const Plan &, const Part &, const Span &) {}
  void reserve(Scratch &) {}
  void run(const uint8_t *, const T *, T *) const {}
#endif
};

}  // namespace
}  // namespace ndpool
