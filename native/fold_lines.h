// Side by side: how long windows that hardly overlap are folded. As many states as SIDE go along the taps side by side,
// each merging every SIDE-th tap; at the end they are merged with each other, the upper half into the lower half:
//
//   taps    0 1 2 3  4 5 6 7  8 9 10 11 ...      SIDE = 4
//   states  a = 0 4 8 ...   b = 1 5 9 ...   c = 2 6 10 ...   d = 3 7 11 ...
//   end     (a c) (b d)  ->  ((a c) (b d))
//
// Taps left over after the last whole SIDE go to the first states, in the same places. A window of more than LONGEST
// taps is two halves, merged in order, so that sums do not drift. How many states there are follows from the law and
// the window, not from the width of vectors: every instruction set gives the same bits.
#pragma once
#include "pass.h"
#include "transpose.h"

namespace ndpool {
namespace {

template <class Law> struct Side {
  static constexpr int FEW = 64 / sizeof(typename Law::T);       // states side by side
  static constexpr int MANY = Law::cheap_merge ? 4 * FEW : FEW;  // and in windows of at least LONG taps
  static constexpr i64 LONGEST = 4096;                           // taps; beyond, halves are merged
  static constexpr i64 LONG = Law::cheap_merge ? 16 * FEW : LONGEST + 1;
  static i64 by_side(i64 taps) { return taps < LONG ? FEW : MANY; }
  static i64 first_half(i64 taps) { return (taps / 2 + 4 * FEW - 1) / (4 * FEW) * (4 * FEW); }
  // Rows of scratch that `fold_inside` needs: a row of each state, and one for each halving.
  static i64 scratch_rows(i64 taps) {
    i64 rows = MANY;
    for (; taps > LONGEST / 2; taps /= 2) rows++;
    return rows;
  }
};

// The i-th merge of `width` states, a power of two: halves first, then the halves of the first half, ...
template <class Law, class S> INLINE void merge_halves(const Law &law, S *states, int i, int width) {
  int half = width / 2, first = 0;
  while (i - first >= half) first += half, half /= 2;
  law.merge_unordered(states[i - first], states[i - first + half]);
}

// All lanes of a vector, merged the same way.
template <class Law, class X>
INLINE State<One<typename Law::T>, Law::planes> merge_lanes(const Law &law, const State<X, Law::planes> &s) {
  if constexpr (LANES<X> == 1)
    return s;
  else {
    State<Half<X>, Law::planes> low, high;
    for (int i = 0; i < Law::planes; i++) low.at[i] = halve<X>(s.at[i], 0), high.at[i] = halve<X>(s.at[i], 1);
    law.merge_unordered(low, high);
    return merge_lanes<Law, Half<X>>(law, low);
  }
}

// -- consecutive taps ------------------------------------------------------------------------------------------------

// Whether the last vector of a line is read past its end: where masks cannot leave lanes alone.
template <class T> constexpr bool READS_PAST_LINES = !(LEAVES_LANES && is_float<T>);

// n >= SIDE taps of a law with one plane, down to a vector. Of what is left over after whole vectors, lanes that get no
// tap stay as they are. READS_ON: whether a whole vector may be read from the last tap on.
template <int SIDE, bool READS_ON, class P>
INLINE State<Vec<typename P::T>, 1> merge_to_vector(const P &p, typename P::From from, i64 n) {
  using T = typename P::T;
  using X = Vec<T>;
  constexpr int N = LANES<X>, WAYS = SIDE / N;
  constexpr bool WRITTEN_OUT = WAYS <= 8;
  auto fetch = [&](i64 t) INLINE_LAMBDA { return load<typename P::Law, P::READ, X>(from, t); };
  State<X, 1> acc[WAYS];
  times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { acc[w] = fetch(w * N); });
  i64 done = SIDE;
  for (; done + SIDE <= n; done += SIDE)
    times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA {
      ask_to_read_ahead(from.at[0] + done + w * N);
      p.law.merge(acc[w], fetch(done + w * N));
    });
  for (int w = 0; w < WAYS && done + w * N < n; w++) {
    i64 left = n - done - w * N;
    X rest, idle = P::Law::idempotent ? acc[w].at[0] : splat<X>(T(-0.0));  // x + -0 is x, even if x is -0
    if (left >= N) {
      rest = fetch(done + w * N).at[0];
#if NDPOOL_MASKS
    } else if constexpr (!READS_PAST_LINES<T>) {
      Lanes some = lanes_between<X>(0, left);
      rest = choose_some<X>(some, load_some<X>(from.at[0] + done + w * N, some), idle);
#endif
    } else if constexpr (READS_ON) {
      rest = choose<X>(iota<X>() < typename P::I(left), fetch(done + w * N).at[0], idle);
    } else {
      T some[N];
      save<X>(some, idle);
      for (i64 i = 0; i < left; i++) some[i] = from.at[0][done + w * N + i];
      rest = load<X>(some);
    }
    p.law.merge(acc[w], State<X, 1>{{rest}});
  }
  times<WAYS - 1, WRITTEN_OUT>([&](int i) INLINE_LAMBDA { merge_halves(p.law, acc, i, WAYS); });
  return acc[0];
}

