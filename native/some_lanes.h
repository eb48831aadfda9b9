// Vectors of which only some lanes count: the ends of rows, where the processor can leave the other lanes alone.
#pragma once
#include "vec.h"

namespace ndpool {
namespace {

#if NDPOOL_MASKS
constexpr bool LEAVES_LANES = true;

// Which lanes count, a bit each. Of the others nothing is read or written.
using Lanes = uint32_t;

// Lanes [from, to) of those that a vector has.
template <class X> INLINE Lanes lanes_between(i64 from, i64 to) {
  constexpr i64 N = LANES<X>;
  from = from < 0 ? 0 : from, to = to > N ? N : to;
  return from >= to ? 0 : Lanes(((uint64_t(1) << to) - 1) & ~((uint64_t(1) << from) - 1));
}

template <class X> INLINE X load_some(const Element<X> *p, Lanes lanes) {
  static_assert(sizeof(X) == 64 && sizeof(Element<X>) >= 4);
  if constexpr (sizeof(Element<X>) == 4)
    return X(_mm512_maskz_loadu_epi32(__mmask16(lanes), p));
  else
    return X(_mm512_maskz_loadu_epi64(__mmask8(lanes), p));
}
template <class X> INLINE void save_some(Element<X> *p, X v, Lanes lanes) {
  static_assert(sizeof(X) == 64 && sizeof(Element<X>) >= 4);
  if constexpr (sizeof(Element<X>) == 4)
    _mm512_mask_storeu_epi32(p, __mmask16(lanes), __m512i(v));
  else
    _mm512_mask_storeu_epi64(p, __mmask8(lanes), __m512i(v));
}
// those of a0 b0 a1 b1 ... that count: `low` of the first as many as a vector has, `high` of the others
template <class X> INLINE void interleave_some(Element<X> *p, X a, X b, Lanes low, Lanes high) {
  X first, second;
  weave<X>(a, b, first, second, std::make_index_sequence<LANES<X>>());
  save_some<X>(p, first, low);
  if (high) save_some<X>(p + LANES<X>, second, high);
}

// Bytes, as many as X has lanes.
template <class X> struct Bytes {
  __m128i all;
  Bytes(const uint8_t *p, Lanes lanes) : all(_mm_maskz_loadu_epi8(__mmask16(lanes), p)) {}
  // the lanes, of those that count, whose byte it is
  INLINE Lanes which(uint8_t byte, Lanes lanes) const {
    return _mm_mask_cmpeq_epi8_mask(__mmask16(lanes), all, _mm_set1_epi8(char(byte)));
  }
};
// a in the lanes that count, b in the others
template <class X> INLINE X choose_some(Lanes lanes, X a, X b) {
  static_assert(sizeof(X) == 64 && std::is_floating_point_v<Element<X>>);
  if constexpr (sizeof(Element<X>) == 4)
    return X(_mm512_mask_mov_ps(b, __mmask16(lanes), a));
  else
    return X(_mm512_mask_mov_pd(b, __mmask8(lanes), a));
}
template <class X> INLINE X add_some(X sum, X b, Lanes lanes) {
  static_assert(sizeof(X) == 64 && std::is_floating_point_v<Element<X>>);
  if constexpr (sizeof(Element<X>) == 4)
    return X(_mm512_mask_add_ps(sum, __mmask16(lanes), sum, b));
  else
    return X(_mm512_mask_add_pd(sum, __mmask8(lanes), sum, b));
}
#else
constexpr bool LEAVES_LANES = false;
#endif

}  // namespace
}  // namespace ndpool
