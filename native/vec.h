// Vectors of the width of the instruction set, from the compiler's own vector types: no rank, no law.
// Nothing is contracted or reassociated, so every instruction set gives the same bits. What GCC and Clang do not share,
// or share since their latest releases only, is here and in half.h: `shuffle`, `choose`, `larger`, halves of floats.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Whether a vector can leave some of its lanes alone: AVX-512, all of it that the widest instruction set is built with.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define NDPOOL_MASKS 1
#else
#define NDPOOL_MASKS 0
#endif

namespace ndpool {
namespace {

#if NDPOOL_MASKS
constexpr int WIDTH = 64;
#elif defined(__AVX2__)
constexpr int WIDTH = 32;
#else
constexpr int WIDTH = 16;
#endif

#define INLINE_LAMBDA __attribute__((always_inline))

template <int BYTES> struct Integer;
template <> struct Integer<1> {
  using type = int8_t;
};
template <> struct Integer<2> {
  using type = int16_t;
};
template <> struct Integer<4> {
  using type = int32_t;
};
template <> struct Integer<8> {
  using type = int64_t;
};
template <class T> using Int = typename Integer<sizeof(T)>::type;
template <int BYTES> using Unsigned = std::make_unsigned<typename Integer<BYTES>::type>;

template <class T, int BYTES, bool ONE = BYTES == sizeof(T)> struct VectorOf {
  typedef T type __attribute__((vector_size(BYTES)));
};
template <class T, int BYTES> struct VectorOf<T, BYTES, true> {
  using type = T;  // a number is a vector of one lane
};
template <class T> using Vec = typename VectorOf<T, WIDTH>::type;
template <class T> using Small = typename VectorOf<T, 16>::type;  // for short rows
template <class T> using One = T;                                 // for what is left over

template <class X, bool = std::is_arithmetic_v<X>> struct ElementOf {
  using type = std::remove_cvref_t<decltype(std::declval<X>()[0])>;
};
template <class X> struct ElementOf<X, true> {
  using type = X;
};
template <class X> using Element = typename ElementOf<X>::type;
template <class X> constexpr int LANES = int(sizeof(X) / sizeof(Element<X>));
template <class X, class T> using Same = typename VectorOf<T, int(sizeof(X))>::type;  // T's in as many bytes
template <class X> using Ints = Same<X, Int<Element<X>>>;

template <class X> INLINE X load(const Element<X> *p) {
  X v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class X> INLINE void save(Element<X> *p, X v) { __builtin_memcpy(p, &v, sizeof v); }
template <class X> INLINE X splat(Element<X> e) {
  if constexpr (LANES<X> == 1)
    return e;
  else
    return e - X{};
}
template <class X, size_t... I> INLINE Ints<X> iota(std::index_sequence<I...>) {
  return Ints<X>{Int<Element<X>>(I)...};
}
template <class X> INLINE Ints<X> iota() {  // 0, 1, 2, ...
  return iota<X>(std::make_index_sequence<LANES<X>>());
}
template <class X> INLINE Element<X> lane(X v, int i) {
  if constexpr (LANES<X> == 1)
    return v;
  else
    return v[i];
}
template <class X> INLINE Ints<X> bits(X v) { return __builtin_bit_cast(Ints<X>, v); }
template <class X> INLINE X from_bits(Ints<X> v) { return __builtin_bit_cast(X, v); }
template <class X> INLINE X choose(Ints<X> mask, X a, X b) { return mask ? a : b; }
// b if it is larger, else a: of equals a, and a where either is NaN. The processor's own maximum is just that, but GCC
// does not see it in a choice. `smaller` likewise.
template <class X> INLINE X larger(X b, X a) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<X, typename VectorOf<float, 64>::type>) return X(_mm512_maskz_max_ps(-1, b, a));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 64>::type>) return X(_mm512_maskz_max_pd(-1, b, a));
#endif
#if defined(__AVX__)
  if constexpr (std::is_same_v<X, typename VectorOf<float, 32>::type>) return X(_mm256_max_ps(b, a));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 32>::type>) return X(_mm256_max_pd(b, a));
