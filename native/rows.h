// Rows between memory and the types that are computed with: float for the shorter floats, a signed integer for any
// other. `flip` reverses the order of all values (-x, or ~x for integers), so that a min is a max.
#pragma once
#include <cstdlib>
#include "half.h"
#include "kernels.h"
#include "vec.h"

namespace ndpool {
namespace {

constexpr i64 size_of(Type type) { return BYTES[int(type)]; }

struct bfloat {
  uint16_t bits;
};

INLINE float widen(bfloat x) { return __builtin_bit_cast(float, uint32_t(x.bits) << 16); }
template <class S> INLINE S widen(S x) { return x; }

template <class S, class T> INLINE S narrow(T x) {
  if constexpr (std::is_same_v<S, bfloat>) {  // to nearest, halves to even; a NaN stays one
    uint32_t u = __builtin_bit_cast(uint32_t, float(x));
    return {x != x ? uint16_t(u >> 16 | 0x40) : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
  } else if constexpr (std::is_same_v<S, half>) {
    return narrow_to_half(x);
  } else {
    return S(x);
  }
}

// what `flip` and a type of the same size with the other kind of sign do to the bits
template <class S, class T> INLINE T flipped(T x, bool flip) {
  if constexpr (std::is_floating_point_v<T>)
    return flip ? -x : x;
  else {
    T mask = flip ? T(-1) : T(0);
    if constexpr (std::is_unsigned_v<S> != std::is_unsigned_v<T> && sizeof(S) == sizeof(T))
      mask = T(mask ^ T(T(1) << (8 * sizeof(T) - 1)));
    return T(x ^ mask);
  }
}

// Elements may lie anywhere, aligned or not; strides are in bytes.
template <class S> INLINE S element(const char *p) {
  S s;
  __builtin_memcpy(&s, p, sizeof s);
  return s;
}

using Words = Same<Vec<float>, uint32_t>;
using Shorts = VectorOf<uint16_t, int(sizeof(Words)) / 2>::type;

template <class S, class T> void load_as(const char *from, i64 stride, T *to, i64 n, bool flip) {
  if (stride != sizeof(S)) {
    for (i64 i = 0; i < n; i++) to[i] = flipped<S, T>(T(widen(element<S>(from + i * stride))), flip);
    return;
  }
  i64 i = 0;
  if constexpr (std::is_same_v<S, half> && std::is_same_v<T, float>)
    for (constexpr int N = LANES<Vec<float>>; i + N <= n; i += N) {
      Vec<float> v = load_halves(from + 2 * i);
      save<Vec<float>>(to + i, flip ? -v : v);
    }
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>)
    for (constexpr int N = LANES<Vec<T>>; i + N <= n; i += N) {
      auto narrow = load<typename VectorOf<S, int(sizeof(S)) * N>::type>(reinterpret_cast<const S *>(from) + i);
      Vec<T> v = __builtin_convertvector(narrow, Vec<T>);
      save<Vec<T>>(to + i, flip ? -v : v);
    }
  if constexpr (sizeof(S) == 2 && std::is_same_v<T, double>) {  // by way of floats
    constexpr i64 MANY = 256;
    float few[MANY];
    for (i64 m; i < n; i += m) {
      m = least(n - i, MANY);
      load_as<S, float>(from + i * i64(sizeof(S)), sizeof(S), few, m, flip);
      load_as<float, double>(reinterpret_cast<const char *>(few), sizeof(float), to + i, m, false);
    }
    return;
  }
  if constexpr (std::is_integral_v<S> && std::is_integral_v<T> && sizeof(T) == 2 * sizeof(S))
    for (constexpr int N = LANES<Vec<T>>; i + N <= n; i += N) {
      auto narrow = load<typename VectorOf<S, int(N * sizeof(S))>::type>(reinterpret_cast<const S *>(from) + i);
      Vec<T> v = __builtin_convertvector(narrow, Vec<T>);
      save<Vec<T>>(to + i, flip ? ~v : v);
    }
  if constexpr (std::is_same_v<S, bfloat> && std::is_same_v<T, float>)
    for (constexpr int N = LANES<Vec<float>>; i + N <= n; i += N) {
      auto wide = __builtin_convertvector(load<Shorts>(reinterpret_cast<const uint16_t *>(from) + i), Words);
      Vec<float> v = __builtin_bit_cast(Vec<float>, wide << 16);
      save<Vec<float>>(to + i, flip ? -v : v);
    }
  for (; i < n; i++) to[i] = flipped<S, T>(T(widen(element<S>(from + i * i64(sizeof(S))))), flip);
}

template <class S, class T> void store_as(char *to, const T *from, i64 n, bool flip) {
  i64 i = 0;
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>)
    for (constexpr int N = LANES<Vec<T>>; i + N <= n; i += N) {
      Vec<T> v = load<Vec<T>>(from + i);
      auto narrow = __builtin_convertvector(flip ? -v : v, typename VectorOf<S, int(sizeof(S)) * N>::type);
      __builtin_memcpy(to + i * i64(sizeof(S)), &narrow, sizeof narrow);
    }
  if constexpr (std::is_same_v<S, half> && std::is_same_v<T, float>)
    for (constexpr int N = LANES<Vec<float>>; i + N <= n; i += N) {
      Vec<float> v = load<Vec<float>>(from + i);
      save_halves(to + 2 * i, flip ? -v : v);
    }
  if constexpr (std::is_same_v<S, bfloat> && std::is_same_v<T, float>)
    for (constexpr int N = LANES<Vec<float>>; i + N <= n; i += N) {
      Vec<float> v = load<Vec<float>>(from + i);
      Words u = __builtin_bit_cast(Words, flip ? -v : v), even = u >> 16 & 1;
      Words nearest = (u + 0x7fff + even) >> 16, nan = u >> 16 | 0x40;
      Words bits16 = __builtin_bit_cast(Words, v != v) ? nan : nearest;
      save<Shorts>(reinterpret_cast<uint16_t *>(to) + i, __builtin_convertvector(bits16, Shorts));
    }
  for (; i < n; i++) {
    S s = narrow<S, T>(flipped<S, T>(from[i], flip));
    __builtin_memcpy(to + i * i64(sizeof(S)), &s, sizeof s);
  }
}

// -- elements as they are stored, in vectors to compute with ---------------------------------------------------------

// p[0], p[1], ...
template <class X, class S> INLINE X load_stored(const S *p) {
  using N =
      typename VectorOf<std::conditional_t<std::is_same_v<S, bfloat>, uint16_t, S>, int(sizeof(S)) * LANES<X>>::type;
  if constexpr (std::is_same_v<S, Element<X>>)
    return load<X>(p);
  else if constexpr (LANES<X> == 1)
    return X(widen(*p));
  else if constexpr (std::is_same_v<S, bfloat>)
    return from_bits<X>(__builtin_convertvector(load<N>(reinterpret_cast<const uint16_t *>(p)), Ints<X>) << 16);
  else
    return __builtin_convertvector(load<N>(p), X);
}

// p[0], p[STRIDE], p[2 STRIDE], ...; stride 0 is the same element in all lanes
template <class X, int STRIDE, class S> INLINE X load_stored(const S *p) {
  if constexpr (std::is_same_v<S, Element<X>>)
    return load<X, STRIDE>(p);
  else if constexpr (STRIDE == 0)
    return splat<X>(Element<X>(widen(*p)));
  else if constexpr (STRIDE == 1 || LANES<X> == 1)
    return load_stored<X>(p);
  else if constexpr (STRIDE > OTHER_GROUPS)
    return every_other<X, STRIDE - OTHER_GROUPS>([p](int i) INLINE_LAMBDA { return load_stored<X>(p + i); },
                                                 std::make_index_sequence<LANES<X>>());
  else
    return every<X, STRIDE, 0>([p](int i) INLINE_LAMBDA { return load_stored<X>(p + i); }, X{},
                               std::make_index_sequence<LANES<X>>());
}

template <class X, class N, size_t... I> INLINE void widen_pair(N pairs, X &even, X &odd, std::index_sequence<I...>) {
  using Narrow = typename VectorOf<Element<N>, int(sizeof(N)) / 2>::type;
  N dealt = shuffle<(int(I) * 2)..., (int(I) * 2 + 1)...>(pairs, pairs);
  even = __builtin_convertvector(__builtin_bit_cast(Narrow, halve<N>(dealt, 0)), X);
  odd = __builtin_convertvector(__builtin_bit_cast(Narrow, halve<N>(dealt, 1)), X);
}

// p[0], p[2], ... and p[1], p[3], ...: of elements half as wide, the lower and the upper halves of words
template <class X, class S> INLINE void load_stored_pair(const S *p, X &even, X &odd) {
  if constexpr (std::is_same_v<S, Element<X>>)
    load_pair<X>(p, even, odd);
  else if constexpr (LANES<X> == 1)
    even = load_stored<X>(p), odd = load_stored<X>(p + 1);
  else if constexpr (std::is_same_v<S, float>) {
    widen_pair<X>(load<Same<X, float>>(p), even, odd, std::make_index_sequence<LANES<X>>());
  } else {
    using I = Int<Element<X>>;
    static_assert(2 * sizeof(S) == sizeof(I));
    constexpr int BITS = 8 * sizeof(S);
    Ints<X> words;
    __builtin_memcpy(&words, p, sizeof words);
    if constexpr (std::is_same_v<S, bfloat>)
      even = from_bits<X>(words << BITS), odd = from_bits<X>(words & I(~((I(1) << BITS) - 1)));
    else if constexpr (std::is_unsigned_v<S>)
      even = words & I((1 << BITS) - 1), odd = (words >> BITS) & I((1 << BITS) - 1);
    else
      even = (words << BITS) >> BITS, odd = words >> BITS;
  }
}

// integers to memory as S, of which they have the lower bits
template <class S, class X> INLINE void save_stored(char *to, X v) {
  if constexpr (LANES<X> == 1) {
    S s = S(v);
    __builtin_memcpy(to, &s, sizeof s);
  } else {
    auto narrow = __builtin_convertvector(v, typename VectorOf<S, int(sizeof(S)) * LANES<X>>::type);
    __builtin_memcpy(to, &narrow, sizeof narrow);
  }
}

// visit(S{}) if T computes with elements of that type, half as wide, and small windows may read them as they are stored
template <class T, class Visit> INLINE void with_stored(Type type, Visit visit) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == Type::bf16) visit(bfloat());
  } else if constexpr (std::is_same_v<T, double>) {
    if (type == Type::f32) visit(float());
  } else if constexpr (std::is_same_v<T, int16_t>) {
    if (type == Type::u8) visit(uint8_t());
    if (type == Type::i8) visit(int8_t());
  }
}

