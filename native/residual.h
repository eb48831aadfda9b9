// Derivatives of a max from its residual, the index of each output's winning tap: `pick` takes the winners' tangents,
// `spread` hands each output's cotangent to its winner. No law, and no look at x. Few taps go tap by tap in vectors, as
// gathers both ways; many go output by output.
#pragma once
#include "modes.h"

namespace ndpool {
namespace {


inline bool tap_by_tap(const Plan &p) {
  bool slides = p.taps <= FEW_TAPS;
  for (int i = 0; i < p.rank; i++) slides = slides && p.axes[i].slides;
  return slides;
}

// Residuals of n outputs as integers of the width of T.
template <class T> void load_residual(const Plan &p, const char *from, Int<T> *to, i64 n) {
  auto go = [&](auto kind) {
    using R = decltype(kind);
    const R *r = reinterpret_cast<const R *>(from);
    for (i64 i = 0; i < n; i++) to[i] = Int<T>(r[i]);
  };
  switch (p.residual_bytes) {
    case 1: return go(uint8_t());
    case 2: return go(uint16_t());
    case 4: return go(uint32_t());
    default: return go(uint64_t());
  }
}

// Rows of an array laid out with room at both ends: [places of the outer axes][left + n + right].
struct Rows {
  int outer;               // pooled axes that are not inside a row
  i64 n, left, width;      // elements of a row, and where they begin
  i64 steps[MOST_AXES];    // rows further on, by outer axis
  i64 rows;
  Rows(const Plan &p, const i64 *sizes, i64 room_left, i64 room_right) {
    outer = p.lanes > 1 ? p.rank : p.rank - 1;
    n = p.lanes > 1 ? p.lanes : sizes[p.rank - 1];
    left = room_left, width = left + n + room_right;
    rows = 1;
    for (int i = outer - 1; i >= 0; i--) steps[i] = rows, rows *= sizes[i];
  }
};

// One way to reach a row from another: which row, and which tap that is.
struct Reach {
  i64 row, tap;
};

// The combinations of the outer axes' choices. choices(i, visit) calls visit(row, tap) for axis i.
template <class Choices> i64 combine(int outer, Reach *to, Reach *spare, Choices choices) {
  i64 found = 1;
  to[0] = {0, 0};
  for (int i = 0; i < outer; i++) {
    i64 more = 0;
    for (i64 f = 0; f < found; f++)
      choices(i, [&](i64 row, i64 tap) { spare[more++] = {to[f].row + row, to[f].tap + tap}; });
    found = more;
    for (i64 f = 0; f < found; f++) to[f] = spare[f];
  }
  return found;
}

INLINE i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// One tile's part of an array, each row with room at both ends.
template <class T> void fill_rows(const Region<T> &region, Type type, const Rows &rows, T *to) {
  const Plan &p = region.plan;
  i64 lines = p.lanes > 1 ? region.positions : 1, step = p.lanes > 1 ? region.array.strides[p.lead + p.rank] : region.along();
  region.each([&](const char *at, i64 count, i64 distance) {
    for (i64 r = 0; r < count; r++, at += distance)
      for (i64 i = 0; i < lines; i++, to += rows.width) {
        for (i64 j = 0; j < rows.left; j++) to[j] = 0;
        load_row<T>(type, at + i * region.along(), step, to + rows.left, rows.n, false);
        for (i64 j = rows.left + rows.n; j < rows.width; j++) to[j] = 0;
      }
  });
}

template <class T> Outcome pick_by_tap(Job &job, i64 unit, Arena &arena) {
  using I = Int<T>;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Span span = reads(p.axes[0], of.from, of.to);
  bool line = p.lanes == 1;
  const Axis &inner = p.axes[p.rank - 1];
  i64 sizes[MOST_AXES];
  for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? span.last - span.first : p.axes[i].size;
  i64 base = line && p.rank == 1 ? span.first : 0, o0 = line && p.rank == 1 ? of.from : 0;
  i64 outs = line ? (p.rank == 1 ? of.to - of.from : inner.outputs) : p.lanes;
  i64 taps = line ? inner.longest_unclipped : 1, stride = line ? inner.stride : 1, tap_step = p.tap_steps[p.rank - 1];
  i64 left = line ? most(0, base - inner.start[o0]) : 0;
  i64 end = line ? inner.start[o0] + (outs - 1) * stride + (taps - 1) * inner.step + 1 : 0;
  i64 right = line ? most(0, end - (base + sizes[p.rank - 1])) : 0;
  Rows rows(p, sizes, left, right);
  T *in = scratch.take<T>(rows.rows * rows.width), *out = scratch.take<T>(outs);
  I *index = scratch.take<I>(outs);
  Reach *reach = scratch.take<Reach>(p.taps), *spare = scratch.take<Reach>(p.taps);
  if (scratch.failed) return Outcome::no_memory;
  i64 origin = line ? inner.start[o0] - base + left : 0;  // where the first output's first tap lies in a row
  i64 size = size_of(job.moved), offset = dense_offset(p, of, false);
  for (i64 t = 0; t < of.tiles; t++) {
    Part tile{of.tile + t, 1, of.from, of.to};
    fill_rows<T>({p, job.a, job.moved, false, tile, sizes, span.first}, job.moved, rows, in);
    i64 o[MOST_AXES];
    for (int i = 0; i < p.rank; i++) o[i] = i == 0 ? of.from : 0;
    each_row(p, p.axes, tile, [&](i64, i64 n, i64, i64) {
      i64 found = combine(rows.outer, reach, spare, [&](int i, auto visit) {
        const Axis &axis = p.axes[i];
        i64 skipped = (axis.first[o[i]] - axis.start[o[i]]) / axis.step, begin = axis.first[o[i]] - (i == 0 ? span.first : 0);
        for (i64 k = 0; k < axis.length[o[i]]; k++)
          visit((begin + k * axis.step) * rows.steps[i], (skipped + k) * p.tap_steps[i]);
      });
      load_residual<T>(p, job.x.data + offset * p.residual_bytes, index, n);
      auto go = [&](auto fixed) {
        constexpr int STRIDE = decltype(fixed)::value;
        auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          Ints<X> winner = load<Ints<X>>(index + j);
          X acc{};
          for (i64 f = 0; f < found; f++) {
            const T *row = in + reach[f].row * rows.width + origin + j * stride;
            for (i64 k = 0; k < taps; k++)
              acc = choose<X>(winner == I(reach[f].tap + k * tap_step), load<X, STRIDE>(row + k * inner.step), acc);
          }
          save<X>(out + j, acc);
        };
        if constexpr (STRIDE != 0) each_vector<T>(n, body);
        else
          for (i64 j = 0; j < n; j++) body(One<T>{}, j);
      };
      if (stride == 1) go(std::integral_constant<int, 1>());
      else if (stride == 2) go(std::integral_constant<int, 2>());
      else go(std::integral_constant<int, 0>());
      deliver<T>(job.y.data + offset * size, job.moved, out, n, false, false);
      offset += n;
      for (int i = rows.outer - 1; i >= 0; i--) {
        if (++o[i] < (i == 0 ? of.to : p.axes[i].outputs)) break;
        o[i] = i == 0 ? of.from : 0;
      }
    });
  }
  return Outcome::done;
}

template <class T> Outcome spread_by_tap(Job &job, i64 unit, Arena &arena) {
  using I = Int<T>;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, true, unit);
  Span span = reads(p.readers[0], of.from, of.to);  // outputs that read the band
  bool line = p.lanes == 1;
  const Axis &inner = p.axes[p.rank - 1];
  i64 sizes[MOST_AXES];
  for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? span.last - span.first : p.axes[i].outputs;
  i64 base = line && p.rank == 1 ? span.first : 0, i0 = line && p.rank == 1 ? of.from : 0;  // first output, first input
  i64 n = line ? (p.rank == 1 ? of.to - of.from : inner.size) : p.lanes;
  i64 taps = line ? inner.longest_unclipped : 1, stride = line ? inner.stride : 1, step = line ? inner.step : 0;
  i64 lo = line ? -inner.start[0] : 0, outs = line ? sizes[p.rank - 1] : p.lanes;
  // input i is tap k of output (i + lo - k step) / stride, where that divides
  i64 lowest = floor_div(i0 + lo - (taps - 1) * step, stride), highest = floor_div(i0 + n - 1 + lo, stride);
  i64 left = line ? most(0, base - lowest) : 0, right = line ? most(0, highest - (base + outs - 1)) : 0;
  Rows rows(p, sizes, left, right);
  T *moved = scratch.take<T>(rows.rows * rows.width), *out = scratch.take<T>(n), *phase = scratch.take<T>(n + stride);
  I *index = scratch.take<I>(rows.rows * rows.width);
  Reach *reach = scratch.take<Reach>(p.taps), *spare = scratch.take<Reach>(p.taps);
  i64 *shift = scratch.take<i64>(taps), *which = scratch.take<i64>(taps);
  if (scratch.failed) return Outcome::no_memory;
  i64 size = size_of(job.moved), offset = dense_offset(p, of, true);
  i64 outputs = p.lanes, inputs = 1;
  for (int i = 0; i < p.rank; i++) outputs *= p.axes[i].outputs;
  for (int i = 0; i < rows.outer; i++) inputs *= i == 0 ? of.to - of.from : p.axes[i].size;
  i64 after = p.lanes;
  for (int i = 1; i < p.rank; i++) after *= p.axes[i].outputs;
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Part tile{t, 1, of.from, of.to};
    fill_rows<T>({p, job.a, job.moved, false, tile, sizes, span.first}, job.moved, rows, moved);
    const char *winners = job.x.data + (t * outputs + span.first * after) * p.residual_bytes;
    for (i64 r = 0; r < rows.rows; r++) {
      I *to = index + r * rows.width;
      for (i64 j = 0; j < rows.left; j++) to[j] = -1;
      load_residual<T>(p, winners + r * rows.n * p.residual_bytes, to + rows.left, rows.n);
      for (i64 j = rows.left + rows.n; j < rows.width; j++) to[j] = -1;
    }
    i64 at[MOST_AXES];
    for (int i = 0; i < p.rank; i++) at[i] = i == 0 ? of.from : 0;
    for (i64 r = 0; r < inputs; r++) {
      i64 found = combine(rows.outer, reach, spare, [&](int i, auto visit) {
        const Axis &axis = p.readers[i];
        i64 begin = axis.first[at[i]];
        for (i64 k = 0; k < axis.length[at[i]]; k++) {
          i64 o = begin + k * axis.step, tap = (at[i] - p.axes[i].start[o]) / p.axes[i].step;
          visit((o - (i == 0 ? span.first : 0)) * rows.steps[i], tap * p.tap_steps[i]);
        }
      });
      i64 filled = 0;
      for (i64 residue = 0; residue < stride; residue++) {  // inputs i0 + residue, + stride, ...
        i64 few = 0, count = n > residue ? (n - residue + stride - 1) / stride : 0;
        for (i64 k = 0; k < taps; k++) {
          i64 o = i0 + residue + lo - k * step;
          if (o - floor_div(o, stride) * stride == 0) shift[few] = floor_div(o, stride) - base + left, which[few++] = k * p.tap_steps[p.rank - 1];
        }
        T *to = stride == 1 ? out : phase + filled;
        each_vector<T>(count, [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          X acc{};
          for (i64 f = 0; f < found; f++)
            for (i64 k = 0; k < few; k++) {
              i64 from = reach[f].row * rows.width + shift[k] + j;
              Ints<X> won = load<Ints<X>>(index + from) == I(reach[f].tap + which[k]);
              acc += choose<X>(won, load<X>(moved + from), X{});
            }
          save<X>(to + j, acc);
        });
        filled += count;
      }
      if (stride == 2 && n % 2 == 0)
        each_vector<T>(n / 2, [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          if constexpr (LANES<X> == 1) out[2 * j] = phase[j], out[2 * j + 1] = phase[n / 2 + j];
          else interleave<X>(out + 2 * j, load<X>(phase + j), load<X>(phase + n / 2 + j));
        });
      else if (stride > 1)
        for (i64 residue = 0, from = 0; residue < stride; residue++)
          for (i64 i = residue; i < n; i += stride) out[i] = phase[from++];
      deliver<T>(job.y.data + offset * size, job.moved, out, n, false, p.stream_x);
      offset += n;
      for (int i = rows.outer - 1; i >= 0; i--) {
        if (++at[i] < (i == 0 ? of.to : p.axes[i].size)) break;
        at[i] = i == 0 ? of.from : 0;
      }
    }
  }
  if (p.stream_x) settle_streams();
  return Outcome::done;
}

