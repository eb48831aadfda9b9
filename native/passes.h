// One pass per pooled axis, in the plan's order. `Steps` decides, for any law; `Passes` folds.
#pragma once
#include "fold.h"
#include "region.h"
#include "scratch.h"

namespace ndpool {
namespace {

// One pass: its axis, with `before` places outside and `inside` elements inside it.
struct Step {
  int axis;
  i64 before, inside;
};

// Which passes a unit takes. Results lie as [tiles][to - from][outputs of the other axes][lanes].
struct Steps {
  const Plan &plan;
  const Axis *axes;
  const int32_t *order;  // of the passes
  Part part;
  Span span;               // positions of the outermost axis that are read
  i64 sizes[MOST_AXES]{};  // positions per axis

  NOINLINE Steps(const Plan &p, bool back, bool any_order, Part of)
      : plan(p),
        axes(back ? p.readers : p.axes),
        order(back        ? p.order_back
              : any_order ? p.order_in_memory
                          : p.order),
        part(of) {
    span = reads(axes[0], part.from, part.to);
    if (part.tiles > 1 && span.first < span.last) span = {0, axes[0].size};  // tiles without gaps between them
    for (int i = 0; i < plan.rank; i++) sizes[i] = i == 0 ? span.last - span.first : axes[i].size;
  }

  i64 outputs(int i) const { return i == 0 ? part.to - part.from : axes[i].outputs; }
  NOINLINE i64 results() const {
    i64 n = part.tiles * plan.lanes;
    for (int i = 0; i < plan.rank; i++) n *= outputs(i);
    return n;
  }

  NOINLINE Step step(int s) const {
    Step step{.axis = order[s], .before = part.tiles, .inside = plan.lanes};
    i64 now[MOST_AXES];  // positions per axis, outputs where a pass was made already
    for (int i = 0; i < plan.rank; i++) now[i] = sizes[i];
    for (int t = 0; t < s; t++) now[order[t]] = outputs(order[t]);
    for (int i = 0; i < step.axis; i++) step.before *= now[i];
    for (int i = step.axis + 1; i < plan.rank; i++) step.inside *= now[i];
    return step;
  }

  // A pass that only repeats, of positions that lie side by side.
  Repetition repetition(const Step &step) const {
    int i = step.axis;
    bool outer = i == 0;
    return {axes[i],  outer ? part.from : 0, outer ? part.to : axes[i].outputs, outer ? span.first : 0,
            sizes[i], step.inside,           step.before,                       sizes[i] * step.inside,
            outputs(i) * step.inside};
  }
  NOINLINE bool only_repeats() const {
    for (int s = 0; s < plan.rank; s++)
      if (!repetition(step(s)).possible()) return false;
    return true;
  }

  // Whether the first two passes can be one: small windows over rows, where reading a row again costs less than keeping
  // what was made of it.
  NOINLINE bool can_fuse() const {
    if (plan.rank < 2 || order[0] != plan.rank - 1 || order[1] != plan.rank - 2) return false;
    const Axis &inner = axes[order[0]], &outer = axes[order[1]];
    if (sizes[order[1]] == 0) return false;  // a band that reads nothing
    auto plain = [](const Axis &a) { return !a.blocks && !a.lines && a.phases == 1; };
    i64 again = (outer.most_taps - outer.stride) * (2 * inner.most_taps + 1);
    bool small = inner.most_taps <= 3 + (inner.stride != 2) && again <= outer.most_taps + 4;
    return plain(inner) && plain(outer) && small && (plan.lanes > 1 || (!inner.as_columns && inner.stride <= 4));
  }

  // Whether the first three passes can be one: they can, two of them, and no row is read twice. Rows must lie evenly,
  // from one plane to the next as well.
  NOINLINE bool can_fuse_three(i64 rows_that_lie_evenly) const {
    if (plan.rank < 3 || plan.lanes > 1 || !can_fuse() || order[2] != plan.rank - 3) return false;
    const Axis &inner = axes[order[0]], &outer = axes[order[1]], &deep = axes[order[2]];
    auto apart = [](const Axis &a) { return a.slides && a.step == 1 && a.most_taps <= a.stride && a.most_taps <= 4; };
    i64 rows = sizes[order[1]] * sizes[order[2]];
    return apart(inner) && apart(outer) && apart(deep) && inner.stride == 2 && inner.most_taps == 2 && rows > 0 &&
           rows_that_lie_evenly % rows == 0;
  }

