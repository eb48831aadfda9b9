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

template <class T> void deliver(char *to, Type type, const T *from, i64 n, bool flip) {
  if (!as_they_are<T>(type, flip)) return store_row<T>(type, to, from, n, flip);
  std::memcpy(to, from, size_t(n) * sizeof(T));
}

// Outputs that count nothing, and inputs that nobody reads, are 0.
inline void clear_empty(const Plan &p, const Axis *axes, const Part &part, char *y, i64 size) {
  const Axis &inner = axes[p.rank - 1];
  i64 first = p.rank == 1 ? part.from : 0;
  each_row(p, axes, part, [&](i64 at, i64 n, i64 counts, i64) {
    for (i64 i = 0; i < n; i++)
      if (counts == 0 || (p.lanes == 1 && inner.count(first + i) == 0))
        std::memset(y + (at + i) * size, 0, size_t(size));
  });
}

// body(X{}, at, counts, taps) over all results, no element twice, with what each output counts and reads as vectors.
// PADDING: they are looked at only where padding counts; otherwise only the counts are.
template <bool PADDING, class T, class Body>
void each_result(const Plan &p, const Part &part, i64 results, const Inner<T> &inner, Body body) {
  if (PADDING ? !p.padded : p.even) {
    i64 count = 1;
    for (int i = 0; i < p.rank; i++) count *= p.axes[i].count(0);
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

constexpr i64 CHUNK = 1 << 20;  // taps of a line that are converted at a time

// Whether a unit is one long line after another, whose elements must be converted: all at once would take memory for
// it.
template <class T> bool in_chunks(const Plan &p, const Region<T> &x) {
  return p.rank == 1 && p.lanes == 1 && p.axes[0].lines && p.axes[0].step == 1 && !x.direct && x.positions > CHUNK;
}

// The winners of such lines: how they are cut makes no difference to what is largest, or to which is first.
template <class Law>
Sink<typename Law::T, Law::planes> fold_chunks(const Law &law, Passes<Law> &passes, Job &job, Scratch &scratch) {
  using T = typename Law::T;
  using I = Int<T>;
  constexpr int PLANES = Law::planes;
  const Plan &p = *job.plan;
  const Axis &axis = p.axes[0];
  const Part &part = passes.part;
  Sink<T, PLANES> to = passes.last.at[0] ? passes.last : passes.rooms[0], found{}, nothing{};
  Source<T, PLANES> from{};
  T *room = scratch.template take<T>(CHUNK), *zeros = scratch.template take<T>(PLANES > 1 ? CHUNK : 0), state[PLANES];
  if (scratch.failed) return nothing;
  std::memset(zeros, 0, PLANES > 1 ? CHUNK * sizeof(T) : 0);
  for (int i = 0; i < PLANES; i++) found.at[i] = state + i, from.at[i] = zeros;
  for (i64 t = part.tile; t < part.tile + part.tiles; t++)
    for (i64 o = part.from; o < part.to; o++, to = to + 1) {
      Clipped w = axis.at(o);
      for (i64 done = 0; done < w.length; done += CHUNK) {
        i64 n = least(CHUNK, w.length - done), sizes[1] = {n};
        from.at[0] = Region<T>(p, job.x, p.type, p.flip, {t, 1, 0, 0}, sizes, w.first + done).all(p.type, p.flip, room);
        Folding<Law, ALL<Law>> lines{law, axis, o, o + 1, 0, n, 1, 1, p.tap_steps[0], {}, nullptr, 1, 0, 0};
        lines.line(found, from, n, I(I(w.skipped + done) * I(p.tap_steps[0])));
        auto all = load<Law, ALL<Law>, One<T>>(done ? to : found, 0);
        if (done) law.merge(all, load<Law, ALL<Law>, One<T>>(found, 0));
        save<Law, One<T>>(to, 0, all);
      }
      if (w.length == 0)
        for (int i = 0; i < PLANES; i++) to.at[i][0] = 0;
    }
  return passes.last.at[0] ? passes.last : passes.rooms[0];
}

// The states of a unit's outputs. `x` is lifted; `dx` goes along if the law has a plane for it.
template <class Law>
Sink<typename Law::T, Law::planes> fold(const Law &law, Passes<Law> &passes, Job &job, Scratch &scratch) {
  using T = typename Law::T;
  using From = Source<T, Law::planes>;
  const Plan &p = *job.plan;
  constexpr int MOVED = Law::moved;
  constexpr bool MOVES = MOVED > 0,
                 BARE = FIRST<Law> == 1 && !Law::lifts;  // BARE: x is all that is read
  Sink<T, Law::planes> nothing{};
  passes.reserve(scratch);
  Region<T> x(p, job.x, p.type, p.flip, passes.part, passes.sizes, passes.span.first);
  if (BARE && x.direct && passes.by_slabs()) {
    if (scratch.failed) return nothing;
    return passes.template run<FIRST<Law>>([&](auto give) {
      x.each([&](const char *at, i64 rows, i64 distance) {
        From from;
        for (auto &plane : from.at) plane = reinterpret_cast<const T *>(at);  // only the first is read
        give(from, x.row(), rows, distance / i64(sizeof(T)));
      });
    });
  }
  if constexpr (Law::overlaps)
    if (in_chunks(p, x)) return fold_chunks(law, passes, job, scratch);
  T *room[3] = {};
  for (int i = 0; i < (BARE ? 1 : Law::planes); i++) room[i] = scratch.template take<T>(x.elements);
  if (scratch.failed) return nothing;
  From from;
  const T *first = x.all(p.type, p.flip, room[0]);
  for (auto &plane : from.at) plane = first;
  const T *dx = nullptr;
  if constexpr (MOVES)
    from.at[MOVED] = dx = Region<T>(p, job.a, job.moved, false, passes.part, passes.sizes, passes.span.first)
                              .all(job.moved, false, room[MOVED]);
  if constexpr (Law::lifts) {
    each_once<T>(x.elements, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto s = law.lift(load<X>(from.at[0] + j), MOVES ? load<X>(dx + j) : X{});
      save<X>(room[0] + j, s.at[0]);
      if constexpr (MOVES) save<X>(room[MOVED] + j, s.at[MOVED]);
    });
    from.at[0] = room[0];
    if constexpr (MOVES) from.at[MOVED] = room[MOVED];
  }
  if constexpr (!BARE)
    for (int i = 1; i < Law::planes; i++)
      if (!(Law::lifted >> i & 1)) {
        each_vector<T>(x.elements, [&](auto kind, i64 j) INLINE_LAMBDA {
          save<decltype(kind)>(room[i] + j, splat<decltype(kind)>(Law::constant[i]));
        });
        from.at[i] = room[i];
      }
  return passes.template run_packed<FIRST<Law>>(from, scratch);
}

// -- long windows, a piece at a time
//
// The taps of a long line are merged as a tree of halves (Folding::longest_line). Its upper branches are pieces, one
// per unit, so several threads share one window. Each unit leaves the state of its piece; the last to come merges them
// as the tree does, so the result has the same bits however many there were.

// visit(piece, from, to) for the pieces of a window's taps [from, to), in order; a short window has fewer of them
template <class Law, class Visit> void each_piece(i64 from, i64 to, i64 first, i64 pieces, const Visit &visit) {
  using Fold = Folding<Law, ALL<Law>>;
  if (pieces == 1 || to - from <= Fold::LONGEST) return visit(first, from, to);
  i64 middle = from + Fold::first_half(to - from);
  each_piece<Law>(from, middle, first, pieces / 2, visit);
  each_piece<Law>(middle, to, first + pieces / 2, pieces / 2, visit);
}

// Leaves the state of a piece, and says whether it was the last that its output waited for.
template <class Law>
bool last_piece(const Plan &p, Job &job, const Part &of, const State<One<typename Law::T>, Law::planes> &s) {
  i64 output = of.tile * p.axes[0].outputs + of.from;
  std::memcpy(job.piece_states + (output * p.pieces + of.piece) * PIECE_BYTES, &s, sizeof s);
  return __atomic_sub_fetch(job.missing + output, 1, __ATOMIC_ACQ_REL) == 0;
}

// The state of an output from those of its pieces.
template <class Law>
State<One<typename Law::T>, Law::planes> merged_pieces(const Law &law, const Plan &p, Job &job, const Part &of) {
  using T = typename Law::T;
  using S = State<One<T>, Law::planes>;
  i64 output = of.tile * p.axes[0].outputs + of.from, seen = 0;
  S states[MOST_PIECES];
  T values[MOST_PIECES];
  bool there[MOST_PIECES] = {};
  each_piece<Law>(0, p.axes[0].length(of.from), 0, p.pieces, [&](i64 piece, i64, i64) {
    std::memcpy(&states[piece], job.piece_states + (output * p.pieces + piece) * PIECE_BYTES, sizeof(S));
    values[seen++] = states[piece].at[0], there[piece] = true;
  });
  for (i64 hop = 1; hop < p.pieces; hop *= 2)
    for (i64 i = 0; i < p.pieces; i += 2 * hop)
      if (there[i + hop]) law.merge(states[i], states[i + hop]);
  if constexpr (Law::signs) law.settle(states[0], values, seen, 1);
  return states[0];
}

// Folds one piece. The states of the output, if it was the last one; no states otherwise.
template <class Law>
Sink<typename Law::T, Law::planes> fold_piece(const Law &law, Passes<Law> &passes, Job &job, Scratch &scratch) {
  using T = typename Law::T;
  using S = State<One<T>, Law::planes>;
  const Plan &p = *job.plan;
  const Part &of = passes.part;
  Clipped w = p.axes[0].at(of.from);
  Sink<T, Law::planes> nothing{}, found = passes.last;
  S state{};
  each_piece<Law>(0, w.length, 0, p.pieces, [&](i64 piece, i64 from, i64 to) {
    if (piece != of.piece || from == to) return;
    Axis *piece_axis = scratch.template take<Axis>(1);  // one window: the piece
    if (scratch.failed) return;
    Axis &axis = *piece_axis = p.axes[0];
    axis.windows = Windows::sliding, axis.outputs = axis.stride = axis.whole_to = 1, axis.whole_from = 0;
    axis.origin = axis.lowest = w.first + from, axis.highest = w.first + to, axis.most_taps = axis.longest = to - from;
    Plan one = p;
    one.axes = &axis, one.pieces = 1;
    Job job_of_one = job;
    job_of_one.plan = &one;
    Passes<Law> alone(law, one, false, {of.tile, 1, 0, 1});
    auto states = fold(law, alone, job_of_one, scratch);
    if (scratch.failed) return;
    state = load<Law, ALL<Law>, One<T>>(states, 0);
    law.tap(state, Int<T>(Int<T>(w.skipped + from) * Int<T>(p.tap_steps[0])));
  });
  if (scratch.failed || !last_piece<Law>(p, job, of, state)) return nothing;
  if (!found.at[0])
    for (auto &plane : found.at) plane = scratch.template take<T>(1);
  if (scratch.failed) return nothing;
  save<Law, One<T>>(found, 0, merged_pieces(law, p, job, of));
  return found;
}

// The part of the outputs that a unit makes, in the modes that fold x, and their states.
inline Part folded_part(const Plan &p, i64 unit) {
  return p.pieces > 1 ? part_of_window(p, unit) : part(p, false, unit);
}
template <class Law>
Sink<typename Law::T, Law::planes> fold_part(const Law &law, Passes<Law> &passes, Job &job, Scratch &scratch) {
  return job.plan->pieces > 1 ? fold_piece(law, passes, job, scratch) : fold(law, passes, job, scratch);
}

template <class Law> Outcome forward(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = folded_part(p, unit);
  Passes<Law> passes(law, p, false, of);
  i64 size = size_of(p.type);
  char *y = job.y.data + dense_offset(p, of, false) * size;
  T divisor = T(p.mean ? p.divisor : 1);
  bool done = Law::chooses;  // whether states are values
  if constexpr (Law::divides) {
    i64 count = 1;
    for (int i = 0; i < p.rank; i++) count *= p.axes[i].count(0);
    done = (divisor != 0 || (p.even && count > 0)) && passes.can_divide();
    if (done) passes.over = divisor != 0 ? divisor : T(count);
  }
  bool in_place = done && as_they_are<T>(p.type, p.flip);
  if (in_place) passes.last.at[0] = reinterpret_cast<T *>(y);
  auto states = fold_part(law, passes, job, scratch);
  if (scratch.failed) return Outcome::no_memory;
  if (!states.at[0]) return Outcome::done;  // other pieces of the window are still to come
  if (!in_place) {
    if (!done) {
      Inner<T> inner(p, of, scratch);
      if (scratch.failed) return Outcome::no_memory;
      T *to = states.at[0];
      if (as_they_are<T>(p.type, p.flip)) to = reinterpret_cast<T *>(y), in_place = true;
      each_result<Law::counts_padding, T>(
          p, of, passes.results(), inner, [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
            using X = decltype(kind);
            auto s = load<Law, ALL<Law>, X>(states, at);
            if constexpr (Law::counts_padding)
              if (p.padded) merge_padding<Law, X>(law, s, counts, taps);
            X by = divisor != 0 ? splat<X>(divisor) : choose<X>(counts > 0, counts, splat<X>(1));
            save<X>(to + at, law.value(s, by));
          });
    }
    if (!in_place) deliver<T>(y, p.type, states.at[0], passes.results(), p.flip);
  }
  if (p.empty) clear_empty(p, p.axes, of, y, size);
  return Outcome::done;
}

template <class Law> Outcome winners(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = folded_part(p, unit);
  Passes<Law> passes(law, p, false, of);
  i64 at = dense_offset(p, of, false), n = passes.results(), size = size_of(p.type);
  bool in_place = as_they_are<T>(p.type, p.flip);
  if (in_place) {
    passes.last.at[0] = reinterpret_cast<T *>(job.y.data + at * size);
    passes.last.at[1] = scratch.take<T>(n);
  }
  auto states = fold_part(law, passes, job, scratch);
  if (scratch.failed) return Outcome::no_memory;
  if (!states.at[0]) return Outcome::done;  // other pieces of the window are still to come
  if (!in_place) deliver<T>(job.y.data + at * size, p.type, states.at[0], n, p.flip);
  if (p.empty) clear_empty(p, p.axes, of, job.y.data + at * size, size);
  if (job.mode == Mode::forward) return Outcome::done;
  const Int<T> *index = reinterpret_cast<const Int<T> *>(states.at[1]);
  char *to = job.b.data + at * p.residual_bytes;
  auto narrowed = [&](auto kind) {
    using R = decltype(kind);
    R *r = reinterpret_cast<R *>(to);
    for (i64 i = 0; i < n; i++) r[i] = R(index[i]);
  };
  switch (p.residual_bytes) {
    case 1:
      narrowed(uint8_t());
      break;
    case 2:
      narrowed(uint16_t());
      break;
    case 4:
      narrowed(uint32_t());
      break;
    default:
      narrowed(uint64_t());
  }
  return Outcome::done;
}

// The tangents, and the values too if there is a place for them.
template <class Law> Outcome push(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = folded_part(p, unit);
  Passes<Law> passes(law, p, false, of);
  i64 first = dense_offset(p, of, false), n = passes.results(), size = size_of(job.moved), wide = size_of(p.type);
  char *dy = job.y.data + first * size, *y = job.b.data ? job.b.data + first * wide : nullptr;
  bool in_place = Law::follows && as_they_are<T>(job.moved, false) && y && as_they_are<T>(p.type, p.flip);
  if (in_place) passes.last.at[0] = reinterpret_cast<T *>(y), passes.last.at[1] = reinterpret_cast<T *>(dy);
  auto states = fold_part(law, passes, job, scratch);
  Inner<T> inner(p, of, scratch);
  if (scratch.failed) return Outcome::no_memory;
  if (!states.at[0]) return Outcome::done;  // other pieces of the window are still to come
  if (!in_place) {
    each_result<Law::counts_padding, T>(p, of, n, inner, [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
      using X = decltype(kind);
      auto s = load<Law, ALL<Law>, X>(states, at);
      if constexpr (Law::counts_padding)
        if (p.padded) merge_padding<Law, X>(law, s, counts, taps);
      save<X>(states.at[0] + at, law.tangent(s));
      if (y) save<X>(states.at[1] + at, law.value(s, counts));
    });
    deliver<T>(dy, job.moved, states.at[0], n, false);
    if (y) deliver<T>(y, p.type, states.at[1], n, p.flip);
  }
  if (p.empty) clear_empty(p, p.axes, of, dy, size);
  if (p.empty && y) clear_empty(p, p.axes, of, y, wide);
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
  Passes<Turned> back(turned, p, true, of);
  Part readers{of.tile, of.tiles, back.span.first, back.span.last};  // outputs that read the band
  i64 size = size_of(job.moved);
  char *dx = job.y.data + dense_offset(p, of, true) * size;
  bool in_place = !Law::looks_at_x && as_they_are<T>(job.moved, false);
  if (in_place) back.last.at[0] = reinterpret_cast<T *>(dx);
  back.reserve(scratch);
  Region<T> handed(p, job.a, job.moved, false, readers, back.sizes, readers.from);
  T *room = scratch.template take<T>(handed.elements);
  Inner<T> inner(p, readers, scratch);
  if (scratch.failed) return Outcome::no_memory;
  const T *dy = handed.all(job.moved, false, room);
  Sink<T, Turned::planes> done{};
  if constexpr (Law::looks_at_x) {
    Passes<Law> passes(law, p, false, readers);
    auto states = fold(law, passes, job, scratch);
    i64 sizes[MOST_AXES];
    for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? of.to - of.from : p.axes[i].size;
    Region<T> x(p, job.x, p.type, p.flip, of, sizes, of.from);
    T *room_x = scratch.template take<T>(x.elements);
    if (scratch.failed) return Outcome::no_memory;
    each_result<Law::counts_padding, T>(p, readers, passes.results(), inner,
                                        [&](auto kind, i64 at, auto counts, auto taps) INLINE_LAMBDA {
                                          using X = decltype(kind);
                                          auto s = load<Law, ALL<Law>, X>(states, at);
                                          if constexpr (Law::counts_padding)
                                            if (p.padded) merge_padding<Law, X>(law, s, counts, taps);
                                          save<Turned, X>(states, at, law.turn(s, load<X>(dy + at)));
                                        });
    done = back.template run_packed<ALL<Turned>>(states, scratch);
    if (scratch.failed) return Outcome::no_memory;
    const T *seen = x.all(p.type, p.flip, room_x);
    each_once<T>(x.elements, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      save<X>(done.at[0] + j, law.land(load<Turned, ALL<Turned>, X>(done, j), load<X>(seen + j)));
    });
  } else {
    T divisor = T(p.mean ? p.divisor : 1);
    if (divisor != 1)
      each_result<Law::counts_padding, T>(
          p, readers, handed.elements, inner, [&](auto kind, i64 at, auto counts, auto) INLINE_LAMBDA {
            using X = decltype(kind);
            X by = divisor != 0 ? splat<X>(divisor) : choose<X>(counts > 0, counts, splat<X>(1));
            save<X>(room + at, load<X>(dy + at) / by);
          });
    done = back.template run_packed<ALL<Turned>>(Source<T, 1>{{divisor != 1 ? room : dy}}, scratch);
    if (scratch.failed) return Outcome::no_memory;
  }
  if (!in_place) deliver<T>(dx, job.moved, done.at[0], back.results(), false);
  if (Law::looks_at_x && p.unread) clear_empty(p, p.readers, of, dx, size);
  return Outcome::done;
}

