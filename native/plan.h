// Making a plan: from what each output reads to every decision a run needs. Decisions about the order of merges look at
// the window alone; decisions about bands look at sizes, and change no bit.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels.h"

namespace ndpool {

constexpr i64 UNIT = 32768;  // elements of a unit of work: its scratch stays in the caches
constexpr i64 DIRECT = 8;    // windows up to that many taps are never worth cutting into blocks
constexpr i64 EDGES = 8;     // rows of which more than one output in so many is at an end are better turned
constexpr i64 LINE = 16;     // windows from that many taps on are worth merging side by side

// The vectors of an axis, by output, one after another: first, length, start, count, taps.
struct OwnedAxis {
  Axis axis{};
  std::vector<i64> vectors;

  void point() {
    axis.first = vectors.data();
    axis.length = axis.first + axis.outputs;
    axis.start = axis.length + axis.outputs;
    axis.count = axis.start + axis.outputs;
    axis.taps = axis.count + axis.outputs;
  }

  // The longest run around the middle in which windows repeat every `phases` outputs.
  void find_runs(i64 phases) {
    Axis &a = axis;
    i64 n = a.outputs, middle = n / 2;
    a.phases = phases, a.stride = 1, a.whole_from = a.whole_to = middle;
    if (n == 0) return;
    if (middle + phases < n)
      a.stride = a.first[middle + phases] - a.first[middle];
    else if (middle - phases >= 0)
      a.stride = a.first[middle] - a.first[middle - phases];
    if (a.stride < 1) return;
    auto alike = [&](i64 o) {  // o and the same phase one further on
      return a.length[o] > 0 && a.length[o] == a.length[o + phases] && a.first[o] + a.stride == a.first[o + phases] &&
             a.first[o] - a.start[o] == a.first[o + phases] - a.start[o + phases];
    };
    i64 from = std::min(middle, n - phases), to = from;  // pairs [from, to) are alike
    if (from < 0) return;
    while (to + phases < n && alike(to)) to++;
    while (from > 0 && alike(from - 1)) from--;
    if (to > from)
      a.whole_from = from, a.whole_to = to + phases;
    else if (phases == 1 && a.length[middle] > 0)
      a.whole_from = middle, a.whole_to = middle + 1;
  }

  void measure() {
    Axis &a = axis;
    a.longest = a.most_taps = 0, a.gaps = false, a.lowest = a.size, a.highest = 0;
    for (i64 o = 0; o < a.outputs; o++) {
      a.longest = std::max(a.longest, a.length[o]), a.most_taps = std::max(a.most_taps, a.taps[o]);
      a.gaps = a.gaps || a.length[o] == 0;
      if (a.length[o] == 0) continue;
      a.lowest = std::min(a.lowest, a.first[o]);
      a.highest = std::max(a.highest, a.first[o] + (a.length[o] - 1) * a.step + 1);
    }
    if (a.lowest >= a.highest) a.lowest = a.highest = 0;
  }

