// Making a plan: from what each output reads to every decision a run needs. Decisions about the order of merges look at
// the window alone; decisions about bands look at sizes, and change no bit.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels.h"

namespace ndpool {

constexpr i64 UNIT = 32768;          // elements of a unit of work: its scratch stays in the caches
constexpr i64 DIRECT = 8;            // windows up to that many taps are never worth cutting into blocks
constexpr i64 EDGES = 8;             // rows of which more than one output in so many is at an end are better columns
constexpr i64 LINE = 16;             // windows from that many taps on are worth merging side by side
constexpr i64 SHRINKS = 4;           // strides from that many on make so few outputs that they are better folded last
constexpr i64 FEW_OUTPUTS = 256;     // so many may be looked at one by one
constexpr i64 MANY_LINES = 96;       // so many lines, several vectors of them, go to a unit that only merges lines

// An axis with what follows from its formula, all of it without looking at each output.
struct OwnedAxis {
  Axis axis{};
  std::vector<Cover> list;

  static OwnedAxis sliding(i64 size, i64 outputs, i64 stride, i64 taps, i64 step, i64 origin, i64 before, i64 after) {
    Axis a{};
    a.size = a.of_size = size, a.outputs = a.of_outputs = outputs, a.step = step, a.origin = origin;
    a.before = before, a.after = after, a.most_taps = taps, a.stride = outputs > 1 ? stride : 1;
    return sliding(a);
  }

  // Bins of which each starts as much after the one before are a sliding axis.
  static OwnedAxis bins(i64 size, i64 outputs) {
    i64 least = size / outputs, over = size % outputs;
    if (least > 0 && over <= 1) return sliding(size, outputs, least, least + over, 1, 0, 0, 0);
    Axis a{};
    a.size = a.of_size = size, a.outputs = a.of_outputs = outputs, a.step = 1;
    a.most_taps = least + (over > std::gcd(over, outputs) ? 2 : 1);
    return bins(a);
  }

  // `outputs` of an axis, over `size` of its positions, between which lies all that they read.
  static OwnedAxis part(const Axis &of, i64 first_output, i64 outputs, i64 first_position, i64 size) {
    Axis a{};
    a.size = size, a.of_size = of.size, a.outputs = outputs, a.of_outputs = of.outputs;
    a.first_output = first_output, a.first_position = first_position;
    a.step = of.step, a.stride = of.stride, a.most_taps = of.most_taps;
    a.origin = of.origin + first_output * of.stride - first_position;
    if (!of.slides) return bins(a);
    a.before = of.before + first_position, a.after = of.after + of.size - size - first_position;
    return sliding(a);
  }

  // Which outputs read each position.
  static OwnedAxis readers(const Axis &of) {
    if (!of.slides) {
      OwnedAxis all = bins(of.of_outputs, of.of_size);
      if (!of.is_part()) return all;
      return part(all.axis, of.first_position, of.size, of.first_output, of.outputs);
    }
    OwnedAxis owned;
    Axis &a = owned.axis;
    a.windows = Windows::readers, a.size = of.outputs, a.outputs = of.size, a.origin = of.origin;
    a.of_size = of.of_outputs, a.of_outputs = of.of_size;
    a.first_output = of.first_position, a.first_position = of.first_output;
    a.read_stride = of.stride, a.read_step = of.step, a.read_last = of.most_taps - 1;
    a.common = std::gcd(of.step, of.stride), a.period = of.stride / a.common, a.step = of.step / a.common;
    a.inverse = inverse(a.step, a.period);
    a.phases = of.stride, a.stride = 1;
    a.most_taps = a.read_last / a.period + 1, a.longest = std::min(a.most_taps, ceil_div(a.size, a.step));
    a.lowest = 0, a.highest = a.size;
    a.gaps = of.step > 1 || a.read_last + 1 < a.period || a.length(0) == 0 || a.length(a.outputs - 1) == 0;
    // from the first position that output -1 would not read, up to the first that output `size` would
    owned.set_whole(of.origin - of.stride + a.read_last * of.step + 1, of.origin + a.size * of.stride);
    owned.list_few();
    return owned;
  }

  // How outputs fold, by the window alone (of a part, by that of the whole): it moves on by a stride, or where there is
  // one output, or bins, which overlap by less than they move on, by its taps.
  void decide_forward() { decide(axis.most_taps, axis.slides && axis.of_outputs > 1 ? axis.stride : axis.most_taps); }

  // How the readers of an axis do.
  void decide_back(const Axis &of) {
    bool several = std::min(axis.most_taps, ceil_div(axis.of_size, axis.step)) > 1;
    decide(several && of.slides ? axis.most_taps : 1, 1);
  }