// -- integer sums: exact, in two halves; a mean is rounded half to even
// ----------------------------------------------------

// Sums of bytes and other short integers fit 32 bits, and their means, which are never close to a half unless they are
// one, are rounded by a double.
inline bool fits_short_sum(const Plan &p) { return size_of(p.type) <= 2 && p.taps <= 32768; }

inline Outcome short_sum(Job &job, i64 unit, Arena &arena) {
  using T = int32_t;
  using Law = Add<T, 1>;
  const Plan &p = *job.plan;
  Law law;
  Scratch scratch(arena);
  Part of = part(p, false, unit);
  Passes<Law> passes(law, p, false, of);
  T *sums = fold(law, passes, job, scratch).at[0];
  if (scratch.failed) return Outcome::no_memory;
  i64 size = size_of(p.type);
  T lowest = p.type <= Type::i64 ? -(1 << (8 * size - 1)) : 0, highest = lowest + (1 << (8 * size)) - 1;
  auto finish = [&](i64 at, i64 n, i64 divisor) {
    constexpr double MAGIC = 6755399441055744.0;  // adding it rounds to an integer, halves to even
    T *row = sums + at;
    double by = double(most(divisor, 1));
    bool fits = true;
    if (by > 1)
      for (i64 i = 0; i < n; i++) row[i] = T((double(row[i]) / by + MAGIC) - MAGIC);
    for (i64 i = 0; i < n; i++) fits = fits & (row[i] >= lowest) & (row[i] <= highest);
    if (!fits) __atomic_store_n(&job.overflow, true, __ATOMIC_RELAXED);
  };
  const Axis &axis = p.axes[p.rank - 1];
  i64 first = p.rank == 1 ? of.from : 0, even = 1;
  for (int i = 0; i < p.rank; i++) even *= p.axes[i].count(0);
  if (!p.mean || p.divisor || p.even)
    finish(0, passes.results(), p.mean ? (p.divisor ? p.divisor : even) : 1);
  else
    each_row(p, p.axes, of, [&](i64 at, i64 n, i64 counts, i64) {
      if (p.lanes > 1) return finish(at, n, counts);
      for (i64 i = 0; i < n; i++) finish(at + i, 1, counts * axis.count(first + i));
    });
  deliver<T>(job.y.data + dense_offset(p, of, false) * size, p.type, sums, passes.results(), false);
  return Outcome::done;
}

