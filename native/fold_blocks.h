// Blocks: how long windows that overlap are folded (van Herk, Gil and Werman). Positions are cut into blocks as long as
// a window. A window is then the end of one block and the beginning of the next, so it takes one merge of a fold
// backwards and a fold forwards, however long it is:
//
//   positions    0 1 2 3 4 | 5 6 7 8 9 | ...        windows of 5 taps
//   backwards    <---------|                        from each position to the end of its block: kept in scratch
//   forwards                 --------->             from the beginning of the block: goes along with the windows
//   window at 2      2 3 4   5 6                    backwards[2] merged with forwards[6]
//
// Three merges per output. Blocks lie at multiples of the window's length along the axis, or along the axis that this
// one is a part of, wherever the outputs wanted begin, so how the work is cut changes no bit. Elements inside the axis
// are the vectors; where a last vector would run over the end, it begins earlier and makes some results twice.
#pragma once
#include "pass.h"

namespace ndpool {
namespace {

template <class Law> constexpr int COLUMN_VECTORS = Law::cheap_merge ? 4 : 1;  // that go along an axis side by side
template <class Law> constexpr i64 COLUMN = COLUMN_VECTORS<Law> * LANES<Vec<typename Law::T>>;  // their elements

// Windows of n taps for MANY vectors of elements inside: the first starts at `start`, each next one `move` taps further
// on, and their results lie `to_row` apart.
template <class X, int MANY, class P>
NOINLINE void fold_column(const P &p, typename P::To to, typename P::From from, i64 n, i64 start, i64 move, i64 windows,
                          i64 to_row) {
  using Law = typename P::Law;
  using I = typename P::I;
  using S = State<X, P::PLANES>;
  constexpr i64 N = LANES<X>;
  const Axis &axis = p.axis;
  const Law &law = p.law;
  // taps are numbered along the whole axis; those in [low, high) are in memory
  i64 k = floor_div(start + axis.first_position, axis.step), hop = axis.step * p.pitch;
  i64 origin = start - k * axis.step - p.first_held;
  i64 low = -floor_div(origin, axis.step), high = -floor_div(origin - p.held, axis.step);
  from = from + origin * p.pitch;
  auto tap = [&](i64 i, S *s) INLINE_LAMBDA {
    times<MANY, true>([&](int u) INLINE_LAMBDA {
      s[u] = load<Law, P::READ, X>(from, i * hop + u * N);
      law.shift_index(s[u], I(I(i) * I(p.tap_step)));
    });
  };
  S backwards[MANY]{}, forwards[MANY]{}, s[MANY];
  for (i64 w = 0; w < windows;) {
    i64 first = floor_div(k, n) * n, end = first + n, there = end < high ? end : high;  // the block that k lies in
    i64 i = there - 1, lowest = k > low ? k : low;
    if (i >= lowest) tap(i, backwards);
    for (; i >= lowest; i--) {
      times<MANY, true>([&](int u)
                            INLINE_LAMBDA { save<Law, X>(p.scratch, ((i - first) * MANY + u) * N, backwards[u]); });
      if (i == lowest) break;
      tap(i - 1, s);
      times<MANY, true>([&](int u) INLINE_LAMBDA {
        law.merge(s[u], backwards[u]);
        backwards[u] = s[u];
      });
    }
    i64 next = end > low ? end : low, begun = next;  // of the block after it, [begun, next) are folded
    for (; w < windows && k < end; w++, k += move, to = to + to_row) {
      i64 last = k + n < high ? k + n : high, from_here = k > low ? k : low;
      bool ends = from_here < there;
      for (; next < last; next++) {
        if (next == begun) {
          tap(next, forwards);
          continue;
        }
        tap(next, s);
        times<MANY, true>([&](int u) INLINE_LAMBDA { law.merge(forwards[u], s[u]); });
      }
      if (!ends && next == begun) {  // nothing of this window is in memory
        for (int i = 0; i < P::PLANES; i++) std::memset(to.at[i], 0, sizeof(X) * MANY);
        continue;
      }
      times<MANY, true>([&](int u) INLINE_LAMBDA {
        S all = forwards[u];
        if (ends) {
          all = load<Law, ALL<Law>, X>(p.scratch, ((from_here - first) * MANY + u) * N);
          if (next > begun) law.merge(all, forwards[u]);
        }
        law.shift_index(all, I(-I(k) * I(p.tap_step)));
        p.template save_result<X>(to, u * N, all);
      });
    }
  }
}

// The wanted outputs of one input.
template <class P> void fold_blocks(const P &p, typename P::To to, typename P::From from) {
  using Law = typename P::Law;
  const Axis &axis = p.axis;
  for (i64 o = p.begin; o < p.end && o < p.begin + axis.phases; o++) {
    typename P::To out = to + (o - p.begin) * p.inside;
    i64 windows = (p.end - o + axis.phases - 1) / axis.phases;
    auto [start, n] = axis.covers(o);
    if (n == 0) {
      for (i64 w = 0; w < windows; w++) p.clear(out + w * axis.phases * p.inside, p.inside);
      continue;
    }
    i64 cycle = 1;  // every so many windows one starts a whole number of taps after the first
    while (cycle * axis.stride % axis.step) cycle++;
    for (i64 w = 0; w < cycle && w < windows; w++)
      each_block<typename P::T, COLUMN_VECTORS<Law>>(
          p.inside, [&, start = start, n = n](auto kind, auto many, i64 j) INLINE_LAMBDA {
            fold_column<decltype(kind), decltype(many)::value>(
                p, out + w * axis.phases * p.inside + j, from + j, n, start + w * axis.stride,
                axis.stride * cycle / axis.step, (windows - w + cycle - 1) / cycle, cycle * axis.phases * p.inside);
          });
  }
}

}  // namespace
}  // namespace ndpool
