// Folding one axis by a law: which way a pass goes. The order of merges is a function of the window alone, so threads,
// bands, batches and layouts change no bit.
//
//   fold_taps.h     short windows: tap by tap, vectors of neighbouring outputs
//   fold_rows.h     small windows over whole rows, and two axes at once: the same, written out
//   fold_lines.h    long windows that hardly overlap: many taps side by side
//   fold_blocks.h   long windows that overlap: blocks folded from both ends
//   repeat.h        readers of windows that tile: one each, so nothing is folded
//
// Where rows are folded better as columns they are transposed first, and where windows repeat only every few outputs
// (the phases of an axis of readers) each phase is a row of its own.
#pragma once
#include "fold_blocks.h"
#include "fold_lines.h"
#include "fold_rows.h"
#include "repeat.h"

namespace ndpool {
namespace {

// Whether inputs that lie side by side are transposed: every one is a row, and enough of them fill a vector.
template <class T> bool transposes(const Axis &axis, i64 inside, i64 inputs) {
  return inside == 1 && (axis.as_columns || axis.blocks) && inputs >= LANES<Vec<T>>;
}

// Elements of scratch per plane that a pass over `outputs` of an axis needs, for `inputs` inputs of `held` positions
// with `inside` elements inside.
template <class Law> i64 scratch_size(const Axis &axis, i64 outputs, i64 held, i64 inside, i64 inputs) {
  if (axis.lines) return inside * Side<Law>::scratch_rows(axis.most_taps);
  if (transposes<typename Law::T>(axis, inside, inputs)) return COLUMN<Law> * (axis.most_taps + held + outputs);
  return axis.blocks ? (inside < COLUMN<Law> ? inside : COLUMN<Law>)*axis.most_taps : 0;
}

// One output of every input.
template <class P> void fold_window(const P &p, typename P::To to, typename P::From from, i64 o) {
  using I = typename P::I;
  Clipped w = p.axis.at(o);
  if (w.length == 0) return p.clear(to, p.inside);
  typename P::From first = from + (w.first - p.first_held) * p.pitch;
  I step = I(p.tap_step), bias = I(I(w.skipped) * step);
  if constexpr (P::Law::folds_lines)
    if (p.axis.lines) return fold_lines(p, to, first, w.length, bias);
  slide<1>(p, to, first, p.inside, 1,
           Taps<I>{.count = w.length, .gap = p.axis.step * p.pitch, .bias = bias, .step = step});
}

// Outputs [a, b), one after another. Where so many have the window of the one before that they fill some vectors, they
// are copies of it.
template <class P> void fold_each(const P &p, typename P::To to, typename P::From from, i64 a, i64 b) {
  constexpr i64 COPIED = 128;
  for (i64 o = a, until; o < b; o = until) {
    typename P::To here = to + (o - p.begin) * p.inside;
    fold_window(p, here, from, o);
    until = least(b, p.axis.same_until(o));
    if (P::Law::cheap_merge && (until - o) * p.inside < COPIED) until = o + 1;
    for (i64 i = 0; until > o + 1 && i < p.inputs; i++, here = here + p.output_step)
      for (auto *plane : here.at) spread(plane, p.inside, (until - o) * p.inside);
  }
}

// Outputs [a, b), whose windows lie alike: one row of outputs; or of one input, as many inputs as there are outputs.
template <class P> void fold_alike(const P &p, typename P::To to, typename P::From from, i64 a, i64 b) {
  using I = typename P::I;
  Clipped w = p.axis.at(a);
  I step = I(p.tap_step);
  Taps<I> taps{.count = w.length, .gap = p.axis.step * p.pitch, .bias = I(I(w.skipped) * step), .step = step};
  typename P::To first = to + (a - p.begin) * p.inside;
  from = from + (w.first - p.first_held) * p.pitch;
  i64 move = p.axis.stride * p.pitch;
  if (p.inside == 1) return slide_any(p, first, from, b - a, move, taps);
  if (move == p.inside) return slide_any(p, first, from, (b - a) * p.inside, 1, taps);
  P each = p;
  each.inputs = b - a, each.input_step = move, each.output_step = p.inside;
  slide_any(each, first, from, p.inside, 1, taps);
}

// Outputs [a, b) of one row, where windows repeat every few outputs (the transpose of a stride): each phase is a row of
// its own, then the phases are interleaved.
template <class P> void fold_phases(const P &p, typename P::To to, typename P::From from, i64 a, i64 b) {
  using T = typename P::T;
  i64 phases = p.axis.phases, whole_from = a, whole_to = b;
  a = (a + phases - 1) / phases * phases, b = b / phases * phases;
  if (a >= b) a = b = whole_to;
  for (i64 o = whole_from; o < a; o++) fold_window(p, to + (o - p.begin), from, o);
  for (i64 o = b; o < whole_to; o++) fold_window(p, to + (o - p.begin), from, o);
  i64 n = (b - a) / phases;
  if (n == 0) return;
  typename P::To room;
  for (int i = 0; i < P::PLANES; i++) room.at[i] = p.phase_row + i * p.wanted();
  for (i64 r = 0; r < phases; r++) {
    Clipped w = p.axis.at(a + r);
    if (w.length == 0)
      p.clear(room + r * n, n);
    else
      slide<1>(p, room + r * n, from + (w.first - p.first_held), n, 1,
               Taps<typename P::I>{.count = w.length, .gap = p.axis.step});
  }
  for (int i = 0; i < P::PLANES; i++) {
    T *out = to.at[i] + (a - p.begin);
    const T *in = room.at[i];
    if (phases == 2)
      each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        interleave<X>(out + 2 * j, load<X>(in + j), load<X>(in + n + j));
      });
    else
      for (i64 q = 0; q < n; q++)
        for (i64 r = 0; r < phases; r++) out[q * phases + r] = in[r * n + q];
  }
}

