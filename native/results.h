// From states to results: what each output counts and reads, padding that counts, and where results go.
#pragma once
#include "pass.h"
#include "region.h"
#include "scratch.h"

namespace ndpool {
namespace {

// Where a unit's results lie in a dense array of the outputs (or, going back, of the inputs).
NOINLINE inline i64 dense_offset(const Plan &p, const Part &part, bool back) {
  i64 inner = p.lanes, whole = p.lanes;
  for (int i = 0; i < p.rank; i++) {
    i64 n = back ? p.axes[i].size : p.axes[i].outputs;
    whole *= n;
    if (i > 0) inner *= n;
  }
  return part.tile * whole + part.from * inner;
}

template <class T> void deliver(char *to, Type type, const T *from, i64 n, bool flip) {
  if (!as_they_are<T>(type, flip)) return store_row<T>(type, to, from, n, flip);
  std::memcpy(to, from, size_t(n) * sizeof(T));
}

// The outputs of a unit, row by row: visit(at, n, counts, taps), where `at` is the row's offset in the results, and the
// outer axes count `counts` and read `taps` positions. A row is the innermost axis; where there are lanes, it is these.
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

// Outputs that count nothing, and inputs that nobody reads, are 0.
NOINLINE inline void clear_empty(const Plan &p, const Axis *axes, const Part &part, char *y, i64 size) {
  i64 rows = 0, n = 0;
  each_row(p, axes, part, [&](i64 at, i64 length, i64 counts, i64) {
    if (counts == 0) std::memset(y + at * size, 0, size_t(length * size));
    rows++, n = length;
  });
  const Axis &inner = axes[p.rank - 1];
  i64 first = p.rank == 1 ? part.from : 0;
  for (i64 i = 0; p.lanes == 1 && i < n; i++)
    if (inner.count(first + i) == 0)
      for (i64 row = 0; row < rows; row++) std::memset(y + (row * n + i) * size, 0, size_t(size));
}

// What each output of a run counts and reads, as T. A run is a row of `each_row`; or, where a unit has several tiles, as
// many whole tiles as make some vectors, so that few outputs are left over.
template <class T> struct Inner {
  T *counts = nullptr, *taps = nullptr;
  i64 run = 0, tiles_of_run = 0;  // outputs of a run; how many tiles it is, or 0: it is a row
  NOINLINE Inner(const Plan &p, const Part &part, Scratch &scratch) {
    if (p.even && !p.padded) return;  // nobody will ask
    constexpr i64 SOME = 256;
    const Axis &axis = p.axes[p.rank - 1];
    bool line = p.lanes == 1;
    i64 from = line && p.rank == 1 ? part.from : 0;
    run = line ? (p.rank == 1 ? part.to - part.from : axis.outputs) : p.lanes;
    i64 row = run, tile = run;
    for (int i = 0; i + 1 < p.rank; i++) tile *= p.axes[i].outputs;
    if (line && part.tiles > 1 && tile > 0) {
      tiles_of_run = least(part.tiles, (SOME + tile - 1) / tile);
      run = tile * tiles_of_run;
    }
    counts = scratch.take<T>(run), taps = scratch.take<T>(run);
    if (scratch.failed) return;
    for (i64 i = 0; i < row; i++) {
      counts[i] = line ? T(axis.count(from + i)) : 1;
      taps[i] = line ? T(axis.length(from + i)) : 1;
    }
    if (tiles_of_run == 0) return;
    Part one = part;
    one.tiles = tiles_of_run;
    auto multiply = [&](i64 at, T by_counts, T by_taps) {
      for (i64 i = 0; i < row; i++) counts[at + i] = counts[i] * by_counts, taps[at + i] = taps[i] * by_taps;
    };
    T first_counts = 1, first_taps = 1;  // the first row is a factor of all others, so its own factor comes last
    each_row(p, p.axes, one, [&](i64 at, i64, i64 outer_counts, i64 outer_taps) {
      if (at == 0)
        first_counts = T(outer_counts), first_taps = T(outer_taps);
      else
        multiply(at, T(outer_counts), T(outer_taps));
    });
    multiply(0, first_counts, first_taps);
  }
};

// What the first output counts; all of them, if they count alike.
NOINLINE inline i64 first_count(const Plan &p) {
  i64 count = 1;
  for (int i = 0; i < p.rank; i++) count *= p.axes[i].count(0);
  return count;
}

// body(X{}, at, counts, taps) over all results, no element twice, with what each output counts and reads as vectors.
// PADDING: they are looked at only where padding counts; otherwise only the counts are.
template <bool PADDING, class T, class Body>
void each_result(const Plan &p, const Part &part, i64 results, const Inner<T> &inner, Body body) {
  if (PADDING ? !p.padded : p.even) {
    i64 count = first_count(p);
    return each_once<T>(results, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      body(kind, j, splat<X>(T(count)), splat<X>(T(count)));
    });
  }
  auto each_of_run = [&](i64 at, i64 n, i64 counts, i64 taps) {
    each_once<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      body(kind, at + j, load<X>(inner.counts + j) * T(counts), load<X>(inner.taps + j) * T(taps));
    });
  };
  if (inner.tiles_of_run == 0) return each_row(p, p.axes, part, each_of_run);
  for (i64 at = 0; at < results; at += inner.run) each_of_run(at, least(inner.run, results - at), 1, 1);
}

// Padding that counts is zeros: merged last, all at once.
template <class Law, class X> INLINE void merge_padding(const Law &law, State<X, Law::planes> &s, X counts, X taps) {
  Ints<X> padded = counts > taps;
  if (!any(padded)) return;
  State<X, Law::planes> zeros{}, merged = s;
  zeros.at[1] = counts - taps;
  law.merge(merged, zeros);
  for (int i = 0; i < Law::planes; i++) s.at[i] = choose<X>(padded, merged.at[i], s.at[i]);
}

// body(at, state, counts) over the states of all outputs, no element twice, padding included.
template <class Law, class Body>
void each_state(const Law &law, const Plan &p, const Part &part, i64 results, const Inner<typename Law::T> &inner,
                const Source<typename Law::T, Law::planes> &states, Body body) {
  each_result<Law::merges_zeros, typename Law::T>(p, part, results, inner,
                                                  [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
                                                    using X = decltype(kind);
                                                    auto s = load<Law, ALL<Law>, X>(states, at);
                                                    if constexpr (Law::merges_zeros)
                                                      if (p.padded) merge_padding<Law, X>(law, s, counts, taps);
                                                    body(at, s, counts);
                                                  });
}

// What a sum is divided by: a number for all outputs, or (0) what each of them counts.
template <class X> INLINE X divisors(Element<X> divisor, X counts) {
  return divisor != 0 ? splat<X>(divisor) : choose<X>(counts > 0, counts, splat<X>(1));
}

}  // namespace
}  // namespace ndpool
