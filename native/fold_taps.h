// Tap by tap: how short windows are folded. A vector holds neighbouring outputs; their first taps are loaded at once,
// then their second taps are merged, and so on. Here for windows of 3 taps at stride 2:
//
//   positions   x0 x1 x2 x3 x4 x5 x6 x7 x8
//   first taps  x0    x2    x4    x6         = state of outputs 0 1 2 3
//   second         x1    x3    x5    x7      merged into it
//   third             x2    x4    x6    x8   merged into it
//
// Where elements lie inside the axis, the next tap is a whole row further on and the stride is 1. A last vector that
// would run over the end begins earlier and makes some outputs twice.
#pragma once
#include "pass.h"

namespace ndpool {
namespace {

// Taps that lie evenly. The first adds `bias` to a winner's index and each next one `step` more.
template <class I> struct Taps {
  i64 count, gap = 0;  // gap: elements from one to the next
  I bias = 0, step = 0;
};

template <class X, class P>
INLINE void load_pairs(const P &p, typename P::From from, i64 at, State<X, P::PLANES> &even, State<X, P::PLANES> &odd) {
  for (int i = 0; i < P::PLANES; i++)
    if (P::READ >> i & 1)
      load_stored_pair<X>(from.at[i] + at, even.at[i], odd.at[i]);
    else
      even.at[i] = odd.at[i] = splat<X>(P::Law::constant[i]);
  if constexpr (P::LIFTS) even = p.law.lift(even.at[0]), odd = p.law.lift(odd.at[0]);
}

// A vector of outputs, STRIDE apart, the first of which has its first tap at `at`. COUNT: the number of taps, if it is
// known here; 0 if not.
template <class X, int STRIDE, int COUNT, class P>
INLINE State<X, P::PLANES> merge_taps(const P &p, typename P::From from, i64 at, const Taps<typename P::I> &taps) {
  using Law = typename P::Law;
  using I = typename P::I;
  i64 count = COUNT ? COUNT : taps.count, t = 1;
  State<X, P::PLANES> a;
  if (STRIDE == 2 && Law::cheap_merge && taps.gap == 1 && count > 1) {  // two neighbouring taps from the same vectors
    State<X, P::PLANES> even, odd;
    load_pairs<X>(p, from, at, even, odd);
    p.law.shift_index(even, taps.bias);
    p.law.shift_index(odd, I(taps.bias + taps.step));
    p.law.merge(even, odd);
    a = even;
    for (t = 2; t + 1 < count; t += 2) {
      load_pairs<X>(p, from, at + t, even, odd);
      p.law.shift_index(even, I(taps.bias + I(t) * taps.step));
      p.law.shift_index(odd, I(taps.bias + I(t + 1) * taps.step));
      p.law.merge(a, even);
      p.law.merge(a, odd);
    }
  } else {
    a = p.template load_at<X, STRIDE>(from, at);
    p.law.shift_index(a, taps.bias);
  }
  for (; t < count; t++) {
    auto b = p.template load_at<X, STRIDE>(from, at + t * taps.gap);
    p.law.shift_index(b, I(taps.bias + I(t) * taps.step));
    p.law.merge(a, b);
  }
  return a;
}

// The same over several rows of such taps: two axes at once. The index of the first row is in the taps' bias already.
// ROWS: how many there are, if it is known here; 0 if not.
template <class X, int STRIDE, int COUNT, int ROWS = 0, class P>
INLINE State<X, P::PLANES> merge_rows(const P &p, typename P::From from, i64 at, const Taps<typename P::I> &rows,
                                      const Taps<typename P::I> &taps) {
  using I = typename P::I;
  auto s = merge_taps<X, STRIDE, COUNT>(p, from, at, taps);
  auto merge_row = [&](i64 r) INLINE_LAMBDA {
    Taps<I> there = taps;
    there.bias = I(taps.bias + I(r) * rows.step);
    p.law.merge(s, merge_taps<X, STRIDE, COUNT>(p, from, at + r * rows.gap, there));
  };
  if constexpr (ROWS > 0)
    times<ROWS - 1, true>([&](int r) INLINE_LAMBDA { merge_row(r + 1); });
  else
    for (i64 r = 1; r < rows.count; r++) merge_row(r);
  return s;
}

// The same over several planes of such rows: three axes at once. The index of the first plane is in the taps' bias,
// too.
template <class X, int STRIDE, int COUNT, int ROWS, class P>
INLINE State<X, P::PLANES> merge_planes(const P &p, typename P::From from, i64 at, const Taps<typename P::I> &planes,
                                        const Taps<typename P::I> &rows, const Taps<typename P::I> &taps) {
  using I = typename P::I;
  auto s = merge_rows<X, STRIDE, COUNT, ROWS>(p, from, at, rows, taps);
  for (i64 q = 1; q < planes.count; q++) {
    Taps<I> there = taps;
    there.bias = I(taps.bias + I(q) * planes.step);
    p.law.merge(s, merge_rows<X, STRIDE, COUNT, ROWS>(p, from, at + q * planes.gap, rows, there));
  }
  return s;
}

// n outputs of each input, whose windows start `stride` apart. STRIDE: the same number, or 0 for any; then outputs are
// made one by one.
template <int STRIDE, int COUNT = 0, class P>
NOINLINE void slide(const P &p, typename P::To to, typename P::From from, i64 n, i64 stride,
                    const Taps<typename P::I> &given) {
  using T = typename P::T;
  Taps<typename P::I> taps = given;
  auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
    using X = decltype(kind);
    p.template save_result<X>(to, j, merge_taps<X, STRIDE, COUNT>(p, from, j * stride, taps));
  };
  if (STRIDE == 0 || n == 1)
    for (i64 i = 0; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step)
      for (i64 j = 0; j < n; j++) body(One<T>{}, j);
  else
    for (i64 i = 0; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step)
      each_vector<T, P::Law::cheap_merge>(n, body);
}

template <class P>
void slide_any(const P &p, typename P::To to, typename P::From from, i64 n, i64 stride,
               const Taps<typename P::I> &taps) {
  if (stride == 1) {
    if constexpr (P::Law::unrolls_small_windows) {
      if (taps.count == 3) return slide<1, 3>(p, to, from, n, 1, taps);
      if (taps.count == 5) return slide<1, 5>(p, to, from, n, 1, taps);
    }
    slide<1>(p, to, from, n, 1, taps);
  } else if (stride == 2)
    slide<2>(p, to, from, n, 2, taps);
  else
    slide<0>(p, to, from, n, stride, taps);
}

}  // namespace
}  // namespace ndpool
