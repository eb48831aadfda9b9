// Cotangents back to their winners where each output looks its winner up: dx is cleared, and outputs add to it.
//
// Where an input has many readers, neighbouring outputs often have the same winner, and then each addition waits for
// the one before. So a few go side by side: lanes, or several tiles, or a few rows of one tile, each so far behind the
// row before it that the two never meet at an input:
//
//   row 0   . . . . . o        an input is in the windows of at most `lag` outputs along a row
//   row 1   . . . o            so row 1, as many outputs behind, comes to it when row 0 has left it
//
// Either way an input adds up its readers in the outputs' order.
#pragma once
#include "tap_offsets.h"

namespace ndpool {
namespace {

constexpr i64 SIDE_BY_SIDE = 4;  // tiles, or rows,
constexpr i64 FEW_READERS = 4;   // where an input has more readers than that; else additions seldom wait

// The outputs of a tile that read anything, and where their windows start. They are the same for every tile.
struct Places {
  struct Place {
    i64 output, base;
  };
  Place *all = nullptr;
  i64 many = 0;
  NOINLINE Places(const TapOffsets &taps, const OutputRows &rows, bool wanted, Scratch &scratch) {
    const Axis &axis = rows.axis;
    i64 along = taps.strides[taps.p.order_back[0]];
    if (!wanted) return;
    all = scratch.take<Place>(rows.many * rows.length);
    if (scratch.failed) return;
    for (const auto *row = rows.all; row < rows.all + rows.many; row++)
      for (i64 j = 0; row->read && j < rows.length; j++) {
        Clipped w = axis.at(rows.from + j);
        if (w.length > 0) all[many++] = {row->output + j * rows.step, row->base + w.start * along};
      }
  }
  const Place *begin() const { return all; }
  const Place *end() const { return all + many; }
};

template <class T, class R> struct Scatter {
  const TapOffsets &taps;
  i64 first, extent;  // the positions of a tile that are wanted
  bool band;          // whether others may have won
  i64 met;            // the most readers that an input has

  // One tile.
  void tile(const Places &places, const R *winners, const T *dy, T *dx) const {
    band       ? lanes<true, false>(places, winners, dy, dx)
    : met == 1 ? lanes<false, true>(places, winners, dy, dx)
               : lanes<false, false>(places, winners, dy, dx);
  }

  // One tile whose rows are even.
  void tile(const OutputRows &rows, const R *winners, const T *dy, T *dx) const {
    band       ? by_rows<true, false>(rows, winners, dy, dx)
    : met == 1 ? by_rows<false, true>(rows, winners, dy, dx)
               : by_rows<false, false>(rows, winners, dy, dx);
  }

  // SIDE_BY_SIDE whole tiles, `a_tile` outputs and `extent` elements apart, without lanes.
  NOINLINE void tiles(const Places &places, const R *winners, const T *dy, T *dx, i64 a_tile) const {
    const i64 *table = taps.table;
    i64 tile = extent;
    for (const auto &place : places) {
      const R *w = winners + place.output;
      const T *given = dy + place.output;
      T *to = dx + place.base;
      times<SIDE_BY_SIDE, true>(
          [&](int t) INLINE_LAMBDA { add<false>(to + t * tile + table[w[t * a_tile]], given[t * a_tile]); });
    }
  }

 private:
  template <bool ALONE> INLINE static void add(T *at, T dy) { *at = (ALONE ? T(0) : *at) + dy; }

  template <bool BAND, bool ALONE>
  NOINLINE void lanes(const Places &places, const R *winners, const T *dy, T *dx) const {
    const i64 *table = taps.table;
    i64 n = taps.p.lanes, last = table[taps.p.taps - 1] + n;
    for (const auto &place : places) {
      const R *w = winners + place.output;
      const T *given = dy + place.output;
      i64 base = place.base - first;
      if (BAND && (base < 0 || base + last > extent)) {
        for (i64 l = 0; l < n; l++)
          if (i64 at = base + l + table[w[l]]; uint64_t(at) < uint64_t(extent)) add<false>(dx + at, given[l]);
      } else
        for (i64 l = 0; l < n; l++) add<ALONE>(dx + base + l + table[w[l]], given[l]);
    }
  }

  struct Row {
    const R *winners;
    const T *dy;
    i64 at;  // where its first window starts
  };
  template <bool BAND, bool ALONE>
  NOINLINE void by_rows(const OutputRows &rows, const R *winners, const T *dy, T *dx) const {
    const Axis &axis = rows.axis;
    const i64 *table = taps.table;
    i64 n = rows.length, step = rows.step, along = taps.strides[taps.p.order_back[0]], move = axis.stride * along;
    i64 lag = ((axis.most_taps - 1) * axis.step + axis.stride) / axis.stride, late = (SIDE_BY_SIDE - 1) * lag, r = 0;
    i64 start = axis.start(rows.from) * along - first;
    auto lay = [&](i64 r) {
      const auto &row = rows.all[r];
      return Row{winners + row.output, dy + row.output, row.base + start};
    };
    auto put = [&](const Row &row, i64 j) INLINE_LAMBDA {
      i64 at = row.at + j * move + table[row.winners[j * step]];
      if (!BAND || uint64_t(at) < uint64_t(extent)) add<ALONE>(dx + at, row.dy[j * step]);
    };
    bool waits = met > FEW_READERS && n >= 2 * late;
    for (; waits && r + SIDE_BY_SIDE <= rows.many; r += SIDE_BY_SIDE) {
      Row some[] = {lay(r), lay(r + 1), lay(r + 2), lay(r + 3)};
      auto ends = [&](i64 from, i64 to) {  // where not all of them have an output
        for (i64 j = from; j < to; j++)
          for (int k = 0; k < SIDE_BY_SIDE; k++)
            if (uint64_t(j - k * lag) < uint64_t(n)) put(some[k], j - k * lag);
      };
      ends(0, late);
      for (i64 j = late; j < n; j++) times<SIDE_BY_SIDE, true>([&](int k) INLINE_LAMBDA { put(some[k], j - k * lag); });
      ends(n, n + late);
    }
    for (; r < rows.many; r++) {
      Row row = lay(r);
      for (i64 j = 0; j < n; j++) put(row, j);
    }
  }
};

}  // namespace
}  // namespace ndpool
