// What a unit does in each mode, for one law: forward, winners, push, pull.
#pragma once
#include "unit.h"

namespace ndpool {
namespace {

// Where a unit's results lie in a dense array of the outputs (or, going back, of the inputs).
inline i64 dense_offset(const Plan &p, const Part &part, bool back) {
  i64 inner = p.lanes, whole = p.lanes;
  for (int i = 0; i < p.rank; i++) {
    i64 n = back ? p.axes[i].size : p.axes[i].outputs;
    whole *= n;
    if (i > 0) inner *= n;
  }
  return part.tile * whole + part.from * inner;
}

template <class T> void deliver(char *to, Type type, const T *from, i64 n, bool flip, bool stream) {
  if (!as_they_are<T>(type, flip)) return store_row<T>(type, to, from, n, flip);
  if (stream) copy_past_caches(to, reinterpret_cast<const char *>(from), n * i64(sizeof(T)));
  else std::memcpy(to, from, size_t(n) * sizeof(T));
}

// Outputs that count nothing, and inputs that nobody reads, are 0.
inline void clear_empty(const Plan &p, const Axis *axes, const Part &part, char *y, i64 size) {
  const Axis &inner = axes[p.rank - 1];
  i64 first = p.rank == 1 ? part.from : 0;
  each_row(p, axes, part, [&](i64 at, i64 n, i64 counts, i64) {
    for (i64 i = 0; i < n; i++)
      if (counts == 0 || (p.lanes == 1 && inner.count[first + i] == 0)) std::memset(y + (at + i) * size, 0, size_t(size));
  });
}

// body(X{}, at, counts, taps) over all results in place, with what each output counts and reads as vectors
template <class T, class Body>
void each_result(const Plan &p, const Part &part, i64 results, const Inner<T> &inner, Body body) {
  if (p.even && !p.padded) {
    i64 count = 1;
    for (int i = 0; i < p.rank; i++) count *= p.axes[i].count[0];
    return each_once<T>(results, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      body(kind, j, splat<X>(T(count)), splat<X>(T(count)));
    });
  }
  each_row(p, p.axes, part, [&](i64 at, i64 n, i64 counts, i64 taps) {
    each_once<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      body(kind, at + j, load<X>(inner.counts + j) * T(counts), load<X>(inner.taps + j) * T(taps));
    });
  });
}

// The same where the first fold is not along the innermost axis: copied, so that every piece of it lies side by side.
template <class Law>
Sink<typename Law::T, Law::planes> fold_region(const Law &, Passes<Law> &passes, const Slabs<typename Law::T> &x, Scratch &scratch) {
  using T = typename Law::T;
  const Plan &p = passes.plan;
  i64 n = passes.part.tiles * p.lanes, piece = p.lanes;
  for (int i = 0; i < p.rank; i++) n *= passes.sizes[i];
  for (int i = passes.order[0]; i < p.rank; i++) piece *= passes.sizes[i];
  T *region = scratch.template take<T>(n);
  T *zeros = Law::planes > 1 && !Law::spares_reads ? scratch.template take<T>(piece) : nullptr;
  Sink<T, Law::planes> nothing{};
  if (scratch.failed) return nothing;
  if (zeros) std::memset(zeros, 0, size_t(piece) * sizeof(T));
  T *next = region;
  walk(p, x.array, x.array, passes.part, passes.sizes, passes.span.first, p.rank - 1, [&](i64 at, i64) {
    x.each(x.at(at), [&](const T *from, i64 count, i64 first) { std::memcpy(next + first, from, size_t(count) * sizeof(T)); });
    next += x.n * p.lanes;
  });
  return passes.template run<FIRST<Law>>([&](auto give) {
    Source<T, Law::planes> from{};
    if constexpr (Law::planes > 1) from.at[1] = zeros;
    for (i64 at = 0; at < n; at += piece) {
      from.at[0] = region + at;
      give(from, piece / passes.sizes[passes.order[0]]);
    }
  });
}

