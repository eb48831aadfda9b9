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

// visit(R{}) with the type of a residual
template <class Visit> INLINE void with_residual(const Plan &p, Visit visit) {
  switch (p.residual_bytes) {
    case 1: return visit(uint8_t());
    case 2: return visit(uint16_t());
    case 4: return visit(uint32_t());
    default: return visit(uint64_t());
  }
}

// Residuals of n outputs as integers of the width of T.
template <class T> void load_residual(const Plan &p, const char *from, Int<T> *to, i64 n) {
  with_residual(p, [&](auto kind) {
    const auto *r = reinterpret_cast<const decltype(kind) *>(from);
    for (i64 i = 0; i < n; i++) to[i] = Int<T>(r[i]);
  });
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

// One tile's part of an array, each row with room at both ends: in place, if there is none.
template <class T> const T *fill_rows(const Region<T> &region, Type type, const Rows &rows, T *to) {
  const Plan &p = region.plan;
  if (rows.width == rows.n) return region.all(type, false, to);
  T *next = to;
  i64 lines = p.lanes > 1 ? region.positions : 1, step = p.lanes > 1 ? region.array.strides[p.lead + p.rank] : region.along();
  region.each([&](const char *at, i64 count, i64 distance) {
    for (i64 r = 0; r < count; r++, at += distance)
      for (i64 i = 0; i < lines; i++, next += rows.width) {
        for (i64 j = 0; j < rows.left; j++) next[j] = 0;
        load_row<T>(type, at + i * region.along(), step, next + rows.left, rows.n, false);
        for (i64 j = rows.left + rows.n; j < rows.width; j++) next[j] = 0;
      }
  });
  return to;
}

// One way to reach a row from another: how far on it lies, and which tap that is.
struct Reach {
  i64 row, tap;
};

// For the places of a unit along its outer axes, in row-major order: every way to the rows that matter to them.
struct Reaches {
  int outer = 0;
  i64 from[MOST_AXES], to[MOST_AXES], at[MOST_AXES];
  i64 *ends[MOST_AXES];
  Reach *ways[MOST_AXES], *found = nullptr;
  i64 count = 0;

  // ways(axis, place, visit) calls visit(row, tap) for one axis
  template <class Ways> Reaches(const Plan &p, int n, const i64 *first, const i64 *last, Scratch &scratch, Ways each) : outer(n) {
    Reach *room = outer != 1 ? scratch.take<Reach>(most(p.taps, 1)) : nullptr;
    for (int i = 0; i < outer; i++) {
      from[i] = at[i] = first[i], to[i] = last[i];
      ends[i] = scratch.take<i64>(to[i] - from[i] + 1);
      ways[i] = scratch.take<Reach>((to[i] - from[i]) * most(p.axes[i].most_taps, 1));
      if (scratch.failed) return;
      i64 filled = 0;
      for (i64 place = from[i]; place < to[i]; place++) {
        ends[i][place - from[i]] = filled;
        each(i, place, [&](i64 row, i64 tap) { ways[i][filled++] = {row, tap}; });
      }
      ends[i][to[i] - from[i]] = filled;
    }
    found = room;
  }

  i64 places() const {
    i64 n = 1;
    for (int i = 0; i < outer; i++) n *= to[i] - from[i];
    return n;
  }

  // Sets `found` and `count` for the place at hand, and goes on to the next.
  void next() {
    if (outer == 0) {
      found[0] = {0, 0}, count = 1;
      return;
    }
    i64 o = at[0] - from[0];
    if (outer == 1) {
      found = ways[0] + ends[0][o], count = ends[0][o + 1] - ends[0][o];
      at[0] = at[0] + 1 < to[0] ? at[0] + 1 : from[0];
      return;
    }
    count = 0;
    product(0, {0, 0});
    for (int i = outer - 1; i >= 0; i--) {
      if (++at[i] < to[i]) break;
      at[i] = from[i];
    }
  }

 private:
  void product(int i, Reach sum) {
    i64 o = at[i] - from[i];
    for (i64 w = ends[i][o]; w < ends[i][o + 1]; w++) {
      Reach way{sum.row + ways[i][w].row, sum.tap + ways[i][w].tap};
      if (i + 1 < outer) product(i + 1, way);
      else found[count++] = way;
    }
  }
};

INLINE i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

template <class T> Outcome pick_by_tap(Job &job, i64 unit, Arena &arena) {
  using I = Int<T>;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Span span = reads(p.axes[0], of.from, of.to);
  bool line = p.lanes == 1, single = line && p.rank == 1;  // single: bands are cut along the rows themselves
  const Axis &inner = p.axes[p.rank - 1];
  i64 sizes[MOST_AXES], first[MOST_AXES], last[MOST_AXES];
  for (int i = 0; i < p.rank; i++) {
    sizes[i] = i == 0 ? span.last - span.first : p.axes[i].size;
    first[i] = i == 0 ? of.from : 0, last[i] = i == 0 ? of.to : p.axes[i].outputs;
  }
  i64 base = single ? span.first : 0, o0 = single ? of.from : 0;
  i64 n = line ? last[p.rank - 1] - first[p.rank - 1] : p.lanes;
  i64 taps = line ? inner.most_taps : 1, stride = line ? inner.stride : 1, tap_step = p.tap_steps[p.rank - 1];
  i64 left = line ? most(0, base - inner.start[o0]) : 0;
  i64 end = line ? inner.start[o0] + (n - 1) * stride + (taps - 1) * inner.step + 1 : 0;
  i64 right = line ? most(0, end - (base + sizes[p.rank - 1])) : 0;
  Rows rows(p, sizes, left, right);
  Reaches reaches(p, rows.outer, first, last, scratch, [&](int i, i64 o, auto visit) {
    const Axis &axis = p.axes[i];
    i64 skipped = (axis.first[o] - axis.start[o]) / axis.step, begin = axis.first[o] - (i == 0 ? span.first : 0);
    for (i64 k = 0; k < axis.length[o]; k++)
      visit((begin + k * axis.step) * rows.steps[i] * rows.width, (skipped + k) * p.tap_steps[i]);
  });
  T *room = scratch.take<T>(rows.rows * rows.width), *out = scratch.take<T>(n);
  I *index = scratch.take<I>(n);
  if (scratch.failed) return Outcome::no_memory;
  i64 origin = line ? inner.start[o0] - base + left : 0;  // where the first output's first tap lies in a row
  i64 size = size_of(job.moved), offset = dense_offset(p, of, false), places = reaches.places();
  bool in_place = as_they_are<T>(job.moved, false);
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    const T *in = fill_rows<T>({p, job.a, job.moved, false, {t, 1, of.from, of.to}, sizes, span.first}, job.moved, rows, room);
    for (i64 place = 0; place < places; place++, offset += n) {
      reaches.next();
      load_residual<T>(p, job.x.data + offset * p.residual_bytes, index, n);
      T *to = in_place ? reinterpret_cast<T *>(job.y.data) + offset : out;
      auto go = [&](auto fixed) {
        constexpr int STRIDE = decltype(fixed)::value;
        auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          Ints<X> winner = load<Ints<X>>(index + j);
          X acc{};
          for (i64 f = 0; f < reaches.count; f++) {
            const T *row = in + reaches.found[f].row + origin + j * stride;
            for (i64 k = 0; k < taps; k++)
              acc = choose<X>(winner == I(reaches.found[f].tap + k * tap_step), load<X, STRIDE>(row + k * inner.step), acc);
          }
          save<X>(to + j, acc);
        };
        if constexpr (STRIDE != 0) each_vector<T>(n, body);
        else
          for (i64 j = 0; j < n; j++) body(One<T>{}, j);
      };
      if (stride == 1) go(std::integral_constant<int, 1>());
      else if (stride == 2) go(std::integral_constant<int, 2>());
      else go(std::integral_constant<int, 0>());
      if (!in_place) store_row<T>(job.moved, job.y.data + offset * size, out, n, false);
    }
  }
  return Outcome::done;
}

