#include "unpool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "rows.h"

namespace ndpool {
namespace {

struct Free {
  void operator()(void *data) const { std::free(data); }
};
template <class T> using Scratch = std::unique_ptr<T[], Free>;
template <class T> Scratch<T> zeros(i64 n) {
  return Scratch<T>(static_cast<T *>(std::calloc(size_t(std::max<i64>(n, 1)), sizeof(T))));
}

// Call give(place, value) for each value that has a place; false if a place lies outside.
template <class S, class P, class Give>
INLINE bool each_value(const S *values, const P *places, i64 columns, i64 size, Give give) {
  bool inside = true;
  for (i64 c = 0; c < columns; c++) {
    i64 place = places[c];
    if (uint64_t(place) < uint64_t(size))
      give(place, values[c]);
    else
      inside = inside && place == -1;
  }
  return inside;
}

// 0 + x: a zero without a sign, as in every sum
template <class S> INLINE S from_zero(S x) {
  if constexpr (std::is_same_v<S, half> || std::is_same_v<S, bfloat>)
    return x.bits & 0x7fff ? x : S{0};
  else
    return S(x + S(0));
}

template <class S> INLINE void clear(S *out, i64 size) {
  if (size) std::memset(static_cast<void *>(out), 0, size_t(size) * sizeof(S));
}

template <class S, class P> Put keep_last(const S *values, const P *places, i64 columns, S *out, i64 size) {
  clear(out, size);
  bool inside = each_value(values, places, columns, size, [&](i64 at, S x) INLINE_LAMBDA { out[at] = from_zero(x); });
  return inside ? Put::done : Put::outside;
}

template <class P> Put keep_any(const uint8_t *values, const P *places, i64 columns, uint8_t *out, i64 size) {
  clear(out, size);
  bool inside = each_value(values, places, columns, size, [&](i64 at, uint8_t x) INLINE_LAMBDA { out[at] |= x; });
  return inside ? Put::done : Put::outside;
}

// Short floats are added in float, in a row of their own.
template <class S, class P> Put add_short(const S *values, const P *places, i64 columns, S *out, i64 size) {
  Scratch<float> sums = zeros<float>(size);
  if (!sums) return Put::no_memory;
  bool inside =
      each_value(values, places, columns, size, [&](i64 at, S x) INLINE_LAMBDA { sums[size_t(at)] += widen(x); });
  for (i64 i = 0; i < size; i++) out[i] = narrow<S>(sums[size_t(i)]);
  return inside ? Put::done : Put::outside;
}

// Integers wrap around, which changes nothing if they wrap back. How often each sum did is counted once any has.
template <class S, class P> Put add_integers(const S *values, const P *places, i64 columns, S *out, i64 size) {
  clear(out, size);
  Scratch<i64> wraps;
  bool memory = true;
  bool inside = each_value(values, places, columns, size, [&](i64 at, S x) {
    if (!__builtin_add_overflow(out[at], x, out + at)) return;
    if (!wraps && memory) wraps = zeros<i64>(size), memory = bool(wraps);
    if (wraps) wraps[size_t(at)] += x < 0 ? -1 : 1;
  });
  if (!inside) return Put::outside;
  if (!memory) return Put::no_memory;
  bool fits = !wraps || std::all_of(wraps.get(), wraps.get() + size, [](i64 n) { return n == 0; });
  return fits ? Put::done : Put::overflow;
}

template <class S, class P> Put add(const S *values, const P *places, i64 columns, S *out, i64 size) {
  if constexpr (std::is_same_v<S, half> || std::is_same_v<S, bfloat>) {
    return add_short(values, places, columns, out, size);
  } else if constexpr (std::is_integral_v<S>) {
    return add_integers(values, places, columns, out, size);
  } else {
    clear(out, size);
    bool inside = each_value(values, places, columns, size, [&](i64 at, S x) INLINE_LAMBDA { out[at] += x; });
    return inside ? Put::done : Put::outside;
  }
}

template <class S, class P> Put put_rows(const Unpool &u, i64 row, i64 end) {
  Put worst = Put::done;
  for (; row < end && worst != Put::outside; row++) {
    auto *values = reinterpret_cast<const S *>(u.values) + row * u.columns;
    auto *places = reinterpret_cast<const P *>(u.places) + row * u.columns;
    auto *out = reinterpret_cast<S *>(u.out) + row * u.size;
    Put put;
    if (u.meet == Meet::last)
      put = keep_last(values, places, u.columns, out, u.size);
    else if constexpr (std::is_same_v<S, uint8_t>)
      put = (u.meet == Meet::any ? keep_any<P> : add<S, P>)(values, places, u.columns, out, u.size);
    else
      put = add(values, places, u.columns, out, u.size);
    worst = std::max(worst, put);
  }
  return worst;
}

template <class S> Put put_typed(const Unpool &u, i64 row, i64 end) {
  return (u.long_places ? put_rows<S, int64_t> : put_rows<S, int32_t>)(u, row, end);
}

}  // namespace

Put unpool(const Unpool &u, i64 row, i64 end) {
  switch (u.type) {
    case Type::f32:
      return put_typed<float>(u, row, end);
    case Type::f64:
      return put_typed<double>(u, row, end);
    case Type::f16:
      return put_typed<half>(u, row, end);
    case Type::bf16:
      return put_typed<bfloat>(u, row, end);
    case Type::i8:
      return put_typed<int8_t>(u, row, end);
    case Type::i16:
      return put_typed<int16_t>(u, row, end);
    case Type::i32:
      return put_typed<int32_t>(u, row, end);
    case Type::i64:
      return put_typed<int64_t>(u, row, end);
    case Type::u8:
      return put_typed<uint8_t>(u, row, end);
    case Type::u16:
      return put_typed<uint16_t>(u, row, end);
    case Type::u32:
      return put_typed<uint32_t>(u, row, end);
    case Type::u64:
      return put_typed<uint64_t>(u, row, end);
  }
  return Put::done;
}

}  // namespace ndpool
