// Derivatives of a max from its residual, the index of each output's winning tap: jvp takes the winners' tangents, vjp
// adds each output's cotangent to its winner. No law, and no look at x. Where few taps meet, vectors are compared with
// one tap after another (by_winner_few.h); otherwise each output looks its winner up (scatter_winners.h). Either way an
// input adds up its readers in the outputs' order, so the bits are the same.
#include "by_twos.h"
#include "by_winner_few.h"
#include "families.h"
#include "scatter_winners.h"

namespace ndpool::NDPOOL_SET {
namespace {

// row-major strides of a dense tile of inputs
inline i64 tile_strides(const Plan &p, i64 *strides) {
  i64 n = p.lanes;
  for (int i = p.rank - 1; i >= 0; i--) strides[i] = n, n *= p.axes[i].size;
  return n;
}

// visit(Part, offset) for the tiles of a unit of outputs: the tile's part, and where it lies among all outputs
template <class Visit> void each_tile(const Plan &p, const Part &of, Visit visit) {
  for (i64 t = of.tile; t < of.tile + of.tiles; t++) {
    Part tile{.tile = t, .tiles = 1, .from = of.from, .to = of.to};
    visit(tile, dense_offset(p, tile, false));
  }
}
inline i64 outputs_of(const Plan &p, const Part &of) {
  i64 n = of.tiles * (of.to - of.from) * p.lanes;
  for (int i = 1; i < p.rank; i++) n *= p.axes[i].outputs;
  return n;
}

// The most readers that an input has.
inline i64 most_readers(const Plan &p) {
  i64 most = 1;
  for (int i = 0; i < p.rank; i++) most *= p.readers[i].most_taps;
  return most;
}

// A unit of a vjp: a band of inputs, or some tiles, and the outputs that read it.
template <class T> struct Back {
  Job &job;
  const Plan &p;
  Scratch scratch;
  Part of, readers;
  Span span;  // the outputs of the outermost axis among the readers
  i64 strides[MOST_AXES]{}, sizes[MOST_AXES];
  i64 inputs, begin, extent;  // of a tile: its inputs, and those of the band
  i64 outputs, a_tile;        // all readers, and those of a tile
  bool in_place;
  T *room;

  Back(Job &j, i64 unit, Arena &arena)
      : job(j),
        p(*j.plan),
        scratch(arena),
        of(band_of(p, true, unit)),
        readers(of),
        span(reads(p.readers[0], of.from, of.to)),
        inputs(tile_strides(p, strides)),
        begin(of.from * strides[0]),
        extent((of.to - of.from) * strides[0]),
        in_place(as_they_are<T>(j.tangent_type, false)) {
    readers.from = span.first, readers.to = span.last;
    for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? span.last - span.first : p.axes[i].outputs;
    outputs = outputs_of(p, readers), a_tile = outputs / of.tiles;
    room = scratch.take<T>(outputs);
  }

  // hand_back(residual, dy, dx) for all tiles, which lie side by side
  template <class HandBack> Outcome run(HandBack hand_back) {
    i64 all = of.tiles * extent;
    T *converted = in_place ? nullptr : scratch.take<T>(all);
    if (scratch.failed) return Outcome::no_memory;
    const T *dy = Region<T>(p, job.a, job.tangent_type, false, readers, sizes, span.first).all(room);
    Part first = readers;
    first.tiles = 1;
    const char *residual = job.x.data + dense_offset(p, first, false) * p.residual_bytes;
    char *to = job.y.data + (of.tile * inputs + begin) * size_of(job.tangent_type);
    T *dx = in_place ? reinterpret_cast<T *>(to) : converted;
    hand_back(residual, dy, dx);
    if (!in_place) deliver<T>(to, job.tangent_type, dx, all, false);
    return Outcome::done;
  }
};

// In vectors: each input adds up what its readers have for it.
template <class Way, class T> Outcome in_vectors(Back<T> &back) {
  Way way(back.p, back.of, back.span);
  way.reserve(back.scratch);
  return back.run([&](const char *residual, const T *dy, T *dx) {
    way.run(reinterpret_cast<const uint8_t *>(residual), dy, dx);
  });
}

// Output by output: each adds what it has to its winner. What it has for other bands is left alone. All is cleared
// first, because clearing one small tile after another is slow.
template <class T> Outcome look_up(Back<T> &back) {
  const Plan &p = back.p;
  TapOffsets taps(p, back.strides, back.outputs, back.scratch);
  OutputRows rows(taps, {.tile = 0, .tiles = 1, .from = back.span.first, .to = back.span.last}, back.scratch);
  if (back.scratch.failed) return Outcome::no_memory;
  i64 met = most_readers(p), begin = back.begin, extent = back.extent, a_tile = back.a_tile, tiles = back.of.tiles;
  bool together = taps.table && p.lanes == 1 && tiles >= SIDE_BY_SIDE && met > FEW_READERS;
  Places places(taps, rows, taps.table && (together || !rows.even), back.scratch);
  return back.run([&](const char *residual, const T *dy, T *dx) {
    std::memset(dx, 0, size_t(tiles * extent) * sizeof(T));
    for (i64 t = 0, many; t < tiles; t += many, dy += many * a_tile, dx += many * extent) {
      const char *given = residual + t * a_tile * p.residual_bytes;
      many = together && tiles - t >= SIDE_BY_SIDE ? SIDE_BY_SIDE : 1;
      if (!taps.table)
        each_winner(
            taps, rows, given, 1,
            [&](i64 o, i64 position) INLINE_LAMBDA {
              if (uint64_t(position - begin) < uint64_t(extent)) dx[position - begin] += dy[o];
            },
            [](i64) INLINE_LAMBDA {});
      else
        with_residual(p, [&](auto kind) {
          using R = decltype(kind);
          if constexpr (sizeof(R) <= 2) {
            const R *winners = reinterpret_cast<const R *>(given);
            Scatter<T, R> scatter{taps, begin, extent, extent != back.inputs, met};
            many > 1                 ? scatter.tiles(places, winners, dy, dx, a_tile)
            : together || !rows.even ? scatter.tile(places, winners, dy, dx)
                                     : scatter.tile(rows, winners, dy, dx);
          }
        });
    }
  });
}

template <class T> Outcome vjp(Job &job, i64 unit, Arena &arena) {
  Back<T> back(job, unit, arena);
  if (moves_on_by_two(back.p) && back.p.residual_bytes == 1) return in_vectors<ByTwo<T>>(back);
  if (CompareReaders<T>::serves(back.p)) return in_vectors<CompareReaders<T>>(back);
  return look_up(back);
}

}  // namespace

Outcome jvp_by_winner(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = band_of(p, false, unit);
  Scratch scratch(arena);
  Type type = job.tangent_type;
  i64 size = size_of(type), strides[MOST_AXES];
  bool compares = (type == Type::f32 || type == Type::f64) && can_compare_taps(p, job.a, size);
  for (int i = 0; i < p.rank; i++) strides[i] = job.a.strides[p.lead + i] / (compares ? size : 1);
  TapOffsets taps(p, strides, compares ? p.taps : outputs_of(p, of), scratch);
  OutputRows rows(taps, compares ? Part{} : of, scratch);
  if (scratch.failed) return Outcome::no_memory;
  each_tile(p, of, [&](const Part &tile, i64 at) {
    const char *dx = job.a.data, *residual = job.x.data + at * p.residual_bytes;
    for (i64 i = p.lead - 1, rest = tile.tile; i >= 0; i--)
      dx += rest % p.sizes[i] * job.a.strides[i], rest /= p.sizes[i];
    char *dy = job.y.data + at * size;
    if (compares && type == Type::f32) return CompareTaps<float>(taps, tile, dx, residual, dy).run();
    if (compares) return CompareTaps<double>(taps, tile, dx, residual, dy).run();
    auto look_up = [&](auto kind) {  // elements are moved as they are, so their size is all that matters
      using S = decltype(kind);
      auto put = [&](i64 o, S s) INLINE_LAMBDA { __builtin_memcpy(dy + o * i64(sizeof(S)), &s, sizeof s); };
      each_winner(
          taps, rows, residual, job.a.strides[p.lead + p.rank],
          [&](i64 o, i64 position) INLINE_LAMBDA { put(o, element<S>(dx + position)); },
          [&](i64 o) INLINE_LAMBDA { put(o, S{}); });
    };
    size == 2 ? look_up(uint16_t()) : size == 4 ? look_up(uint32_t()) : look_up(uint64_t());
  });
  return Outcome::done;
}

Outcome vjp_by_winner(Job &job, i64 unit, Arena &arena) {
  return job.tangent_type == Type::f64 ? vjp<double>(job, unit, arena) : vjp<float>(job, unit, arena);
}

Outcome positions(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  Part of = band_of(p, false, unit);
  Scratch scratch(arena);
  TapOffsets taps(p, p.position_steps, outputs_of(p, of), scratch);
  OutputRows rows(taps, of, scratch);
  if (scratch.failed) return Outcome::no_memory;
  each_tile(p, of, [&](const Part &, i64 at) {
    i64 *to = reinterpret_cast<i64 *>(job.y.data) + at;
    each_winner(
        taps, rows, job.x.data + at * p.residual_bytes, 0, [&](i64 o, i64 position) INLINE_LAMBDA { to[o] = position; },
        [&](i64 o) INLINE_LAMBDA { to[o] = -1; });
  });
  return Outcome::done;
}

}  // namespace ndpool::NDPOOL_SET