template <class T> Outcome spread_by_tap(Job &job, i64 unit, Arena &arena) {
  using I = Int<T>;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, true, unit);
  Span span = reads(p.readers[0], of.from, of.to);  // outputs that read the band
  bool line = p.lanes == 1, single = line && p.rank == 1;
  const Axis &inner = p.axes[p.rank - 1];
  i64 sizes[MOST_AXES], first[MOST_AXES], last[MOST_AXES], outputs = p.lanes, after = p.lanes;
  for (int i = 0; i < p.rank; i++) {
    sizes[i] = i == 0 ? span.last - span.first : p.axes[i].outputs;
    first[i] = i == 0 ? of.from : 0, last[i] = i == 0 ? of.to : p.axes[i].size;
    outputs *= p.axes[i].outputs;
    if (i > 0) after *= p.axes[i].outputs;
  }
  i64 base = single ? span.first : 0, i0 = single ? of.from : 0;  // first output, first input
  i64 n = line ? last[p.rank - 1] - first[p.rank - 1] : p.lanes;
  i64 taps = line ? inner.most_taps : 1, stride = line ? inner.stride : 1, step = line ? inner.step : 0;
  i64 lo = line ? -inner.start[0] : 0, outs = line ? sizes[p.rank - 1] : p.lanes;
  // Input i is tap k of output (i + lo - k step) / stride, where that divides: `ways` of a row, by residue (the inputs
  // i0 + residue, + stride, ...).
  struct Tap {
    i64 shift, index;
  };
  Tap *ways = scratch.take<Tap>(taps);
  i64 *ends = scratch.take<i64>(stride + 1);
  if (scratch.failed) return Outcome::no_memory;
  i64 filled = 0, left = 0, right = 0;
  for (i64 residue = 0; residue < stride; residue++) {
    ends[residue] = filled;
    for (i64 k = 0; residue < n && k < taps; k++) {
      i64 o = i0 + residue + lo - k * step, q = floor_div(o, stride), last_q = q + (n - 1 - residue) / stride;
      if (o != q * stride) continue;
      ways[filled++] = {q - base, k * p.tap_steps[p.rank - 1]};
      if (line) left = most(left, base - q), right = most(right, last_q - (base + outs - 1));
    }
  }
  ends[stride] = filled;
  for (i64 k = 0; k < filled; k++) ways[k].shift += left;
  Rows rows(p, sizes, left, right);
  Reaches reaches(p, rows.outer, first, last, scratch, [&](int i, i64 at, auto visit) {
    const Axis &axis = p.readers[i];
    for (i64 k = 0; k < axis.length[at]; k++) {
      i64 o = axis.first[at] + k * axis.step, tap = (at - p.axes[i].start[o]) / p.axes[i].step;
      visit((o - (i == 0 ? span.first : 0)) * rows.steps[i] * rows.width, tap * p.tap_steps[i]);
    }
  });
  T *room = scratch.take<T>(rows.rows * rows.width), *out = scratch.take<T>(n);
  I *index = scratch.take<I>(rows.rows * rows.width);
  if (scratch.failed) return Outcome::no_memory;
  i64 size = size_of(job.moved), offset = dense_offset(p, of, true), places = reaches.places();
  bool in_place = as_they_are<T>(job.moved, false);
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    const T *dy = fill_rows<T>({p, job.a, job.moved, false, {t, 1, of.from, of.to}, sizes, span.first}, job.moved, rows, room);
    const char *winners = job.x.data + (t * outputs + span.first * after) * p.residual_bytes;
    if (rows.width == rows.n) load_residual<T>(p, winners, index, rows.rows * rows.n);
    else
      for (i64 r = 0; r < rows.rows; r++) {
        I *to = index + r * rows.width;
        for (i64 j = 0; j < rows.left; j++) to[j] = -1;
        load_residual<T>(p, winners + r * rows.n * p.residual_bytes, to + rows.left, rows.n);
        for (i64 j = rows.left + rows.n; j < rows.width; j++) to[j] = -1;
      }
    for (i64 place = 0; place < places; place++, offset += n) {
      reaches.next();
      T *to = in_place ? reinterpret_cast<T *>(job.y.data) + offset : out;
      auto gathered = [&](auto kind, i64 residue, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        X acc{};
        for (i64 f = 0; f < reaches.count; f++)
          for (i64 k = ends[residue]; k < ends[residue + 1]; k++) {
            i64 from = reaches.found[f].row + ways[k].shift + j;
            Ints<X> won = load<Ints<X>>(index + from) == I(reaches.found[f].tap + ways[k].index);
            acc += choose<X>(won, load<X>(dy + from), X{});
          }
        return acc;
      };
      if (stride == 1)
        each_vector<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA { save<decltype(kind)>(to + j, gathered(kind, 0, j)); });
      else if (stride == 2)
        each_vector<T>(n / 2, [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          X even = gathered(kind, 0, j), odd = gathered(kind, 1, j);
          if constexpr (LANES<X> == 1) to[2 * j] = even, to[2 * j + 1] = odd;
          else interleave<X>(to + 2 * j, even, odd);
        });
      i64 done = stride == 1 ? n : stride == 2 ? n / 2 * 2 : 0;
      for (i64 i = done; i < n; i++) to[i] = gathered(T(), i % stride, i / stride);
      if (!in_place) deliver<T>(job.y.data + offset * size, job.moved, out, n, false);
    }
  }
  return Outcome::done;
}

