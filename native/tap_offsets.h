// Where winners lie: from the index of a tap to a position.
#pragma once
#include "results.h"

namespace ndpool {
namespace {

// How far taps lie from where their window starts, by the given strides of the pooled axes: in a table, if there are
// more outputs than taps.
struct TapOffsets {
  const Plan &p;
  const i64 *strides;
  i64 *table = nullptr;
  TapOffsets(const Plan &plan, const i64 *of, i64 outputs, Scratch &scratch) : p(plan), strides(of) {
    if (p.taps > outputs || p.taps > 65536) return;
    table = scratch.take<i64>(p.taps);
    for (i64 tap = 0; table && tap < p.taps; tap++) table[tap] = computed(tap);
  }
  template <class R> INLINE i64 of(R tap) const {
    if constexpr (sizeof(R) <= 2)
      if (table) return table[tap];
    return computed(i64(tap));
  }

 private:
  NOINLINE i64 computed(i64 tap) const {
    i64 at = 0;
    for (int i = 0; i < p.rank; i++) at += tap / p.tap_steps[i] % p.axes[i].most_taps * p.axes[i].step * strides[i];
    return at;
  }
};

// The rows of a tile's outputs, in the caller's order of axes, which need not be that of memory.
//
//   for (OutputRows rows(taps, part); rows.next();)
struct OutputRows {
  const Plan &p;
  int axes[MOST_AXES];                                    // in the caller's order; the last one runs along the rows
  i64 from[MOST_AXES], to[MOST_AXES], places[MOST_AXES];  // places: how far apart outputs lie along an axis
  const Axis &axis;                                       // along the rows
  i64 row_from, row, step;  // the first output of a row along its axis, how many, and how far apart
  // of this row: where its first output lies, where its windows start along the other axes, whether these read anything
  i64 output, base;
  bool read;

  NOINLINE OutputRows(const TapOffsets &taps, const Part &of)
      : p(taps.p), axis(p.axes[p.order_back[0]]), strides(taps.strides) {
    i64 place = p.lanes, results = 1;
    for (int i = 0; i < p.rank; i++) axes[i] = p.order_back[p.rank - 1 - i];
    for (int i = p.rank - 1; i >= 0; i--) {
      from[i] = at[i] = i == 0 ? of.from : 0, to[i] = i == 0 ? of.to : p.axes[i].outputs;
      results *= to[i] - from[i], places[i] = place, place *= to[i] - from[i];
    }
    int inner = axes[p.rank - 1];
    row_from = from[inner], row = to[inner] - from[inner], step = places[inner];
    left = row > 0 ? results / row : 0;
  }

  NOINLINE bool next() {
    if (left-- == 0) return false;
    base = output = 0, read = true;
    for (int k = 0; k < p.rank - 1; k++) {
      int i = axes[k];
      Clipped w = p.axes[i].at(at[i]);
      base += w.start * strides[i], output += (at[i] - from[i]) * places[i];
      read = read && w.length > 0;
    }
    for (int k = p.rank - 2; k >= 0; k--) {
      int i = axes[k];
      if (++at[i] < to[i]) break;
      at[i] = from[i];
    }
    return true;
  }

 private:
  const i64 *strides;
  i64 at[MOST_AXES], left;
};

// visit(output, position) for the outputs of a tile that read anything: where the winner lies, by the strides of `taps`
// (and `lane` for the lanes). Outputs that read nothing get none(output).
template <class Visit, class None>
INLINE void each_winner(const TapOffsets &taps, const Part &of, const char *residual, i64 lane, Visit visit,
                        None none) {
  const Plan &p = taps.p;
  OutputRows rows(taps, of);
  const Axis &axis = rows.axis;
  bool gaps = false;
  for (int i = 0; i < p.rank; i++) gaps = gaps || p.axes[i].gaps;
  bool even = taps.table && !gaps && p.lanes == 1 && axis.slides;  // winners lie evenly, each as far as its tap says
  i64 stride = taps.strides[p.order_back[0]];
  i64 start = axis.start(rows.row_from) * stride, move = axis.stride * stride;
  while (rows.next())
    with_residual(p, [&](auto kind) INLINE_LAMBDA {
      using R = decltype(kind);
      const R *winners = reinterpret_cast<const R *>(residual);
      i64 output = rows.output, n = rows.row, step = rows.step, base = rows.base;
      if constexpr (sizeof(R) <= 2)
        if (even) {
          const i64 *table = taps.table;
          for (i64 j = 0, at = base + start; j < n; j++, output += step, at += move)
            visit(output, at + table[winners[output]]);
          return;
        }
      for (i64 j = 0; j < n; j++, output += step) {
        Clipped w = axis.at(rows.row_from + j);
        for (i64 l = 0; l < p.lanes; l++)
          if (rows.read && w.length > 0)
            visit(output + l, base + w.start * stride + l * lane + taps.of(winners[output + l]));
          else
            none(output + l);
      }
    });
}

}  // namespace
}  // namespace ndpool
