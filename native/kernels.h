// What module.cpp knows of the kernels: one table for each instruction set they were compiled for.
#pragma once

namespace ndpool {

struct Kernels {
  const char *isa;
};

extern const Kernels kernels_v2, kernels_v3, kernels_v4, kernels_generic;

} // namespace ndpool
