// What every file needs.
#pragma once
#include <cstdint>

#define INLINE inline __attribute__((always_inline))

namespace ndpool {
using i64 = int64_t;
}
