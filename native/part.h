// A unit of work: a band of the outermost pooled axis of one tile, or a few whole tiles. Units share nothing, so any
// number of threads gives the same bits. Here is which part of the work a unit is, and where the rows of it lie.
#pragma once
#include "kernels.h"

namespace ndpool {
namespace {

// The tiles and the part of the outermost axis that a unit covers: [from, to) of its outputs, or of its inputs where
// they are what is made (`back`: vjp). If windows are cut into pieces, it is one output, of which the unit folds one.
struct Part {
  i64 tile, tiles, from, to, piece = 0;
};

inline Part piece_of_window(const Plan &p, i64 unit) {
  i64 at = unit / p.pieces, outputs = p.axes[0].outputs, o = at % outputs;
  return {.tile = at / outputs, .tiles = 1, .from = o, .to = o + 1, .piece = unit % p.pieces};
}

inline Part band_of(const Plan &p, bool back, i64 unit) {
  i64 extent = back ? p.axes[0].size : p.axes[0].outputs;
  i64 band = back ? p.band_back : p.band, several = back ? p.tiles_per_unit_back : p.tiles_per_unit;
  if (several > 1 || band >= extent)
    return {.tile = unit * several, .tiles = least(several, p.tiles - unit * several), .from = 0, .to = extent};
  i64 bands = (extent + band - 1) / band, b = unit % bands;
  return {.tile = unit / bands, .tiles = 1, .from = b * band, .to = least(extent, (b + 1) * band)};
}

inline i64 count_units(const Plan &p, bool back) {
  i64 extent = back ? p.axes[0].size : p.axes[0].outputs;
  i64 band = back ? p.band_back : p.band, several = back ? p.tiles_per_unit_back : p.tiles_per_unit;
  if (extent == 0) return 0;
  if (several > 1 || band >= extent) return (p.tiles + several - 1) / several;
  return p.tiles * ((extent + band - 1) / band);
}

// Where all positions lie that outputs [from, to) of an axis read: [first, last), possibly none. It may hold some that
// windows with gaps pass over.
struct Span {
  i64 first, last;
};
NOINLINE inline Span reads(const Axis &axis, i64 from, i64 to) {
  if (from == 0 && to == axis.outputs) return {axis.lowest, axis.highest};
  if (from >= to) return {0, 0};
  Span s;
  if (axis.windows == Windows::readers)
    s = {ceil_div(from - axis.origin - axis.read_last * axis.read_step, axis.read_stride),
         floor_div(to - 1 - axis.origin, axis.read_stride) + 1};
  else {
    Cover last = axis.covers(to - 1);
    s = {axis.start(from), last.start + (last.taps - 1) * axis.step + 1};
  }
  s = {most(s.first, axis.lowest), least(s.last, axis.highest)};
  return s.first < s.last ? s : Span{0, 0};
}

// visit(o) for each place of the first `outer` axes, the first of which runs over [from, to)
template <class Visit> void each_place(const i64 *sizes, int outer, i64 from, i64 to, Visit visit) {
  i64 o[MOST_AXES] = {from};
  if (from >= to) return;
  for (int i = 0; i >= 0;) {
    visit(o);
    for (i = outer - 1; i >= 0; i--) {
      if (++o[i] < (i == 0 ? to : sizes[i])) break;
      o[i] = i == 0 ? from : 0;
    }
  }
}

// The rows of an array in row-major order, in runs that lie evenly apart: for each tile, each place of the first
// `outer` pooled axes, the first of which runs from `from` on.
//
//   for (Walk walk(...); walk.next();)   walk.rows rows, the first at walk.offset, walk.distance apart (bytes)
struct Walk {
  i64 offset, rows = 0, distance;

  NOINLINE Walk(const Plan &p, const Array &a, const Part &part, const i64 *extents, i64 from, int outer)
      : offset(outer > 0 ? from * a.strides[p.lead] : 0), left(part.tiles) {
    for (int i = 0; i < p.lead; i++) add(p.sizes[i], a.strides[i]);
    i64 first = part.tile;
    for (int i = 0; i < outer; i++) {
      add(extents[i], a.strides[p.lead + i]);
      left *= extents[i], first *= extents[i];
    }
    if (axes == 0) sizes[0] = 1, strides[0] = 0, axes = 1;
    distance = strides[axes - 1];
    if (left == 0) return;
    for (int i = axes - 1; i >= 0; i--) {
      at[i] = first % sizes[i], first /= sizes[i];
      offset += at[i] * strides[i];
    }
  }

  // How many rows lie evenly apart, of all that there are.
  i64 evenly() const { return sizes[axes - 1]; }

  NOINLINE bool next() {
    if (left == 0) return false;
    int last = axes - 1;
    at[last] += rows, offset += rows * distance;
    for (int i = last; i > 0 && at[i] == sizes[i]; i--) {
      offset += strides[i - 1] - sizes[i] * strides[i];
      at[i] = 0, at[i - 1]++;
    }
    rows = least(left, sizes[last] - at[last]);
    left -= rows;
    return true;
  }

 private:
  i64 left, sizes[MOST_AXES], strides[MOST_AXES], at[MOST_AXES];
  int axes = 0;

  void add(i64 size, i64 stride) {  // axes that can be walked as one are one
    if (size == 1) return;
    if (axes > 0 && strides[axes - 1] == size * stride)
      sizes[axes - 1] *= size, strides[axes - 1] = stride;
    else
      sizes[axes] = size, strides[axes++] = stride;
  }
};

}  // namespace
}  // namespace ndpool