// The states of a unit's outputs. `x` is lifted; `dx` goes along if the law has a plane for it.
template <class Law> Sink<typename Law::T, Law::planes> fold(const Law &law, Passes<Law> &passes, Job &job, Scratch &scratch) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  constexpr bool MOVES = (Law::lifted >> 2 & 1) != 0;
  bool line = p.rank == 1;
  i64 n = passes.sizes[p.rank - 1], start = line ? passes.span.first : 0;
  Slabs<T> x(p, job.x, p.type, p.flip, n, start), dx(p, MOVES ? job.a : job.x, job.moved, p.flip, n, start);
  passes.reserve(scratch);
  Source<T, Law::planes> slab{};
  T *lifted[2] = {nullptr, nullptr};
  // planes lie alike: as x does, if dx does too and constants need not be spread out
  constexpr bool CONSTANTS = FIRST<Law> != Law::lifted;
  if ((MOVES && (x.direct != dx.direct || x.row != dx.row)) || (CONSTANTS && x.row != p.lanes))
    x.direct = dx.direct = false, x.row = dx.row = p.lanes;
  x.reserve(scratch);
  if constexpr (MOVES) dx.reserve(scratch);
  if constexpr (Law::lifts) {
    lifted[0] = scratch.template take<T>(n * p.lanes);
    if constexpr (MOVES) lifted[1] = scratch.template take<T>(n * p.lanes);
  }
  if constexpr (CONSTANTS)
    for (int i = 1; i < Law::planes; i++)
      if (!(Law::lifted >> i & 1)) {
        T *plane = scratch.template take<T>(n * p.lanes);
        for (i64 j = 0; plane && j < n * p.lanes; j++) plane[j] = Law::constant[i];
        slab.at[i] = plane;
      }
  Sink<T, Law::planes> nothing{};
  if constexpr (Law::ordered)
    if (!passes.by_slabs()) return fold_region(law, passes, x, scratch);
  if (scratch.failed) return nothing;
  return passes.template run<FIRST<Law>>([&](auto give) {
    walk(p, job.x, MOVES ? job.a : job.x, passes.part, passes.sizes, passes.span.first, p.rank - 1, [&](i64 at_x, i64 at_dx) {
      slab.at[0] = x.at(at_x);
      if constexpr (MOVES) slab.at[2] = dx.at(at_dx);
      i64 row = x.row;
      if constexpr (Law::lifts) {
        x.each(slab.at[0], [&](const T *from, i64 count, i64 first) {
          const T *moved = MOVES ? slab.at[Law::planes - 1] + (from - slab.at[0]) : nullptr;
          each_vector<T>(count, [&](auto kind, i64 j) INLINE_LAMBDA {
            using X = decltype(kind);
            auto s = law.lift(load<X>(from + j), MOVES ? load<X>(moved + j) : X{});
            save<X>(lifted[0] + first + j, s.at[0]);
            if constexpr (MOVES) save<X>(lifted[1] + first + j, s.at[2]);
          });
        });
        slab.at[0] = lifted[0], row = p.lanes;
        if constexpr (MOVES) slab.at[2] = lifted[1];
      }
      give(slab, row);
    });
  });
}

template <class Law> Outcome forward(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Passes<Law> passes(law, p, p.axes, of);
  i64 size = size_of(p.type);
  char *y = job.y.data + dense_offset(p, of, false) * size;
  bool in_place = Law::chooses && as_they_are<T>(p.type, p.flip) && !p.stream_y;
  if (in_place) passes.last.at[0] = reinterpret_cast<T *>(y);
  auto states = fold(law, passes, job, scratch);
  Inner<T> inner(p, of, scratch);
  if (scratch.failed) return Outcome::no_memory;
  if (!in_place) {
    if constexpr (!Law::chooses) {
      T divisor = T(p.mean ? p.divisor : 1);
      each_result<T>(p, of, passes.results(), inner, [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
        using X = decltype(kind);
        auto s = load<Law, ALL<Law>, X>(states, at);
        if constexpr (Law::counts_padding) merge_padding<Law, X>(law, s, counts, taps);
        X by = divisor != 0 ? splat<X>(divisor) : choose<X>(counts > 0, counts, splat<X>(1));
        save<X>(states.at[0] + at, law.value(s, by));
      });
    }
    deliver<T>(y, p.type, states.at[0], passes.results(), p.flip, p.stream_y);
  }
  if (p.empty) clear_empty(p, p.axes, of, y, size);
  if (p.stream_y) settle_streams();
  return Outcome::done;
}

template <class Law> Outcome winners(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Passes<Law> passes(law, p, p.axes, of);
  auto states = fold(law, passes, job, scratch);
  if (scratch.failed) return Outcome::no_memory;
  i64 at = dense_offset(p, of, false), n = passes.results(), size = size_of(p.type);
  deliver<T>(job.y.data + at * size, p.type, states.at[0], n, p.flip, p.stream_y);
  if (p.empty) clear_empty(p, p.axes, of, job.y.data + at * size, size);
  if (p.stream_y) settle_streams();
  if (job.mode == Mode::forward) return Outcome::done;
  const Int<T> *index = reinterpret_cast<const Int<T> *>(states.at[1]);
  char *to = job.b.data + at * p.residual_bytes;
  auto narrowed = [&](auto kind) {
    using R = decltype(kind);
    R *r = reinterpret_cast<R *>(to);
    for (i64 i = 0; i < n; i++) r[i] = R(index[i]);
  };
  switch (p.residual_bytes) {
    case 1: narrowed(uint8_t()); break;
    case 2: narrowed(uint16_t()); break;
    case 4: narrowed(uint32_t()); break;
    default: narrowed(uint64_t());
  }
  return Outcome::done;
}

