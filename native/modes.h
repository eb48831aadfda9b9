// What a unit does in each mode, for one law: forward, winners, jvp, states, vjp.
#pragma once
#include "by_twos.h"
#include "fold_unit.h"
#include "results.h"

namespace ndpool {
namespace {

// A unit of the modes that fold x: its part of the outputs, and their states.
template <class Law> struct FoldedUnit {
  using T = typename Law::T;
  const Law &law;
  Job &job;
  const Plan &plan;
  Scratch scratch;
  Part part;
  Passes<Law> passes;
  i64 first, results;  // where its results lie among all; how many
  Sink<T, Law::planes> states{};

  FoldedUnit(const Law &l, Job &j, i64 unit, Arena &arena)
      : law(l),
        job(j),
        plan(*j.plan),
        scratch(arena),
        part(plan.pieces > 1 ? piece_of_window(plan, unit) : band_of(plan, false, unit)),
        passes(l, plan, false, part),
        first(dense_offset(plan, part, false)),
        results(passes.results()) {}

  char *place(const Array &a, Type type) const { return a.data + first * size_of(type); }

  // Makes the states. False if nothing is to be made of them: there was no memory, or other pieces of the window are
  // still to come.
  bool fold() {
    states = plan.pieces > 1 ? fold_piece(law, passes, job, scratch) : fold_part(law, passes, job, scratch);
    return !scratch.failed && states.at[0];
  }
  Outcome outcome() const { return scratch.failed ? Outcome::no_memory : Outcome::done; }

  // The values or tangents of a plane, as results.
  void deliver_plane(int plane, char *to, Type type, bool flip) const {
    deliver<T>(to, type, states.at[plane], results, flip);
  }
  void clear_if_empty(char *to, Type type) const {
    if (plan.empty) clear_empty(plan, plan.axes, part, to, size_of(type));
  }
};

template <class Law> Outcome forward(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  FoldedUnit<Law> u(law, job, unit, arena);
  const Plan &p = u.plan;
  char *y = u.place(job.y, p.type);
  T divisor = T(p.mean ? p.divisor : 1);  // 0: what each output counts
  bool as_is = as_they_are<T>(p.type, p.flip), are_values = Law::state_is_result;
  if constexpr (Law::divides) {
    i64 count = first_count(p);
    are_values = (divisor != 0 || (p.even && count > 0)) && u.passes.can_divide();
    if (are_values) u.passes.divisor = divisor != 0 ? divisor : T(count);
  }
  if (are_values && as_is) u.passes.result.at[0] = reinterpret_cast<T *>(y);
  if (!u.fold()) return u.outcome();
  if constexpr (!Law::state_is_result)
    if (!are_values) {
      Inner<T> inner(p, u.part, u.scratch);
      if (u.scratch.failed) return Outcome::no_memory;
      T *to = as_is ? reinterpret_cast<T *>(y) : u.states.at[0];
      each_state(law, p, u.part, u.results, inner, u.states,
                 [&]<class X>(i64 at, const State<X, Law::planes> &s, X counts)
                     INLINE_LAMBDA { save<X>(to + at, law.value(s, divisors<X>(divisor, counts))); });
    }
  if (!as_is) u.deliver_plane(0, y, p.type, p.flip);
  u.clear_if_empty(y, p.type);
  return Outcome::done;
}

// Values and residuals; in mode forward, for laws that have no other way, values alone.
template <class Law> Outcome winners(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  FoldedUnit<Law> u(law, job, unit, arena);
  const Plan &p = u.plan;
  char *y = u.place(job.y, p.type);
  bool as_is = as_they_are<T>(p.type, p.flip);
  if (as_is)
    u.passes.result.at[0] = reinterpret_cast<T *>(y), u.passes.result.at[1] = u.scratch.template take<T>(u.results);
  if (!u.fold()) return u.outcome();
  if (!as_is) u.deliver_plane(0, y, p.type, p.flip);
  u.clear_if_empty(y, p.type);
  if (job.mode == Mode::forward) return Outcome::done;
  const Int<T> *index = reinterpret_cast<const Int<T> *>(u.states.at[1]);
  i64 n = u.results;  // a copy: bytes that are written may alias anything whose address is known
  with_residual(p, [&](auto kind) {
    using R = decltype(kind);
    R *residual = reinterpret_cast<R *>(job.b.data) + u.first;
    for (i64 i = 0; i < n; i++) residual[i] = R(index[i]);
  });
  return Outcome::done;
}

// Tangents, and values too if there is a place for them.
template <class Law> Outcome jvp(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  FoldedUnit<Law> u(law, job, unit, arena);
  const Plan &p = u.plan;
  char *dy = u.place(job.y, job.tangent_type), *y = job.b.data ? u.place(job.b, p.type) : nullptr;
  bool in_place =
      Law::state_is_result && as_they_are<T>(job.tangent_type, false) && y && as_they_are<T>(p.type, p.flip);
  if (in_place) u.passes.result.at[0] = reinterpret_cast<T *>(y), u.passes.result.at[1] = reinterpret_cast<T *>(dy);
  if (!u.fold()) return u.outcome();
  if constexpr (!Law::state_is_result) {
    Inner<T> inner(p, u.part, u.scratch);
    if (u.scratch.failed) return Outcome::no_memory;
    each_state(law, p, u.part, u.results, inner, u.states,
               [&]<class X>(i64 at, const State<X, Law::planes> &s, X counts) INLINE_LAMBDA {
                 if (y) save<X>(u.states.at[0] + at, law.value(s, counts));
                 save<X>(u.states.at[1] + at, law.tangent(s));
               });
  }
  if (!in_place) {
    if (y) u.deliver_plane(0, y, p.type, p.flip);
    u.deliver_plane(1, dy, job.tangent_type, false);
  }
  if (y) u.clear_if_empty(y, p.type);
  u.clear_if_empty(dy, job.tangent_type);
  return Outcome::done;
}

// The states of windows too long to be folded again by each unit of a vjp: of all outputs, plane after plane.
template <class Law> Sink<typename Law::T, Law::planes> kept_states(const Job &job) {
  Sink<typename Law::T, Law::planes> all;
  for (int i = 0; i < Law::planes; i++)
    all.at[i] = reinterpret_cast<typename Law::T *>(job.states) + i * job.plan->tiles * job.plan->axes[0].outputs;
  return all;
}
template <class Law> Outcome keep_states(const Law &law, Job &job, i64 unit, Arena &arena) {
  FoldedUnit<Law> u(law, job, unit, arena);
  u.passes.result = kept_states<Law>(job) + u.first;
  u.fold();
  return u.outcome();
}
// Those of some outputs, for one unit to change.
template <class Law>
Sink<typename Law::T, Law::planes> copy_states(const Job &job, const Part &of, i64 n, Scratch &scratch) {
  auto from = kept_states<Law>(job) + dense_offset(*job.plan, of, false), to = from;
  for (int i = 0; i < Law::planes; i++) {
    to.at[i] = scratch.template take<typename Law::T>(n);
    if (!scratch.failed) std::memcpy(to.at[i], from.at[i], size_t(n) * sizeof(typename Law::T));
  }
  return to;
}

// The cotangents of a band of inputs: a fold of what their readers hand back.
template <class Law> Outcome vjp(const Law &law, Job &job, i64 unit, Arena &arena) {
  using T = typename Law::T;
  const Plan &p = *job.plan;
  Scratch scratch(arena);
  Part of = band_of(p, true, unit);
  auto backward = law.backward();
  using Backward = decltype(backward);
  Passes<Backward> passes_back(backward, p, true, of);
  Part readers = of;  // the outputs that read the band
  readers.from = passes_back.span.first, readers.to = passes_back.span.last;
  char *dx = job.y.data + dense_offset(p, of, true) * size_of(job.tangent_type);
  bool in_place = Law::is_linear && as_they_are<T>(job.tangent_type, false);
  bool moved = Law::is_linear && size_of(job.tangent_type) == sizeof(uint16_t) && passes_back.only_repeats();
  if (in_place) passes_back.result.at[0] = reinterpret_cast<T *>(dx);
  bool by_two = Law::is_linear && std::is_floating_point_v<T> && !moved && moves_on_by_two(p);
  if (!moved && !by_two) passes_back.reserve(scratch);
  Region<T> outputs(p, job.a, job.tangent_type, false, readers, passes_back.sizes, readers.from);
  T *room = scratch.template take<T>(outputs.elements);
  Inner<T> inner(p, readers, scratch);
  if (scratch.failed) return Outcome::no_memory;
  const T *dy = outputs.all(room);
  Sink<T, Backward::planes> folded{};
  if constexpr (Law::is_linear) {
    T divisor = T(p.mean ? p.divisor : 1);
    if (divisor != 1)
      each_result<false, T>(p, readers, outputs.elements, inner,
                            [&](auto kind, i64 at, auto counts, auto) INLINE_LAMBDA {
                              using X = decltype(kind);
                              save<X>(room + at, load<X>(dy + at) / divisors<X>(divisor, counts));
                            });
    if (divisor != 1) dy = room;
    if (moved) {  // half floats, each converted once
      auto *once = scratch.template take<uint16_t>(outputs.elements);
      if (scratch.failed) return Outcome::no_memory;
      deliver<T>(reinterpret_cast<char *>(once), job.tangent_type, dy, outputs.elements, false);
      return passes_back.repeat(reinterpret_cast<uint16_t *>(dx), once, scratch) ? Outcome::done : Outcome::no_memory;
    }
    if (by_two) {
      ByTwo<T> way(p, of, passes_back.span);
      way.reserve(scratch);
      folded.at[0] = in_place ? reinterpret_cast<T *>(dx) : scratch.template take<T>(passes_back.results());
      if (scratch.failed) return Outcome::no_memory;
      way.run(dy, folded.at[0]);
    } else
      passes_back.cold = dy != room, folded = passes_back.template run<ALL<Backward>>(Source<T, 1>{{dy}}, scratch);
    if (scratch.failed) return Outcome::no_memory;
  } else {
    Passes<Law> passes(law, p, false, readers);
    auto states = job.states ? copy_states<Law>(job, readers, passes.results(), scratch)
                             : fold_part(law, passes, job, scratch);
    i64 sizes[MOST_AXES];
    for (int i = 0; i < p.rank; i++) sizes[i] = i == 0 ? of.to - of.from : p.axes[i].size;
    Region<T> inputs(p, job.x, p.type, p.flip, of, sizes, of.from);
    T *room_x = scratch.template take<T>(inputs.elements);
    if (scratch.failed) return Outcome::no_memory;
    each_state(law, p, readers, passes.results(), inner, states,
               [&]<class X>(i64 at, const State<X, Law::planes> &s, X)
                   INLINE_LAMBDA { save<Backward, X>(states, at, law.handed_back(s, load<X>(dy + at))); });
    folded = passes_back.template run<ALL<Backward>>(states, scratch);
    if (scratch.failed) return Outcome::no_memory;
    const T *x = inputs.all(room_x);
    each_once<T>(inputs.elements, [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      save<X>(folded.at[0] + j, law.tap_cotangent(load<Backward, ALL<Backward>, X>(folded, j), load<X>(x + j)));
    });
  }
  if (!in_place) deliver<T>(dx, job.tangent_type, folded.at[0], passes_back.results(), false);
  if (!Law::is_linear && p.unread) clear_empty(p, p.readers, of, dx, size_of(job.tangent_type));
  return Outcome::done;
}

}  // namespace
}  // namespace ndpool
