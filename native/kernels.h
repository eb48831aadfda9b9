// What a plan asks of the kernels. The kernels are compiled once for each instruction set; the module picks one table.
//
// Words are the spec's: an axis says which positions each output reads, a law what is made of them. Rank is not a case:
// a plan has any number of pooled axes, and everything else is either a lead axis (a tile for each index) or the lanes
// (elements side by side that no window joins, like the channels of a channels-last image).
#pragma once
#include <cstdint>

#include "axis.h"

namespace ndpool {

constexpr i64 PHASED_FROM = 48;  // outputs of a row from which on its phases are worth rows of their own,
constexpr i64 PHASED_TO = 32;    // if there are no more; outputs of so many phases are alike for longer

// min is max, and beta < 0 is beta > 0, of the flipped input
enum class Law : int32_t { max, sum, smooth_max, lp, mode };
enum class Ties : int32_t { first, last, all, split, smallest };  // the last is a mode's
enum class Mode : int32_t {
  forward,        // x -> y
  winners,        // x -> y, residual
  jvp,            // x, dx -> dy, y
  vjp,            // x, dy -> dx
  jvp_by_winner,  // residual, dx -> dy
  vjp_by_winner,  // residual, dy -> dx
  positions,      // residual -> flat positions
  states,         // x -> the states of windows that are cut into pieces, for a vjp that asks for them
};
enum class Type : int32_t { f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64 };
constexpr i64 BYTES[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8};  // of one element of each type

constexpr int MOST_AXES = 32;
constexpr i64 MOST_PIECES = 1024;   // into which a long window is cut
constexpr i64 PIECE_BYTES = 3 * 8;  // of the state of one: up to three planes

// A residual is the index of the winning tap among all taps of the unclipped window, in row-major order.
struct Plan {
  Law law;
  Ties ties;
  bool ignore_nan, flip, mean;
  Type type;
  int32_t rank, lead;                               // pooled axes, lead axes
  double parameter;                                 // beta, or p
  i64 divisor;                                      // 0: the count
  i64 lanes, taps, tiles;                           // taps: of the largest unclipped window
  const Axis *axes;                                 // outermost in memory first
  const Axis *readers;                              // the transposes: which outputs read a position
  i64 sizes[MOST_AXES];                             // of the lead axes
  int32_t order[MOST_AXES], order_back[MOST_AXES];  // the pooled axes, in the order of their folds
  int32_t order_in_memory[MOST_AXES];               // in an order for laws that give the same bits in any
  i64 tap_steps[MOST_AXES];                         // what the next tap along a pooled axis adds to a residual
  i64 position_steps[MOST_AXES];  // row-major strides of the pooled axes as the caller numbers positions
  i64 residual_bytes;
  // How the work is cut. A unit is `band` consecutive outermost outputs of one tile, or several whole tiles; or, if
  // `pieces` > 1, a piece of the window of one output. In vjp and vjp_by_winner it is inputs (`back`), never pieces.
  i64 band, tiles_per_unit, band_back, tiles_per_unit_back, pieces;
  i64 unit_size, unit_size_back;  // elements of one of them, about
  bool even, padded, empty;  // all outputs count alike; some count positions that they do not read; some count nothing
  bool unread;               // some inputs are read by no output
  bool states_first;         // before a vjp, the mode `states` folds the windows, which are too long to be folded again
};

// An array in the plan's order of axes: lead, pooled, lanes. Strides in bytes.
struct Array {
  char *data;
  i64 strides[MOST_AXES];
};

// x: the input (or the residual); a: dx or dy; y: the first result, b: the second. One unit of work after another.
struct Job {
  const Plan *plan;
  Mode mode;
  Type tangent_type;  // of dx and dy
  Array x, a, y, b;
  bool overflow;  // an integer sum did not fit
  // If windows are cut into pieces: the states of all pieces, `PIECE_BYTES` each, and per output how many are missing.
  char *piece_states;
  i64 *missing;
  char *states;  // what mode `states` makes and vjp reads, plane after plane; null if each unit of vjp folds its own
};

struct Arena {  // scratch of one thread, kept between units
  char *data;
  i64 size;
  i64 refused;  // bytes that there was no memory for
};

enum class Outcome : int32_t { done, no_memory };

struct Kernels {
  const char *name;
  Outcome (*run)(Job &, i64 unit, Arena &);
  i64 (*units)(const Plan &, Mode);
  void (*stream)(const char *from, i64 read, char *to, i64 written);
};

}  // namespace ndpool