// n >= SIDE taps of any law
template <int SIDE, class P>
State<One<typename P::T>, P::PLANES> merge_side(const P &p, typename P::From from, i64 n, typename P::I bias) {
  using T = typename P::T;
  using Law = typename P::Law;
  using I = typename P::I;
  using X = Vec<T>;
  constexpr int N = LANES<X>, WAYS = SIDE / N;
  constexpr bool WRITTEN_OUT = Law::cheap_merge && WAYS <= 8;
  if constexpr (Law::cheap_merge && P::PLANES == 1) return merge_lanes(p.law, merge_to_vector<SIDE, false>(p, from, n));
  Ints<X> index;
  for (int i = 0; i < N; i++) index[i] = I(I(i) * I(p.tap_step));
  auto fetch = [&](i64 t) INLINE_LAMBDA {
    auto s = p.template load_tap<X>(from, t, t, bias);
    if constexpr (Law::has_index) s.at[1] = from_bits<X>(bits(s.at[1]) + index);
    return s;
  };
  State<X, P::PLANES> acc[WAYS];
  times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { acc[w] = fetch(w * N); });
  i64 done = SIDE;
  for (; done + SIDE <= n; done += SIDE)
    times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { p.law.merge(acc[w], fetch(done + w * N)); });
  alignas(64) T room[P::PLANES][SIDE];
  typename P::To side;
  for (int i = 0; i < P::PLANES; i++) side.at[i] = room[i];
  times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { save<Law, X>(side, w * N, acc[w]); });
  each_once<T>(n - done, [&](auto kind, i64 i) INLINE_LAMBDA {  // what is left over
    using Y = decltype(kind);
    auto a = load<Law, ALL<Law>, Y>(side, i);
    if constexpr (LANES<Y> == N)
      p.law.merge(a, fetch(done + i));
    else
      p.law.merge(a, p.template load_tap<Y>(from, done + i, done + i, bias));
    save<Law, Y>(side, i, a);
  });
  if constexpr (Law::cheap_merge) {
    times<WAYS, WRITTEN_OUT>([&](int w) INLINE_LAMBDA { acc[w] = load<Law, ALL<Law>, X>(side, w * N); });
    times<WAYS - 1, WRITTEN_OUT>([&](int i) INLINE_LAMBDA { merge_halves(p.law, acc, i, WAYS); });
    return merge_lanes(p.law, acc[0]);
  } else {
    for (int half = SIDE / 2; half > 0; half /= 2)
      for (int i = 0; i < half; i++) {
        auto a = load<Law, ALL<Law>, One<T>>(side, i);
        p.law.merge_unordered(a, load<Law, ALL<Law>, One<T>>(side, i + half));
        save<Law, One<T>>(side, i, a);
      }
    return load<Law, ALL<Law>, One<T>>(side, 0);
  }
}

// fewer taps than states: a state per tap
template <class P>
State<One<typename P::T>, P::PLANES> merge_few(const P &p, typename P::From from, i64 n, typename P::I bias) {
  using T = typename P::T;
  State<One<T>, P::PLANES> side[Side<typename P::Law>::FEW];
  for (i64 t = 0; t < n; t++) side[t] = p.template load_tap<One<T>>(from, t, t, bias);
  while (n > 1) {
    i64 half = (n + 1) / 2;
    for (i64 i = 0; i < n - half; i++) p.law.merge_unordered(side[i], side[i + half]);
    n = half;
  }
  return side[0];
}

template <class P>
State<One<typename P::T>, P::PLANES> merge_longest(const P &p, typename P::From from, i64 n, typename P::I bias) {
  using S = Side<typename P::Law>;
  using I = typename P::I;
  i64 half = S::first_half(n);
  auto part = [&](i64 at, i64 count) {
    I on = I(bias + I(at) * I(p.tap_step));
    return count <= S::LONGEST ? merge_side<S::MANY>(p, from + at, count, on) : merge_longest(p, from + at, count, on);
  };
  auto a = part(0, half);
  p.law.merge(a, part(half, n - half));
  return a;
}