// -- output by output ---------------------------------------------------------------------------------------------------

// visit(output, position) for the outputs of a unit that read anything: where the winner lies, by the given strides of the
// pooled axes (and `lane` for the lanes). Outputs that read nothing get none(output).
template <class Visit, class None>
void each_winner(const Plan &p, const Part &of, const char *residual, const i64 *strides, i64 lane, Scratch &scratch, Visit visit, None none) {
  i64 results = p.lanes, o[MOST_AXES];
  for (int i = 0; i < p.rank; i++) results *= i == 0 ? of.to - of.from : p.axes[i].outputs;
  i64 lengths[MOST_AXES];
  for (int i = 0; i < p.rank; i++) lengths[i] = p.axes[i].longest_unclipped, o[i] = i == 0 ? of.from : 0;
  auto displacement = [&](i64 tap) {
    i64 at = 0;
    for (int i = 0; i < p.rank; i++) at += tap / p.tap_steps[i] % lengths[i] * p.axes[i].step * strides[i];
    return at;
  };
  i64 *table = p.taps <= results * of.tiles && p.taps <= 65536 ? scratch.take<i64>(p.taps) : nullptr;
  if (scratch.failed) return;
  if (table)
    for (i64 tap = 0; tap < p.taps; tap++) table[tap] = displacement(tap);
  for (i64 r = 0; r < results / p.lanes; r++) {
    i64 at = 0;
    bool read = true;
    for (int i = 0; i < p.rank; i++) at += p.axes[i].start[o[i]] * strides[i], read = read && p.axes[i].length[o[i]] > 0;
    for (i64 l = 0; l < p.lanes; l++) {
      i64 output = r * p.lanes + l, tap = 0;
      if (!read) {
        none(output);
        continue;
      }
      std::memcpy(&tap, residual + output * p.residual_bytes, size_t(p.residual_bytes));  // little-endian
      visit(output, at + (table ? table[tap] : displacement(tap)) + l * lane);
    }
    for (int i = p.rank - 1; i >= 0; i--) {
      if (++o[i] < (i == 0 ? of.to : p.axes[i].outputs)) break;
      o[i] = i == 0 ? of.from : 0;
    }
  }
}

