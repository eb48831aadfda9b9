// What every file needs.
#pragma once
#include <cstdint>

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

namespace ndpool {
using i64 = int64_t;

INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }

// Asks for memory that is read, or written, a little later: by itself a processor begins anew at each page, and it sees
// no pattern in writing to several rows by turns.
constexpr i64 AHEAD = 4096;  // bytes
template <class T> INLINE void ask_to_read_ahead(const T *at, i64 bytes = AHEAD) {
  __builtin_prefetch(reinterpret_cast<const char *>(at) + bytes);
}
template <class T> INLINE void ask_to_write_ahead(T *at) { __builtin_prefetch(reinterpret_cast<char *>(at) + AHEAD, 1); }

}  // namespace ndpool
