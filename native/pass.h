// A pass: one axis replaced by its outputs. This file says what a pass is given, and how states lie in memory; how it
// is done is in `fold.h`.
#pragma once
#include "kernels.h"
#include "law.h"
#include "rows.h"

namespace ndpool {
namespace {

// States in memory: an array per plane, read (Source) or written (Sink).
template <class T, int PLANES> struct Source {
  const T *at[PLANES];
  Source operator+(i64 n) const {
    Source s;
    for (int i = 0; i < PLANES; i++) s.at[i] = at[i] + n;
    return s;
  }
};
template <class T, int PLANES> struct Sink {
  T *at[PLANES];
  Sink operator+(i64 n) const {
    Sink s;
    for (int i = 0; i < PLANES; i++) s.at[i] = at[i] + n;
    return s;
  }
  operator Source<T, PLANES>() const {
    Source<T, PLANES> s;
    for (int i = 0; i < PLANES; i++) s.at[i] = at[i];
    return s;
  }
};

// Which planes are read, as bits; the others are the law's constants. The first pass may leave constants unread.
template <class Law> constexpr unsigned ALL = (1u << Law::planes) - 1;
template <class Law> constexpr unsigned FIRST = Law::leaves_constants_unread ? Law::tap_planes : ALL<Law>;

template <class Law, unsigned READ, class X, int STRIDE = 1, class S>
INLINE State<X, Law::planes> load(const Source<S, Law::planes> &from, i64 at) {
  State<X, Law::planes> s;
  for (int i = 0; i < Law::planes; i++)
    s.at[i] = READ >> i & 1 ? load_stored<X, STRIDE>(from.at[i] + at) : splat<X>(Law::constant[i]);
  return s;
}
template <class Law, unsigned READ, class X>
INLINE State<X, Law::planes> load(const Sink<typename Law::T, Law::planes> &from, i64 at) {
  return load<Law, READ, X>(Source<typename Law::T, Law::planes>(from), at);
}
template <class Law, class X>
INLINE void save(const Sink<typename Law::T, Law::planes> &to, i64 at, const State<X, Law::planes> &s) {
  for (int i = 0; i < Law::planes; i++) save<X>(to.at[i] + at, s.at[i]);
}

// The input is [positions][inside] and the result [outputs][inside]: `inside` counts the elements inside the axis. So
// the outer axes of a tile merge whole rows, and its last axis merges shifted copies of itself, in the same flat loops.
// Stored: the type of the elements that are read, which a first pass may convert as it goes.
template <class L, unsigned READS, class Stored = typename L::T> struct Pass {
  using Law = L;
  using T = typename Law::T;
  using I = Int<T>;  // the index of a winner
  using From = Source<Stored, Law::planes>;
  using To = Sink<T, Law::planes>;
  static constexpr int PLANES = Law::planes;
  static constexpr unsigned READ = READS;
  static constexpr bool LIFTS = Law::lifts && !std::is_same_v<Stored, T>;  // taps as they are stored
  static constexpr bool UNROLLS_ROWS = Law::unrolls_small_windows && READ == FIRST<Law>;

  const Law &law;
  const Axis &axis;
  i64 begin, end;                                   // the outputs wanted
  i64 first_held = 0, held;                         // the positions that are in memory
  i64 inside = 1, pitch = 1;                        // elements inside the axis; from one position to the next
  i64 tap_step;                                     // what the next tap adds to a winner's index
  i64 inputs = 1, input_step = 0, output_step = 0;  // how many such inputs, how far apart they and their results lie
  To scratch{};                                     // `scratch_size` (fold.h) elements per plane
  T *phase_row = nullptr;  // as many elements per plane as outputs are wanted, if there are phases
  T divisor = 1;           // of the results, if the law divides
  i64 ahead = 0;           // bytes from what is read to what memory is asked for; 0: what is read is in the caches

  i64 wanted() const { return end - begin; }

  // Whether the windows of all inputs lie as evenly as those of one do: then they are windows of one long axis.
  bool is_one_axis() const {
    return inputs > 1 && axis.tiles() && begin == 0 && end == axis.outputs && !axis.lines &&
           input_step == axis.size * pitch && output_step == axis.outputs * inside;
  }
  Axis one_axis() const {
    Axis a = axis;
    a.size *= inputs, a.highest = a.size, a.outputs *= inputs, a.whole_to = a.outputs;
    return a;
  }
  // The same pass over that axis.
  Pass over(const Axis &all) const {
    return {.law = law,
            .axis = all,
            .begin = 0,
            .end = all.outputs,
            .held = all.size,
            .inside = inside,
            .pitch = pitch,
            .tap_step = tap_step,
            .scratch = scratch,
            .divisor = divisor,
            .ahead = ahead};
  }

  template <class X, int STRIDE> INLINE State<X, PLANES> load_at(From from, i64 at) const {
    auto s = load<Law, READ, X, STRIDE>(from, at);
    if constexpr (LIFTS) return law.lift(s.at[0]);
    return s;
  }
  template <class X> INLINE State<X, PLANES> load_tap(From from, i64 at, i64 tap, I bias) const {
    auto s = load<Law, READ, X>(from, at);
    law.shift_index(s, I(bias + I(tap) * I(tap_step)));
    return s;
  }

  template <class X> INLINE State<X, PLANES> result(State<X, PLANES> s) const {
    if constexpr (Law::divides)
      if (divisor != 1) s.at[0] = s.at[0] / divisor;
    return s;
  }
  template <class X> INLINE void save_result(const To &to, i64 at, const State<X, PLANES> &s) const {
    save<Law, X>(to, at, result(s));
  }

  // n zeros as the result of each input: for windows that read nothing
  void clear(To to, i64 n) const {
    for (i64 i = 0; i < inputs; i++, to = to + output_step)
      for (int plane = 0; plane < PLANES; plane++) std::memset(to.at[plane], 0, size_t(n) * sizeof(T));
  }
};

}  // namespace
}  // namespace ndpool
