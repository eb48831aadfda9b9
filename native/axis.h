// An axis: which positions each output reads. Everything is a formula of a few numbers, so a plan of an axis of any
// length is made at once and takes no memory. Three kinds of axes are all there are:
//
//   sliding   start(o) = origin + o stride, always as many taps
//   bins      start(o) = floor(o size / outputs), up to ceil((o + 1) size / outputs): adaptive pooling
//   readers   the outputs that read a position, of an axis that slides. (The readers of bins are bins again, with sizes
//             and outputs exchanged.)
//
// An axis may be a part of another: some of its outputs, over the positions that they lie between. It then folds as
// that one does, so that a part of an array is pooled with the bits of the whole.
//
// start and taps are those of the whole window; what lies outside the input is then clipped away. Functions are forced
// inline or in an unnamed namespace: each instruction set compiles its own, and the linker must find none to share.
// Those that divide are marked cold, so that loops which ask for windows keep their registers.
#pragma once
#include "base.h"

namespace ndpool {

INLINE i64 floor_div(i64 a, i64 b) { return b == 1 ? a : a >= 0 ? a / b : -((b - 1 - a) / b); }
INLINE i64 ceil_div(i64 a, i64 b) { return -floor_div(-a, b); }

// What one output covers, and what is left of it inside the input: `length` taps from `first` on, after `skipped` ones.
struct Cover {
  i64 start, taps;
};
struct Clipped {
  i64 start, first = 0, length = 0, skipped = 0;
};

enum class Windows : int32_t { sliding, bins, readers };

struct Axis {
  Windows windows;
  i64 size, outputs, step;  // step: the distance between taps
  i64 origin, most_taps;    // sliding and readers: where output 0 starts; the taps of the largest window
  i64 before, after;        // positions that count beyond either end, as zeros
  const Cover *listed;      // what each output covers, in a list, if there are few of them; else null
  i64 first_output = 0, first_position = 0;  // what output 0 and position 0 are called in the axis this is a part of,
  i64 of_outputs, of_size;                   // and how many of each that has
  // readers: what they read is a sliding axis with this stride, step and last tap. Cover k and k + period of it read a
  // position at once, and `inverse` finds the first of them.
  i64 read_stride, read_step, read_last, common, period, inverse;

  // what follows from these
  i64 longest;          // at least the most taps inside the input of any output
  i64 lowest, highest;  // all that is read lies in [lowest, highest)
  // Between `whole_from` and `whole_to` windows repeat: output q * phases + r reads the same number of positions for
  // every q, all inside the input, and `stride` further on for the next q.
  i64 phases, stride, whole_from, whole_to;
  bool slides;      // start(o) = origin + o * stride
  bool blocks;      // long windows that overlap: merge the ends of blocks rather than tap by tap
  bool lines;       // long windows that hardly do: merge many taps side by side
  bool shrinks;     // windows that lie far apart: one output takes the place of many positions
  bool as_columns;  // rows are better folded as columns: many of their outputs are unlike their neighbours
  bool gaps;        // some output may read nothing

  bool is_part() const { return size != of_size || outputs != of_outputs; }

  // Whether windows lie one after another, from the first position to the last.
  bool tiles() const {
    return slides && origin == 0 && stride * outputs == size && (most_taps - 1) * step < stride && whole_from == 0 &&
           whole_to == outputs;
  }

  // If this is an axis of readers, and windows lay one after another: the positions of each, which it alone reads.
  i64 repeats() const {
    if (size == 1 && !gaps) return outputs;
    bool tiled = windows == Windows::readers && origin == 0 && read_step == 1 && read_last + 1 == read_stride;
    return tiled && read_stride > 1 ? read_stride : 0;
  }

  INLINE Cover covers(i64 o) const;
  INLINE i64 start(i64 o) const { return covers(o).start; }