template <class Law> Outcome push(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Passes<Law> passes(law, p, p.axes, of);
  auto states = fold(law, passes, job, scratch);
  Inner<T> inner(p, of, scratch);
  if (scratch.failed) return Outcome::no_memory;
  each_result<T>(p, of, passes.results(), inner, [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
    using X = decltype(kind);
    auto s = load<Law, ALL<Law>, X>(states, at);
    if constexpr (Law::counts_padding) merge_padding<Law, X>(law, s, counts, taps);
    save<X>(states.at[0] + at, law.tangent(s));
  });
  i64 size = size_of(job.moved);
  char *dy = job.y.data + dense_offset(p, of, false) * size;
  deliver<T>(dy, job.moved, states.at[0], passes.results(), p.flip, p.stream_y);
  if (p.empty) clear_empty(p, p.axes, of, dy, size);
  if (p.stream_y) settle_streams();
  return Outcome::done;
}

// The cotangents of a band of inputs: fold what their readers hand them.
template <class Law> Outcome pull(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = part(p, true, unit);
  auto turned = law.turned();
  using Turned = decltype(turned);
  Passes<Turned> back(turned, p, p.readers, of);
  i64 size = size_of(job.moved);
  char *dx = job.y.data + dense_offset(p, of, true) * size;
  if constexpr (!Law::looks_at_x) {
    if (as_they_are<T>(job.moved, false) && !p.stream_x) back.last.at[0] = reinterpret_cast<T *>(dx);
  }
  back.reserve(scratch);
  Part readers{of.tile, of.tiles, back.span.first, back.span.last};  // outputs that read the band
  i64 row = p.rank == 1 ? readers.to - readers.from : p.axes[p.rank - 1].outputs;
  Slabs<T> dy(p, job.a, job.moved, p.flip && Law::looks_at_x, row, p.rank == 1 ? readers.from : 0);
  dy.reserve(scratch);
  Sink<T, Turned::planes> done{};
  Inner<T> inner(p, readers, scratch);
  if constexpr (Law::looks_at_x) {
    Passes<Law> passes(law, p, p.axes, readers);
    auto states = fold(law, passes, job, scratch);
    if (scratch.failed) return Outcome::no_memory;
    if constexpr (Law::counts_padding)
      if (p.padded)
        each_result<T>(p, readers, passes.results(), inner, [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
          using X = decltype(kind);
          auto s = load<Law, ALL<Law>, X>(states, at);
          merge_padding<Law, X>(law, s, counts, taps);
          save<Law, X>(states, at, s);
        });
    i64 m = row * p.lanes, at = 0;
    done = back.template run<ALL<Turned>>([&](auto give) {
      walk(p, job.a, job.a, readers, back.sizes, readers.from, p.rank - 1, [&](i64 in_dy, i64) {
        dy.each(dy.at(in_dy), [&](const T *g, i64 n, i64 first) {
          each_once<T>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
            using X = decltype(kind);
            auto s = load<Law, ALL<Law>, X>(states, at + first + j);
            save<Turned, X>(states, at + first + j, law.turn(s, load<X>(g + j)));
          });
        });
        give(states + at, p.lanes);
        at += m;
      });
    });
    i64 n = p.rank == 1 ? of.to - of.from : p.axes[p.rank - 1].size, sizes[MOST_AXES];
    for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? of.to - of.from : p.axes[i].size;
    Slabs<T> x(p, job.x, p.type, p.flip, n, p.rank == 1 ? of.from : 0);
    x.reserve(scratch);
    if (scratch.failed) return Outcome::no_memory;
    T *out = done.at[0];
    walk(p, job.x, job.x, of, sizes, of.from, p.rank - 1, [&](i64 in_x, i64) {
      x.each(x.at(in_x), [&](const T *from, i64 count, i64 first) {
        each_once<T>(count, [&](auto kind, i64 j) INLINE_LAMBDA {
          using X = decltype(kind);
          auto s = load<Turned, ALL<Turned>, X>(done, out - done.at[0] + first + j);
          save<X>(out + first + j, law.land(s, load<X>(from + j)));
        });
      });
      out += n * p.lanes;
    });
  } else {
    T divisor = T(p.mean ? p.divisor : 1), *shares = divisor == 1 ? nullptr : scratch.template take<T>(row * p.lanes);
    if (scratch.failed) return Outcome::no_memory;
    i64 o[MOST_AXES];
    for (int i = 0; i < p.rank; i++) o[i] = i == 0 ? readers.from : 0;
    done = back.template run<ALL<Turned>>([&](auto give) {
      walk(p, job.a, job.a, readers, back.sizes, readers.from, p.rank - 1, [&](i64 in_dy, i64) {
        Source<T, 1> g{{dy.at(in_dy)}};
        if (divisor == 1) return give(g, dy.row);
        i64 counts = 1;
        for (int i = 0; i + 1 < p.rank; i++) counts *= p.axes[i].count[o[i]];
        for (int i = p.rank - 2; i >= 0; i--) {
          if (++o[i] < (i == 0 ? readers.to : p.axes[i].outputs)) break;
          o[i] = i == 0 ? readers.from : 0;
        }
        const Axis &axis = p.axes[p.rank - 1];
        i64 start = p.rank == 1 ? readers.from : 0;
        if (p.lanes == 1)
          each_vector<T>(row, [&](auto kind, i64 j) INLINE_LAMBDA {
            using X = decltype(kind);
            X by = divisor != 0 ? splat<X>(divisor) : load<X>(inner.counts + j) * T(counts);
            save<X>(shares + j, load<X>(g.at[0] + j) / by);
          });
        else
          for (i64 i = 0; i < row; i++) {
            T by = divisor != 0 ? divisor : T(counts * axis.count[start + i]);
            each_vector<T>(p.lanes, [&](auto kind, i64 j) INLINE_LAMBDA {
              using X = decltype(kind);
              save<X>(shares + i * p.lanes + j, load<X>(g.at[0] + i * dy.row + j) / by);
            });
          }
        give(Source<T, 1>{{shares}}, p.lanes);
      });
    });
  }
  if (done.at[0] != reinterpret_cast<T *>(dx))
    deliver<T>(dx, job.moved, done.at[0], back.results(), p.flip && Law::looks_at_x, p.stream_x);
  if (Law::looks_at_x && p.unread) clear_empty(p, p.readers, of, dx, size);
  if (p.stream_x) settle_streams();
  return Outcome::done;
}