  // Whether all outputs count as much as each other (for certain), and whether some may count positions that they do
  // not read, or nothing at all.
  bool even() const {
    const Axis &a = axis;
    if (a.windows == Windows::bins) return a.of_size % a.of_outputs == std::gcd(a.of_size, a.of_outputs);
    if (a.outputs > FEW_OUTPUTS) return a.count(0) == a.most_taps && a.count(a.outputs - 1) == a.most_taps;
    bool same = true;
    for (i64 o = 1; o < a.outputs; o++) same = same && a.count(o) == a.count(0);
    return same;
  }
  bool padded() const {
    const Axis &a = axis;
    i64 last = a.start(a.outputs - 1) + (a.most_taps - 1) * a.step;
    return (a.before > 0 && a.start(0) < 0) || (a.after > 0 && last >= a.size);
  }
  bool empty() const {
    const Axis &a = axis;
    return a.count(0) == 0 || a.count(a.outputs - 1) == 0 || a.step > a.size + a.before + a.after;
  }

 private:
  // What follows from the numbers of a sliding axis, or of bins, that are given.
  static OwnedAxis sliding(const Axis &given) {
    OwnedAxis owned{.axis = given, .list = {}};
    Axis &a = owned.axis;
    i64 spread = (a.most_taps - 1) * a.step;
    a.windows = Windows::sliding, a.slides = true, a.phases = 1,
    a.longest = std::min(a.most_taps, ceil_div(a.size, a.step));
    a.gaps = a.length(0) == 0 || a.length(a.outputs - 1) == 0 || a.step > a.size;
    a.lowest = std::max<i64>(0, a.origin), a.highest = std::min(a.size, a.start(a.outputs - 1) + spread + 1);
    if (a.lowest >= a.highest) a.lowest = a.highest = 0;
    owned.set_whole(ceil_div(-a.origin, a.stride), floor_div(a.size - 1 - spread - a.origin, a.stride) + 1);
    return owned;
  }

  static OwnedAxis bins(const Axis &given) {
    OwnedAxis owned{.axis = given, .list = {}};
    Axis &a = owned.axis;
    a.windows = Windows::bins, a.phases = 1, a.longest = std::min(a.most_taps, a.size), a.lowest = 0,
    a.highest = a.size;
    owned.find_run();
    owned.list_few();
    return owned;
  }

  // `moves`: positions that the window moves on for the next output
  void decide(i64 taps, i64 moves) {
    axis.blocks = taps > DIRECT && taps - 1 > 2 * moves + 4;  // merges per output: each tap, or each position twice
    axis.lines = !axis.blocks && taps >= LINE && moves > 2;
    axis.shrinks = axis.lines || (!axis.blocks && moves >= SHRINKS);
    i64 unlike = axis.outputs - (axis.whole_to - axis.whole_from);
    bool phased = axis.phases > 2 || (axis.phases == 2 && axis.outputs < PHASED_FROM);
    axis.as_columns = !axis.lines && axis.outputs > 1 && (phased || unlike * EDGES > axis.outputs);
  }

  // Windows repeat from `from` to `to`; where none lies inside the input, one in the middle does by itself.
  void set_whole(i64 from, i64 to) {
    Axis &a = axis;
    i64 middle = a.outputs / 2;
    a.whole_from = std::clamp<i64>(from, 0, a.outputs), a.whole_to = std::clamp<i64>(to, 0, a.outputs);
    if (a.phases == 1 ? a.whole_from < a.whole_to : a.whole_to - a.whole_from > a.phases) return;
    a.whole_from = a.whole_to = middle;
    if (a.phases == 1 && a.length(middle) > 0) a.whole_to++;
  }

  // The run of bins around the middle that are alike, each as far after the one before. Bins move on by m or by m + 1,
  // so where a few bins together move on by as little (or as much) as they can, each of them does.
  void find_run() {
    Axis &a = axis;
    if (a.outputs == 1) return void(a.stride = 1);
    i64 n = a.outputs, middle = n / 2, pair = std::min(middle, n - 2);
    a.stride = bin(a, pair + 1).start - bin(a, pair).start;
    auto even = [&](i64 from, i64 to) { return bin(a, to).start - bin(a, from).start == (to - from) * a.stride; };
    i64 from = pair, to = pair + 1;  // the run is from .. to, both of them in it
    for (i64 hop = n; hop > 0; hop /= 2) {
      while (to + hop < n && even(pair, to + hop)) to += hop;
      while (from - hop >= 0 && even(from - hop, pair)) from -= hop;
    }
    i64 taps = bin(a, from).taps;
    while (to > from && bin(a, to).taps != taps) to--;   // only the last two of a run may be longer or shorter
    while (from < to && bin(a, from).start < 0) from++;  // of a part's readers, those at the ends may lie outside
    while (from < to && bin(a, to).start + taps > a.size) to--;
    if (bin(a, from).start < 0 || bin(a, from).start + taps > a.size) a.stride = 0;
    a.whole_from = from, a.whole_to = to + 1;
    if (a.stride < 1) a.whole_from = a.whole_to = middle;
  }

  // An answer from a list costs less than a division.
  void list_few() {
    if (axis.outputs > FEW_OUTPUTS) return;
    for (i64 o = 0; o < axis.outputs; o++) list.push_back(axis.covers(o));
    axis.listed = list.data();
  }