// n consecutive taps to one result
template <class P> void fold_line(const P &p, typename P::To to, typename P::From from, i64 n, typename P::I bias) {
  using S = Side<typename P::Law>;
  using T = typename P::T;
  State<One<T>, P::PLANES> s = n < S::FEW        ? merge_few(p, from, n, bias)
                               : n < S::LONG     ? merge_side<S::FEW>(p, from, n, bias)
                               : n <= S::LONGEST ? merge_side<S::MANY>(p, from, n, bias)
                                                 : merge_longest(p, from, n, bias);
  p.law.restore_first_zero(s, from.at[0], n, 1);
  p.template save_result<One<T>>(to, 0, s);
}

// As many vectors as one has lanes, of a law with one plane: v[0] becomes what the lanes of each merge to. Two vectors
// are joined into one that has half as many lanes of each, and so on; which two, so that lane k is of vector k.
template <class X, int G = LANES<X>, class Law> INLINE void merge_across(const Law &law, X *v) {
  constexpr int N = LANES<X>, K = LANES<Small<Element<X>>>;
  if constexpr (G > 1) {
    constexpr int APART = G > K ? K * (N / G) : K / G, JOINED = G > K ? APART - K : APART - 1 + (N - K);
    times<N, true>([&](int k) INLINE_LAMBDA {
      if (k & (APART | JOINED)) return;
      auto lanes = std::make_index_sequence<N>();
      State<X, 1> low{{group_halves<X, G>(v[k], v[k + APART], false, lanes)}};
      law.merge_unordered(low, State<X, 1>{{group_halves<X, G>(v[k], v[k + APART], true, lanes)}});
      v[k] = low.at[0];
    });
    merge_across<X, G / 2>(law, v);
  }
}

// As many inputs as a vector has lanes: each down to a vector, then these are merged across their lanes, all at once.
// If vectors are read past the end of a line, one more input must follow.
template <int SIDE, class P>
void fold_lines_together(const P &p, typename P::To to, typename P::From from, i64 n) {
  using T = typename P::T;
  using X = Vec<T>;
  constexpr int N = LANES<X>;
  X v[N];
  for (int k = 0; k < N; k++) v[k] = merge_to_vector<SIDE, true>(p, from + k * p.input_step, n).at[0];
  merge_across(p.law, v);
  T results[N];
  typename P::To here{};
  here.at[0] = results;
  p.template save_result<X>(here, 0, State<X, 1>{{v[0]}});
  X all = load<X>(results);
  bool zeros = P::Law::tells_zeros && any(all == X{});
  if (p.output_step == 1 && !zeros) return save<X>(to.at[0], all);
  for (int k = 0; k < N; k++) {
    State<One<T>, 1> s{{results[k]}};
    p.law.restore_first_zero(s, from.at[0] + k * p.input_step, n, 1);
    to.at[0][k * p.output_step] = s.at[0];
  }
}

// -- taps that lie apart, with elements inside the axis --------------------------------------------------------------

