// The vjp of windows that have two or three taps and move on by two, along rows and across them: the most frequent
// pooling there is. Each row of outputs is read once, and handed to each row of its windows:
//
//   taps 0 1 2   row 2 r        even columns: tap 2 of the output before, and tap 0; odd columns: tap 1
//        3 4 5   row 2 r + 1
//        6 7 8   row 2 r + 2,   which waits for the next row of outputs
//
// Rows and columns count from where the first window starts, in the padding. Windows must not overlap along other axes.
// What a row of outputs hands over is up to the law: `WonByTwo` of a max, `SummedByTwo` of a sum.
#pragma once
#include "region.h"
#include "scratch.h"
#include "some_lanes.h"

namespace ndpool {
namespace {

// Whether the windows of a plan are such, in the caller's order of axes.
inline bool moves_on_by_two(const Plan &p) {
  constexpr i64 SHORTEST_ROW = 7;  // of outputs; in shorter ones each looks its winner up faster
  if (!LEAVES_LANES || p.lanes > 1 || p.rank < 2 || p.axes[p.rank - 1].outputs < SHORTEST_ROW) return false;
  for (int i = 0; i < p.rank; i++) {
    const Axis &a = p.axes[i];
    bool inner = i >= p.rank - 2, small = a.most_taps == 2 || a.most_taps == 3;
    bool moves = inner ? a.stride == 2 && small && a.origin <= 0 : a.most_taps <= a.stride || a.outputs == 1;
    if (p.order_back[i] != p.rank - 1 - i || !a.slides || a.step != 1 || a.gaps || !moves) return false;
  }
  return true;
}

#if NDPOOL_MASKS

// As many outputs of a row as a vector has lanes, and the inputs from where they start: which of them are there.
struct RowPart {
  i64 at;                 // the first output
  Lanes outputs, before;  // `before`: the outputs before each
  Lanes low, high;        // the first and the second half of inputs
};

// What a row of outputs of a max hands to row `k` of its windows: the cotangents that this has won.
template <class X, int COLUMNS> struct WonByTwo {
  using T = Element<X>;
  const uint8_t *winners;
  const T *dy;
  i64 step;     // from one row of taps to the next
  uint8_t tap;  // the first

  WonByTwo part(i64 output, i64 first_tap) const { return {winners + output, dy + output, step, uint8_t(first_tap)}; }

  struct Outputs {
    Bytes<X> won, won_before;
    X dy, dy_before;
  };
  INLINE Outputs outputs(i64 o, const RowPart &part) const {
    Lanes before = COLUMNS > 2 ? part.before : 0;
    return {{winners + o, part.outputs},
            {winners + o - 1, before},
            load_some<X>(dy + o, part.outputs),
            load_some<X>(dy + o - 1, before)};
  }
  // to what it has from the row of outputs before, or zeros
  INLINE void hand(const Outputs &of, const RowPart &part, int k, bool, X &even, X &odd) const {
    uint8_t first = uint8_t(tap + k * step);
    if constexpr (COLUMNS > 2)
      even = add_some<X>(even, of.dy_before, of.won_before.which(uint8_t(first + 2), part.before));
    even = add_some<X>(even, of.dy, of.won.which(first, part.outputs));
    odd = add_some<X>(odd, of.dy, of.won.which(uint8_t(first + 1), part.outputs));
  }
};

// What a row of outputs of a sum hands to each row of its windows: its cotangents.
template <class X, int COLUMNS> struct SummedByTwo {
  using T = Element<X>;
  const T *dy;

  SummedByTwo part(i64 output, i64) const { return {dy + output}; }

  struct Outputs {
    X even, odd;
  };
  INLINE Outputs outputs(i64 o, const RowPart &part) const {
    X now = load_some<X>(dy + o, part.outputs), even = now;
    if constexpr (COLUMNS > 2) {
      X before = load_some<X>(dy + o - 1, part.before);
      even = add_some<X>(choose_some<X>(part.outputs, now, before), before, part.outputs & part.before);
    }
    return {even, now};
  }
  INLINE void hand(const Outputs &of, const RowPart &, int, bool waits, X &even, X &odd) const {
    even = waits ? even + of.even : of.even;
    odd = waits ? odd + of.odd : of.odd;
  }
};

template <class T> struct ByTwo {
  using X = Vec<T>;
  const Plan &p;
  Part of;    // inputs
  Span span;  // outputs of the outermost axis that read them
  const Axis &rows, &columns;

  ByTwo(const Plan &plan, const Part &part, const Span &outputs)
      : p(plan), of(part), span(outputs), rows(p.axes[p.rank - 2]), columns(p.axes[p.rank - 1]) {}

  void reserve(Scratch &scratch) {
    many = ceil_div(columns.size - columns.origin, 2 * N);
    parts = scratch.take<RowPart>(many);
    waiting = scratch.take<T>(2 * N * many);
    if (scratch.failed) return;
    i64 n = columns.outputs, width = columns.size;
    for (i64 v = 0; v < many; v++) {
      i64 o = v * N, at = columns.origin + 2 * o;
      parts[v] = {.at = o,
                  .outputs = lanes_between<X>(0, n - o),
                  .before = lanes_between<X>(1 - o, n + 1 - o),
                  .low = lanes_between<X>(-at, width - at),
                  .high = lanes_between<X>(-at - N, width - at - N)};
    }
  }

  // All tiles of a max, or of a sum, from what is known of all outputs in question, side by side.
  void run(const uint8_t *winners, const T *dy, T *dx) const {
    i64 step = p.tap_steps[p.rank - 2];
    each_size([&](auto r, auto c) { run<r>(WonByTwo<X, c>{winners, dy, step, 0}, dx); });
  }
  void run(const T *dy, T *dx) const {
    each_size([&](auto r, auto c) { run<r>(SummedByTwo<X, c>{dy}, dx); });
  }

 private:
  static constexpr i64 N = LANES<X>;
  RowPart *parts = nullptr;
  i64 many = 0;          // parts of a row
  T *waiting = nullptr;  // what the last row of windows was handed, for the next row of outputs: even, odd columns

  template <class Body> void each_size(Body body) const {
    std::integral_constant<int, 2> two;
    std::integral_constant<int, 3> three;
    rows.most_taps == 3 ? (columns.most_taps == 3 ? body(three, three) : body(three, two))
                        : (columns.most_taps == 3 ? body(two, three) : body(two, two));
  }

  template <int ROWS, class Outputs> NOINLINE void run(const Outputs &all, T *dx) const {
    int outer = p.rank - 2;
    i64 sizes[MOST_AXES], places[MOST_AXES];
    Part plane{.tile = 0, .tiles = 1, .from = outer > 0 ? 0 : of.from, .to = outer > 0 ? rows.size : of.to};
    Span read = outer > 0 ? Span{0, rows.outputs} : span;
    i64 a_tile = (read.last - read.first) * columns.outputs, inputs = (plane.to - plane.from) * columns.size;
    for (int i = outer - 1; i >= 0; i--) {
      sizes[i] = p.axes[i].size, places[i] = a_tile;
      a_tile *= i == 0 ? span.last - span.first : p.axes[i].outputs;
    }
    for (i64 tile = 0; tile < of.tiles; tile++)
      each_place(sizes, outer, outer > 0 ? of.from : 0, outer > 0 ? of.to : 1, [&](const i64 *i) {
        i64 at = tile * a_tile, tap = 0;
        bool read_at_all = true;
        for (int a = 0; a < outer; a++) {
          Clipped by = p.readers[a].at(i[a]);
          read_at_all = read_at_all && by.length > 0;
          at += (by.first - (a == 0 ? span.first : 0)) * places[a];
          tap += (i[a] - p.axes[a].start(by.first)) * p.tap_steps[a];
        }
        if (read_at_all)
          hand_back<ROWS>(all.part(at, tap), plane, read, dx);
        else
          std::memset(dx, 0, size_t(inputs) * sizeof(T));
        dx += inputs;
      });
  }

  // To rows [plane.from, plane.to) of inputs, from rows [read.first, read.last) of outputs.
  template <int ROWS, class Outputs>
  INLINE void hand_back(const Outputs &outputs, const Part &plane, const Span &read, T *dx) const {
    i64 n = columns.outputs, width = columns.size, to = rows.origin + 2 * read.first;
    auto place = [&](i64 row) {  // where its windows start; null outside the band
      bool there = row >= plane.from && row < plane.to;
      return there ? dx + (row - plane.from) * width + columns.origin : nullptr;
    };
    auto put = [&](T *row, const RowPart &part, X even, X odd) INLINE_LAMBDA {
      if (!row) return;
      T *at = row + 2 * part.at;
      ask_to_write_ahead(at), ask_to_write_ahead(at + N);
      interleave_some<X>(at, even, odd, part.low, part.high);
    };
    for (i64 r = read.first, first = 0; r < read.last; r++, to += 2, first += n) {
      T *upper = place(to), *lower = place(to + 1);
      bool waits = ROWS > 2 && r > read.first;
      for (const RowPart *part = parts; part < parts + many; part++) {
        T *kept = waiting + 2 * part->at;
        auto of = outputs.outputs(first + part->at, *part);
        X even{}, odd{};
        if (waits) even = load<X>(kept), odd = load<X>(kept + N);
        outputs.hand(of, *part, 0, waits, even, odd);
        put(upper, *part, even, odd);
        even = X{}, odd = X{};
        outputs.hand(of, *part, 1, false, even, odd);
        put(lower, *part, even, odd);
        if constexpr (ROWS > 2) {
          even = X{}, odd = X{};
          outputs.hand(of, *part, 2, false, even, odd);
          save<X>(kept, even), save<X>(kept + N, odd);
        }
      }
    }
    bool waits = ROWS > 2 && read.first < read.last;
    for (to = most(to, plane.from); to < plane.to; to++, waits = false)  // the row that still waits; nobody reads others
      for (const RowPart *part = parts; part < parts + many; part++) {
        const T *kept = waiting + 2 * part->at;
        put(place(to), *part, waits ? load<X>(kept) : X{}, waits ? load<X>(kept + N) : X{});
      }
  }
};

#else
template <class T> struct ByTwo {
  ByTwo(const Plan &, const Part &, const Span &) {}
  void reserve(Scratch &) {}
  void run(const uint8_t *, const T *, T *) const {}
  void run(const T *, T *) const {}
};
#endif

}  // namespace
}  // namespace ndpool
