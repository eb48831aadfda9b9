// Arrays as numbers that are computed with: in place where they lie so, converted otherwise.
#pragma once
#include "part.h"
#include "rows.h"

namespace ndpool {
namespace {

// Part of an array as numbers that are computed with: [tiles][sizes...][lanes], the first axis from `from` on.
template <class T> struct Region {
  const Plan &plan;
  const Array &array;
  Type type;
  bool flip;
  Part part;
  const i64 *sizes;
  i64 from, positions, elements;  // positions: of the innermost axis
  bool direct;                    // whether rows lie in memory as they are computed with

  NOINLINE Region(const Plan &p, const Array &a, Type t, bool f, Part of, const i64 *extents, i64 first)
      : plan(p), array(a), type(t), flip(f), part(of), sizes(extents), from(first) {
    positions = sizes[p.rank - 1], elements = part.tiles * p.lanes;
    for (int i = 0; i < p.rank; i++) elements *= sizes[i];
    direct = as_they_are<T>(type, flip) && lies_in(sizeof(T));
  }

  // Whether it lies in elements of so many bytes, those of a row (or the lanes) side by side.
  bool lies_in(i64 size) const {
    bool even = reinterpret_cast<uintptr_t>(array.data) % size == 0;
    for (int i = 0; i < plan.lead + plan.rank + 1; i++) even = even && array.strides[i] % size == 0;
    return even && (plan.lanes > 1 ? array.strides[plan.lead + plan.rank] == size : along() == size || positions == 1);
  }
  i64 along() const { return array.strides[plan.lead + plan.rank - 1]; }
  i64 pitch(i64 size = sizeof(T)) const { return plan.lanes > 1 ? along() / size : 1; }  // distance of positions

  // Its rows: a row is the innermost axis with its lanes. `start` is where the first position lies in a row.
  Walk walk() const { return Walk(plan, array, part, sizes, from, plan.rank - 1); }
  const char *start() const { return array.data + (plan.rank == 1 ? from * along() : 0); }

  // All of it, side by side: in place, or copied into `room`.
  NOINLINE const T *all(T *room) const {
    i64 n = positions * plan.lanes, lane = array.strides[plan.lead + plan.rank];
    Walk rows = walk();
    if (!rows.next()) return room;
    bool one_run = rows.rows * n == elements;
    bool packed = direct && (plan.lanes == 1 || pitch() == plan.lanes) && one_run &&
                  (rows.rows == 1 || rows.distance == n * i64(sizeof(T)));
    if (packed) return reinterpret_cast<const T *>(start() + rows.offset);
    T *next = room;
    do {
      const char *at = start() + rows.offset;
      if (plan.lanes == 1 && along() == size_of(type) && rows.distance == n * along()) {  // rows without gaps are one
        load_row<T>(type, at, along(), next, rows.rows * n, flip);
        next += rows.rows * n;
        continue;
      }
      for (i64 r = 0; r < rows.rows; r++, at += rows.distance, next += n) {
        if (plan.lanes == 1)
          load_row<T>(type, at, along(), next, n, flip);
        else
          for (i64 i = 0; i < positions; i++)
            load_row<T>(type, at + i * along(), lane, next + i * plan.lanes, plan.lanes, flip);
      }
    } while (rows.next());
    return room;
  }
};

}  // namespace
}  // namespace ndpool
