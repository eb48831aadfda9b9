// Small windows over whole rows, and over two or three axes at once: loops written out for the usual strides and
// numbers of taps, for laws that are worth it (`unrolls_small_windows`).
//
//   row 0   x x x x x x        a vector of outputs merges the taps of row 0, then those of row 1, ... and is saved
//   row 1   x x x x x x        once: no row of results in between. Reading a row again for the next output row
//   row 2   x x x x x x        costs less than keeping what was made of it.
//
// The outputs of a row whose windows lie inside it are vectors, the last of which may overlap the one before; those at
// its ends, whose windows are clipped, go one by one, and so do all of a row that is shorter than the least vector. But
// where rows follow, a short row is one vector that runs over its end: they are made later, and in its place.
#pragma once
#include "fold_taps.h"

namespace ndpool {
namespace {

// The windows at the ends of a row, and the first of the others. They are the same for every row, and looking them up
// takes as long as folding a few vectors.
struct Ends {
  static constexpr i64 MOST = 4;
  const Axis &axis;
  Clipped whole{}, head[MOST], tail[MOST];
  NOINLINE explicit Ends(const Axis &a) : axis(a) {
    if (axis.whole_from < axis.whole_to) whole = axis.at(axis.whole_from);
    for (i64 i = 0; i < MOST && i < axis.whole_from; i++) head[i] = axis.at(i);
    for (i64 i = 0; i < MOST && axis.whole_to + i < axis.outputs; i++) tail[i] = axis.at(axis.whole_to + i);
  }
  INLINE Clipped at(i64 o) const {
    i64 after = o - axis.whole_to;
    if (o < axis.whole_from && o < MOST) return head[o];
    return after >= 0 && after < MOST ? tail[after] : axis.at(o);
  }
};

// Another axis, across the rows of the pass's own, or across planes of such rows.
struct OuterAxis {
  const Axis &axis;
  i64 begin, end;         // the outputs wanted
  i64 first_held, pitch;  // the first row in memory; elements from one row to the next
  i64 tap_step;           // what the next row adds to a winner's index

  template <class F> INLINE F under(const F &from, const Clipped &w) const {
    return from + (w.first - first_held) * pitch;
  }

