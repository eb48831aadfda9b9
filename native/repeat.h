// Repetition, the transpose of windows that lie one after another: each state stands for `times` positions. What is left
// over after the last window is read by nobody. Nothing is computed, so elements are moved as they are stored.
#pragma once
#include <cstring>

#include "axis.h"
#include "vec.h"

namespace ndpool {
namespace {

template <class T> void fill(T *to, T value, i64 n) {
  each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA { save<decltype(kind)>(to + j, splat<decltype(kind)>(value)); });
}

// the first n elements over all of them
template <class T> void spread(T *to, i64 n, i64 all) {
  constexpr i64 CACHED = 4096 / sizeof(T);  // elements that are copied at once
  if (n == 1) return fill(to + 1, *to, all - 1);
  for (i64 done = n, many; done < all; done += many) {
    many = least(all - done, done <= CACHED ? done : most(CACHED / n, 1) * n);
    std::memcpy(to + done, to, size_t(many) * sizeof(T));
  }
}

// n elements to `outputs`: each as often as `times` says
template <class T> void repeat_elements(T *to, const T *from, i64 n, i64 times, i64 outputs) {
  using X = Vec<T>;
  constexpr i64 N = LANES<X>;
  i64 whole = least(n, outputs / times), i = 0;
  if (times == 2) {
    each_vector<T, true>(whole, [&](auto kind, i64 j) INLINE_LAMBDA {
      using Y = decltype(kind);
      interleave<Y>(to + 2 * j, load<Y>(from + j), load<Y>(from + j));
    });
    i = whole;
  }
  if (times >= N)
    for (; i < whole; i++) fill(to + i * times, from[i], times);
  else  // a whole vector of each; the next one goes over what is too much
    for (; i * times + N <= outputs && i < whole; i++) save<X>(to + i * times, splat<X>(from[i]));
  for (i64 at = i * times, many; at < outputs; at += many, i++) {
    many = least(times, outputs - at);
    if (i >= n) many = outputs - at;
    fill(to + at, i < n ? from[i] : T(0), many);
  }
}

// rows of n elements to rows [begin, end)
template <class T> void repeat_rows(T *to, const T *from, i64 rows, i64 n, i64 times, i64 begin, i64 end, i64 held) {
  constexpr i64 SHORT = 1024 / sizeof(T);  // a call takes as long as copying that much
  for (i64 at = begin; at < end;) {
    i64 row = at / times, until = row < rows ? least(end, (row + 1) * times) : end, all = (until - at) * n;
    T *first = to + (at - begin) * n;
    const T *given = from + (row - held) * n;
    if (row >= rows)
      std::memset(first, 0, size_t(all) * sizeof(T));
    else if (n <= SHORT)
      each_vector<T, true>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        X x = load<X>(given + j);
        for (i64 to_row = 0; to_row < all; to_row += n) save<X>(first + to_row + j, x);
      });
    else
      std::memcpy(first, given, size_t(n) * sizeof(T)), spread(first, n, all);
    at = until;
  }
}

// One such pass: of `held` positions of an axis to its outputs [begin, end).
struct Repetition {
  const Axis &axis;
  i64 begin, end, first_held, held;
  i64 inside, inputs, input_step, output_step;

  bool possible() const { return axis.repeats() > 0; }

  template <class T> void run(T *to, const T *from) const {
    i64 n = held, outputs = end - begin, many = inputs, times = axis.repeats();
    if (outputs == n * times && input_step == n && output_step == outputs)
      n *= many, outputs *= many, many = 1;  // one long row
    for (i64 i = 0; i < many; i++, to += output_step, from += input_step)
      if (inside == 1)
        repeat_band(to, from, n, outputs);
      else
        repeat_rows(to, from, axis.size, inside, times, begin, end, first_held);
  }

 private:
  // A band may begin within a window.
  template <class T> void repeat_band(T *to, const T *from, i64 n, i64 outputs) const {
    i64 times = axis.repeats(), first = begin / times, skipped = begin % times;
    from += first - first_held, n -= first - first_held;
    if (skipped > 0) {
      i64 rest = least(times - skipped, outputs);
      fill(to, n > 0 ? from[0] : T(0), rest);
      from++, n--, to += rest, outputs -= rest;
    }
    repeat_elements(to, from, most(n, 0), times, outputs);
  }
};

}  // namespace
}  // namespace ndpool
