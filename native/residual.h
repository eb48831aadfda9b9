// Derivatives of a max from its residual, the index of each output's winning tap: `pick` takes the winners' tangents,
// `spread` hands each output's cotangent to its winner. No law, and no look at x. Both go output by output: the tables
// of where a tap lies stay in the nearest cache, and that beats comparing every tap, from four taps on.
#pragma once
#include "modes.h"

namespace ndpool {
namespace {

// visit(R{}) with the type of a residual
template <class Visit> INLINE void with_residual(const Plan &p, Visit visit) {
  switch (p.residual_bytes) {
    case 1:
      return visit(uint8_t());
    case 2:
      return visit(uint16_t());
    case 4:
      return visit(uint32_t());
    default:
      return visit(uint64_t());
  }
}

// visit(output, position) for the outputs of a unit that read anything: where the winner lies, by the given strides of
// the pooled axes (and `lane` for the lanes). Outputs that read nothing get none(output).
template <class Visit, class None>
void each_winner(const Plan &p, const Part &of, const char *residual, const i64 *strides, i64 lane, Scratch &scratch,
                 Visit visit, None none) {
  // outputs in the caller's order of axes, which need not be that of memory
  int axes[MOST_AXES];
  i64 results = 1, o[MOST_AXES], from[MOST_AXES], to[MOST_AXES], places[MOST_AXES], place = p.lanes;
  for (int i = 0; i < p.rank; i++) axes[i] = p.order_back[p.rank - 1 - i];
  for (int i = p.rank - 1; i >= 0; i--) {
    from[i] = o[i] = i == 0 ? of.from : 0, to[i] = i == 0 ? of.to : p.axes[i].outputs;
    results *= to[i] - from[i], places[i] = place, place *= to[i] - from[i];
  }
  auto displacement = [&](i64 tap) {
    i64 at = 0;
    for (int i = 0; i < p.rank; i++) at += tap / p.tap_steps[i] % p.axes[i].most_taps * p.axes[i].step * strides[i];
    return at;
  };
  i64 *table = p.taps <= results * p.lanes && p.taps <= 65536 ? scratch.take<i64>(p.taps) : nullptr;
  if (scratch.failed) return;
  if (table)
    for (i64 tap = 0; tap < p.taps; tap++) table[tap] = displacement(tap);
  bool gaps = false;
  for (int i = 0; i < p.rank; i++) gaps = gaps || p.axes[i].gaps;
  with_residual(p, [&](auto kind) {
    const auto *winners = reinterpret_cast<const decltype(kind) *>(residual);
    int inner = axes[p.rank - 1];  // the innermost axis has a loop of its own
    const Axis &axis = p.axes[inner];
    i64 row = to[inner] - from[inner], step = places[inner], stride = strides[inner];
    const i64 *start = axis.start + from[inner], *length = axis.length + from[inner];
    for (i64 r = 0; r < results; r += row) {
      i64 base = 0, output = 0;
      bool read = true;
      for (int k = 0; k < p.rank - 1; k++) {
        int i = axes[k];
        base += p.axes[i].start[o[i]] * strides[i], output += (o[i] - from[i]) * places[i];
        read = read && p.axes[i].length[o[i]] > 0;
      }
      if (table && !gaps && p.lanes == 1)
        for (i64 j = 0; j < row; j++, output += step) visit(output, base + start[j] * stride + table[winners[output]]);
      else
        for (i64 j = 0; j < row; j++, output += step)
          for (i64 l = 0; l < p.lanes; l++)
            if (read && length[j] > 0)
              visit(output + l, base + start[j] * stride + l * lane +
                                    (table ? table[winners[output + l]] : displacement(i64(winners[output + l]))));
            else
              none(output + l);
      for (int k = p.rank - 2; k >= 0; k--) {
        int i = axes[k];
        if (++o[i] < to[i]) break;
        o[i] = from[i];
      }
    }
  });
}

// row-major strides of a dense tile of inputs
inline i64 tile_strides(const Plan &p, i64 *strides) {
  i64 n = p.lanes;
  for (int i = p.rank - 1; i >= 0; i--) strides[i] = n, n *= p.axes[i].size;
  return n;
}

template <class T> Outcome pick(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, false, unit);
  i64 size = size_of(job.moved), strides[MOST_AXES];
  for (int i = 0; i < p.rank; i++) strides[i] = job.a.strides[p.lead + i];
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Scratch scratch(arena);
    Part tile{t, 1, of.from, of.to};
    const char *dx = job.a.data;
    for (i64 i = p.lead - 1, rest = t; i >= 0; i--) dx += rest % p.sizes[i] * job.a.strides[i], rest /= p.sizes[i];
    i64 at = dense_offset(p, tile, false);
    char *dy = job.y.data + at * size;
    with_type<T>(job.moved, [&](auto kind) {
      using S = decltype(kind);
      auto put = [&](i64 o, S s) { __builtin_memcpy(dy + o * i64(sizeof(S)), &s, sizeof s); };
      each_winner(
          p, tile, job.x.data + at * p.residual_bytes, strides, job.a.strides[p.lead + p.rank], scratch,
          [&](i64 o, i64 position) { put(o, element<S>(dx + position)); }, [&](i64 o) { put(o, S{}); });
    });
    if (scratch.failed) return Outcome::no_memory;
  }
  return Outcome::done;
}