#endif
#if defined(__SSE2__)
  if constexpr (std::is_same_v<X, typename VectorOf<float, 16>::type>) return X(_mm_max_ps(b, a));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 16>::type>) return X(_mm_max_pd(b, a));
#endif
  return choose<X>(b > a, b, a);
}
template <class X> INLINE X smaller(X b, X a) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<X, typename VectorOf<float, 64>::type>) return X(_mm512_maskz_min_ps(-1, b, a));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 64>::type>) return X(_mm512_maskz_min_pd(-1, b, a));
#endif
#if defined(__AVX__)
  if constexpr (std::is_same_v<X, typename VectorOf<float, 32>::type>) return X(_mm256_min_ps(b, a));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 32>::type>) return X(_mm256_min_pd(b, a));
#endif
#if defined(__SSE2__)
  if constexpr (std::is_same_v<X, typename VectorOf<float, 16>::type>) return X(_mm_min_ps(b, a));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 16>::type>) return X(_mm_min_pd(b, a));
#endif
  return choose<X>(b < a, b, a);
}
template <class X> INLINE X rounded(Ints<X> v) {
  if constexpr (LANES<X> == 1)
    return X(v);
  else
    return __builtin_convertvector(v, X);
}

// bytes as integers of any size, doubled step by step: the compiler knows an instruction for that
template <class X, class N> INLINE X widened(N narrow) {
  if constexpr (sizeof(N) == sizeof(X))
    return __builtin_bit_cast(X, narrow);
  else {
    using Twice = typename VectorOf<typename Unsigned<2 * int(sizeof(Element<N>))>::type, 2 * int(sizeof(N))>::type;
    return widened<X>(__builtin_convertvector(narrow, Twice));
  }
}
template <class X> INLINE X widened(const uint8_t *p) {
  if constexpr (LANES<X> == 1)
    return X(*p);
  else
    return widened<X>(load<typename VectorOf<uint8_t, LANES<X>>::type>(p));
}

// lanes AT... of the elements of a and, behind them, of b; as many as X has
template <int... AT, class X> INLINE X shuffle(X a, X b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, AT...);
#else  // GCC 11
  return __builtin_shuffle(a, b, Ints<X>{AT...});
#endif
}

// `sum`, and b added to it in the lanes whose byte is `byte`.
template <class X> INLINE X add_where(X sum, const uint8_t *bytes, uint8_t byte, X b) {
#if NDPOOL_MASKS
  auto same = [&](auto load) INLINE_LAMBDA { return _mm_cmpeq_epi8_mask(load, _mm_set1_epi8(char(byte))); };
  auto sixteen = reinterpret_cast<const __m128i *>(bytes);
  if constexpr (std::is_same_v<X, typename VectorOf<float, 64>::type>)
    return X(_mm512_mask_add_ps(sum, same(_mm_loadu_si128(sixteen)), sum, b));
  if constexpr (std::is_same_v<X, typename VectorOf<float, 32>::type>)
    return X(_mm256_mask_add_ps(sum, __mmask8(same(_mm_loadl_epi64(sixteen))), sum, b));
  if constexpr (std::is_same_v<X, typename VectorOf<double, 64>::type>)
    return X(_mm512_mask_add_pd(sum, __mmask8(same(_mm_loadl_epi64(sixteen))), sum, b));
#endif
  return sum + choose<X>(widened<Ints<X>>(bytes) == Int<Element<X>>(byte), b, X{});
}

