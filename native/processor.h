// Which levels of x86-64 this processor has, as the psABI defines them. Feature by feature: compilers have names for
// the levels, and for some features, only since their latest releases.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>

namespace ndpool {

inline bool has_x86_64_level(int level) {
  constexpr unsigned CMPXCHG16B = 1u << 13, MOVBE = 1u << 22, F16C = 1u << 29;  // of leaf 1
  constexpr unsigned LAHF = 1u << 0, LZCNT = 1u << 5;                           // of leaf 0x80000001
  unsigned a, b, d, basic = 0, more = 0;
  __get_cpuid(1, &a, &b, &basic, &d);
  __get_cpuid(0x80000001, &a, &b, &more, &d);
  __builtin_cpu_init();
#define HAS(feature) (__builtin_cpu_supports(feature) != 0)  // asks for what the system keeps of registers, too
  bool v2 = HAS("sse3") && HAS("ssse3") && HAS("sse4.1") && HAS("sse4.2") && HAS("popcnt") && (basic & CMPXCHG16B) &&
            (more & LAHF);
  bool v3 = v2 && HAS("avx") && HAS("avx2") && HAS("bmi") && HAS("bmi2") && HAS("fma") && (basic & F16C) &&
            (basic & MOVBE) && (more & LZCNT);
  bool v4 = v3 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512cd") && HAS("avx512dq") && HAS("avx512vl");
#undef HAS
  return level == 2 ? v2 : level == 3 ? v3 : v4;
}

}  // namespace ndpool
#endif