  // Whether tiles are so small that they are better folded side by side, one per lane of a vector, than row by row.
  NOINLINE bool has_small_tiles(i64 lanes) const {
    constexpr i64 LARGEST = 1024, SHORTEST_ROW = 12;  // elements of a tile; outputs of a row
    const Axis &inner = axes[plan.rank - 1];
    i64 tile = 1;
    bool lines = false;
    for (int i = 0; i < plan.rank; i++) tile *= most(axes[i].size, axes[i].outputs), lines = lines || axes[i].lines;
    bool rows_first = order[0] != plan.rank - 1;  // rows are merged whole: there is nothing to gain
    bool grows = plan.rank > 1 && axes[0].outputs > axes[0].size && inner.outputs >= SHORTEST_ROW;  // nor here: most are
    return plan.lanes == 1 && part.tiles >= lanes && tile <= LARGEST && !lines && !rows_first && !grows &&
           inner.size > 1 && !inner.tiles() && inner.repeats() == 0 &&
           (inner.as_columns || inner.outputs < SHORTEST_ROW);
  }
};

template <class Law> struct Passes : Steps {
  using T = typename Law::T;
  static constexpr int PLANES = Law::planes;
  using To = Sink<T, PLANES>;
  using From = Source<T, PLANES>;

  const Law &law;
  To result;          // where the last pass writes, if not into a room
  T divisor = 1;      // what the last pass divides by
  bool cold = false;  // whether what is read is an array, whose memory may not be in the caches yet
  i64 even_rows = 0;  // how many rows of the array lie evenly apart, if it is read as it lies
  To rooms[2]{};      // where the others write, alternately

  Passes(const Law &l, const Plan &p, bool back, Part of) : Steps(p, back, Law::any_order, of), law(l) {
    result.at[0] = nullptr;
  }

  // How many axes the first pass folds at once.
  int at_once() const {
    if (!Law::unrolls_small_windows || !can_fuse()) return 1;
    return can_fuse_three(even_rows) ? 3 : 2;
  }
  // All passes, where each only repeats. False if there is no memory.
  template <class S> bool repeat(S *to, const S *from, Scratch &memory) const {
    for (int s = 0; s < plan.rank; s++) {
      Repetition r = repetition(step(s));
      S *made = s == plan.rank - 1 ? to : memory.take<S>(r.inputs * r.output_step);
      if (memory.failed) return false;
      r.run(made, from);
      from = made;
    }
    return true;
  }

  bool as_lanes() const { return has_small_tiles(LANES<Vec<T>>); }
  // Whether the first pass can read an array's rows as they lie: they run along its axis.
  bool reads_rows() const { return order[0] == plan.rank - 1 && !as_lanes(); }
  // Whether the last pass can divide as it goes: not where it merges halves.
  bool can_divide() const { return axes[order[plan.rank - 1]].most_taps <= Side<Law>::LONGEST; }

  NOINLINE void reserve(Scratch &memory) {
    i64 largest[2] = {0, 0}, longest = 0, widest = 0;
    int folded = at_once();
    for (int s = 0; s < plan.rank; s++) {
      Step step = this->step(s);
      i64 made = outputs(step.axis);
      bool no_room = (s == plan.rank - 1 && result.at[0]) || s < folded - 1;
      if (!no_room) largest[s % 2] = most(largest[s % 2], step.before * step.inside * made);
      longest = most(longest, scratch_size<Law>(axes[step.axis], made, sizes[step.axis], step.inside, step.before));
      if (axes[step.axis].phases > 1) widest = most(widest, made);
    }
    for (int t = 0; t < 2; t++)
      for (int i = 0; i < PLANES; i++) rooms[t].at[i] = largest[t] ? memory.take<T>(largest[t]) : nullptr;
    for (int i = 0; i < PLANES; i++) scratch.at[i] = longest ? memory.take<T>(longest) : nullptr;
    phase_row = widest ? memory.take<T>(widest * PLANES) : nullptr;
  }

  // All passes, from the rows of an array as they lie, of elements that are stored as S. Of a tap, only plane 0 is
  // read.
  template <unsigned READ, class S = T> To run(const Region<T> &x) const {
    constexpr i64 SIZE = sizeof(S);
    i64 inside = step(0).inside;
    Walk rows = x.walk();
    To next = first_target();
    while (rows.next()) {
      Source<S, PLANES> from;
      for (auto &plane : from.at) plane = reinterpret_cast<const S *>(x.start() + rows.offset);
      next = next + first_pass<READ>(next, from, inside, x.pitch(SIZE), rows.rows, rows.distance / SIZE);
    }
    return other_passes();
  }

  // The same from states that lie side by side.
  template <unsigned READ> To run(From input, Scratch &memory) const {
    if (as_lanes()) return run_lanes<READ>(input, memory);
    Step step = this->step(0);
    first_pass<READ>(first_target(), input, step.inside, step.inside, step.before, step.inside * sizes[step.axis]);
    return other_passes();
  }

 private:
  To scratch{};  // what passes need, and
  T *phase_row;

  To target(int s) const { return s == plan.rank - 1 && result.at[0] ? result : rooms[s % 2]; }
  To first_target() const { return target(at_once() - 1); }

  // What a pass along axis i is given: `inputs` inputs of it, `input_step` apart.
  template <unsigned READ, class S = T>
  Pass<Law, READ, S> pass(int i, i64 inside, i64 pitch, i64 inputs, i64 input_step) const {
    return {.law = law,
            .axis = axes[i],
            .begin = i == 0 ? part.from : 0,
            .end = i == 0 ? part.to : axes[i].outputs,
            .first_held = i == 0 ? span.first : 0,
            .held = sizes[i],
            .inside = inside,
            .pitch = pitch,
            .tap_step = plan.tap_steps[i],
            .inputs = inputs,
            .input_step = input_step,
            .output_step = outputs(i) * inside,
            .scratch = scratch,
            .phase_row = phase_row,
            .divisor = i == order[plan.rank - 1] ? divisor : T(1)};
  }

  // An axis across the rows of the first pass, or across planes of them, `pitch` apart.
  OuterAxis across(int i, i64 pitch) const {
    return {.axis = axes[i],
            .begin = i == 0 ? part.from : 0,
            .end = i == 0 ? part.to : axes[i].outputs,
            .first_held = i == 0 ? span.first : 0,
            .pitch = pitch,
            .tap_step = plan.tap_steps[i]};
  }

  // The first pass, or the first two or three at once, over some of the inputs; how many results it made.
  template <unsigned READ, class S>
  NOINLINE i64 first_pass(To to, Source<S, PLANES> from, i64 inside, i64 pitch, i64 inputs, i64 input_step) const {
    int i = order[0];
    if constexpr (Law::unrolls_small_windows)
      if (int folded = at_once(); folded > 1) {
        i64 plane = sizes[order[1]], stack = folded > 2 ? sizes[order[2]] : 1, stacks = inputs / (plane * stack);
        auto inner = pass<READ, S>(i, inside, pitch, stacks, plane * stack * input_step);
        if (plan.rank == folded) inner.divisor = divisor;
        OuterAxis outer = across(order[1], input_step);
        if (folded == 2)
          fold_two_axes(inner, to, from, outer);
        else
          fold_three_axes(inner, to, from, outer, across(order[2], plane * input_step));
        return stacks * (folded > 2 ? outputs(order[2]) : 1) * outputs(order[1]) * outputs(i) * inside;
      }
    if constexpr (std::is_same_v<S, T>) {
      auto only = pass<READ>(i, inside, pitch, inputs, input_step);
      i64 bytes = input_step * i64(sizeof(T));
      bool several = inputs > 1 && bytes > 0 && bytes < AHEAD;  // ahead by whole inputs
      only.ahead = !cold ? 0 : several ? (AHEAD + bytes - 1) / bytes * bytes : AHEAD;
      fold_axis(only, to, from);
    }
    return inputs * outputs(i) * inside;
  }

  NOINLINE To other_passes() const {
    To to = first_target();
    for (int s = at_once(); s < plan.rank; s++) {
      To from = to;
      Step step = this->step(s);
      to = target(s);
      fold_axis(pass<ALL<Law>>(step.axis, step.inside, step.inside, step.before, sizes[step.axis] * step.inside), to,
                from);
    }
    return to;
  }

  // Tiles transposed so that each is a lane; the last of them perhaps twice.
  template <unsigned READ> NOINLINE To run_lanes(From input, Scratch &memory) const {
    constexpr i64 N = LANES<Vec<T>>;
    Plan with_lanes = plan;
    with_lanes.lanes = N;
    Passes side(law, with_lanes, axes == plan.readers, {.tile = 0, .tiles = 1, .from = part.from, .to = part.to});
    side.divisor = divisor, side.span = span, side.sizes[0] = sizes[0];
    side.reserve(memory);
    i64 inputs = 1, outputs = results() / part.tiles;
    for (int i = 0; i < plan.rank; i++) inputs *= sizes[i];
    To in{}, to = target(plan.rank - 1);
    for (int i = 0; i < PLANES; i++)
      if (READ >> i & 1) in.at[i] = memory.template take<T>(inputs * N);
    if (memory.failed) return {};
    for (i64 next = 0; next < part.tiles; next += N) {
      i64 tile = least(next, part.tiles - N);
      for (int i = 0; i < PLANES; i++)
        if (READ >> i & 1) transpose<T>(input.at[i] + tile * inputs, N, inputs, inputs, in.at[i], N);
      To states = side.template run<READ>(in, memory);
      for (int i = 0; i < PLANES; i++) transpose<T>(states.at[i], outputs, N, N, to.at[i] + tile * outputs, outputs);
    }
    return to;
  }
};

}  // namespace
}  // namespace ndpool
