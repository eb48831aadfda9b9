// Rows that become columns, and vectors that are merged across their lanes: shuffles of vectors with each other.
#pragma once
#include "some_lanes.h"

namespace ndpool {
namespace {

// The processor's shuffles stay within 16 bytes, or move these as a whole; neither needs a table of indices. Elements
// of a and b alternately, of the first and of the second half of each 16 bytes; and the even and the odd of the 16
// bytes.
template <class X, size_t... I> INLINE void weave_within(X a, X b, X &low, X &high, std::index_sequence<I...>) {
  constexpr int N = LANES<X>, K = LANES<Small<Element<X>>>;
  low = shuffle<(int(I) % 2 * N + int(I) / K * K + int(I) % K / 2)...>(a, b);
  high = shuffle<(int(I) % 2 * N + int(I) / K * K + K / 2 + int(I) % K / 2)...>(a, b);
}
template <class X, int C, size_t... I> INLINE void deal_whole(X a, X b, X &even, X &odd, std::index_sequence<I...>) {
  constexpr int N = LANES<X>, K = LANES<Small<Element<X>>>;
  auto from = [](int i, int odd) constexpr {  // of each C elements, the first half are a's and the second half b's
    int r = i % C, half = r / (C / 2);
    return half * N + i / C * C + r % (C / 2) / K * 2 * K + odd * K + r % K;
  };
  even = shuffle<from(int(I), 0)...>(a, b);
  odd = shuffle<from(int(I), 1)...>(a, b);
}

// C vectors of N elements, of which each C make a square with those of the others, become those of its first elements,
// its second elements, ...: first within 16 bytes, the vectors of the second half of a group moving in between those of
// the first; then the 16 bytes of groups. All written out, so that they stay in registers.
template <class X, int C = LANES<X>, int DONE = 1> INLINE void transpose_square(X *v) {
  constexpr int N = LANES<X>, K = LANES<Small<Element<X>>>;
  if constexpr (DONE < C) {
    X w[C];
    times<C / 2, true>([&](int i) INLINE_LAMBDA {
      auto lanes = std::make_index_sequence<N>();
      if constexpr (DONE < K) {
        int at = i / (K / 2) * K, j = i % (K / 2);
        weave_within<X>(v[at + j], v[at + j + K / 2], w[at + 2 * j], w[at + 2 * j + 1], lanes);
      } else {
        int at = i % K, j = i / K;  // groups 2 j and 2 j + 1 become j and j + M / 2
        constexpr int M = C / K;
        deal_whole<X, C>(v[2 * j * K + at], v[(2 * j + 1) * K + at], w[j * K + at], w[(j + M / 2) * K + at], lanes);
      }
    });
    transpose_square<X, C, 2 * DONE>(w);
    times<C, true>([&](int i) INLINE_LAMBDA { v[i] = w[i]; });
  }
}

// Two vectors in groups of G elements: the lower, or the upper, half of each group. Those of a come before those of b,
// within 16 bytes where groups are that short.
template <class X, int G, size_t... I> INLINE X group_halves(X a, X b, bool upper, std::index_sequence<I...>) {
  constexpr int N = LANES<X>, K = LANES<Small<Element<X>>>, C = G > K ? N : K;
  constexpr auto from = [](int i) constexpr {
    int c = i / C, r = i % C, half = r / (C / 2), at = r % (C / 2);
    return half * N + c * C + at / (G / 2) * G + at % (G / 2);
  };
  return upper ? shuffle<(from(int(I)) + G / 2)...>(a, b) : shuffle<from(int(I))...>(a, b);
}

// to[i * to_row + j] = from[j * row + i] for n rows of m elements, in squares; the last ones overlap those before
template <class X, class T> NOINLINE void transpose_squares(const T *from, i64 n, i64 m, i64 row, T *to, i64 to_row) {
  constexpr int N = LANES<X>;
  for (i64 next = 0; next < n; next += N)
    for (i64 on = 0; on < m; on += N) {
      i64 j = next + N <= n ? next : n - N, i = on + N <= m ? on : m - N;
      X v[N];
      times<N, true>([&](int k) INLINE_LAMBDA { v[k] = load<X>(from + (j + k) * row + i); });
      transpose_square<X>(v);
      times<N, true>([&](int k) INLINE_LAMBDA { save<X>(to + (i + k) * to_row + j, v[k]); });
    }
}

#if NDPOOL_MASKS
// The same where n or m is less than a vector has lanes: the rest of a square is not read, or not written.
template <class X, class T> NOINLINE void transpose_strip(const T *from, i64 n, i64 m, i64 row, T *to, i64 to_row) {
  constexpr int N = LANES<X>;
  const Lanes columns = lanes_between<X>(0, m), rows = lanes_between<X>(0, n);
  for (i64 next = 0; next < most(n, m); next += N) {
    i64 j = n < N ? 0 : least(next, n - N), i = m < N ? 0 : least(next, m - N);
    X v[N]{};
    times<N, true>([&](int k) INLINE_LAMBDA {
      if (k < n) v[k] = load_some<X>(from + (j + k) * row + i, columns);
    });
    transpose_square<X>(v);
    times<N, true>([&](int k) INLINE_LAMBDA {
      if (k < m) save_some<X>(to + (i + k) * to_row + j, v[k], rows);
    });
  }
}
#endif

template <class T> NOINLINE void transpose(const T *from, i64 n, i64 m, i64 row, T *to, i64 to_row) {
  constexpr int N = LANES<Vec<T>>, M = LANES<Small<T>>;
  i64 shorter = least(n, m);
  if (shorter >= N) return transpose_squares<Vec<T>>(from, n, m, row, to, to_row);
#if NDPOOL_MASKS
  if constexpr (std::is_floating_point_v<T>)
    if (shorter > M && most(n, m) >= N) return transpose_strip<Vec<T>>(from, n, m, row, to, to_row);
#endif
  if (shorter >= M) return transpose_squares<Small<T>>(from, n, m, row, to, to_row);
  for (i64 j = 0; j < n; j++)
    for (i64 i = 0; i < m; i++) to[i * to_row + j] = from[j * row + i];
}

}  // namespace
}  // namespace ndpool