// visit(S{}) for the types whose rows T computes
template <class T, class Visit> INLINE void with_type(Type type, Visit visit) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == Type::f32)
      visit(float());
    else if (type == Type::f16)
      visit(half());
    else
      visit(bfloat());
  } else if constexpr (std::is_same_v<T, double>) {
    if (type == Type::f64)
      visit(double());
    else if (type == Type::f32)
      visit(float());
    else if (type == Type::f16)
      visit(half());
    else
      visit(bfloat());
  } else if constexpr (sizeof(T) == 1) {
    if (type == Type::i8)
      visit(int8_t());
    else
      visit(uint8_t());
  } else if constexpr (sizeof(T) == 2) {
    if (type == Type::i16)
      visit(int16_t());
    else if (type == Type::u16)
      visit(uint16_t());
    else if (type == Type::i8)
      visit(int8_t());
    else
      visit(uint8_t());
  } else {
    switch (type) {
      case Type::i8:
        return visit(int8_t());
      case Type::i16:
        return visit(int16_t());
      case Type::i32:
        return visit(int32_t());
      case Type::u8:
        return visit(uint8_t());
      case Type::u16:
        return visit(uint16_t());
      case Type::u32:
        return visit(uint32_t());
      case Type::i64:
        if constexpr (sizeof(T) == 8)
          return visit(int64_t());
        else
          return;
      default:
        if constexpr (sizeof(T) == 8)
          return visit(uint64_t());
        else
          return;
    }
  }
}

