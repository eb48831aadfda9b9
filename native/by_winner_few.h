// Derivatives by winner where few taps meet: vectors are compared with one tap after another, and what matches is
// taken.
//
//   jvp: a row of outputs       residual  4 0 4 8 ...    tap 0: dx of tap 0 where the residual is 0
//                                                        tap 4: dx of tap 4 where the residual is 4, ...
//   vjp: a row of inputs        for each output that may have read them, by which tap is known:
//                               add its dy where its residual is that tap
#pragma once
#include "tap_offsets.h"

namespace ndpool {
namespace {

constexpr i64 FEW = 9;  // taps, or readers, up to which comparing with each of them is the faster way

// What may have won, or been won by, an element of a row: something `at` elements further on, if the residual is `tap`.
struct Candidate {
  i64 at, tap;
};
struct Candidates {
  Candidate all[FEW];
  i64 n;
  void clear() { n = 1, all[0] = {0, 0}; }
  // each of them with each of `count` places along one more axis
  template <class Place> void along(i64 count, Place place) {
    Candidate before[FEW];
    i64 many = n;
    std::memcpy(before, all, size_t(many) * sizeof(Candidate));
    n = 0;
    for (i64 i = 0; i < many; i++)
      for (i64 k = 0; k < count; k++) {
        Candidate m = place(k);
        all[n++] = {before[i].at + m.at, before[i].tap + m.tap};
      }
  }
};

// What the candidates of a row follow from, but for where it lies: two numbers per axis.
struct Key {
  i64 at[2 * MOST_AXES];
  int n = -1;
  bool operator==(const Key &k) const {
    bool same = n == k.n;
    for (int i = 0; same && i < n; i++) same = at[i] == k.at[i];
    return same;
  }
};

// Whether tangents that lie as `a` says, elements of `size` bytes, can be compared so.
inline bool can_compare_taps(const Plan &p, const Array &a, i64 size) {
  const Axis &inner = p.axes[p.rank - 1];
  i64 along = a.strides[p.lead + p.rank - 1], lane = a.strides[p.lead + p.rank];
  bool laid = reinterpret_cast<uintptr_t>(a.data) % size_t(size) == 0 && (p.lanes > 1 ? lane == size : along == size);
  for (int i = 0; i < p.lead + p.rank; i++) laid = laid && a.strides[i] % size == 0;
  return laid && p.taps <= FEW && (p.lanes > 1 || inner.stride <= 2);
}

// The tangents of a tile's outputs: of the taps of their window, the one that won.
template <class T> struct CompareTaps {
  using I = Int<T>;
  const TapOffsets &places;
  Part of;
  const T *dx;  // the tile
  const uint8_t *winners;
  T *dy;

  CompareTaps(const TapOffsets &taps, const Part &tile, const char *from, const char *residual, char *to)
      : places(taps),
        of(tile),
        dx(reinterpret_cast<const T *>(from)),
        winners(reinterpret_cast<const uint8_t *>(residual)),
        dy(reinterpret_cast<T *>(to)) {}

  void run() const { places.p.lanes > 1 || places.p.axes[places.p.rank - 1].stride == 1 ? run<1>() : run<2>(); }

 private:
  template <int STRIDE> void run() const {
    const Plan &p = places.p;
    const i64 *strides = places.strides;
    int outer = p.lanes > 1 ? p.rank : p.rank - 1;
    const Axis &inner = p.axes[p.rank - 1];
    i64 sizes[MOST_AXES], begin = p.rank == 1 ? of.from : 0, end = p.rank == 1 ? of.to : inner.outputs, at = 0;
    for (int i = 0; i < p.rank; i++) sizes[i] = p.axes[i].outputs;
    i64 a = most(begin, inner.whole_from), b = least(end, inner.whole_to);
    if (a >= b) a = b = end;
    Candidates taps;
    Key seen;
    each_place(sizes, outer, of.from, outer > 0 ? of.to : of.from + 1, [&](const i64 *o) {
      i64 corner = 0;
      Key key;
      bool read = true;
      for (int i = 0; i < outer; i++) {
        Clipped w = p.axes[i].at(o[i]);
        corner += w.start * strides[i];
        read = read && w.length > 0;
        key.at[2 * i] = w.skipped, key.at[2 * i + 1] = w.length;
      }
      key.n = 2 * outer;
      if (!(key == seen)) {
        seen = key;
        taps.clear();
        auto along = [&](int i, i64 k0, i64 length) {
          i64 step = p.axes[i].step * strides[i];
          taps.along(length, [&](i64 k) { return Candidate{(k0 + k) * step, (k0 + k) * p.tap_steps[i]}; });
        };
        for (int i = 0; i < outer; i++) along(i, key.at[2 * i], key.at[2 * i + 1]);
        if (p.lanes == 1 && a < b) along(p.rank - 1, inner.at(a).skipped, inner.length(a));
      }
      if (p.lanes > 1) {
        compare_row<1>(taps, dx + corner, at, p.lanes);
        at += p.lanes;
        return;
      }
      auto look_up = [&](i64 j) {
        Clipped w = inner.at(j);
        dy[at + j - begin] = read && w.length > 0 ? dx[corner + w.start + places.table[winners[at + j - begin]]] : T(0);
      };
      for (i64 j = begin; j < a; j++) look_up(j);
      if (a < b) compare_row<STRIDE>(taps, dx + corner + inner.start(a), at + a - begin, b - a);
      for (i64 j = b; j < end; j++) look_up(j);
      at += end - begin;
    });
  }

  // n outputs from `at` on, whose candidates lie alike
  template <int STRIDE> INLINE void compare_row(const Candidates &taps, const T *from, i64 at, i64 n) const {
    each_vector<T, true>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      Ints<X> won = widened<Ints<X>>(winners + at + j);
      X found{};
      for (i64 i = 0; i < taps.n; i++)
        found = choose<X>(won == I(taps.all[i].tap), load<X, STRIDE>(from + taps.all[i].at + j * STRIDE), found);
      save<X>(dy + at + j, found);
    });
  }
};

