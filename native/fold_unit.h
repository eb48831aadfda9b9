// The states of a unit's outputs: x is read, lifted and folded, one pass per axis. Lines too long to be converted at
// once go in chunks; windows that several units share go in pieces.
#pragma once
#include "passes.h"

namespace ndpool {
namespace {

constexpr i64 CHUNK = 1 << 20;  // taps of a line that are converted at a time

// Whether a unit is one long line after another, whose elements must be converted. All at once would take memory.
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
  Sink<T, PLANES> to = passes.result.at[0] ? passes.result : passes.rooms[0], found{}, nothing{};
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
        from.at[0] =
            Region<T>(p, job.x, p.type, p.flip, {.tile = t, .tiles = 1, .from = 0, .to = 0}, sizes, w.first + done)
                .all(room);
        Pass<Law, ALL<Law>> line{
            .law = law, .axis = axis, .begin = o, .end = o + 1, .held = n, .tap_step = p.tap_steps[0]};
        fold_line(line, found, from, n, I(I(w.skipped + done) * I(p.tap_steps[0])));
        auto all = load<Law, ALL<Law>, One<T>>(done ? to : found, 0);
        if (done) law.merge(all, load<Law, ALL<Law>, One<T>>(found, 0));
        save<Law, One<T>>(to, 0, all);
      }
      if (w.length == 0)
        for (int i = 0; i < PLANES; i++) to.at[i][0] = 0;
    }
  return passes.result.at[0] ? passes.result : passes.rooms[0];
}

// The states of a unit's outputs. dx goes along if the law has a plane for it. No states if there is no memory.
template <class Law>
Sink<typename Law::T, Law::planes> fold_part(const Law &law, Passes<Law> &passes, Job &job, Scratch &scratch) {
  using T = typename Law::T;
  using From = Source<T, Law::planes>;
  const Plan &p = *job.plan;
  constexpr int DX = Law::tangent_plane;
  constexpr bool ALONE = FIRST<Law> == 1, BARE = ALONE && !Law::lifts;  // x is all that is read, and as it is
  Sink<T, Law::planes> nothing{};
  Region<T> x(p, job.x, p.type, p.flip, passes.part, passes.sizes, passes.span.first);
  passes.even_rows = x.walk().evenly(), passes.cold = true;
  passes.reserve(scratch);
  if constexpr (BARE)
    if (x.direct && passes.reads_rows()) return scratch.failed ? nothing : passes.template run<FIRST<Law>>(x);
  if constexpr (ALONE && Law::unrolls_small_windows)
    if (passes.at_once() > 1 && passes.reads_rows() && !p.flip) {  // two axes at once convert what they read as they go
      Sink<T, Law::planes> states = nothing;
      with_stored<T>(p.type, [&](auto stored) {
        using S = decltype(stored);
        if (x.lies_in(sizeof(S)) && !scratch.failed) states = passes.template run<FIRST<Law>, S>(x);
      });
      if (states.at[0]) return states;
    }
  if constexpr (Law::idempotent && Law::folds_lines)
    if (in_chunks(p, x)) return fold_chunks(law, passes, job, scratch);
  T *room[3] = {};
  for (int i = 0; i < (BARE ? 1 : Law::planes); i++) room[i] = scratch.template take<T>(x.elements);
  if (scratch.failed) return nothing;
  From from;
  const T *first = x.all(room[0]);
  for (auto &plane : from.at) plane = first;
  passes.cold = first != room[0] && !Law::lifts;
  const T *dx = nullptr;
  if constexpr (DX > 0)
    from.at[DX] = dx =
        Region<T>(p, job.a, job.tangent_type, false, passes.part, passes.sizes, passes.span.first).all(room[DX]);
  if constexpr (Law::lifts) {
    each_once<T>(x.elements, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      auto s = law.lift(load<X>(from.at[0] + j), DX > 0 ? load<X>(dx + j) : X{});
      for (int i = 0; i < Law::planes; i++)
        if (Law::tap_planes >> i & 1) save<X>(room[i] + j, s.at[i]);
    });
    for (int i = 0; i < Law::planes; i++) from.at[i] = room[i];
  }
  if constexpr (!BARE)
    for (int i = 1; i < Law::planes; i++)
      if (!(Law::tap_planes >> i & 1)) {
        each_vector<T>(x.elements, [&](auto kind, i64 j) INLINE_LAMBDA {
          save<decltype(kind)>(room[i] + j, splat<decltype(kind)>(Law::constant[i]));
        });
        from.at[i] = room[i];
      }
  return passes.template run<FIRST<Law>>(from, scratch);
}

// -- long windows, a piece at a time
//
// The taps of a long line are merged as a tree of halves (`merge_longest`). Its upper branches are pieces, one per
// unit, so several threads share one window. Each unit leaves the state of its piece; the last to come merges them
// as the tree does, so the result has the same bits however many there were.

// visit(piece, from, to) for the pieces of a window's taps [from, to), in order; a short window has fewer of them
template <class Law, class Visit> void each_piece(i64 from, i64 to, i64 first, i64 pieces, const Visit &visit) {
  if (pieces == 1 || to - from <= Side<Law>::LONGEST) return visit(first, from, to);
  i64 middle = from + Side<Law>::first_half(to - from);
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
  law.restore_first_zero(states[0], values, seen, 1);
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
  Sink<T, Law::planes> nothing{}, found = passes.result;
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
    Passes<Law> alone(law, one, false, {.tile = of.tile, .tiles = 1, .from = 0, .to = 1});
    auto states = fold_part(law, alone, job_of_one, scratch);
    if (scratch.failed) return;
    state = load<Law, ALL<Law>, One<T>>(states, 0);
    law.shift_index(state, Int<T>(Int<T>(w.skipped + from) * Int<T>(p.tap_steps[0])));
  });
  if (scratch.failed || !last_piece<Law>(p, job, of, state)) return nothing;
  if (!found.at[0])
    for (auto &plane : found.at) plane = scratch.template take<T>(1);
  if (scratch.failed) return nothing;
  save<Law, One<T>>(found, 0, merged_pieces(law, p, job, of));
  return found;
}

}  // namespace
}  // namespace ndpool