// -- integer sums: exact, in two halves; a mean is rounded half to even ----------------------------------------------------

template <int PLANES> Outcome integer_sum(Job &job, i64 unit, Arena &arena) {
  using T = int64_t;
  using Law = Add<T, PLANES>;
  const Plan &p = *job.plan;
  Law law;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Passes<Law> passes(law, p, p.axes, of);
  passes.reserve(scratch);
  i64 n = passes.sizes[p.rank - 1], start = p.rank == 1 ? passes.span.first : 0;
  Slabs<T> x(p, job.x, PLANES == 2 ? Type::i64 : p.type, false, n, start);
  x.direct = x.direct && PLANES == 1, x.row = x.direct ? x.row : p.lanes;
  x.reserve(scratch);
  T *upper = PLANES == 2 ? scratch.take<T>(n * p.lanes) : nullptr;
  if (scratch.failed) return Outcome::no_memory;
  auto states = passes.template run<ALL<Law>>([&](auto give) {
    walk(p, job.x, job.x, of, passes.sizes, passes.span.first, p.rank - 1, [&](i64 at, i64) {
      Source<T, PLANES> slab;
      slab.at[0] = x.at(at);
      if constexpr (PLANES == 2) {
        for (i64 i = 0; i < n * p.lanes; i++) {
          T v = x.room[i];
          upper[i] = p.type == Type::u64 ? T(uint64_t(v) >> 32) : v >> 32;
          x.room[i] = v & 0xffffffffLL;
        }
        slab.at[1] = upper;
      }
      give(slab, x.row);
    });
  });
  i64 size = size_of(p.type);
  char *y = job.y.data + dense_offset(p, of, false) * size;
  using Wide = __int128;
  Wide lowest = 0, highest = (Wide(1) << (8 * size)) - 1;
  if (p.type <= Type::i64) lowest = -(Wide(1) << (8 * size - 1)), highest = -lowest - 1;
  const Axis &axis = p.axes[p.rank - 1];
  i64 first = p.rank == 1 ? of.from : 0;
  each_row(p, p.axes, of, [&](i64 at, i64 count, i64 counts, i64) {
    for (i64 i = 0; i < count; i++) {
      Wide sum = states.at[0][at + i];
      if constexpr (PLANES == 2) sum += Wide(states.at[1][at + i]) << 32;
      i64 inner = p.lanes == 1 ? axis.count[first + i] : 1, by = p.mean ? (p.divisor ? p.divisor : counts * inner) : 1;
      if (by > 1) {
        Wide down = sum / by, rest = sum % by;
        if (rest < 0) rest += by, down -= 1;
        if (2 * rest > by || (2 * rest == by && down % 2 != 0)) down += 1;
        sum = down;
      }
      if (sum < lowest || sum > highest) __atomic_store_n(&job.overflow, true, __ATOMIC_RELAXED);
      uint64_t low = uint64_t(sum);
      std::memcpy(y + (at + i) * size, &low, size_t(size));  // little-endian
    }
  });
  return Outcome::done;
}

}  // namespace
}  // namespace ndpool