// The cotangents of a band of inputs, row by row. A row is the innermost axis, beyond whose ends lie outputs that
// nobody won, so that all inputs of a phase have their readers in the same places; or it is the lanes.
template <class T> struct CompareReaders {
  const Plan &p;
  Part of;              // inputs
  Span span;            // outputs of the outermost axis that read them
  int outer;            // axes that lie across the rows
  i64 begin = 0, end;   // inputs of a row
  i64 held = 0, holds;  // outputs that are there for a row: the first, how many
  i64 low = 0, width;   // outputs before them that are not there; from one row to the next
  i64 laid;             // outputs of all rows, with those that are not there
  i64 phases = 1;       // 2 if every other input has its readers in the same places
  i64 rows = 1;         // of outputs
  i64 places[MOST_AXES];
  uint8_t *room_of_winners = nullptr;
  T *room = nullptr;
  const uint8_t *winners;
  const T *dy;

  // Rows of fewer outputs cost more to begin than to look their winners up, unless they go together as one long row.
  static constexpr i64 SHORTEST_ROW = 12;

  // Whether few enough outputs read an input, at strides that vectors can follow.
  static bool serves(const Plan &p) {
    const Axis &inner = p.axes[p.rank - 1];
    i64 met = 1;
    bool one_row = inner.stride == 1 && inner.outputs == inner.size && p.rank > 1;
    bool long_enough = one_row || inner.outputs >= SHORTEST_ROW;
    if (p.taps > NOBODY || (p.lanes == 1 && (!inner.slides || inner.stride > PHASES || !long_enough))) return false;
    for (int i = 0; i < p.rank && met <= FEW; i++)
      met *= p.lanes == 1 && i == p.rank - 1 ? p.readers[i].most_taps : most(p.readers[i].longest, 1);
    return met <= FEW;
  }

  CompareReaders(const Plan &plan, const Part &part, const Span &outputs) : p(plan), of(part), span(outputs) {
    outer = p.lanes > 1 ? p.rank : p.rank - 1;
    end = width = holds = p.lanes;
    if (p.lanes == 1) {
      const Axis &inner = p.readers[p.rank - 1];
      begin = p.rank == 1 ? of.from : 0, end = p.rank == 1 ? of.to : inner.outputs;
      held = p.rank == 1 ? span.first : 0, holds = p.rank == 1 ? span.last - span.first : inner.size;
      phases = inner.phases;
      i64 first = held, last = held + holds;
      for (i64 i = begin; i < least(end, begin + phases); i++) {
        auto [start, taps] = inner.covers(i);
        if (taps == 0) continue;
        i64 many = (end - i + phases - 1) / phases;
        first = least(first, start);
        last = most(last, start + many + (taps - 1) * inner.step);
      }
      low = held - first, width = last - first;
    }
    // A reader beyond an end of its row lies in the next one. Where these have won nothing that an input of this row
    // could be, rows need no ends of their own. An output that reads nothing may seem to have won anything.
    bool apart = p.lanes > 1 || width == holds || holds * p.axes[p.rank - 1].stride < p.axes[p.rank - 1].size;
    for (int i = 0; i < p.rank; i++) apart = apart || p.axes[i].gaps;
    i64 ends = width - holds;
    if (!apart) width = holds;
    for (int i = outer - 1; i >= 0; i--) {
      places[i] = i == outer - 1 ? width : places[i + 1] * p.readers[i + 1].size;
      rows *= i == 0 ? span.last - span.first : p.readers[i].size;
    }
    laid = rows * width + (apart ? 0 : ends);
  }

  void reserve(Scratch &scratch) {
    sets = scratch.take<Found>(SETS);
    if (laid > rows * holds) room_of_winners = scratch.take<uint8_t>(laid), room = scratch.take<T>(laid);
    if (scratch.failed) return;
    for (int i = 0; i < SETS; i++) sets[i].key.n = -1;
    if (room) std::memset(room_of_winners, NOBODY, size_t(laid)), std::memset(room, 0, size_t(laid) * sizeof(T));
    if (outer > 0) sort_rows(scratch);
  }

  // All tiles, from the residuals and the cotangents of all outputs in question, side by side.
  void run(const uint8_t *residual, const T *given, T *dx) {
    i64 outputs = rows * holds, inputs = end - begin;
    for (int i = 0; i < outer; i++) inputs *= i == 0 ? of.to - of.from : p.axes[i].size;
    for (i64 t = 0; t < of.tiles; t++) run_tile(residual + t * outputs, given + t * outputs, dx + t * inputs);
  }

 private:
  void run_tile(const uint8_t *residual, const T *given, T *dx) {
    winners = room ? room_of_winners : residual, dy = room ? room : given;
    if (room) lay_out(residual, given);
    i64 length = end - begin;
    if (outer == 0) {
      i64 none[1] = {0};
      Key anywhere;
      anywhere.n = 0;
      Found &found = set_of(anywhere);
      if (!found.known[0]) find_readers(found, 0, none);
      return sum_rows(found, 0, {.dx = dx, .base = 0, .many = 1});
    }
    i64 sizes[MOST_AXES], last = outer - 1;
    for (int a = 0; a < p.rank; a++) sizes[a] = p.axes[a].size;
    i64 begins = last == 0 ? of.from : 0, ends = last == 0 ? of.to : sizes[last], period = repeats_after();
    each_place(sizes, outer - 1, last == 0 ? 0 : of.from, last == 0 ? 1 : of.to, [&](i64 *i) {
      i64 base = 0;
      Key key;
      key.n = 2 * int(last);
      for (int a = 0; a < last; a++) {
        Clipped by = p.readers[a].at(i[a]);
        base += (by.first - (a == 0 ? span.first : 0)) * places[a];
        key.at[2 * a] = i[a] - p.axes[a].start(by.first), key.at[2 * a + 1] = by.length;
      }
      Found &found = set_of(key);
      for (const Run *r = runs; r < runs + many_runs; r++) {
        i[last] = begins + r->first;
        if (!found.known[r->kind]) find_readers(found, r->kind, i);
        sum_rows(found, r->kind,
                 {.dx = dx + r->first * length,
                  .base = base + r->base,
                  .many = r->many,
                  .next_dx = period * length,
                  .next_base = places[last]});
      }
      dx += (ends - begins) * length;
    });
  }

  static constexpr i64 PHASES = 2;        // the largest stride along rows
  static constexpr uint8_t NOBODY = 255;  // no tap: there are fewer
  static constexpr int KINDS = 16;        // of rows along the last axis across them; the last kind is any other

  // The readers of each kind of row and phase, for a place of the axes other than the last one across the rows. There
  // are as many different places as those axes have strides, and some more at their ends; a few of them are kept.
  struct Found {
    Key key;
    Candidates met[KINDS][PHASES];
    bool known[KINDS];
  };
  static constexpr int SETS = 8;
  Found *sets = nullptr;
  int oldest = 0;
  Found &set_of(const Key &key) {
    for (int i = 0; i < SETS; i++)
      if (sets[i].key == key) return sets[i];
    Found &found = sets[oldest++ % SETS];
    found.key = key;
    for (bool &known : found.known) known = false;
    return found;
  }

  // Rows of one kind along the last axis across them, `repeats_after` apart: the first of them, and where its first
  // reader lies. Each next one has its readers a row of outputs further on.
  struct Run {
    int kind;
    i64 first, many, base;
  };
  Run *runs = nullptr;
  i64 many_runs = 0;
  i64 repeats_after() const { return p.axes[outer - 1].slides ? p.readers[outer - 1].phases : 1; }

  void sort_rows(Scratch &scratch) {
    int last = outer - 1, many = 0;
    const Axis &axis = p.axes[last], &back = p.readers[last];
    i64 from = last == 0 ? of.from : 0, to = last == 0 ? of.to : axis.size, period = repeats_after(), starts[KINDS],
        lengths[KINDS];
    runs = scratch.take<Run>(to - from);
    if (scratch.failed) return;
    for (i64 phase = from; phase < least(to, from + period); phase++)
      for (i64 i = phase; i < to; i += period) {
        auto [covered, first, length, skipped] = back.at(i);
        i64 start = i - axis.start(first), base = (first - (last == 0 ? span.first : 0)) * places[last];
        int k = 0;
        while (k < many && !(starts[k] == start && lengths[k] == length)) k++;
        if (k == many && many < KINDS - 1) starts[many] = start, lengths[many++] = length;
        Run *before = runs + many_runs - 1;
        if (i > phase && k < KINDS - 1 && before->kind == k && base == before->base + before->many * places[last])
          before->many++;
        else
          runs[many_runs++] = {.kind = k, .first = i - from, .many = 1, .base = base};
      }
  }

  // Outputs that are not there were won by nobody, as `reserve` left them.
  void lay_out(const uint8_t *residual, const T *given) const {
    if (width == holds) {
      std::memcpy(room_of_winners + low, residual, size_t(rows * holds));
      std::memcpy(room + low, given, size_t(rows * holds) * sizeof(T));
      return;
    }
    for (i64 at = low; at < laid; at += width, residual += holds, given += holds)
      each_vector<T, true>(holds, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        __builtin_memcpy(room_of_winners + at + j, residual + j, LANES<X>);
        save<X>(room + at + j, load<X>(given + j));
      });
  }

  // Rows of inputs that have their readers in the same places, each a step further on.
  struct Rows {
    T *dx;
    i64 base, many, next_dx = 0, next_base = 0;
  };
  void sum_rows(const Found &found, int k, const Rows &rows) const {
    phases == 2 ? sum_pairs(found.met[k][0], found.met[k][1], rows) : sum_rows(found.met[k][0], rows);
  }

  void find_readers(Found &found, int kind, const i64 *i) const {
    for (i64 r = 0; r < phases; r++) find_readers(found.met[kind][r], i, least(begin + r, end - 1));
    found.known[kind] = kind < KINDS - 1;
  }

  // The readers of the inputs of one phase, from `inner` on, of the row at i; in the outputs' order.
  void find_readers(Candidates &met, const i64 *i, i64 inner) const {
    met.clear();
    for (int k = p.rank - 1; k >= 0; k--) {
      int a = p.order_back[k];
      const Axis &axis = p.axes[a], &back = p.readers[a];
      if (a == outer)  // along the row itself
        met.along(back.covers(inner).taps, [&](i64 t) {
          i64 o = back.start(inner) + t * back.step, starts = axis.start(o);
          return Candidate{o - held + low, (inner - starts) / axis.step * p.tap_steps[a]};
        });
      else
        met.along(back.length(i[a]), [&](i64 t) {
          i64 on = t * back.step;
          return Candidate{on * places[a], (i[a] - axis.start(back.first(i[a]) + on)) / axis.step * p.tap_steps[a]};
        });
    }
  }

  // the cotangents of MANY vectors of inputs side by side, from N readers each (0: as many as there are)
  template <class X, int MANY, int N> INLINE void sum_readers(const Candidates &met, i64 from, X *sum) const {
    times<MANY, true>([&](int u) INLINE_LAMBDA { sum[u] = X{}; });
    auto add = [&](i64 r) INLINE_LAMBDA {
      i64 at = met.all[r].at + from;
      uint8_t tap = uint8_t(met.all[r].tap);
      times<MANY, true>([&](int u) INLINE_LAMBDA {
        i64 there = at + u * LANES<X>;
        sum[u] = add_where<X>(sum[u], winners + there, tap, load<X>(dy + there));
      });
    };
    if constexpr (N > 0)
      times<N, true>(add);
    else
      for (i64 r = 0; r < met.n; r++) add(r);
  }

  // rows whose inputs all have their readers in the same places
  template <int N> NOINLINE void sum_rows(const Candidates &found, Rows rows) const {
    Candidates met = found;  // a copy that stays in registers: nobody else has its address
    i64 length = end - begin;
    if (rows.next_dx == length && rows.next_base == length) length *= rows.many, rows.many = 1;  // one long row
    for (; rows.many > 0; rows.many--, rows.dx += rows.next_dx, rows.base += rows.next_base)
      each_block<T, 4>(length, [&](auto kind, auto many, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        constexpr int MANY = decltype(many)::value;
        X sum[MANY];
        sum_readers<X, MANY, N>(met, rows.base + j, sum);
        times<MANY, true>([&](int u) INLINE_LAMBDA { save<X>(rows.dx + j + u * LANES<X>, sum[u]); });
      });
  }

  // rows of which every other input has: stride 2
  template <int N, int M>
  NOINLINE void sum_pairs(const Candidates &found, const Candidates &found_odd, Rows rows) const {
    Candidates even = found, odd = found_odd;
    i64 length = end - begin;
    for (; rows.many > 0; rows.many--, rows.dx += rows.next_dx, rows.base += rows.next_base) {
      each_block<T, 2>(length / 2, [&](auto kind, auto many, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        constexpr int MANY = decltype(many)::value;
        X a[MANY], b[MANY];
        sum_readers<X, MANY, N>(even, rows.base + j, a);
        sum_readers<X, MANY, M>(odd, rows.base + j, b);
        times<MANY, true>([&](int u) INLINE_LAMBDA { interleave<X>(rows.dx + 2 * (j + u * LANES<X>), a[u], b[u]); });
      });
      if (length % 2) sum_readers<One<T>, 1, N>(even, rows.base + length / 2, rows.dx + length - 1);
    }
  }

  // The numbers of readers that small windows have are worth loops of their own.
  void sum_pairs(const Candidates &even, const Candidates &odd, const Rows &rows) const {
    i64 n = even.n, m = odd.n;
    n == 1 && m == 1   ? sum_pairs<1, 1>(even, odd, rows)
    : n == 1 && m == 2 ? sum_pairs<1, 2>(even, odd, rows)
    : n == 2 && m == 1 ? sum_pairs<2, 1>(even, odd, rows)
    : n == 2 && m == 4 ? sum_pairs<2, 4>(even, odd, rows)
    : n == 4 && m == 2 ? sum_pairs<4, 2>(even, odd, rows)
                       : sum_pairs<0, 0>(even, odd, rows);
  }
  void sum_rows(const Candidates &met, const Rows &rows) const {
    met.n == 1   ? sum_rows<1>(met, rows)
    : met.n == 2 ? sum_rows<2>(met, rows)
    : met.n == 4 ? sum_rows<4>(met, rows)
    : met.n == 6 ? sum_rows<6>(met, rows)
    : met.n == 9 ? sum_rows<9>(met, rows)
                 : sum_rows<0>(met, rows);
  }
};

}  // namespace
}  // namespace ndpool