// Elements 0, STRIDE, 2 STRIDE, ...: from STRIDE vectors, the last of which ends at the last element needed. fetch(i)
// is the vector of elements from i on.
template <class X, int STRIDE, int VECTOR, class Fetch, size_t... I>
INLINE X every(const Fetch &fetch, X found, std::index_sequence<I...> lanes) {
  constexpr int N = LANES<X>, LAST = (N - 1) * STRIDE + 1 - N, AT = VECTOR * N < LAST ? VECTOR * N : LAST;
  X next = fetch(AT);
  if constexpr (VECTOR == 0) found = next;
  // lane I is element I * STRIDE of the first vector that holds it
  found = shuffle<(int(I) * STRIDE >= VECTOR * N && int(I) * STRIDE < AT + N ? N + int(I) * STRIDE - AT : int(I))...>(
      found, next);
  if constexpr (VECTOR + 1 < STRIDE)
    return every<X, STRIDE, VECTOR + 1>(fetch, found, lanes);
  else
    return found;
}

// A stride of so much more than M is that of groups of M elements, every other one: 0 .. M - 1, 2 M .. 3 M - 1, ...
// There are GROUPS of them in a vector; the lanes behind these hold anything. From two vectors, the second of which ends
// at the last element needed.
constexpr int OTHER_GROUPS = 100;
template <class X, int M> constexpr int GROUPS = LANES<X> / M;
template <class X, int M, class Fetch, size_t... I>
INLINE X every_other(const Fetch &fetch, std::index_sequence<I...>) {
  constexpr int N = LANES<X>, END = 2 * M * (GROUPS<X, M> - 1) + M, AT = END - N;
  static_assert(END >= N && END <= 2 * N);
  constexpr auto from = [](int i) constexpr { return i < GROUPS<X, M> * M ? i / M * 2 * M + i % M : 0; };
  return shuffle<(from(int(I)) < N ? from(int(I)) : N + from(int(I)) - AT)...>(fetch(0), fetch(AT));
}

// p[0], p[2], ... and p[1], p[3], ...
template <class X, size_t... I> INLINE void load_pair(const Element<X> *p, X &even, X &odd, std::index_sequence<I...>) {
  X a = load<X>(p), b = load<X>(p + LANES<X>);
  even = shuffle<2 * int(I)...>(a, b);
  odd = shuffle<(2 * int(I) + 1)...>(a, b);
}
template <class X> INLINE void load_pair(const Element<X> *p, X &even, X &odd) {
  if constexpr (LANES<X> == 1)
    even = p[0], odd = p[1];
  else
    load_pair<X>(p, even, odd, std::make_index_sequence<LANES<X>>());
}

// the lower and the upper half of a vector
template <class X> using Half = typename VectorOf<Element<X>, int(sizeof(X) / 2)>::type;
template <class X, size_t... I> INLINE Half<X> halve(X v, int upper, std::index_sequence<I...>) {
  if constexpr (LANES<X> == 2)
    return v[upper];
  else
#if __has_builtin(__builtin_shufflevector)
    return upper ? __builtin_shufflevector(v, v, int(I + sizeof...(I))...) : __builtin_shufflevector(v, v, int(I)...);
#else
    return upper ? Half<X>{v[I + sizeof...(I)]...} : Half<X>{v[I]...};
#endif
}
template <class X> INLINE Half<X> halve(X v, int upper) {
  return halve<X>(v, upper, std::make_index_sequence<LANES<X> / 2>());
}

// p[0], p[STRIDE], ...; stride 0 is the same element in all lanes
template <class X, int STRIDE> INLINE X load(const Element<X> *p) {
  if constexpr (STRIDE == 0)
    return splat<X>(*p);
  else if constexpr (STRIDE == 1 || LANES<X> == 1)
    return load<X>(p);
  else if constexpr (STRIDE > OTHER_GROUPS)
    return every_other<X, STRIDE - OTHER_GROUPS>([p](int i) INLINE_LAMBDA { return load<X>(p + i); },
                                                 std::make_index_sequence<LANES<X>>());
  else
    return every<X, STRIDE, 0>([p](int i) INLINE_LAMBDA { return load<X>(p + i); }, X{},
                               std::make_index_sequence<LANES<X>>());
}