// -- output by output ---------------------------------------------------------------------------------------------------

// visit(output, position) for the outputs of a unit that read anything: where the winner lies, by the given strides of the
// pooled axes (and `lane` for the lanes). Outputs that read nothing get none(output).
template <class Visit, class None>
void each_winner(const Plan &p, const Part &of, const char *residual, const i64 *strides, i64 lane, Scratch &scratch, Visit visit, None none) {
  i64 results = 1, o[MOST_AXES];
  for (int i = 0; i < p.rank; i++) results *= i == 0 ? of.to - of.from : p.axes[i].outputs, o[i] = i == 0 ? of.from : 0;
  auto displacement = [&](i64 tap) {
    i64 at = 0;
    for (int i = 0; i < p.rank; i++) at += tap / p.tap_steps[i] % p.axes[i].most_taps * p.axes[i].step * strides[i];
    return at;
  };
  i64 *table = p.taps <= results * p.lanes && p.taps <= 65536 ? scratch.take<i64>(p.taps) : nullptr;
  if (scratch.failed) return;
  if (table)
    for (i64 tap = 0; tap < p.taps; tap++) table[tap] = displacement(tap);
  with_residual(p, [&](auto kind) {
    const auto *winners = reinterpret_cast<const decltype(kind) *>(residual);
    int inner = p.rank - 1;  // the innermost axis has a loop of its own
    i64 row = inner == 0 ? of.to - of.from : p.axes[inner].outputs, output = 0;
    for (i64 r = 0; r < results; r += row) {
      i64 base = 0;
      bool read = true;
      for (int i = 0; i < inner; i++) base += p.axes[i].start[o[i]] * strides[i], read = read && p.axes[i].length[o[i]] > 0;
      for (i64 j = 0; j < row; j++) {
        const Axis &axis = p.axes[inner];
        i64 at = base + axis.start[o[inner] + j] * strides[inner];
        for (i64 l = 0; l < p.lanes; l++, output++)
          if (read && axis.length[o[inner] + j] > 0)
            visit(output, at + (table ? table[winners[output]] : displacement(i64(winners[output]))) + l * lane);
          else none(output);
      }
      for (int i = inner - 1; i >= 0; i--) {
        if (++o[i] < (i == 0 ? of.to : p.axes[i].outputs)) break;
        o[i] = i == 0 ? of.from : 0;
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
    with_type<T>(job.moved, [&](auto kind) {
      using S = decltype(kind);
      auto put = [&](i64 o, S s) { __builtin_memcpy(dy + o * i64(sizeof(S)), &s, sizeof s); };
      each_winner(p, tile, job.x.data + at * p.residual_bytes, strides, job.a.strides[p.lead + p.rank], scratch,
                  [&](i64 o, i64 position) { put(o, element<S>(dx + position)); }, [&](i64 o) { put(o, S{}); });
    });
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
    if (!in_place) deliver<T>(to, job.moved, dx, inputs, false);
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
