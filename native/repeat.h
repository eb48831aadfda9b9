// Repetition, the transpose of windows that lie one after another: each state stands for `times` positions. What is left
// over after the last window is read by nobody. Nothing is computed, so elements are moved as they are stored.
#pragma once
#include <cstring>

#include "axis.h"
#include "vec.h"

namespace ndpool {
namespace {

// n elements to `outputs`: each as often as `times` says
template <class T> void repeat_elements(T *to, const T *from, i64 n, i64 times, i64 outputs) {
  using X = Vec<T>;
  constexpr i64 N = LANES<X>;
  i64 whole = least(n, outputs / times), i = 0;
  if (times == 2)
    for (; i + N <= whole; i += N) interleave<X>(to + 2 * i, load<X>(from + i), load<X>(from + i));
  else if (times >= N)
    for (; i < whole; i++)
      each_vector<T>(times, [&](auto kind, i64 j) INLINE_LAMBDA {
        save<decltype(kind)>(to + i * times + j, splat<decltype(kind)>(from[i]));
      });
  else  // a whole vector of each; the next one goes over what is too much
    for (; i * times + N <= outputs && i < whole; i++) save<X>(to + i * times, splat<X>(from[i]));
  for (i64 at = i * times; at < outputs; at++) to[at] = at / times < n ? from[at / times] : T(0);
}

// rows of n elements to rows [begin, end)
template <class T> void repeat_rows(T *to, const T *from, i64 rows, i64 n, i64 times, i64 begin, i64 end, i64 held) {
  constexpr i64 CACHED = 4096 / sizeof(T);  // elements that are copied at once
  for (i64 at = begin; at < end;) {
    i64 row = at / times, until = row < rows ? least(end, (row + 1) * times) : end, all = (until - at) * n;
    T *first = to + (at - begin) * n;
    if (row < rows)
      std::memcpy(first, from + (row - held) * n, size_t(n) * sizeof(T));
    else
      std::memset(first, 0, size_t(n) * sizeof(T));
    for (i64 done = n, many; done < all; done += many) {
      many = least(all - done, done <= CACHED ? done : most(CACHED / n, 1) * n);
      std::memcpy(first + done, first, size_t(many) * sizeof(T));
    }
    at = until;
  }
}

// One such pass: of `held` positions of an axis to its outputs [begin, end).
struct Repetition {
  const Axis &axis;
  i64 begin, end, first_held, held;
  i64 inside, inputs, input_step, output_step;

  // Whether there is one, with rows side by side.
  bool possible() const {
    bool whole = begin == 0 && end == axis.outputs && first_held == 0 && held == axis.size;
    return axis.repeats() > 0 && (inside > 1 || whole);
  }

  template <class T> void run(T *to, const T *from) const {
    i64 n = held, outputs = axis.outputs, many = inputs, times = axis.repeats();
    if (outputs == n * times && input_step == n && output_step == outputs)
      n *= many, outputs *= many, many = 1;  // one long row
    for (i64 i = 0; i < many; i++, to += output_step, from += input_step)
      if (inside == 1)
        repeat_elements(to, from, n, times, outputs);
      else
        repeat_rows(to, from, axis.size, inside, times, begin, end, first_held);
  }
};

}  // namespace
}  // namespace ndpool