// A band of inputs takes what its readers have for it, in their order; what they have for other bands is not theirs.
template <class T> Outcome spread(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, true, unit);
  Span span = reads(p.readers[0], of.from, of.to);  // outputs that read the band
  i64 size = size_of(job.moved), strides[MOST_AXES], sizes[MOST_AXES], inputs = tile_strides(p, strides),
      outputs = p.lanes, after = p.lanes;
  for (int i = 0; i < p.rank; i++) {
    sizes[i] = i == 0 ? span.last - span.first : p.axes[i].outputs;
    outputs *= p.axes[i].outputs;
    if (i > 0) after *= p.axes[i].outputs;
  }
  i64 begin = of.from * strides[0];
  uint64_t extent = uint64_t((of.to - of.from) * strides[0]);
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Scratch scratch(arena);
    Part readers{t, 1, span.first, span.last};
    char *to = job.y.data + (t * inputs + begin) * size;
    bool in_place = as_they_are<T>(job.moved, false);
    T *room = scratch.take<T>((span.last - span.first) * after);
    T *dx = in_place ? reinterpret_cast<T *>(to) : scratch.take<T>(i64(extent));
    if (scratch.failed) return Outcome::no_memory;
    const T *dy = Region<T>(p, job.a, job.moved, false, readers, sizes, span.first).all(job.moved, false, room);
    std::memset(dx, 0, extent * sizeof(T));
    each_winner(
        p, readers, job.x.data + (t * outputs + span.first * after) * p.residual_bytes, strides, 1, scratch,
        [&](i64 o, i64 position) {
          if (uint64_t(position - begin) < extent) dx[position - begin] += dy[o];
        },
        [](i64) {});
    if (scratch.failed) return Outcome::no_memory;
    if (!in_place) deliver<T>(to, job.moved, dx, i64(extent), false);
  }
  return Outcome::done;
}

inline Outcome positions(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, false, unit);
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Scratch scratch(arena);
    Part tile{t, 1, of.from, of.to};
    i64 at = dense_offset(p, tile, false);
    i64 *to = reinterpret_cast<i64 *>(job.y.data) + at;
    each_winner(
        p, tile, job.x.data + at * p.residual_bytes, p.position_steps, 0, scratch,
        [&](i64 o, i64 position) { to[o] = position; }, [&](i64 o) { to[o] = -1; });
    if (scratch.failed) return Outcome::no_memory;
  }
  return Outcome::done;
}

}  // namespace
}  // namespace ndpool
