// Where winners lie: from the index of a tap to a position.
#pragma once
#include "results.h"

namespace ndpool {
namespace {

// How far taps lie from where their window starts, by the given strides of the pooled axes: in a table, if there are
// enough outputs.
struct TapOffsets {
  const Plan &p;
  const i64 *strides;
  i64 *table = nullptr;
  static constexpr i64 FASTER = 8;  // taps that are tabled in the time of computing one
  TapOffsets(const Plan &plan, const i64 *of, i64 outputs, Scratch &scratch) : p(plan), strides(of) {
    if (p.taps > FASTER * outputs || p.taps > 65536) return;
    table = scratch.take<i64>(p.taps);
    if (scratch.failed) return;
    table[0] = 0;
    for (int k = 0; k < p.rank; k++) {  // an axis after those within it
      int i = p.order_back[k];
      i64 before = p.tap_steps[i], step = p.axes[i].step * strides[i];
      for (i64 tap = before; tap < before * p.axes[i].most_taps; tap++) table[tap] = table[tap - before] + step;
    }
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

// The rows of a tile's outputs, in the caller's order of axes, which need not be that of memory. They are alike in all
// tiles, so a unit of many small tiles finds them once.
struct OutputRows {
  struct Row {
    i64 output, base;  // where its first output lies, and where its windows start along the other axes
    bool read;         // whether these read anything
  };
  Row *all;
  i64 many;
  const Axis &axis;        // along the rows
  i64 from, length, step;  // the first output of a row along its axis, how many, and how far apart
  bool even;               // every window of a row starts as far after the one before and reads something

  NOINLINE OutputRows(const TapOffsets &taps, const Part &of, Scratch &scratch)
      : axis(taps.p.axes[taps.p.order_back[0]]) {
    const Plan &p = taps.p;
    int axes[MOST_AXES], inner = p.order_back[0];  // in the caller's order; the last one runs along the rows
    i64 froms[MOST_AXES], tos[MOST_AXES], places[MOST_AXES], at[MOST_AXES], place = p.lanes, results = 1;
    for (int i = 0; i < p.rank; i++) axes[i] = p.order_back[p.rank - 1 - i];
    even = taps.table && p.lanes == 1 && axis.slides;
    for (int i = p.rank - 1; i >= 0; i--) {
      froms[i] = at[i] = i == 0 ? of.from : 0, tos[i] = i == 0 ? of.to : p.axes[i].outputs;
      results *= tos[i] - froms[i], places[i] = place, place *= tos[i] - froms[i];
      even = even && !p.axes[i].gaps;
    }
    from = froms[inner], length = tos[inner] - from, step = places[inner];
    many = length > 0 ? results / length : 0;
    all = scratch.take<Row>(many);
    if (scratch.failed) return;
    for (Row *row = all; row < all + many; row++) {
      *row = {0, 0, true};
      for (int k = 0; k < p.rank - 1; k++) {
        int i = axes[k];
        Clipped w = p.axes[i].at(at[i]);
        row->base += w.start * taps.strides[i], row->output += (at[i] - froms[i]) * places[i];
        row->read = row->read && w.length > 0;
      }
      for (int k = p.rank - 2; k >= 0; k--) {
        int i = axes[k];
        if (++at[i] < tos[i]) break;
        at[i] = froms[i];
      }
    }
  }
};

// visit(output, position) for the outputs of a tile that read anything: where the winner lies, by the strides of `taps`
// (and `lane` for the lanes). Outputs that read nothing get none(output).
template <class Visit, class None>
INLINE void each_winner(const TapOffsets &taps, const OutputRows &rows, const char *residual, i64 lane, Visit visit,
                        None none) {
  const Plan &p = taps.p;
  const Axis &axis = rows.axis;
  i64 n = rows.length, step = rows.step, stride = taps.strides[p.order_back[0]];
  i64 start = axis.start(rows.from) * stride, move = axis.stride * stride;
  with_residual(p, [&](auto kind) INLINE_LAMBDA {
    using R = decltype(kind);
    const R *winners = reinterpret_cast<const R *>(residual);
    for (const auto *row = rows.all; row < rows.all + rows.many; row++) {
      i64 output = row->output;
      if constexpr (sizeof(R) <= 2)
        if (rows.even) {
          const i64 *table = taps.table;
          i64 at = row->base + start;
          if (step == 1)
            for (i64 j = 0; j < n; j++) visit(output + j, at + j * move + table[winners[output + j]]);
          else
            for (i64 j = 0; j < n; j++, output += step) visit(output, at + j * move + table[winners[output]]);
          continue;
        }
      for (i64 j = 0; j < n; j++, output += step) {
        Clipped w = axis.at(rows.from + j);
        for (i64 l = 0; l < p.lanes; l++)
          if (row->read && w.length > 0)
            visit(output + l, row->base + w.start * stride + l * lane + taps.of(winners[output + l]));
          else
            none(output + l);
      }
    }
  });
}

}  // namespace
}  // namespace ndpool