template <class X> INLINE bool any(X mask) {
  if constexpr (LANES<X> == 1)
    return mask != 0;
  else {
    auto words = __builtin_bit_cast(typename VectorOf<uint64_t, int(sizeof(X))>::type, mask);
    uint64_t all = 0;
    for (int i = 0; i < LANES<decltype(words)>; i++) all |= words[i];
    return all != 0;
  }
}

// a0 b0 a1 b1 ...
template <class X, size_t... I> INLINE void weave(X a, X b, X &low, X &high, std::index_sequence<I...>) {
  constexpr int N = LANES<X>;
  low = shuffle<(int(I) % 2 * N + int(I) / 2)...>(a, b);
  high = shuffle<(int(I) % 2 * N + N / 2 + int(I) / 2)...>(a, b);
}
template <class X> INLINE void interleave(Element<X> *p, X a, X b) {
  if constexpr (LANES<X> == 1) {
    p[0] = a, p[1] = b;
  } else {
    X low, high;
    weave<X>(a, b, low, high, std::make_index_sequence<LANES<X>>());
    save<X>(p, low), save<X>(p + LANES<X>, high);
  }
}

// body(0), ..., body(N - 1): written out one after another, or as a loop
template <int N, bool WRITTEN_OUT, class Body> INLINE void times(Body body) {
  if constexpr (WRITTEN_OUT)
    [&]<int... I>(std::integer_sequence<int, I...>)
        INLINE_LAMBDA { (body(I), ...); }(std::make_integer_sequence<int, N>());
  else {
#pragma GCC unroll 1
    for (int i = 0; i < N; i++) body(i);
  }
}

// body(X{}, j) for j = 0, LANES, ...; the last vector overlaps the one before it, so results must not be read again.
// SHORT: whether rows shorter than a vector are worth loops of half vectors and of small ones. ONES: whether rows may
// be shorter still; their elements go one by one.
template <class T, bool SHORT = false, bool ONES = true, class Body> INLINE void each_vector(i64 n, Body body) {
  constexpr int N = LANES<Vec<T>>, M = LANES<Small<T>>;
  if (n >= N) {
    for (i64 j = 0; j < n; j += N) body(Vec<T>{}, j + N <= n ? j : n - N);
    return;
  }
  if constexpr (SHORT && 2 * M < N)
    if (n >= N / 2) {
      body(Half<Vec<T>>{}, 0);
      if (n > N / 2) body(Half<Vec<T>>{}, n - N / 2);
      return;
    }
  if constexpr (SHORT && M < N)
    if (!ONES || n >= M) {
      for (i64 j = 0; j < n; j += M) body(Small<T>{}, j + M <= n ? j : n - M);
      return;
    }
  if constexpr (ONES)
    for (i64 j = 0; j < n; j++) body(One<T>{}, j);
}

// The same with MANY vectors at a time while there are as many: body(X{}, how many, j)
template <class T, int MANY, class Body> INLINE void each_block(i64 n, Body body) {
  constexpr int N = LANES<Vec<T>>;
  std::integral_constant<int, 1> one;
  i64 j = 0;
  for (; j + MANY * N <= n; j += MANY * N) body(Vec<T>{}, std::integral_constant<int, MANY>(), j);
  if (n >= N)
    for (; j < n; j += N) body(Vec<T>{}, one, j + N <= n ? j : n - N);
  else
    each_vector<T, true>(n, [&](auto kind, i64 at) INLINE_LAMBDA { body(kind, one, at); });
}

