// Half floats (IEEE's binary16): their bits, and what they are as float or double. Not all compilers have a type for
// them, and those that do may ask a library to convert. Here the processor does it, or a few operations on integers
// that give the same bits: to nearest, halves to even; a NaN keeps its sign and upper bits, and becomes quiet.
#pragma once
#include "vec.h"

namespace ndpool {
namespace {

struct half {
  uint16_t bits;
};

// Half floats in the lower bits of integers as wide as a float
template <class X> INLINE X float_of_half(Ints<X> h) {
  using I = Ints<X>;
  constexpr int INFINITE = 0x7c00, QUIET = 1 << 22, BIAS = (127 - 15) << 23;
  I rest = h & 0x7fff, wide = rest << 13;
  I subnormal = bits(X(rounded<X>(rest) * 0x1p-24f)), nan = wide | (0xff << 23) | QUIET;
  I large = choose<I>(rest > INFINITE, nan, choose<I>(rest == INFINITE, wide | (0xff << 23), wide + BIAS));
  return from_bits<X>((h & 0x8000) << 16 | choose<I>(rest < 0x400, subnormal, large));
}

// The other way, from floats or doubles
template <class X> INLINE Ints<X> half_of(X x) {
  using T = Element<X>;
  using I = Ints<X>;
  using E = Int<T>;
  constexpr int FRACTION = sizeof(T) == 4 ? 23 : 52, BIAS = sizeof(T) == 4 ? 127 : 1023, OFF = FRACTION - 10;
  constexpr E NEAREST = (E(1) << (OFF - 1)) - 1, INFINITE = E(2 * BIAS + 1) << FRACTION;
  constexpr E NORMAL = E(BIAS - 14) << FRACTION;                                       // 2^-14
  constexpr E TOO_LARGE = (E(BIAS + 15) << FRACTION) + (E(0x7ff) << (FRACTION - 11));  // 65520
  constexpr E STEP = E(BIAS + FRACTION - 24) << FRACTION;  // a number whose last bit is 2^-24: adding it rounds to that
  I u = bits(x), sign = u >> (8 * int(sizeof(T)) - 16) & 0x8000, a = u & ~(E(1) << (8 * sizeof(T) - 1));
  X step = from_bits<X>(splat<I>(STEP));
  I subnormal = bits(X(from_bits<X>(a) + step)) - STEP;
  I normal = ((a + NEAREST + (a >> OFF & 1)) >> OFF) - (E(BIAS - 15) << 10);
  I nan = (a >> OFF & 0x3ff) | 0x7e00, infinite = splat<I>(0x7c00);
  I large = choose<I>(a > INFINITE, nan, choose<I>(a < TOO_LARGE, normal, infinite));
  return sign | choose<I>(a < NORMAL, subnormal, large);
}

template <class X> using HalfBits = typename VectorOf<uint16_t, 2 * LANES<X>>::type;

#if defined(__F16C__)
INLINE float widen(half x) { return _cvtsh_ss(x.bits); }
INLINE half narrow_to_half(float x) { return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)}; }
#elif defined(__aarch64__)
INLINE float widen(half x) { return float(__builtin_bit_cast(__fp16, x.bits)); }
INLINE half narrow_to_half(float x) { return {__builtin_bit_cast(uint16_t, __fp16(x))}; }
#else
INLINE float widen(half x) { return float_of_half<float>(x.bits); }
INLINE half narrow_to_half(float x) { return {uint16_t(half_of(x))}; }
#endif
INLINE half narrow_to_half(double x) { return {uint16_t(half_of(x))}; }

// A vector of floats from and to as many half floats
INLINE Vec<float> load_halves(const char *p) {
  [[maybe_unused]] auto *from = reinterpret_cast<const uint16_t *>(p);
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(-1, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  using X = Vec<float>;
  return float_of_half<X>(__builtin_convertvector(load<HalfBits<X>>(from), Ints<X>));
#endif
}
INLINE void save_halves(char *p, Vec<float> v) {
#if defined(__AVX512F__)
  auto halves = _mm512_maskz_cvtps_ph(-1, v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  auto halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  auto halves = vcvt_f16_f32(v);
#else
  auto halves = __builtin_convertvector(half_of(v), HalfBits<Vec<float>>);
#endif
  static_assert(2 * sizeof halves == sizeof v);
  __builtin_memcpy(p, &halves, sizeof halves);
}

}  // namespace
}  // namespace ndpool