// n <= LONGEST taps for each of m elements inside: the same states merge in the same order. A state is a row of
// scratch; it merges a few of its taps at a time, so that few rows of the input are being read at once. Rows without
// gaps between them are one long row, which matters where they are short.
template <class P>
void fold_inside_block(const P &p, typename P::To to, typename P::From from, i64 n, typename P::I bias, i64 m) {
  using Law = typename P::Law;
  using T = typename P::T;
  constexpr i64 AT_ONCE = 8;
  i64 side = Side<Law>::by_side(n), width = least(n, side), gap = p.axis.step * p.pitch;
  bool gapless = gap == m && !Law::has_index;
  for (i64 done = 0; done < n; done += AT_ONCE * side) {
    // `elements` of the states from s on: taps done + s, done + s + side, ...
    auto merge_taps = [&](i64 s, i64 elements, i64 taps) {
      i64 first = done + s, hop = side * gap;
      typename P::From start = from + first * gap;
      typename P::To states = p.scratch + s * m;
      bool begun = done > 0;
      each_block_once<T, P::PLANES == 1 ? 4 : 1>(elements, [&](auto kind, auto many, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        constexpr int MANY = decltype(many)::value, N = LANES<X>;
        State<X, P::PLANES> a[MANY];
        i64 at = j, t = first;
        auto next = [&](int u) INLINE_LAMBDA {
          ask_to_read_ahead(start.at[0] + at + u * N);
          return p.template load_tap<X>(start, at + u * N, t, bias);
        };
        if (begun) {
          times<MANY, true>([&](int u) INLINE_LAMBDA { a[u] = load<Law, ALL<Law>, X>(states, j + u * N); });
        } else {
          times<MANY, true>([&](int u) INLINE_LAMBDA { a[u] = next(u); });
          at += hop, t += side;
        }
        for (i64 left = taps - !begun; left > 0; left--, at += hop, t += side)
          times<MANY, true>([&](int u) INLINE_LAMBDA { p.law.merge(a[u], next(u)); });
        times<MANY, true>([&](int u) INLINE_LAMBDA { save<Law, X>(states, j + u * N, a[u]); });
      });
    };
    i64 left = least(n - done, AT_ONCE * side), whole = left / side, more = left % side;
    if (gapless) {
      merge_taps(0, more * m, whole + 1);
      if (whole > 0) merge_taps(more, (side - more) * m, whole);
    } else {
      for (i64 s = 0; s < least(left, side); s++) merge_taps(s, m, whole + (s < more));
    }
  }
  while (width > 1) {
    i64 half = (width + 1) / 2;
    each_once<T>((width - half) * m, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto a = load<Law, ALL<Law>, X>(p.scratch, j);
      p.law.merge_unordered(a, load<Law, ALL<Law>, X>(p.scratch, half * m + j));
      save<Law, X>(p.scratch, j, a);
    });
    width = half;
  }
  each_vector<T>(m, [&](auto kind, i64 j) INLINE_LAMBDA {
    using X = decltype(kind);
    auto s = load<Law, ALL<Law>, X>(p.scratch, j);
    p.law.restore_first_zero(s, from.at[0] + j, n, gap);
    p.template save_result<X>(to, j, s);
  });
}

// The same for all elements inside, as many at a time as have their states in the nearest cache.
template <class P> void fold_inside(const P &p, typename P::To to, typename P::From from, i64 n, typename P::I bias) {
  constexpr i64 CACHED = 262144 / sizeof(typename P::T) / P::PLANES;
  i64 block = CACHED / Side<typename P::Law>::by_side(n);
  for (i64 at = 0, m; at < p.inside; at += m) {
    m = p.inside - at < 2 * block ? p.inside - at : block;
    fold_inside_block(p, to + at, from + at, n, bias, m);
  }
}

// any number of taps; `level` halvings were made already
template <class P>
void fold_inside_halves(const P &p, typename P::To to, typename P::From from, i64 n, typename P::I bias, int level) {
  using Law = typename P::Law;
  using I = typename P::I;
  using S = Side<Law>;
  if (n <= S::LONGEST) return fold_inside(p, to, from, n, bias);
  i64 half = S::first_half(n);
  typename P::To second = p.scratch + (S::MANY + level) * p.inside;
  fold_inside_halves(p, to, from, half, bias, level + 1);
  fold_inside_halves(p, second, from + half * p.axis.step * p.pitch, n - half, I(bias + I(half) * I(p.tap_step)),
                     level + 1);
  each_once<typename P::T>(p.inside, [&](auto kind, i64 j) INLINE_LAMBDA {
    using X = decltype(kind);
    auto a = load<Law, ALL<Law>, X>(to, j);
    p.law.merge(a, load<Law, ALL<Law>, X>(second, j));
    save<Law, X>(to, j, a);
  });
}

// n taps of every input; `from` is the first of them.
template <class P> void fold_lines(const P &p, typename P::To to, typename P::From from, i64 n, typename P::I bias) {
  using Law = typename P::Law;
  using S = Side<Law>;
  bool consecutive = p.inside == 1 && p.axis.step == 1;
  i64 i = 0;
  if constexpr (Law::cheap_merge && P::PLANES == 1)
    if (consecutive && n >= S::FEW && n <= S::LONGEST)
      for (constexpr i64 N = LANES<Vec<typename P::T>>; i + N + READS_PAST_LINES<typename P::T> <= p.inputs;
           i += N, to = to + N * p.output_step, from = from + N * p.input_step)
        n < S::LONG ? fold_lines_together<S::FEW>(p, to, from, n) : fold_lines_together<S::MANY>(p, to, from, n);
  for (; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step)
    consecutive ? fold_line(p, to, from, n, bias) : fold_inside_halves(p, to, from, n, bias, 0);
}

}  // namespace
}  // namespace ndpool