template <class T> NOINLINE void load_row(Type type, const char *from, i64 stride, T *to, i64 n, bool flip) {
  with_type<T>(type, [&](auto s) { load_as<decltype(s), T>(from, stride, to, n, flip); });
}
template <class T> NOINLINE void store_row(Type type, char *to, const T *from, i64 n, bool flip) {
  with_type<T>(type, [&](auto s) { store_as<decltype(s), T>(to, from, n, flip); });
}

// Whether rows of `type` in memory are rows of T as they are.
template <class T> bool as_they_are(Type type, bool flip) {
  if (flip) return false;
  if constexpr (std::is_same_v<T, float>)
    return type == Type::f32;
  else if constexpr (std::is_same_v<T, double>)
    return type == Type::f64;
  else if constexpr (sizeof(T) == 1)
    return type == Type::u8;
  else if constexpr (sizeof(T) == 2)
    return type == Type::i16;
  else if constexpr (sizeof(T) == 4)
    return type == Type::i32;
  else
    return type == Type::i64;
}

// visit(R{}) with the type of a residual
template <class Visit> INLINE void with_residual(const Plan &p, Visit visit) {
  switch (p.residual_bytes) {
    case 1:
      return visit(uint8_t());
    case 2:
      return visit(uint16_t());
    case 4:
      return visit(uint32_t());
    default:
      return visit(uint64_t());
  }
}

}  // namespace
}  // namespace ndpool