// The same, but no element twice: for loops in place
template <class T, class Body> INLINE void each_once(i64 n, Body body) {
  i64 j = 0;
  for (; j + LANES<Vec<T>> <= n; j += LANES<Vec<T>>) body(Vec<T>{}, j);
  for (; j < n; j++) body(One<T>{}, j);
}
// The same with MANY vectors at a time while there are as many: body(X{}, how many, j)
template <class T, int MANY, class Body> INLINE void each_block_once(i64 n, Body body) {
  constexpr int N = LANES<Vec<T>>;
  std::integral_constant<int, 1> one;
  i64 j = 0;
  for (; j + MANY * N <= n; j += MANY * N) body(Vec<T>{}, std::integral_constant<int, MANY>(), j);
  for (; j + N <= n; j += N) body(Vec<T>{}, one, j);
  for (; j < n; j++) body(One<T>{}, one, j);
}

// -- functions -------------------------------------------------------------------------------------------------------

template <class T> struct Format;
template <> struct Format<float> {
  static constexpr int fraction = 23, log_terms = 5;
  static constexpr float least = -126, magic = 12582912.0f + 127, ln2_high = 0.693359375f,
                         ln2_low = -2.12194440054690e-4f;
  // 2^f for |f| <= 1/2 as 1 + f (...), highest power first; relative error 3e-9
  static constexpr float power[] = {0.00015594677f, 0.00134066438f, 0.00961769298f,
                                    0.05550310551f, 0.24022652783f, 0.69314721497f};
};
template <> struct Format<double> {
  static constexpr int fraction = 52, log_terms = 11;
  static constexpr double least = -1022, magic = 6755399441055744.0 + 1023, ln2_high = 0.693147180369123816490,
                          ln2_low = 1.90821492927058770002e-10;
  static constexpr double power[] = {4.0780717860928704e-10, 7.0725703945407994e-9, 1.0180647660573069e-7,  // 2e-17
                                     1.3215442675452855e-6,  1.5252727385189775e-5, 1.5403530441571850e-4,
                                     1.3333558153439970e-3,  9.6181291076070026e-3, 5.5504108664790395e-2,
                                     2.4022650695910098e-1,  6.9314718055994570e-1};
};

constexpr double LOG2_E = 1.442695040888963407;

template <class T> struct Series {
  T inverse_odd[16]{};
  constexpr Series() {
    for (int i = 0; i < 16; i++) inverse_odd[i] = T(1.0 / (2 * i + 1));
  }
};

// 2^x for x <= 0, and NaN for NaN: 2^n 2^f, |f| <= 1/2. `magic` rounds to n and leaves its exponent in the last bits.
// Below `least` it is 0.
template <class X> INLINE X power_of_two(X x) {
  using F = Format<Element<X>>;
  const X magic = splat<X>(F::magic);
  X shifted = x + magic, f = x - (shifted - magic), sum = splat<X>(F::power[0]);
  for (size_t i = 1; i < sizeof(F::power) / sizeof(F::power[0]); i++) sum = sum * f + F::power[i];
  X scale = from_bits<X>(bits(shifted) << F::fraction);
  return choose<X>(x < F::least, X{}, (sum * f + 1) * scale);
}

// log x for normal x > 0, and NaN for NaN: e ln 2 + 2 atanh((m - 1) / (m + 1)), m near 1
template <class X> INLINE X log_positive(X x) {
  using T = Element<X>;
  using F = Format<T>;
  using I = Ints<X>;
  constexpr Int<T> ROOT = sizeof(T) == 4 ? Int<T>(0x3f3504f3) : Int<T>(0x3fe6a09e667f3bcdLL);  // sqrt(1/2)
  I e = (bits(x) - ROOT) >> F::fraction;
  X m = from_bits<X>(bits(x) - (e << F::fraction)), power = rounded<X>(e);
  X u = (m - 1) / (m + 1), square = u * u;
  constexpr Series<T> series;
  X sum = splat<X>(series.inverse_odd[F::log_terms - 1]);
  for (int i = F::log_terms - 2; i >= 0; i--) sum = sum * square + series.inverse_odd[i];
  X high = power * F::ln2_high, low = power * F::ln2_low + 2 * u * sum;
  return choose<X>(x == x, high + low, x);
}

}  // namespace
}  // namespace ndpool
