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
#include "transpose.h"

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
// known here; 0 if not. ASKS: whether memory is asked for ahead.
template <class X, int STRIDE, int COUNT, bool ASKS = false, class P>
INLINE State<X, P::PLANES> merge_taps(const P &p, typename P::From from, i64 at, const Taps<typename P::I> &taps) {
  using Law = typename P::Law;
  using I = typename P::I;
  i64 count = COUNT ? COUNT : taps.count, t = 1;
  auto ask = [&](i64 i) INLINE_LAMBDA {
    if constexpr (ASKS) ask_to_read_ahead(from.at[0] + at + i * taps.gap, p.ahead);
  };
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
    ask(0);
    a = p.template load_at<X, STRIDE>(from, at);
    p.law.shift_index(a, taps.bias);
  }
  for (; t < count; t++) {
    ask(t);
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

// Whether outputs whose windows lie apart can be made as vectors: rows of taps side by side, and enough of them.
template <class P> bool turns(const P &p, i64 n, const Taps<typename P::I> &taps) {
  constexpr i64 N = LANES<Vec<typename P::T>>;
  bool rows = p.inputs == 1 || (p.input_step >= 0 && p.output_step == n);
  return taps.gap == 1 && taps.count > 1 && taps.count <= N && p.inputs * n >= N && rows;
}

// n outputs of each input, whose windows start `stride` apart. Up to C neighbouring taps for each of as many outputs as
// a vector has lanes, turned: vectors of the outputs' first taps, their second taps, ... Vectors that would run over
// the end of the last row end at their window's last tap.
template <int C, class P>
NOINLINE void slide_turned(const P &p, typename P::To to, typename P::From from, i64 n, i64 stride,
                           const Taps<typename P::I> &taps) {
  using T = typename P::T;
  using I = typename P::I;
  using X = Vec<T>;
  constexpr int N = LANES<X>;
  static_assert(C == N || 2 * C == N);
  i64 all = p.inputs * n, end = (p.inputs - 1) * p.input_step + (n - 1) * stride + taps.count;
  i64 starts[N], row = 0, start = 0, j = 0;
  for (i64 next = 0; next < all; next += N) {
    i64 first = least(next, all - N);
    if (first < next) row = first / n * p.input_step, j = first % n, start = row + j * stride;
    for (int k = 0; k < N; k++) {
      starts[k] = start, start += stride;
      if (++j == n) j = 0, start = row += p.input_step;
    }
    bool ends = starts[N - 1] + N > end;
    i64 back = ends ? N - taps.count : 0, before = ends ? C - taps.count : 0;  // lanes before the first tap
    if (starts[0] < back) {                                                    // neither way stays in the array
      for (int k = 0; k < N; k++)
        p.template save_result<One<T>>(to, first + k, merge_taps<One<T>, 0, 0>(p, from, starts[k], taps));
      continue;
    }
    X v[P::PLANES][C];
    for (int plane = 0; plane < P::PLANES; plane++)
      if (P::READ >> plane & 1) {
        auto fetch = [&](int k) INLINE_LAMBDA { return load<X>(from.at[plane] + starts[k] - back); };
        times<C, true>([&](int k) INLINE_LAMBDA {
          if constexpr (C == N)
            v[plane][k] = fetch(k);
          else
            v[plane][k] = group_halves<X, N>(fetch(k), fetch(k + C), ends, std::make_index_sequence<N>());
        });
        transpose_square<X, C>(v[plane]);
      }
    auto tap = [&](i64 t) INLINE_LAMBDA {
      State<X, P::PLANES> s;
      for (int plane = 0; plane < P::PLANES; plane++)
        s.at[plane] = P::READ >> plane & 1 ? v[plane][before + t] : splat<X>(P::Law::constant[plane]);
      p.law.shift_index(s, I(taps.bias + I(t) * taps.step));
      return s;
    };
    auto s = tap(0);
    for (i64 t = 1; t < taps.count; t++) p.law.merge(s, tap(t));
    p.template save_result<X>(to, first, s);
  }
}

#if NDPOOL_MASKS
// n outputs of each input, side by side and fewer than a vector has lanes.
template <int COUNT, class P>
INLINE void slide_short(const P &p, typename P::To to, typename P::From from, i64 n, const Taps<typename P::I> &taps) {
  using X = Vec<typename P::T>;
  const Lanes some = lanes_between<X>(0, n);
  const i64 count = COUNT ? COUNT : taps.count;
  for (i64 i = 0; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step) {
    auto tap = [&](i64 t) INLINE_LAMBDA {
      if (p.ahead) ask_to_read_ahead(from.at[0] + t * taps.gap, p.ahead);
      return State<X, 1>{{load_some<X>(from.at[0] + t * taps.gap, some)}};
    };
    auto s = tap(0);
    for (i64 t = 1; t < count; t++) p.law.merge(s, tap(t));
    save_some<X>(to.at[0], p.result(s).at[0], some);
  }
}
#endif

// n outputs of each input, whose windows start `stride` apart. STRIDE: the same number, or 0 for any; then outputs are
// made one by one.
template <int STRIDE, int COUNT = 0, class P>
NOINLINE void slide(const P &p, typename P::To to, typename P::From from, i64 n, i64 stride,
                    const Taps<typename P::I> &given) {
  using T = typename P::T;
  using Law = typename P::Law;
  Taps<typename P::I> taps = given;
  auto each_input = [&](auto fold) INLINE_LAMBDA {
    for (i64 i = 0; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step) fold();
  };
  auto body = [&](auto kind, auto asks, i64 j) INLINE_LAMBDA {
    using X = decltype(kind);
    constexpr bool ASKS = decltype(asks)::value && std::is_same_v<X, Vec<T>>;
    p.template save_result<X>(to, j, merge_taps<X, STRIDE, COUNT, ASKS>(p, from, j * stride, taps));
  };
  std::false_type in_cache;
  if (STRIDE == 0 || n == 1) return each_input([&]() INLINE_LAMBDA {
    for (i64 j = 0; j < n; j++) body(One<T>{}, in_cache, j);
  });
  if constexpr (STRIDE == 1 && Law::cheap_merge && P::PLANES == 1) {
#if NDPOOL_MASKS
    if constexpr (P::READ == 1 && is_float<T>)
      if (n < LANES<Vec<T>>) return slide_short<COUNT>(p, to, from, n, taps);
#endif
    if (p.ahead && n >= LANES<Vec<T>>)
      return each_input([&]() INLINE_LAMBDA {
        each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA { body(kind, std::true_type(), j); });
      });
  }
  each_input([&]() INLINE_LAMBDA {
    each_vector<T, Law::cheap_merge>(n, [&](auto kind, i64 j) INLINE_LAMBDA { body(kind, in_cache, j); });
  });
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
  else {
    if constexpr (P::Law::unrolls_small_windows && sizeof(typename P::T) >= 4 && !P::LIFTS)
      if (turns(p, n, taps)) {
        constexpr int N = LANES<Vec<typename P::T>>, C = N > 8 ? N / 2 : N;
        return taps.count <= C ? slide_turned<C>(p, to, from, n, stride, taps)
                               : slide_turned<N>(p, to, from, n, stride, taps);
      }
    slide<0>(p, to, from, n, stride, taps);
  }
}

}  // namespace
}  // namespace ndpool