// row-major strides of a dense tile of inputs
inline i64 tile_strides(const Plan &p, i64 *strides) {
  i64 n = p.lanes;
  for (int i = p.rank - 1; i >= 0; i--) strides[i] = n, n *= p.axes[i].size;
  return n;
}

template <class T> Outcome pick_by_output(Job &job, i64 unit, Arena &arena) {
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
    each_winner(p, tile, job.x.data + at * p.residual_bytes, strides, job.a.strides[p.lead + p.rank], scratch,
                [&](i64 o, i64 position) { std::memcpy(dy + o * size, dx + position, size_t(size)); },
                [&](i64 o) { std::memset(dy + o * size, 0, size_t(size)); });
    if (scratch.failed) return Outcome::no_memory;
  }
  return Outcome::done;
}

template <class T> Outcome spread_by_output(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, true, unit);  // whole tiles
  i64 size = size_of(job.moved), strides[MOST_AXES], inputs = tile_strides(p, strides);
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Scratch scratch(arena);
    Part outs{t, 1, 0, p.axes[0].outputs};
    i64 sizes[MOST_AXES], results = p.lanes;
    for (int i = 0; i < p.rank; i++) sizes[i] = p.axes[i].outputs, results *= sizes[i];
    T *room = scratch.take<T>(results);
    char *to = job.y.data + t * inputs * size;
    bool in_place = as_they_are<T>(job.moved, false);
    T *dx = in_place ? reinterpret_cast<T *>(to) : scratch.take<T>(inputs);
    if (scratch.failed) return Outcome::no_memory;
    const T *dy = Region<T>(p, job.a, job.moved, false, outs, sizes, 0).all(job.moved, false, room);
    std::memset(dx, 0, size_t(inputs) * sizeof(T));
    each_winner(p, outs, job.x.data + t * results * p.residual_bytes, strides, 1, scratch,
                [&](i64 o, i64 position) { dx[position] += dy[o]; }, [](i64) {});
    if (scratch.failed) return Outcome::no_memory;
    if (!in_place) deliver<T>(to, job.moved, dx, inputs, false, false);
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
    each_winner(p, tile, job.x.data + at * p.residual_bytes, p.position_steps, 0, scratch,
                [&](i64 o, i64 position) { to[o] = position; }, [&](i64 o) { to[o] = -1; });
    if (scratch.failed) return Outcome::no_memory;
  }
  return Outcome::done;
}

}  // namespace
}  // namespace ndpool