  template <class I> INLINE Taps<I> rows(const Clipped &w) const {
    return {.count = w.length, .gap = axis.step * pitch, .bias = I(I(w.skipped) * I(tap_step)), .step = I(tap_step)};
  }
};

// The rows under a row of outputs, and the planes of such rows; more than one of these only where three axes are folded
// at once (`DEEP`). Biases are in that of the rows.
template <class I, bool DEEP> struct Under {
  Taps<I> rows{.count = 1}, planes{.count = 1};
};
template <class X, int STRIDE, int COUNT, int ROWS = 0, bool DEEP, class P>
INLINE State<X, P::PLANES> merge_under(const P &p, typename P::From from, i64 at,
                                       const Under<typename P::I, DEEP> &under, const Taps<typename P::I> &taps) {
  if constexpr (DEEP) return merge_planes<X, STRIDE, COUNT, ROWS>(p, from, at, under.planes, under.rows, taps);
  return merge_rows<X, STRIDE, COUNT, ROWS>(p, from, at, under.rows, taps);
}

// One output at an end of a row.
template <bool DEEP, class P>
INLINE void fold_end(const P &p, typename P::To to, typename P::From from, const Under<typename P::I, DEEP> &under,
                     i64 o, const Clipped &w) {
  using T = typename P::T;
  using I = typename P::I;
  if (w.length == 0) {
    for (int i = 0; i < P::PLANES; i++) to.at[i][o] = 0;
    return;
  }
  I step = I(p.tap_step);
  Taps<I> taps{.count = w.length, .gap = p.axis.step, .bias = I(under.rows.bias + I(w.skipped) * step), .step = step};
  auto s = merge_under<Small<T>, 0, 0>(p, from, w.first, under, taps);  // vectors choose without branches
  State<One<T>, P::PLANES> one;
  for (int i = 0; i < P::PLANES; i++) one.at[i] = s.at[i][0];
  p.template save_result<One<T>>(to, o, one);
}

// One row of outputs, from the rows of inputs that lie under it; the first of them is at `from`. OVER: the vector that
// runs over the end of the row, or nothing.
struct Within {};
template <int STRIDE, int COUNT, int ROWS = 0, class OVER = Within, bool DEEP, class P>
INLINE void fold_row(const P &p, const Ends &ends, typename P::To to, typename P::From from,
                     const Under<typename P::I, DEEP> &given) {
  using T = typename P::T;
  using I = typename P::I;
  const Axis &axis = p.axis;
  i64 a = axis.whole_from, b = axis.whole_to, stride = axis.stride, origin = ends.whole.first;
  constexpr bool WITHIN = std::is_same_v<OVER, Within>;
  if (WITHIN && b - a < LANES<Small<T>>) a = b = axis.outputs;
  for (i64 o = 0; o < a; o++) fold_end(p, to, from, given, o, ends.at(o));
  if (a < b) {
    I step = I(p.tap_step);
    Taps<I> taps{.count = ends.whole.length,
                 .gap = COUNT ? 1 : axis.step,
                 .bias = I(given.rows.bias + I(ends.whole.skipped) * step),
                 .step = step};
    Under<I, DEEP> under = given;  // a copy that stays in registers: nobody else has its address
    auto body = [&](auto kind, i64 j) INLINE_LAMBDA {
      using X = decltype(kind);
      i64 at = origin + j * stride;
      if constexpr (std::is_same_v<X, Vec<T>>) {  // the rows that the next row of outputs does not share
        constexpr i64 LINE = 64 / sizeof(*from.at[0]), SPAN = LANES<X> * (STRIDE > 1 ? STRIDE : 1);
        for (i64 r = under.rows.count > 1 ? under.rows.count - 2 : 0; r < under.rows.count; r++)
          for (i64 k = 0; k < SPAN; k += LINE) ask_to_read_ahead(from.at[0] + at + r * under.rows.gap + k);
      }
      p.template save_result<X>(to, a + j, merge_under<X, STRIDE, COUNT, ROWS>(p, from, at, under, taps));
    };
    if constexpr (WITHIN)
      each_vector<T, true, false>(b - a, body);
    else
      body(OVER{}, 0);
  }
  for (i64 o = b; o < axis.outputs; o++) fold_end(p, to, from, given, o, ends.at(o));
}

// Every input is a row.
template <int STRIDE, int COUNT, class P> void fold_rows(const P &p, typename P::To to, typename P::From from) {
  Ends ends(p.axis);
  for (i64 i = 0; i < p.inputs; i++, to = to + p.output_step, from = from + p.input_step)
    fold_row<STRIDE, COUNT>(p, ends, to, from, Under<typename P::I, false>{});
}

// `many` rows of outputs, each `move` elements further on in the input than the one before. `more`: how many outputs
// come after them, if the last of these read further on by as much again; else 0.
template <int STRIDE, int COUNT, int ROWS, bool DEEP, class P>
void fold_rows_alike(const P &p, const Ends &ends, typename P::To to, typename P::From from,
                     const Under<typename P::I, DEEP> &under, i64 many, i64 move, i64 more) {
  using T = typename P::T;
  const Axis &axis = p.axis;
  i64 n = axis.whole_to - axis.whole_from, outputs = axis.outputs;
  auto fold = [&](auto over, i64 rows) INLINE_LAMBDA {
    for (; rows > 0; rows--, many--, to = to + outputs, from = from + move)
      fold_row<STRIDE, COUNT, ROWS, decltype(over)>(p, ends, to, from, under);
  };
  if constexpr (COUNT > 0 && ROWS > 0) {
    constexpr i64 N = LANES<Vec<T>>, M = LANES<Small<T>>;
    bool half = 2 * M < N && n <= N / 2;
    i64 lanes = half ? N / 2 : N, over = axis.whole_from + lanes - outputs;
    if (n > 1 && n < lanes && n != M && (lanes - n) * STRIDE <= move) {
      i64 within = most((over - more + outputs - 1) / outputs, more == 0);  // rows that nothing follows
      if constexpr (2 * M < N)
        if (half) fold(Half<Vec<T>>{}, many - within);
      if (!half) fold(Vec<T>{}, many - within);
    }
  }
  fold(Within{}, many);
}

// Every input is a plane of rows; or a stack of planes, along the axis `deep`.
template <int STRIDE, int COUNT, bool DEEP = false, class P>
void fold_planes(const P &p, typename P::To to, typename P::From from, const OuterAxis &outer, const OuterAxis &deep) {
  using T = typename P::T;
  using I = typename P::I;
  Ends ends(p.axis);
  const Axis &axis = outer.axis;
  i64 a = most(outer.begin, axis.whole_from), b = least(outer.end, axis.whole_to);
  if (a >= b) a = b = outer.end;
  auto clear_rows = [&](i64 n) {
    for (int k = 0; k < P::PLANES; k++) std::memset(to.at[k], 0, size_t(n * p.axis.outputs) * sizeof(T));
    to = to + n * p.axis.outputs;
  };
  i64 all = (outer.end - outer.begin) * p.axis.outputs;  // outputs of a plane
  auto fold_plane = [&](typename P::From plane, const Taps<I> &planes, bool another) {
    auto under = [&](const Clipped &w) {
      Under<I, DEEP> found{outer.rows<I>(w), planes};
      found.rows.bias = I(found.rows.bias + planes.bias);
      return found;
    };
    auto fold_one = [&](i64 o) {
      Clipped w = axis.at(o);
      if (w.length == 0) return clear_rows(1);
      fold_row<STRIDE, COUNT>(p, ends, to, outer.under(plane, w), under(w));
      to = to + p.axis.outputs;
    };
    for (i64 o = outer.begin; o < a; o++) fold_one(o);
    if (a < b) {
      Clipped w = axis.at(a);
      i64 move = axis.stride * outer.pitch, more = another ? (outer.end - b) * p.axis.outputs + all : 0;
      if (COUNT > 0 && w.length == COUNT)
        fold_rows_alike<STRIDE, COUNT, COUNT>(p, ends, to, outer.under(plane, w), under(w), b - a, move, more);
      else
        fold_rows_alike<STRIDE, COUNT, 0>(p, ends, to, outer.under(plane, w), under(w), b - a, move, more);
      to = to + (b - a) * p.axis.outputs;
    }
    for (i64 o = b; o < outer.end; o++) fold_one(o);
  };
  i64 reach = axis.size * outer.pitch;  // a plane that lies so far on is read further on than this one
  for (i64 i = 0; i < p.inputs; i++, from = from + p.input_step) {
    bool another = i + 1 < p.inputs && p.input_step >= reach;
    if constexpr (DEEP)
      for (i64 o = deep.begin; o < deep.end; o++) {
        Clipped w = deep.axis.at(o);
        if (w.length == 0)
          clear_rows(outer.end - outer.begin);
        else
          fold_plane(deep.under(from, w), deep.rows<I>(w), another);
      }
    else
      fold_plane(from, {.count = 1}, another);
  }
}

// Outputs of a row, side by side, each of so few elements that a vector holds several: as many vectors as end before
// the last output, which they may run over. How many outputs that makes.
template <int M, int COUNT, class P>
i64 fold_groups(const P &p, typename P::To to, typename P::From from, i64 outputs, const Taps<typename P::I> &rows,
                const Taps<typename P::I> &taps) {
  using X = Vec<typename P::T>;
  constexpr i64 G = GROUPS<X, M>;
  i64 j = 0;
  for (; j + G < outputs; j += G)
    p.template save_result<X>(to, j * M,
                              merge_rows<X, OTHER_GROUPS + M, COUNT>(p, from, j * 2 * M, rows, taps));
  return j;
}

// The same where elements lie inside both axes: they are the vectors, and every window is like any other. Outputs that
// lie side by side, or every other one of few elements, share vectors.
template <class P>
void fold_planes_inside(const P &p, typename P::To to, typename P::From from, const OuterAxis &outer) {
  using T = typename P::T;
  using I = typename P::I;
  constexpr i64 MOST = 32;
  constexpr bool GROUPED = P::Law::cheap_merge && sizeof(T) == 4 && LANES<Vec<T>> >= 8;
  const Axis &axis = p.axis;
  Clipped few[MOST];  // of the windows along a row: small tiles have no more
  for (i64 j = 0; j < MOST && j < axis.outputs; j++) few[j] = axis.at(j);
  I step = I(p.tap_step);
  i64 gap = axis.step * p.pitch, a = axis.whole_from, b = axis.whole_to;
  bool alike = axis.phases == 1 && p.pitch == p.inside && a < b, side_by_side = alike && axis.stride == 1;
  bool grouped = GROUPED && alike && axis.stride == 2 && p.inside <= 4;
  for (i64 i = 0; i < p.inputs; i++, from = from + p.input_step)
    for (i64 o = outer.begin; o < outer.end; o++) {
      Clipped column = outer.axis.at(o);
      Taps<I> rows = outer.rows<I>(column);
      typename P::From top = from + (column.first - outer.first_held) * outer.pitch;
      for (i64 j = 0, many; j < axis.outputs; j += many, to = to + many * p.inside) {
        Clipped w = j < MOST ? few[j] : axis.at(j);
        many = side_by_side && j == a ? b - a : 1;
        if (rows.count == 0 || w.length == 0) {
          many = 1;
          for (int k = 0; k < P::PLANES; k++) std::memset(to.at[k], 0, size_t(p.inside) * sizeof(T));
          continue;
        }
        typename P::From corner = top + w.first * p.pitch;
        Taps<I> taps{.count = w.length, .gap = gap, .bias = I(rows.bias + I(w.skipped) * step), .step = step};
        auto merge = [&](auto count) INLINE_LAMBDA {
          constexpr int COUNT = decltype(count)::value;
          if constexpr (GROUPED && COUNT > 0)
            if (grouped && j >= a && j + 1 < b) {
              i64 made = p.inside == 2   ? fold_groups<2, COUNT>(p, to, corner, b - j, rows, taps)
                         : p.inside == 3 ? fold_groups<3, COUNT>(p, to, corner, b - j, rows, taps)
                                         : fold_groups<4, COUNT>(p, to, corner, b - j, rows, taps);
              if (made > 0) return void(many = made);
            }
          each_vector<T, true>(many * p.inside, [&](auto kind, i64 l) INLINE_LAMBDA {
            using X = decltype(kind);
            p.template save_result<X>(to, l, merge_rows<X, 1, COUNT>(p, corner, l, rows, taps));
          });
        };
        taps.count == 2   ? merge(std::integral_constant<int, 2>())
        : taps.count == 3 ? merge(std::integral_constant<int, 3>())
                          : merge(std::integral_constant<int, 0>());
      }
    }
}

// go(stride, count) with the axis' stride and number of taps as constants; count 0: any number
template <class Go> INLINE void with_stride_and_count(const Axis &axis, Go go) {
  i64 taps = axis.step == 1 && axis.whole_from < axis.whole_to ? axis.length(axis.whole_from) : 0;
  std::integral_constant<int, 0> any;
  std::integral_constant<int, 1> one;
  std::integral_constant<int, 2> two;
  std::integral_constant<int, 3> three;
  std::integral_constant<int, 4> four;
  std::integral_constant<int, 5> five;
  if (axis.stride == 1)
    taps == 3 ? go(one, three) : taps == 5 ? go(one, five) : go(one, any);
  else if (axis.stride == 3)
    go(three, any);
  else if (axis.stride == 4)
    go(four, any);
  else if (taps == 2)
    go(two, two);
  else if (taps == 3)
    go(two, three);
  else
    go(two, any);
}

// Two axes at once, the pass's own inside the other.
template <class P> void fold_two_axes(const P &p, typename P::To to, typename P::From from, const OuterAxis &outer) {
  if (p.inside > 1) return fold_planes_inside(p, to, from, outer);
  with_stride_and_count(p.axis, [&](auto stride, auto count) {
    fold_planes<decltype(stride)::value, decltype(count)::value>(p, to, from, outer, outer);
  });
}

// Three axes at once, for windows of two taps along the rows, side by side.
template <class P>
void fold_three_axes(const P &p, typename P::To to, typename P::From from, const OuterAxis &outer,
                     const OuterAxis &deep) {
  fold_planes<2, 2, true>(p, to, from, outer, deep);
}

// Whether `fold_whole_rows` will do: the whole of an axis whose windows lie alike, with nothing inside it.
template <class P> bool has_whole_rows(const P &p) {
  return P::UNROLLS_ROWS && p.inside == 1 && p.axis.phases == 1 && !p.axis.lines && p.axis.stride <= 4 &&
         p.begin == 0 && p.end == p.axis.outputs && p.first_held == 0;
}
template <class P> void fold_whole_rows(const P &p, typename P::To to, typename P::From from) {
  with_stride_and_count(p.axis, [&](auto stride, auto count) {
    fold_rows<decltype(stride)::value, decltype(count)::value>(p, to, from);
  });
}

}  // namespace
}  // namespace ndpool
