// What every file needs.
#pragma once
#include <cstdint>

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

namespace ndpool {
using i64 = int64_t;

INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }
}  // namespace ndpool