  // `moves`: positions that the window moves on for the next output, as the window alone says it
  void decide(i64 taps, i64 moves) {
    axis.blocks = taps > DIRECT && taps - 1 > 2 * moves + 4;  // merges an output: each tap, or each position twice
    axis.lines = !axis.blocks && taps >= LINE && moves > 2;
    i64 unlike = axis.outputs - (axis.whole_to - axis.whole_from);
    bool phased = axis.phases > 2 || (axis.phases == 2 && axis.outputs < DEALT);
    axis.turns = !axis.lines && axis.outputs > 1 && (phased || unlike * EDGES > axis.outputs);
  }
};

// Which outputs read each position. The readers of a position are evenly spaced, so they are an axis again; where
// windows slide, a position has the readers that the one `stride` before it has, one further on.
inline OwnedAxis transpose(const Axis &a) {
  OwnedAxis t;
  i64 n = a.size, last = a.most_taps - 1;
  t.axis.size = a.outputs, t.axis.outputs = n, t.axis.step = a.slides ? a.step / std::gcd(a.step, a.stride) : 1;
  t.vectors.assign(size_t(5 * n), 0);
  i64 *first = t.vectors.data(), *length = first + n, *start = length + n, *count = start + n, *taps = count + n;
  if (a.step == 1) {  // windows only move on: the readers of a position go from the first that ends after it
    i64 begin = 0, end = 0, last_read = a.outputs;
    while (last_read > 0 && a.length[last_read - 1] == 0) last_read--;
    for (i64 i = 0; i < n; i++) {
      while (begin < last_read && (a.length[begin] == 0 || a.first[begin] + a.length[begin] <= i)) begin++;
      end = std::max(end, begin);
      while (end < last_read && a.first[end] <= i) end++;
      if (end > begin) first[i] = begin, length[i] = end - begin;
    }
  } else {
    for (i64 o = 0; o < a.outputs; o++)
      for (i64 k = 0; k < a.length[o]; k++)
        if (i64 i = a.first[o] + k * a.step; length[i]++ == 0) first[i] = o;
  }
  std::copy(length, length + n, count);
  std::copy(first, first + n, start);
  std::copy(length, length + n, taps);
  if (a.slides)
    for (i64 i = 0; i < n; i++) {
      if (i >= a.stride) {
        taps[i] = taps[i - a.stride], start[i] = start[i - a.stride] + 1;
        continue;
      }
      // the taps k of which (i - start - k step) is a multiple of the stride: every `period`-th, the largest `k` first
      i64 period = a.stride / std::gcd(a.step, a.stride), k = last;
      if (a.step == 1) k -= ((last - i + a.start[0]) % a.stride + a.stride) % a.stride;  // no need to look for it
      taps[i] = 0;
      for (; k >= 0 && k > last - period; k--) {
        i64 ahead = i - a.start[0] - k * a.step,
            o = ahead >= 0 ? ahead / a.stride : -((a.stride - 1 - ahead) / a.stride);
        if (ahead != o * a.stride) continue;
        taps[i] = k / period + 1, start[i] = o;
        break;
      }
    }
  t.axis.slides = false;
  return t;
}

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
    for (auto &owned : axes) {
      Axis &a = owned.axis;
      owned.point();
      owned.measure();
      owned.find_runs(1);
      i64 moves = a.outputs > 1 ? a.start[1] - a.start[0] : 1;
      a.slides = moves > 0;
      for (i64 o = 1; o < a.outputs; o++) a.slides = a.slides && a.start[o] == a.start[0] + o * moves;
      if (a.slides) slide(a, moves);
      // uneven bins overlap by less than they move on
      owned.decide(a.most_taps, a.slides && a.outputs > 1 ? moves : a.most_taps);
      for (i64 o = 0; o < a.outputs; o++) {
        p.even = p.even && a.count[o] == a.count[0];
        p.padded = p.padded || a.count[o] != a.length[o];
        p.empty = p.empty || a.count[o] == 0;
      }
      p.taps *= std::max<i64>(a.most_taps, 1);
      flat_axes.push_back(a);
    }
    p.axes = flat_axes.data();
    p.residual_bytes = p.taps <= 256 ? 1 : p.taps <= 65536 ? 2 : p.taps <= (i64(1) << 32) ? 4 : 8;
    p.tiles = 1;
    for (int i = 0; i < p.lead; i++) p.tiles *= p.sizes[i];
    // Where one order of folds is as good as another, long windows that hardly overlap come last: rows shrink first.
    std::vector<int32_t> folds(p.order, p.order + p.rank);
    std::copy(folds.begin(), folds.end(), p.order_back);
    if (p.law != Law::max) {
      std::stable_partition(folds.begin(), folds.end(), [&](int32_t i) { return !p.axes[i].lines; });
      auto lines = std::find_if(folds.begin(), folds.end(), [&](int32_t i) { return p.axes[i].lines; });
      std::reverse(lines, folds.end());
      std::copy(folds.begin(), folds.end(), p.order);
    }
    cut();
  }

  // What going back needs, made when it is first asked for: it takes as much memory as a few arrays of the inputs'
  // size.
  void find_readers() {
    if (!readers.empty()) return;
    Plan &p = plan;
    std::vector<OwnedAxis> found;
    for (const Axis &a : flat_axes) {
      OwnedAxis t = transpose(a);
      t.point();
      t.measure();
      t.find_runs(a.slides ? a.stride : 1);
      if (a.slides) slide(t.axis, 1);
      p.unread = p.unread || t.axis.gaps;
      t.decide(t.axis.longest > 1 && a.slides ? t.axis.most_taps : 1, 1);
      found.push_back(std::move(t));
    }
    readers = std::move(found);
    for (OwnedAxis &t : readers) t.point(), flat_readers.push_back(t.axis);
    p.readers = flat_readers.data();
  }

  // windows move on by `stride` a period, whatever clipping made of their firsts
  static void slide(Axis &a, i64 stride) {
    if (a.stride != stride) a.whole_from = a.whole_to = 0;
    a.stride = stride;
  }

  void cut() {
    Plan &p = plan;
    i64 in = p.lanes, out = p.lanes, tile_in, tile_out;
    for (int i = 1; i < p.rank; i++) in *= p.axes[i].size, out *= p.axes[i].outputs;
    const Axis &a = p.axes[0];
    tile_in = in * a.size, tile_out = out * a.outputs;
    i64 moves = a.outputs > 0 ? std::max<i64>(1, a.size / std::max<i64>(1, a.outputs)) : 1;
    i64 reach = std::max<i64>(1, a.most_taps * a.step);  // positions that two bands may share
    i64 rows = std::max({i64(1), UNIT / std::max<i64>(1, std::max(in, out / moves)), 4 * reach});
    p.band = std::max<i64>(1, rows / moves);
    p.band_back = std::max(rows, 8 * reach);
    i64 tile = std::max<i64>(1, std::max(tile_in, tile_out));
    p.tiles_a_unit = p.tiles_a_unit_back = std::max<i64>(1, UNIT / tile);
    if (p.band >= a.outputs) p.band = std::max<i64>(a.outputs, 1);
    p.band_back = std::min(p.band_back, std::max<i64>(a.size, 1));
  }
};

}  // namespace ndpool
