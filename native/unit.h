// A unit of work: a band of the outermost pooled axis of one tile, or a few whole tiles. Units share nothing, so any
// number of threads gives the same bits. Reading order: Scratch, Walk (where rows lie), Passes (one fold an axis), then
// the modes.
#pragma once
#include "fold.h"
#include "pages.h"
#include "rows.h"

namespace ndpool {
namespace {

INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }

// Memory of one unit, taken from the front and given back all at once.
struct Scratch {
  Arena &arena;
  i64 used = 0;
  bool failed = false;
  struct Block {
    Block *next;
    size_t size;
  } *spilled = nullptr;
  explicit Scratch(Arena &a) : arena(a) {}
  ~Scratch() {
    while (spilled) {
      Block *next = spilled->next;
      give_memory(spilled, spilled->size);
      spilled = next;
    }
    if (used <= arena.size) return;
    if (arena.data) give_memory(arena.data, size_t(arena.size));  // next time it is large enough
    arena.size = (used + 4095) / 4096 * 4096;
    arena.data = static_cast<char *>(take_memory(size_t(arena.size)));
    if (!arena.data) arena.size = 0;
  }
  template <class T> T *take(i64 n) {  // 64 bytes more than asked for: a vector may be read past the end
    i64 bytes = (n * i64(sizeof(T)) + 191) / 64 * 64;
    char *p = arena.data + used;
    if (used + bytes > arena.size) {
      auto *block = static_cast<Block *>(take_memory(size_t(bytes + 64)));
      if (!block) {
        failed = true;
        arena.refused = used + bytes;
        return nullptr;
      }
      *block = {spilled, size_t(bytes + 64)};
      spilled = block;
      p = reinterpret_cast<char *>(block) + 64;
    }
    used += bytes;
    return reinterpret_cast<T *>(p);
  }
};

// The tiles and the part of the outermost axis that a unit covers: [from, to) of its outputs (or inputs, going back).
// If windows are cut into pieces, it is one output, of which the unit folds that piece.
struct Part {
  i64 tile, tiles, from, to, piece = 0;
};

inline Part part_of_window(const Plan &p, i64 unit) {
  i64 at = unit / p.pieces, outputs = p.axes[0].outputs, o = at % outputs;
  return {at / outputs, 1, o, o + 1, unit % p.pieces};
}

inline Part part(const Plan &p, bool back, i64 unit) {
  i64 extent = back ? p.axes[0].size : p.axes[0].outputs;
  i64 band = back ? p.band_back : p.band, several = back ? p.tiles_a_unit_back : p.tiles_a_unit;
  if (several > 1 || band >= extent) return {unit * several, least(several, p.tiles - unit * several), 0, extent};
  i64 bands = (extent + band - 1) / band, b = unit % bands;
  return {unit / bands, 1, b * band, least(extent, (b + 1) * band)};
}

inline i64 count_units(const Plan &p, bool back) {
  i64 extent = back ? p.axes[0].size : p.axes[0].outputs;
  i64 band = back ? p.band_back : p.band, several = back ? p.tiles_a_unit_back : p.tiles_a_unit;
  if (extent == 0) return 0;
  if (several > 1 || band >= extent) return (p.tiles + several - 1) / several;
  return p.tiles * ((extent + band - 1) / band);
}

// The positions that outputs [from, to) of an axis read: [first, last), possibly none.
struct Span {
  i64 first, last;
};
inline Span reads(const Axis &axis, i64 from, i64 to) {
  if (from == 0 && to == axis.outputs) return {axis.lowest, axis.highest};
  if (axis.step == 1 && !axis.gaps && from < to) {  // windows only move on
    Clipped last = axis.at(to - 1);
    return {axis.first(from), last.first + last.length};
  }
  Span s{axis.size, 0};
  for (i64 o = from; o < to; o++) {
    Clipped at = axis.at(o);
    if (at.length == 0) continue;
    s.first = least(s.first, at.first);
    s.last = most(s.last, at.first + (at.length - 1) * axis.step + 1);
  }
  if (s.first >= s.last) s.first = s.last = 0;
  return s;
}

// Visits the rows of an array in row-major order: for each tile, each place of the first `outer` pooled axes, the first
// of which runs from `from` on. visit(offset, rows, distance), in bytes, for rows that lie evenly apart.
template <class Visit>
void walk(const Plan &p, const Array &a, const Part &part, const i64 *sizes, i64 from, int outer, Visit visit) {
  i64 n[MOST_AXES], strides[MOST_AXES], at[MOST_AXES], rows = 1, offset = outer > 0 ? from * a.strides[p.lead] : 0;
  int d = 0;
  auto add = [&](i64 size, i64 stride) {  // axes that can be walked as one are one
    if (size == 1) return;
    if (d > 0 && strides[d - 1] == size * stride)
      n[d - 1] *= size, strides[d - 1] = stride;
    else
      n[d] = size, strides[d++] = stride;
  };
  for (int i = 0; i < p.lead; i++) add(p.sizes[i], a.strides[i]);
  for (int i = 0; i < outer; i++) add(sizes[i], a.strides[p.lead + i]), rows *= sizes[i];
  i64 left = part.tiles * rows;
  if (left == 0) return;
  if (d == 0) return visit(offset, i64(1), i64(0));
  for (i64 i = d - 1, rest = part.tile * rows; i >= 0; i--) {
    at[i] = rest % n[i], rest /= n[i];
    offset += at[i] * strides[i];
  }
  while (left > 0) {
    i64 run = least(left, n[d - 1] - at[d - 1]);
    visit(offset, run, strides[d - 1]);
    left -= run, at[d - 1] += run, offset += run * strides[d - 1];
    for (int i = d - 1; i > 0 && at[i] == n[i]; i--) {
      offset += strides[i - 1] - n[i] * strides[i];
      at[i] = 0, at[i - 1]++;
    }
  }
}

// Part of an array as numbers that are computed with: [tiles][sizes...][lanes], the first axis from `from` on.
template <class T> struct Region {
  const Plan &plan;
  const Array &array;
  Part part;
  const i64 *sizes;
  i64 from, positions, row_bytes, elements;  // of the innermost axis; all
  bool direct;                               // whether rows lie in memory as they are computed with

  Region(const Plan &p, const Array &a, Type type, bool flip, Part of, const i64 *extents, i64 first)
      : plan(p), array(a), part(of), sizes(extents), from(first) {
    i64 along = a.strides[p.lead + p.rank - 1], lane = a.strides[p.lead + p.rank], size = sizeof(T);
    positions = sizes[p.rank - 1], elements = part.tiles * p.lanes;
    for (int i = 0; i < p.rank; i++) elements *= sizes[i];
    direct = as_they_are<T>(type, flip) && reinterpret_cast<uintptr_t>(a.data) % size == 0;
    for (int i = 0; i < p.lead + p.rank + 1; i++) direct = direct && a.strides[i] % size == 0;
    direct = direct && (p.lanes > 1 ? lane == size : along == size || positions == 1);
  }
  i64 along() const { return array.strides[plan.lead + plan.rank - 1]; }
  i64 row() const { return plan.lanes > 1 ? along() / i64(sizeof(T)) : 1; }  // distance of positions, where direct

  // visit(pointer, rows, distance in bytes): a row is the innermost axis with its lanes
  template <class Visit> void each(Visit visit) const {
    i64 start = plan.rank == 1 ? from * along() : 0;
    walk(plan, array, part, sizes, from, plan.rank - 1,
         [&](i64 offset, i64 rows, i64 distance) { visit(array.data + offset + start, rows, distance); });
  }
  // All of it, side by side: in place, or copied into `room`.
  const T *all(Type type, bool flip, T *room) const {
    i64 n = positions * plan.lanes, lane = array.strides[plan.lead + plan.rank];
    bool packed = direct && (plan.lanes == 1 || row() == plan.lanes), once = true;
    const char *found = nullptr;
    each([&](const char *, i64 rows, i64 distance) {
      packed = packed && once && (rows == 1 || distance == n * i64(sizeof(T))), once = false;
    });
    T *next = room;
    each([&](const char *at, i64 rows, i64 distance) {
      if (!found) found = at;
      if (packed) return;
      if (plan.lanes == 1 && along() == size_of(type) && distance == n * along()) {  // rows without gaps are one
        load_row<T>(type, at, along(), next, rows * n, flip);
        next += rows * n;
        return;
      }
      for (i64 r = 0; r < rows; r++, at += distance, next += n) {
        if (plan.lanes == 1)
          load_row<T>(type, at, along(), next, n, flip);
        else
          for (i64 i = 0; i < positions; i++)
            load_row<T>(type, at + i * along(), lane, next + i * plan.lanes, plan.lanes, flip);
      }
    });
    return packed ? reinterpret_cast<const T *>(found) : room;
  }
};

// One fold an axis, in the plan's order. Results lie as [tiles][to - from][outputs of the other axes][lanes].
template <class Law> struct Passes {
  using T = typename Law::T;
  static constexpr int PLANES = Law::planes;
  using To = Sink<T, PLANES>;
  using From = Source<T, PLANES>;

  const Law &law;
  const Plan &plan;
  const Axis *axes;
  Part part;
  Span span;               // positions of the outermost axis that are read
  i64 sizes[MOST_AXES]{};  // positions an axis
  const int32_t *order;    // of the folds
  To rooms[2]{}, block{};
  T *phases;
  To last;     // where the result goes, if not into a room
  T over = 1;  // what the last fold divides by

  Passes(const Law &l, const Plan &p, bool back, Part of) : law(l), plan(p), axes(back ? p.readers : p.axes), part(of) {
    order = back ? p.order_back : p.order;
    span = reads(axes[0], part.from, part.to);
    if (part.tiles > 1 && span.first < span.last) span = {0, axes[0].size};  // tiles without gaps between them
    for (int i = 0; i < plan.rank; i++) sizes[i] = i == 0 ? span.last - span.first : axes[i].size;
    last.at[0] = nullptr;
  }

  // whether the first fold reads whole slabs: the innermost axis and its lanes
  bool by_slabs() const { return order[0] == plan.rank - 1 && !as_lanes(); }
  i64 outputs(int i) const { return i == 0 ? part.to - part.from : axes[i].outputs; }
  i64 results() const {
    i64 n = part.tiles * plan.lanes;
    for (int i = 0; i < plan.rank; i++) n *= outputs(i);
    return n;
  }

  // Whether the first two folds go together: small windows over rows, where reading a row again costs less than keeping
  // it.
  bool fuses() const {
    if (!Law::hot || plan.rank < 2 || order[0] != plan.rank - 1 || order[1] != plan.rank - 2) return false;
    const Axis &inner = axes[order[0]], &outer = axes[order[1]];
    if (sizes[order[1]] == 0) return false;  // a band that reads nothing
    auto plain = [](const Axis &a) { return !a.blocks && !a.lines && a.phases == 1; };
    i64 again = (outer.most_taps - outer.stride) * (2 * inner.most_taps + 1);
    bool small = inner.most_taps <= 3 + (inner.stride != 2) && again <= outer.most_taps + 4;
    return plain(inner) && plain(outer) && small && (plan.lanes > 1 || (!inner.turns && inner.stride <= 4));
  }

  // Whether tiles are so small that they are better folded side by side, one a lane, than row by row.
  bool as_lanes() const {
    const Axis &inner = axes[plan.rank - 1];
    i64 tile = 1;
    bool lines = false;
    for (int i = 0; i < plan.rank; i++) tile *= most(axes[i].size, axes[i].outputs), lines = lines || axes[i].lines;
    return plan.lanes == 1 && part.tiles >= LANES<Vec<T>> && tile <= LARGEST_LANE && !lines && inner.size > 1 &&
           (inner.turns || inner.outputs < SHORTEST_ROW);
  }

  // A fold in its turn: an axis with `before` places outside and `inside` elements inside it.
  struct Step {
    int axis;
    i64 before, inside;
  };
  template <class Visit> void each_step(Visit visit) const {
    i64 now[MOST_AXES];
    for (int i = 0; i < plan.rank; i++) now[i] = sizes[i];
    for (int s = 0; s < plan.rank; s++) {
      Step step{order[s], part.tiles, plan.lanes};
      for (int i = 0; i < step.axis; i++) step.before *= now[i];
      for (int i = step.axis + 1; i < plan.rank; i++) step.inside *= now[i];
      visit(s, step);
      now[step.axis] = outputs(step.axis);
    }
  }

  void reserve(Scratch &scratch) {
    i64 largest[2] = {0, 0}, longest = 0, widest = 0;
    bool fused = fuses();
    each_step([&](int s, const Step &step) {
      bool final = (s == plan.rank - 1 && last.at[0]) || (s == 0 && fused);
      i64 n = step.before * step.inside * outputs(step.axis);
      if (!final) largest[s % 2] = most(largest[s % 2], n);
      longest = most(longest, Folding<Law, ALL<Law>>::block_size(axes[step.axis], outputs(step.axis), sizes[step.axis],
                                                                 step.inside, step.before));
      if (axes[step.axis].phases > 1) widest = most(widest, outputs(step.axis));
    });
    for (int t = 0; t < 2; t++)
      for (int i = 0; i < PLANES; i++) rooms[t].at[i] = largest[t] ? scratch.take<T>(largest[t]) : nullptr;
    for (int i = 0; i < PLANES; i++) block.at[i] = longest ? scratch.take<T>(longest) : nullptr;
    phases = widest ? scratch.take<T>(widest * PLANES) : nullptr;
  }

  // Whether the last fold can divide as it goes.
  bool can_divide() const { return axes[order[plan.rank - 1]].most_taps <= Folding<Law, ALL<Law>>::LONGEST; }

  // `pieces` inputs of a step, `from_step` elements apart
  template <unsigned READ> void pass(const Step &step, To to, From from, i64 row, i64 pieces, i64 from_step) const {
    int i = step.axis;
    Folding<Law, READ>{law,
                       axes[i],
                       i == 0 ? part.from : 0,
                       i == 0 ? part.to : axes[i].outputs,
                       i == 0 ? span.first : 0,
                       sizes[i],
                       step.inside,
                       row,
                       plan.tap_steps[i],
                       block,
                       phases,
                       pieces,
                       from_step,
                       outputs(i) * step.inside,
                       i == order[plan.rank - 1] ? over : T(1)}
        .run(to, from);
  }

  // first(give) calls give(input, row, pieces, distance) for the inputs of the first fold in order
  template <unsigned READ, class First> To run(First first) const {
    To to{};
    bool fused = fuses();
    each_step([&](int s, const Step &step) {
      if (fused && s == 0) return;
      To from = to;
      to = s == plan.rank - 1 && last.at[0] ? last : rooms[s % 2];
      To next = to;
      if constexpr (Law::hot)
        if (fused && s == 1)
          return first([&](From input, i64 row, i64 pieces, i64 distance) {
            int i = step.axis;
            i64 planes = pieces / sizes[i], begin = i == 0 ? part.from : 0, end = i == 0 ? part.to : axes[i].outputs;
            const Axis &inner = axes[i + 1];
            Folding<Law, READ>{law,
                               inner,
                               0,
                               inner.outputs,
                               0,
                               inner.size,
                               plan.lanes,
                               row,
                               plan.tap_steps[i + 1],
                               block,
                               phases,
                               planes,
                               sizes[i] * distance,
                               (end - begin) * inner.outputs * plan.lanes,
                               plan.rank == 2 ? over : T(1)}
                .planes(next, input, axes[i], begin, end, i == 0 ? span.first : 0, distance, plan.tap_steps[i]);
            next = next + planes * (end - begin) * inner.outputs * plan.lanes;
          });
      if (s > 0) return pass<ALL<Law>>(step, to, from, step.inside, step.before, sizes[step.axis] * step.inside);
      first([&](From input, i64 row, i64 pieces, i64 distance) {
        pass<READ>(step, next, input, row, pieces, distance);
        next = next + pieces * outputs(step.axis) * step.inside;
      });
    });
    return to;
  }
  // the same, from states that lie side by side
  template <unsigned READ> To run_packed(From input, Scratch &scratch) const {
    if (as_lanes()) return run_lanes<READ>(input, scratch);
    return run<READ>([&](auto give) {
      i64 pieces = part.tiles, row = plan.lanes;
      for (int i = 0; i < order[0]; i++) pieces *= sizes[i];
      for (int i = order[0] + 1; i < plan.rank; i++) row *= sizes[i];
      give(input, row, pieces, row * sizes[order[0]]);
    });
  }

 private:
  static constexpr i64 LARGEST_LANE = 1024, SHORTEST_ROW = 32;  // elements of a tile; outputs of a row

  // Tiles turned so that each is a lane; the last of them perhaps twice.
  template <unsigned READ> To run_lanes(From input, Scratch &scratch) const {
    constexpr i64 N = LANES<Vec<T>>;
    Plan turned = plan;
    turned.lanes = N;
    Passes side(law, turned, axes == plan.readers, {0, 1, part.from, part.to});
    side.over = over, side.span = span, side.sizes[0] = sizes[0];
    side.reserve(scratch);
    i64 inputs = 1, outputs = results() / part.tiles;
    for (int i = 0; i < plan.rank; i++) inputs *= sizes[i];
    To in{}, to = last.at[0] ? last : rooms[(plan.rank - 1) % 2];
    for (int i = 0; i < PLANES; i++)
      if (READ >> i & 1) in.at[i] = scratch.template take<T>(inputs * N);
    if (scratch.failed) return {};
    for (i64 next = 0; next < part.tiles; next += N) {
      i64 tile = least(next, part.tiles - N);
      for (int i = 0; i < PLANES; i++)
        if (READ >> i & 1) turn_over<T>(input.at[i] + tile * inputs, N, inputs, inputs, in.at[i], N);
      To states = side.template run_packed<READ>(in, scratch);
      for (int i = 0; i < PLANES; i++) turn_over<T>(states.at[i], outputs, N, N, to.at[i] + tile * outputs, outputs);
    }
    return to;
  }
};

// The outputs of a unit, row by row: visit(at, n, counts, taps, inner) where `at` is the offset in the results, the
// outer axes count `counts` and read `taps` positions, and the row is the innermost axis (lanes: one output of it,
// `inner`).
template <class Visit> void each_row(const Plan &p, const Axis *axes, const Part &part, Visit visit) {
  int outer = p.lanes > 1 ? p.rank : p.rank - 1;
  i64 n = p.lanes > 1 ? p.lanes : (p.rank == 1 ? part.to - part.from : axes[p.rank - 1].outputs), rows = part.tiles,
      o[MOST_AXES];
  for (int i = 0; i < outer; i++) {
    o[i] = i == 0 ? part.from : 0;
    rows *= i == 0 ? part.to - part.from : axes[i].outputs;
  }
  for (i64 r = 0; r < rows; r++) {
    i64 counts = 1, taps = 1;
    for (int i = 0; i < outer; i++) counts *= axes[i].count(o[i]), taps *= axes[i].length(o[i]);
    visit(r * n, n, counts, taps);
    for (int i = outer - 1; i >= 0; i--) {
      if (++o[i] < (i == 0 ? part.to : axes[i].outputs)) break;
      o[i] = i == 0 ? part.from : 0;
    }
  }
}

// What the innermost axis adds to each_row: counts and taps of its outputs as T; ones where lanes are rows.
template <class T> struct Inner {
  T *counts = nullptr, *taps = nullptr;
  Inner(const Plan &p, const Part &part, Scratch &scratch) {
    if (p.even && !p.padded) return;  // nobody will ask
    const Axis &axis = p.axes[p.rank - 1];
    bool line = p.lanes == 1;
    i64 from = line && p.rank == 1 ? part.from : 0;
    i64 n = line ? (p.rank == 1 ? part.to - part.from : axis.outputs) : p.lanes;
    counts = scratch.take<T>(n), taps = scratch.take<T>(n);
    if (scratch.failed) return;
    for (i64 i = 0; i < n; i++) {
      counts[i] = line ? T(axis.count(from + i)) : 1;
      taps[i] = line ? T(axis.length(from + i)) : 1;
    }
  }
};

// Padding that counts is zeros: merged last, all at once.
template <class Law, class X> INLINE void merge_padding(const Law &law, State<X, Law::planes> &s, X counts, X taps) {
  Ints<X> padded = counts > taps;
  if (!any(padded)) return;
  State<X, Law::planes> zeros{}, merged = s;
  zeros.at[1] = counts - taps;
  law.merge(merged, zeros);
  for (int i = 0; i < Law::planes; i++) s.at[i] = choose<X>(padded, merged.at[i], s.at[i]);
}

}  // namespace
}  // namespace ndpool