  // The number whose product with a leaves 1 modulo n (Euclid).
  static i64 inverse(i64 a, i64 n) {
    i64 r0 = n, r1 = a % n, t0 = 0, t1 = 1;
    while (r1 != 0) {
      i64 q = r0 / r1, r = r0 - q * r1, t = t0 - q * t1;
      r0 = r1, r1 = r, t0 = t1, t1 = t;
    }
    return t0 < 0 ? t0 + n : t0;
  }
};

struct OwnedPlan {
  Plan plan{};
  std::vector<OwnedAxis> axes, readers;
  std::vector<Axis> flat_axes, flat_readers;
  std::vector<int> order;  // the caller's axis for each of the plan's: lead, pooled, lanes

  // everything that follows from the axes and the fields that the caller set
  void finish() {
    Plan &p = plan;
    p.rank = int32_t(axes.size());
    p.taps = 1, p.even = true, p.padded = p.empty = p.unread = false;
    for (OwnedAxis &owned : axes) {
      const Axis &a = owned.axis;
      owned.decide_forward();
      p.even = p.even && owned.even(), p.padded = p.padded || owned.padded(), p.empty = p.empty || owned.empty();
      p.taps *= a.most_taps;
      flat_axes.push_back(a);
      OwnedAxis back = OwnedAxis::readers(a);
      back.decide_back(a);
      p.unread = p.unread || back.axis.gaps;
      flat_readers.push_back(back.axis);
      readers.push_back(std::move(back));
    }
    p.readers = flat_readers.data();
    p.axes = flat_axes.data();
    p.residual_bytes = p.taps <= 256 ? 1 : p.taps <= 65536 ? 2 : p.taps <= (i64(1) << 32) ? 4 : 8;
    p.tiles = 1;
    for (int i = 0; i < p.lead; i++) p.tiles *= p.sizes[i];
    std::copy(p.order, p.order + p.rank, p.order_back);
    for (int32_t i = 0; i < p.rank; i++) p.order_in_memory[i] = p.rank - 1 - i;
    if (p.law != Law::max) shrink_last(p.order), shrink_last(p.order_in_memory);
    cut();
  }

  // Where one order of folds is as good as another, axes that shrink much come last, the innermost of them at the very
  // end: whole rows are merged quickly, and few are left.
  void shrink_last(int32_t *order) const {
    auto shrinks = [&](int32_t i) { return plan.axes[i].shrinks; };
    int32_t *end = order + plan.rank;
    std::stable_partition(order, end, [&](int32_t i) { return !shrinks(i); });
    std::reverse(std::find_if(order, end, shrinks), end);
  }

  void cut() {
    Plan &p = plan;
    i64 in = p.lanes, out = p.lanes, tile_in, tile_out;
    for (int i = 1; i < p.rank; i++) in *= p.axes[i].size, out *= p.axes[i].outputs;
    const Axis &a = p.axes[0];
    tile_in = in * a.size, tile_out = out * a.outputs;
    i64 moves = a.outputs > 0 ? std::max<i64>(1, a.size / std::max<i64>(1, a.outputs)) : 1;
    i64 reach = std::max<i64>(1, a.most_taps * a.step);  // positions that two bands may share
    i64 fitting = UNIT / std::max<i64>(1, std::max(in, out / moves)), rows = std::max(fitting, 4 * reach);
    // Going back, a band folds its readers' windows again, or only looks at its readers.
    bool folds = p.law == Law::smooth_max || p.law == Law::lp || (p.law == Law::max && p.ties >= Ties::all);
    i64 tile = std::max<i64>(1, std::max(tile_in, tile_out));
    p.tiles_per_unit = p.tiles_per_unit_back = std::max<i64>(1, UNIT / tile);
    // Lines down to one result need no scratch, and many of them are merged at once.
    bool to_one = p.rank == 1 && p.lanes == 1 && a.lines && a.outputs == 1 && tile <= UNIT / 4;
    if (to_one) p.tiles_per_unit = std::max(p.tiles_per_unit, MANY_LINES);
    p.band = std::clamp<i64>(rows / moves, 1, a.outputs);
    p.pieces = 1;
    bool line = p.rank == 1 && p.lanes == 1 && a.lines && a.step == 1;
    if (line && p.law != Law::mode && p.tiles * a.outputs <= FEW_OUTPUTS)  // a mode has no state for a piece to leave
      while (a.most_taps / p.pieces > 4 * UNIT && p.pieces < MOST_PIECES) p.pieces *= 2;
    p.states_first = folds && p.pieces > 1;
    i64 again = folds && !p.states_first ? reach : std::min(reach, a.outputs);
    p.band_back = std::clamp<i64>(std::max(fitting, 8 * again), 1, a.size);
    p.unit_size = std::min(p.band * moves + reach, a.size) * in / p.pieces, p.unit_size_back = p.band_back * in;
  }
};

}  // namespace ndpool