// Output by output. What is small is read of all inputs before the next output is made; of larger inputs, one is done
// after another, so that memory is read from end to end.
template <class P> void window_by_window(const P &p, typename P::To to, typename P::From from) {
  constexpr i64 LARGE = 2048 / sizeof(typename P::T);
  const Axis &axis = p.axis;
  if (p.inputs > 1 && p.input_step >= LARGE && axis.outputs > 1 && !axis.lines) {
    P one = p;
    one.inputs = 1;
    for (i64 i = 0; i < p.inputs; i++) window_by_window(one, to + i * p.output_step, from + i * p.input_step);
    return;
  }
  auto clamp = [&](i64 o) { return o < p.begin ? p.begin : o > p.end ? p.end : o; };
  i64 a = clamp(axis.whole_from), b = clamp(axis.whole_to);
  bool alike = axis.phases == 1 ? p.inside == 1 || (axis.stride == 1 && p.pitch == p.inside) || p.inputs == 1
                                : p.inside == 1 && p.wanted() >= PHASED_FROM && axis.phases <= PHASED_TO;
  if (!alike || a >= b || axis.lines) a = b = p.end;
  fold_each(p, to, from, p.begin, a);
  if (a < b && axis.phases == 1) fold_alike(p, to, from, a, b);
  if constexpr (P::Law::folds_readers)
    if (a < b && axis.phases > 1) fold_phases(p, to, from, a, b);
  fold_each(p, to, from, b, p.end);
}

template <class P> Repetition repetition(const P &p) {
  return {p.axis, p.begin, p.end, p.first_held, p.held, p.inside, p.inputs, p.input_step, p.output_step};
}

template <class P> void fold_one_input(const P &p, typename P::To to, typename P::From from) {
  p.axis.blocks ? fold_blocks(p, to, from) : window_by_window(p, to, from);
}

// Rows that lie side by side are columns once they are transposed; the last of them perhaps twice.
template <class P> void fold_transposed(const P &p, typename P::To to, typename P::From from) {
  using Law = typename P::Law;
  using T = typename P::T;
  i64 many;
  typename P::To in = p.scratch + COLUMN<Law> * p.axis.most_taps, out = in + COLUMN<Law> * p.held;
  for (i64 row = 0; row < p.inputs; row += many) {
    many = row + COLUMN<Law> <= p.inputs ? COLUMN<Law> : LANES<Vec<T>>;
    if (row + many > p.inputs) row = p.inputs - many;
    for (int i = 0; i < P::PLANES; i++)
      if (P::READ >> i & 1) transpose<T>(from.at[i] + row * p.input_step, many, p.held, p.input_step, in.at[i], many);
    P columns = p;
    columns.inside = columns.pitch = many, columns.inputs = 1;
    fold_one_input(columns, out, in);
    for (int i = 0; i < P::PLANES; i++)
      transpose<T>(out.at[i], p.wanted(), many, many, to.at[i] + row * p.output_step, p.output_step);
  }
}

template <class P> void fold_axis(const P &p, typename P::To to, typename P::From from) {
  using T = typename P::T;
  const Axis &axis = p.axis;
  if (p.is_one_axis()) {
    Axis all = p.one_axis();
    return fold_axis(p.over(all), to, from);
  }
  bool has_phases = axis.phases > 1 && axis.phases <= PHASED_TO && p.inside == 1 && p.wanted() >= PHASED_FROM;
  if constexpr (P::Law::folds_readers)
    if (Repetition r = repetition(p); p.pitch == p.inside && p.divisor == 1 && r.possible()) {
      for (int plane = 0; plane < P::PLANES; plane++) r.run(to.at[plane], from.at[plane]);
      return;
    }
  if (transposes<T>(axis, p.inside, p.inputs))
    fold_transposed(p, to, from);
  else if (has_phases || axis.blocks) {  // these need scratch: one input at a time
    P one = p;
    one.inputs = 1;
    for (i64 i = 0; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step)
      fold_one_input(one, to, from);
  } else if (has_whole_rows(p)) {
    if constexpr (P::UNROLLS_ROWS) fold_whole_rows(p, to, from);
  } else
    window_by_window(p, to, from);
}

}  // namespace
}  // namespace ndpool
