// Max-unpooling: each value goes to its place, everything else is 0. Memory is what it waits for, so one build serves
// every instruction set.
#pragma once
#include "kernels.h"

namespace ndpool {

// What stays where values meet: the last, their sum, or (of truth values) whether any is set.
enum class Meet : int32_t { last, sum, any };

// Rows of `columns` values and places become rows of `size` elements. All are dense. Place -1 puts its value nowhere.
struct Unpool {
  Type type;
  Meet meet;
  bool long_places;  // int64, not int32
  const char *values, *places;
  char *out;
  i64 columns, size;

  i64 rows_per_unit() const { return most(1, (256 << 10) / most(1, size * BYTES[int(type)] + columns * 8)); }
};

// The worst comes last. Outside: a place that is neither -1 nor one of the `size`; nothing is written there.
enum class Put : int32_t { done, overflow, no_memory, outside };

// Rows from `row` up to, not including, `end`.
Put unpool(const Unpool &, i64 row, i64 end);

}  // namespace ndpool