  INLINE Clipped at(i64 o) const;
  INLINE i64 first(i64 o) const { return at(o).first; }
  INLINE i64 length(i64 o) const { return at(o).length; }
  INLINE i64 same_until(i64 o) const;  // the next output whose window may be another: many readers are alike
  INLINE i64 count(i64 o) const;  // the positions that an output counts: it reads them, or they are zeros
};

namespace {

// floor(o size / outputs) up to ceil((o + 1) size / outputs)
[[gnu::cold, gnu::noinline]] Cover bin(const Axis &a, i64 o) {
  o += a.first_output;
  i64 first = o * a.of_size / a.of_outputs, stop = ((o + 1) * a.of_size + a.of_outputs - 1) / a.of_outputs;
  return {first - a.first_position, stop - first};
}

// Output o of the sliding axis reads position i with tap k if origin + o read_stride + k read_step = i. Those k are
// `period` apart; the largest of them belongs to the first such output.
[[gnu::cold, gnu::noinline]] Cover readers(const Axis &a, i64 i) {
  i64 ahead = i - a.origin, k = 0;
  if (a.common > 1 && ahead % a.common != 0) return {0, 0};
  if (a.period > 1) {
    i64 rest = ahead / a.common % a.period;
    k = (rest < 0 ? rest + a.period : rest) * a.inverse % a.period;
  }
  if (k > a.read_last) return {0, 0};
  i64 more = (a.read_last - k) / a.period;
  return {(ahead - (k + more * a.period) * a.read_step) / a.read_stride, more + 1};
}

// Neighbouring positions have the same readers until one more window begins, or one of them ends.
[[gnu::cold, gnu::noinline]] i64 same_readers_until(const Axis &a, i64 i) {
  i64 ahead = i - a.origin, begins = (floor_div(ahead, a.read_stride) + 1) * a.read_stride,
      ends = ceil_div(ahead - a.read_last, a.read_stride) * a.read_stride + a.read_last + 1;
  return least(begins, ends) + a.origin;
}
[[gnu::cold, gnu::noinline]] i64 same_bin_until(const Axis &a, i64 o) {
  Cover c = bin(a, o);
  i64 start = c.start + a.first_position, stop = start + c.taps, begins = ceil_div((start + 1) * a.of_outputs, a.of_size),
      ends = stop * a.of_outputs / a.of_size;
  return least(begins, ends) - a.first_output;
}

// What is left of a window inside [low, high) if taps lie apart.
[[gnu::cold, gnu::noinline]] Clipped clip_apart(Cover c, i64 step, i64 low, i64 high) {
  i64 skipped = c.start < low ? ceil_div(low - c.start, step) : 0;
  i64 end = c.start + (c.taps - 1) * step < high ? c.taps : ceil_div(high - c.start, step);  // taps below `high`
  if (end <= skipped) return {.start = c.start};
  return {.start = c.start, .first = c.start + skipped * step, .length = end - skipped, .skipped = skipped};
}

INLINE Clipped clip(Cover c, i64 step, i64 low, i64 high) {
  if (step != 1) return clip_apart(c, step, low, high);
  i64 first = c.start < low ? low : c.start, end = c.start + c.taps < high ? c.start + c.taps : high;
  if (first >= end) return {.start = c.start};
  return {.start = c.start, .first = first, .length = end - first, .skipped = first - c.start};
}

}  // namespace

INLINE Cover Axis::covers(i64 o) const {
  if (windows == Windows::sliding) return {origin + o * stride, most_taps};
  if (listed) return listed[o];
  return windows == Windows::bins ? bin(*this, o) : readers(*this, o);
}

INLINE i64 Axis::same_until(i64 o) const {
  constexpr i64 SELDOM = 4;  // a stride from which on neighbours are worth comparing
  if (windows == Windows::bins && of_outputs >= SELDOM * of_size) return same_bin_until(*this, o);
  if (windows == Windows::readers && read_step == 1 && read_stride >= SELDOM) return same_readers_until(*this, o);
  return o + 1;
}
INLINE Clipped Axis::at(i64 o) const { return clip(covers(o), step, 0, size); }
INLINE i64 Axis::count(i64 o) const { return clip(covers(o), step, -before, size + after).length; }

}  // namespace ndpool