template <int PLANES> Outcome integer_sum(Job &job, i64 unit, Arena &arena) {
  using T = int64_t;
  using Law = Add<T, PLANES>;
  const Plan &p = *job.plan;
  Law law;
  Scratch scratch(arena);
  Part of = folded_part(p, unit);
  Passes<Law> passes(law, p, false, of);
  passes.reserve(scratch);
  Type type = PLANES == 2 ? Type::i64 : p.type;
  Region<T> x(p, job.x, type, false, of, passes.sizes, passes.span.first);
  bool chunks = p.pieces > 1 || in_chunks(p, x);
  i64 most_at_once = chunks ? CHUNK : x.elements;
  T *lower = scratch.take<T>(most_at_once), *upper = PLANES == 2 ? scratch.take<T>(most_at_once) : nullptr;
  if (scratch.failed) return Outcome::no_memory;
  auto taken_apart = [&](const Region<T> &part) {
    Source<T, PLANES> from;
    from.at[0] = part.all(type, false, lower);
    if constexpr (PLANES == 2) {
      for (i64 i = 0; i < part.elements; i++) {
        T v = from.at[0][i];
        upper[i] = p.type == Type::u64 ? T(uint64_t(v) >> 32) : v >> 32;
        lower[i] = v & 0xffffffffLL;
      }
      from.at[0] = lower, from.at[1] = upper;
    }
    return from;
  };
  Sink<T, PLANES> states = passes.rooms[0];
  if (!chunks) states = passes.template run_packed<ALL<Law>>(taken_apart(x), scratch);
  if (scratch.failed) return Outcome::no_memory;
  // long lines, a part at a time: integers may be added in any order
  const Axis &line = p.axes[0];
  auto add_up = [&](i64 tile, i64 first, i64 n) {
    State<T, PLANES> sum{};
    for (i64 done = 0; done < n; done += CHUNK) {
      i64 sizes[1] = {least(CHUNK, n - done)};
      auto from = taken_apart(Region<T>(p, job.x, type, false, {tile, 1, 0, 0}, sizes, first + done));
      for (int i = 0; i < PLANES; i++)
        for (i64 j = 0; j < sizes[0]; j++) sum.at[i] += from.at[i][j];
    }
    return sum;
  };
  if (p.pieces > 1) {
    Clipped w = line.at(of.from);
    State<T, PLANES> sum{};
    each_piece<Law>(0, w.length, 0, p.pieces, [&](i64 piece, i64 from, i64 to) {
      if (piece == of.piece) sum = add_up(of.tile, w.first + from, to - from);
    });
    if (!last_piece<Law>(p, job, of, sum)) return Outcome::done;
    save<Law, One<T>>(states, 0, merged_pieces(law, p, job, of));
  } else if (chunks) {
    for (i64 t = 0, at = 0; t < of.tiles; t++)
      for (i64 o = of.from; o < of.to; o++, at++)
        save<Law, One<T>>(states, at, add_up(of.tile + t, line.first(o), line.length(o)));
  }
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
      i64 inner = p.lanes == 1 ? axis.count(first + i) : 1, by = p.mean ? (p.divisor ? p.divisor : counts * inner) : 1;
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
