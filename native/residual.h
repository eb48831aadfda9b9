// Derivatives of a max from its residual, the index of each output's winning tap: `pick` takes the winners' tangents,
// `spread` hands each output's cotangent to its winner. No law, and no look at x. Where few taps meet, vectors are
// compared with one tap after another (Picking, Spreading); otherwise each output looks its winner up (each_winner).
// Either way an input adds up its readers in the outputs' order, so the bits are the same.
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

// How far taps lie from where their window starts, by the given strides of the pooled axes: in a table, if there are
// more outputs than taps.
struct Taps {
  const Plan &p;
  const i64 *strides;
  i64 *table = nullptr;
  Taps(const Plan &plan, const i64 *of, i64 outputs, Scratch &scratch) : p(plan), strides(of) {
    if (p.taps > outputs || p.taps > 65536) return;
    table = scratch.take<i64>(p.taps);
    for (i64 tap = 0; table && tap < p.taps; tap++) table[tap] = found(tap);
  }
  i64 found(i64 tap) const {
    i64 at = 0;
    for (int i = 0; i < p.rank; i++) at += tap / p.tap_steps[i] % p.axes[i].most_taps * p.axes[i].step * strides[i];
    return at;
  }
};

// visit(output, position) for the outputs of a tile that read anything: where the winner lies, by the strides of `taps`
// (and `lane` for the lanes). Outputs that read nothing get none(output).
template <class Visit, class None>
void each_winner(const Taps &taps, const Part &of, const char *residual, i64 lane, Visit visit, None none) {
  const Plan &p = taps.p;
  const i64 *strides = taps.strides, *table = taps.table;
  // outputs in the caller's order of axes, which need not be that of memory
  int axes[MOST_AXES];
  i64 results = 1, o[MOST_AXES], from[MOST_AXES], to[MOST_AXES], places[MOST_AXES], place = p.lanes;
  for (int i = 0; i < p.rank; i++) axes[i] = p.order_back[p.rank - 1 - i];
  for (int i = p.rank - 1; i >= 0; i--) {
    from[i] = o[i] = i == 0 ? of.from : 0, to[i] = i == 0 ? of.to : p.axes[i].outputs;
    results *= to[i] - from[i], places[i] = place, place *= to[i] - from[i];
  }
  bool gaps = false;
  for (int i = 0; i < p.rank; i++) gaps = gaps || p.axes[i].gaps;
  with_residual(p, [&](auto kind) {
    const auto *winners = reinterpret_cast<const decltype(kind) *>(residual);
    int inner = axes[p.rank - 1];  // the innermost axis has a loop of its own
    const Axis &axis = p.axes[inner];
    i64 row = to[inner] - from[inner], step = places[inner], stride = strides[inner];
    bool plain = table && !gaps && p.lanes == 1 && axis.slides;  // winners lie evenly, each as far as its tap says
    i64 start = axis.start(from[inner]) * stride, move = axis.stride * stride;
    for (i64 r = 0; r < results; r += row) {
      i64 base = 0, output = 0;
      bool read = true;
      for (int k = 0; k < p.rank - 1; k++) {
        int i = axes[k];
        Clipped w = p.axes[i].at(o[i]);
        base += w.start * strides[i], output += (o[i] - from[i]) * places[i];
        read = read && w.length > 0;
      }
      if (plain)
        for (i64 j = 0, at = base + start; j < row; j++, output += step, at += move)
          visit(output, at + table[winners[output]]);
      else
        for (i64 j = 0; j < row; j++, output += step) {
          Clipped w = axis.at(from[inner] + j);
          for (i64 l = 0; l < p.lanes; l++)
            if (read && w.length > 0)
              visit(output + l, base + w.start * stride + l * lane +
                                    (table ? table[winners[output + l]] : taps.found(i64(winners[output + l]))));
            else
              none(output + l);
        }
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

// -- vectors against one tap after another
// ---------------------------------------------------------------------------

constexpr i64 FEW = 9;  // taps, or readers, up to which comparing with each of them is the faster way

// What a row meets: something `at` elements further on, which wins if it is tap number `tap`.
struct Meeting {
  i64 at, tap;
};
struct Meetings {
  Meeting all[FEW];
  i64 n;
  void clear() { n = 1, all[0] = {0, 0}; }
  // each of them with each of `count` places along one more axis
  template <class Place> void along(i64 count, Place place) {
    Meeting before[FEW];
    i64 many = n;
    std::memcpy(before, all, size_t(many) * sizeof(Meeting));
    n = 0;
    for (i64 i = 0; i < many; i++)
      for (i64 k = 0; k < count; k++) {
        Meeting m = place(k);
        all[n++] = {before[i].at + m.at, before[i].tap + m.tap};
      }
  }
};

// What the meetings of a row follow from, but for where it lies: two numbers an axis.
struct Key {
  i64 at[2 * MOST_AXES];
  int n = -1;
  bool operator==(const Key &k) const {
    bool same = n == k.n;
    for (int i = 0; same && i < n; i++) same = at[i] == k.at[i];
    return same;
  }
};

// visit(o) for each place of the first `outer` axes, the first of which runs over [from, to)
template <class Visit> void each_place(const i64 *sizes, int outer, i64 from, i64 to, Visit visit) {
  i64 o[MOST_AXES] = {from};
  if (from >= to) return;
  for (int i = 0; i >= 0;) {
    visit(o);
    for (i = outer - 1; i >= 0; i--) {
      if (++o[i] < (i == 0 ? to : sizes[i])) break;
      o[i] = i == 0 ? from : 0;
    }
  }
}

// The tangents of a row of outputs: of the taps of their window, the one that won.
template <class T> struct Picking {
  using I = Int<T>;
  const Taps &places;
  Part of;
  const T *dx;  // the tile
  const uint8_t *winners;
  T *dy;

  static bool serves(const Plan &p, const Array &a) {
    const Axis &inner = p.axes[p.rank - 1];
    i64 along = a.strides[p.lead + p.rank - 1], lane = a.strides[p.lead + p.rank], size = sizeof(T);
    bool laid = reinterpret_cast<uintptr_t>(a.data) % size == 0 && (p.lanes > 1 ? lane == size : along == size);
    for (int i = 0; i < p.lead + p.rank; i++) laid = laid && a.strides[i] % size == 0;
    return laid && p.taps <= FEW && (p.lanes > 1 || inner.stride <= 2);
  }

  template <int STRIDE> void run() const {
    const Plan &p = places.p;
    const i64 *strides = places.strides;
    int outer = p.lanes > 1 ? p.rank : p.rank - 1;
    const Axis &inner = p.axes[p.rank - 1];
    i64 sizes[MOST_AXES], begin = p.rank == 1 ? of.from : 0, end = p.rank == 1 ? of.to : inner.outputs, at = 0;
    for (int i = 0; i < p.rank; i++) sizes[i] = p.axes[i].outputs;
    i64 a = most(begin, inner.whole_from), b = least(end, inner.whole_to);
    if (a >= b) a = b = end;
    Meetings taps;
    Key seen;
    each_place(sizes, outer, of.from, outer > 0 ? of.to : of.from + 1, [&](const i64 *o) {
      i64 corner = 0;
      Key key;
      bool read = true;
      for (int i = 0; i < outer; i++) {
        Clipped w = p.axes[i].at(o[i]);
        corner += w.start * strides[i];
        read = read && w.length > 0;
        key.at[2 * i] = w.skipped, key.at[2 * i + 1] = w.length;
      }
      key.n = 2 * outer;
      if (!(key == seen)) {
        seen = key;
        taps.clear();
        auto along = [&](int i, i64 k0, i64 length) {
          i64 step = p.axes[i].step * strides[i];
          taps.along(length, [&](i64 k) { return Meeting{(k0 + k) * step, (k0 + k) * p.tap_steps[i]}; });
        };
        for (int i = 0; i < outer; i++) along(i, key.at[2 * i], key.at[2 * i + 1]);
        if (p.lanes == 1 && a < b) along(p.rank - 1, inner.at(a).skipped, inner.length(a));
      }
      if (p.lanes > 1) {
        compared<1>(taps, dx + corner, at, p.lanes);
        at += p.lanes;
        return;
      }
      auto looked_up = [&](i64 j) {
        Clipped w = inner.at(j);
        dy[at + j - begin] = read && w.length > 0 ? dx[corner + w.start + places.table[winners[at + j - begin]]] : T(0);
      };
      for (i64 j = begin; j < a; j++) looked_up(j);
      if (a < b) compared<STRIDE>(taps, dx + corner + inner.start(a), at + a - begin, b - a);
      for (i64 j = b; j < end; j++) looked_up(j);
      at += end - begin;
    });
  }

  template <int STRIDE> INLINE void compared(const Meetings &taps, const T *from, i64 at, i64 n) const {
    each_vector<T, true>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      Ints<X> won = widened<Ints<X>>(winners + at + j);
      X found{};
      for (i64 i = 0; i < taps.n; i++)
        found = choose<X>(won == I(taps.all[i].tap), load<X, STRIDE>(from + taps.all[i].at + j * STRIDE), found);
      save<X>(dy + at + j, found);
    });
  }
};

// The cotangents of a band of inputs, row by row. A row is the innermost axis, beyond whose ends lie outputs that
// nobody won, so that all inputs of a phase have their readers in the same places; or it is the lanes.
template <class T> struct Spreading {
  using I = Int<T>;
  const Plan &p;
  Part of;              // inputs
  Span span;            // outputs of the outermost axis that read them
  int outer;            // axes that lie across the rows
  i64 begin = 0, end;   // inputs of a row
  i64 held = 0, holds;  // outputs that are there for a row
  i64 low = 0, width;   // outputs that are not, before them; all
  i64 phases = 1;
  i64 rows = 1;  // of outputs
  i64 places[MOST_AXES];
  I *winners;
  T *room;
  const T *dy;

  static bool serves(const Plan &p) {
    const Axis &inner = p.axes[p.rank - 1];
    if (p.residual_bytes > 1 || (p.lanes == 1 && (!inner.slides || inner.stride > PHASES || inner.outputs < 4)))
      return false;
    i64 met = 1;
    for (int i = 0; i < p.rank && met <= FEW; i++)
      met *= p.lanes == 1 && i == p.rank - 1 ? p.readers[i].most_taps : most(p.readers[i].longest, 1);
    return met <= (p.lanes > 1 ? FEW : FEW / 2);
  }

  Spreading(const Plan &plan, const Part &part, const Span &outputs) : p(plan), of(part), span(outputs) {
    outer = p.lanes > 1 ? p.rank : p.rank - 1;
    end = width = holds = p.lanes;
    if (p.lanes == 1) {
      const Axis &inner = p.readers[p.rank - 1];
      begin = p.rank == 1 ? of.from : 0, end = p.rank == 1 ? of.to : inner.outputs;
      held = p.rank == 1 ? span.first : 0, holds = p.rank == 1 ? span.last - span.first : inner.size;
      phases = inner.phases;
      i64 first = held, last = held + holds;
      for (i64 i = begin; i < least(end, begin + phases); i++) {
        auto [start, taps] = inner.covers(i);
        if (taps == 0) continue;
        i64 many = (end - i + phases - 1) / phases;
        first = least(first, start);
        last = most(last, start + many + (taps - 1) * inner.step);
      }
      low = held - first, width = last - first;
    }
    for (int i = outer - 1; i >= 0; i--) {
      places[i] = i == outer - 1 ? width : places[i + 1] * p.readers[i + 1].size;
      rows *= i == 0 ? span.last - span.first : p.readers[i].size;
    }
  }

  void reserve(Scratch &scratch) {
    winners = scratch.take<I>(rows * width);
    room = width != holds ? scratch.take<T>(rows * width) : nullptr;
    if (outer > 0) sort_rows(scratch);
  }

  // From the residuals and the cotangents of all outputs in question, side by side.
  void run(const uint8_t *residual, const T *given, T *dx) {
    dy = room ? room : given;
    lay_out(residual, given);
    if (outer == 0) {
      i64 none[1] = {0};
      if (!known[0]) find_readers(0, none);
      return row(0, 0, dx);
    }
    i64 sizes[MOST_AXES], last = outer - 1;
    for (int a = 0; a < p.rank; a++) sizes[a] = p.axes[a].size;
    i64 begins = last == 0 ? of.from : 0, ends = last == 0 ? of.to : sizes[last];
    each_place(sizes, outer - 1, last == 0 ? 0 : of.from, last == 0 ? 1 : of.to, [&](i64 *i) {
      i64 base = 0;
      Key key;
      key.n = 2 * int(last);
      for (int a = 0; a < last; a++) {
        Clipped by = p.readers[a].at(i[a]);
        base += (by.first - (a == 0 ? span.first : 0)) * places[a];
        key.at[2 * a] = i[a] - p.axes[a].start(by.first), key.at[2 * a + 1] = by.length;
      }
      if (!(key == seen)) {
        seen = key;
        for (int k = 0; k < KINDS; k++) known[k] = false;
      }
      for (i64 at = begins; at < ends; at++, dx += end - begin) {
        int k = kinds[at - begins];
        i[last] = at;
        if (!known[k]) find_readers(k, i);
        row(k, base + bases[at - begins], dx);
      }
    });
  }

 private:
  static constexpr i64 PHASES = 2;
  static constexpr int KINDS = 16;  // of rows along the last axis across them; the last kind is any other
  uint8_t *kinds = nullptr;         // by row
  i64 *bases = nullptr;             // where its first reader lies, by row
  Meetings met[KINDS][PHASES];      // by kind and phase
  bool known[KINDS] = {};           // whether they are those of `seen`
  Key seen;                         // of the other axes

  void sort_rows(Scratch &scratch) {
    int last = outer - 1, many = 0;
    const Axis &axis = p.axes[last], &back = p.readers[last];
    i64 from = last == 0 ? of.from : 0, to = last == 0 ? of.to : axis.size, starts[KINDS], lengths[KINDS];
    kinds = scratch.take<uint8_t>(to - from), bases = scratch.take<i64>(to - from);
    if (scratch.failed) return;
    for (i64 i = from; i < to; i++) {
      auto [covered, first, length, skipped] = back.at(i);
      i64 start = i - axis.start(first);
      bases[i - from] = (first - (last == 0 ? span.first : 0)) * places[last];
      int k = 0;
      while (k < many && !(starts[k] == start && lengths[k] == length)) k++;
      if (k == many && many < KINDS - 1) starts[many] = start, lengths[many++] = length;
      kinds[i - from] = uint8_t(k);
    }
  }

  // the winners as integers as wide as T, and no winners, no cotangents beyond the ends of rows
  void lay_out(const uint8_t *residual, const T *given) const {
    if (!room)
      return each_vector<T>(rows * width, [&](auto kind, i64 j) INLINE_LAMBDA {
        save<Ints<decltype(kind)>>(winners + j, widened<Ints<decltype(kind)>>(residual + j));
      });
    i64 high = width - low - holds;
    for (i64 r = 0; r < rows; r++) {
      I *to = winners + r * width;
      T *there = room + r * width;
      for (i64 j = 0; j < low; j++) to[j] = -1, there[j] = 0;
      each_vector<T, true>(holds, [&](auto kind, i64 j) INLINE_LAMBDA {
        using X = decltype(kind);
        save<Ints<X>>(to + low + j, widened<Ints<X>>(residual + r * holds + j));
        save<X>(there + low + j, load<X>(given + r * holds + j));
      });
      for (i64 j = width - high; j < width; j++) to[j] = -1, there[j] = 0;
    }
  }

  INLINE void row(int k, i64 base, T *dx) const {
    if (phases == 2)
      pairs(met[k][0], met[k][1], base, dx);
    else
      for (i64 r = 0; r < least(phases, end - begin); r++) phase(met[k][r], base, dx, r);
  }

  void find_readers(int kind, const i64 *i) {
    for (i64 r = 0; r < phases; r++) find_readers(met[kind][r], i, least(begin + r, end - 1));
    known[kind] = kind < KINDS - 1;
  }

  // The readers of the inputs of one phase, from `inner` on, of the row at i; in the outputs' order.
  void find_readers(Meetings &met, const i64 *i, i64 inner) const {
    met.clear();
    for (int k = p.rank - 1; k >= 0; k--) {
      int a = p.order_back[k];
      const Axis &axis = p.axes[a], &back = p.readers[a];
      if (a == outer)  // along the row itself
        met.along(back.covers(inner).taps, [&](i64 t) {
          i64 o = back.start(inner) + t * back.step, starts = axis.start(o);
          return Meeting{o - held + low, (inner - starts) / axis.step * p.tap_steps[a]};
        });
      else
        met.along(back.length(i[a]), [&](i64 t) {
          i64 on = t * back.step;
          return Meeting{on * places[a], (i[a] - axis.start(back.first(i[a]) + on)) / axis.step * p.tap_steps[a]};
        });
    }
  }

  // what MANY vectors side by side are handed
  template <class X, int MANY, int N> INLINE void handed(const Meetings &met, i64 from, X *sum) const {
    for (int u = 0; u < MANY; u++) sum[u] = X{};
    for (i64 r = 0; r < (N ? N : met.n); r++) {
      i64 at = met.all[r].at + from;
      I tap = I(met.all[r].tap);
      for (int u = 0; u < MANY; u++, at += LANES<X>)
        sum[u] += choose<X>(load<Ints<X>>(winners + at) == tap, load<X>(dy + at), X{});
    }
  }

  template <int N> void phase(const Meetings &met, i64 base, T *dx, i64 r) const {
    each_block<T, 4>((end - begin - r + phases - 1) / phases, [&](auto kind, auto many, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      constexpr int MANY = decltype(many)::value;
      X sum[MANY];
      handed<X, MANY, N>(met, base + j, sum);
      for (int u = 0; u < MANY; u++)
        if (phases == 1)
          save<X>(dx + j + u * LANES<X>, sum[u]);
        else
          for (int l = 0; l < LANES<X>; l++) dx[(j + u * LANES<X> + l) * phases + r] = lane<X>(sum[u], l);
    });
  }

  template <int N, int M> void pairs(const Meetings &even, const Meetings &odd, i64 base, T *dx) const {
    each_block<T, 2>((end - begin) / 2, [&](auto kind, auto many, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      constexpr int MANY = decltype(many)::value;
      X a[MANY], b[MANY];
      handed<X, MANY, N>(even, base + j, a);
      handed<X, MANY, M>(odd, base + j, b);
      for (int u = 0; u < MANY; u++) interleave<X>(dx + 2 * (j + u * LANES<X>), a[u], b[u]);
    });
    if ((end - begin) % 2) handed<One<T>, 1, N>(even, base + (end - begin) / 2, dx + end - begin - 1);
  }

  // the numbers of readers that small windows have are worth loops of their own
  void pairs(const Meetings &even, const Meetings &odd, i64 base, T *dx) const {
    i64 n = even.n, m = odd.n;
    n == 1 && m == 1   ? pairs<1, 1>(even, odd, base, dx)
    : n == 1 && m == 2 ? pairs<1, 2>(even, odd, base, dx)
    : n == 2 && m == 1 ? pairs<2, 1>(even, odd, base, dx)
    : n == 2 && m == 4 ? pairs<2, 4>(even, odd, base, dx)
    : n == 4 && m == 2 ? pairs<4, 2>(even, odd, base, dx)
                       : pairs<0, 0>(even, odd, base, dx);
  }
  void phase(const Meetings &met, i64 base, T *dx, i64 r) const {
    met.n == 1   ? phase<1>(met, base, dx, r)
    : met.n == 2 ? phase<2>(met, base, dx, r)
    : met.n == 4 ? phase<4>(met, base, dx, r)
                 : phase<0>(met, base, dx, r);
  }
};

// -- modes
// -----------------------------------------------------------------------------------------------------------

// visit(Part, offset) for the tiles of a unit of outputs: the tile's part, and where it lies among all outputs
template <class Visit> void each_tile(const Plan &p, const Part &of, Visit visit) {
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Part tile{t, 1, of.from, of.to};
    visit(tile, dense_offset(p, tile, false));
  }
}
inline i64 outputs_of(const Plan &p, const Part &of) {
  i64 n = of.tiles * (of.to - of.from) * p.lanes;
  for (int i = 1; i < p.rank; i++) n *= p.axes[i].outputs;
  return n;
}

template <class T> Outcome pick(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, false, unit);
  Scratch scratch(arena);
  bool compares = as_they_are<T>(job.moved, false) && Picking<T>::serves(p, job.a);
  i64 size = size_of(job.moved), strides[MOST_AXES];
  for (int i = 0; i < p.rank; i++) strides[i] = job.a.strides[p.lead + i] / (compares ? size : 1);
  Taps taps(p, strides, compares ? p.taps : outputs_of(p, of), scratch);
  if (scratch.failed) return Outcome::no_memory;
  each_tile(p, of, [&](const Part &tile, i64 at) {
    const char *dx = job.a.data, *residual = job.x.data + at * p.residual_bytes;
    for (i64 i = p.lead - 1, rest = tile.tile; i >= 0; i--)
      dx += rest % p.sizes[i] * job.a.strides[i], rest /= p.sizes[i];
    char *dy = job.y.data + at * size;
    if (compares) {
      Picking<T> picking{taps, tile, reinterpret_cast<const T *>(dx), reinterpret_cast<const uint8_t *>(residual),
                         reinterpret_cast<T *>(dy)};
      return p.lanes > 1 || p.axes[p.rank - 1].stride == 1 ? picking.template run<1>() : picking.template run<2>();
    }
    with_type<T>(job.moved, [&](auto kind) {
      using S = decltype(kind);
      auto put = [&](i64 o, S s) { __builtin_memcpy(dy + o * i64(sizeof(S)), &s, sizeof s); };
      each_winner(
          taps, tile, residual, job.a.strides[p.lead + p.rank],
          [&](i64 o, i64 position) { put(o, element<S>(dx + position)); }, [&](i64 o) { put(o, S{}); });
    });
  });
  return Outcome::done;
}

// A band of inputs takes what its readers have for it, in their order; what they have for other bands is not theirs.
template <class T> Outcome spread(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, true, unit);
  Scratch scratch(arena);
  Span span = reads(p.readers[0], of.from, of.to);  // outputs that read the band
  i64 size = size_of(job.moved), strides[MOST_AXES] = {}, sizes[MOST_AXES], inputs = tile_strides(p, strides);
  for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? span.last - span.first : p.axes[i].outputs;
  i64 begin = of.from * strides[0], outputs = outputs_of(p, {0, 1, span.first, span.last});
  uint64_t extent = uint64_t((of.to - of.from) * strides[0]);
  bool compares = Spreading<T>::serves(p), in_place = as_they_are<T>(job.moved, false);
  Taps taps(p, strides, compares ? 0 : outputs * of.tiles, scratch);
  Spreading<T> spreading(p, of, span);
  T *room = scratch.take<T>(outputs), *converted = in_place ? nullptr : scratch.take<T>(i64(extent));
  if (compares) spreading.reserve(scratch);
  if (scratch.failed) return Outcome::no_memory;
  each_tile(p, {of.tile, of.tiles, span.first, span.last}, [&](const Part &readers, i64 at) {
    char *to = job.y.data + (readers.tile * inputs + begin) * size;
    const char *residual = job.x.data + at * p.residual_bytes;
    T *dx = in_place ? reinterpret_cast<T *>(to) : converted;
    const T *dy = Region<T>(p, job.a, job.moved, false, readers, sizes, span.first).all(job.moved, false, room);
    if (compares) {
      spreading.run(reinterpret_cast<const uint8_t *>(residual), dy, dx);
    } else {
      std::memset(dx, 0, extent * sizeof(T));
      each_winner(
          taps, readers, residual, 1,
          [&](i64 o, i64 position) {
            if (uint64_t(position - begin) < extent) dx[position - begin] += dy[o];
          },
          [](i64) {});
    }
    if (!in_place) deliver<T>(to, job.moved, dx, i64(extent), false);
  });
  return Outcome::done;
}

inline Outcome positions(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = part(p, false, unit);
  Scratch scratch(arena);
  Taps taps(p, p.position_steps, outputs_of(p, of), scratch);
  if (scratch.failed) return Outcome::no_memory;
  each_tile(p, of, [&](const Part &tile, i64 at) {
    i64 *to = reinterpret_cast<i64 *>(job.y.data) + at;
    each_winner(
        taps, tile, job.x.data + at * p.residual_bytes, 0, [&](i64 o, i64 position) { to[o] = position; },
        [&](i64 o) { to[o] = -1; });
  });
  return Outcome::done;
}

}  // namespace
}  // namespace ndpool
