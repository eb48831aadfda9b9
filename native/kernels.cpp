// The table of kernels of one instruction set: which kernel serves a job.
#include "families.h"
#include "part.h"
#include "vec.h"

#define NDPOOL_TEXT_(a) #a
#define NDPOOL_TEXT(a) NDPOOL_TEXT_(a)

namespace ndpool {
namespace {

using namespace NDPOOL_SET;

// Blocks are summed from end to end: beyond some length float would lose too much.
constexpr i64 LONGEST_BLOCK = 512;
bool sums_long_blocks(const Plan &p) {
  bool any = false;
  for (int i = 0; i < p.rank; i++) any = any || (p.axes[i].blocks && p.axes[i].most_taps > LONGEST_BLOCK);
  return any;
}

// Only the plainest order of taps is worth kernels for float; any other runs in double.
Kernel *max_kernel(const Plan &p, Mode mode) {
  bool real = p.type <= Type::bf16, shares = p.ties == Ties::all || p.ties == Ties::split;
  if (!real) return max_of_integers;
  if (mode == Mode::vjp || mode == Mode::states || (mode == Mode::jvp && shares)) return max_sharing_ties;
  if (p.ties == Ties::last || p.ignore_nan) return max_in_any_order;
  constexpr i64 MOST_OF_INT = 0x7fffffff;  // the index of a winner is an integer as wide as the values
  if (mode == Mode::winners) return p.type == Type::f64 || p.taps > MOST_OF_INT ? winners_f64 : winners_f32;
  return p.type == Type::f64 ? max_f64 : max_f32;
}

Kernel *kernel_of(const Plan &p, Mode mode) {
  bool real = p.type <= Type::bf16, in_double = p.type == Type::f64;
  if (mode == Mode::positions) return positions;
  if (mode == Mode::jvp_by_winner) return jvp_by_winner;
  if (mode == Mode::vjp_by_winner) return vjp_by_winner;
  switch (p.law) {
    case Law::max:
      return max_kernel(p, mode);
    case Law::sum:
      return !real ? sum_of_integers : in_double || sums_long_blocks(p) ? sum_f64 : sum_f32;
    case Law::mode:
      return mode_of_labels;
    case Law::smooth_max:
      return in_double ? smooth_max_f64 : smooth_max_f32;
    default:
      return lp;
  }
}

Outcome run(Job &job, i64 unit, Arena &arena) { return kernel_of(*job.plan, job.mode)(job, unit, arena); }

i64 units(const Plan &p, Mode mode) {
  if (mode == Mode::states && !p.states_first) return 0;
  bool folds = mode == Mode::forward || mode == Mode::winners || mode == Mode::jvp || mode == Mode::states;
  if (folds && p.pieces > 1) return p.tiles * p.axes[0].outputs * p.pieces;
  return count_units(p, mode == Mode::vjp || mode == Mode::vjp_by_winner);
}

// Reads and writes that many bytes and no more: the least that any kernel over them can take.
void stream(const char *from, i64 read, char *to, i64 written) {
  using X = Vec<float>;
  X seen[4] = {};
  const float *in = reinterpret_cast<const float *>(from);
  constexpr int N = LANES<X>;
  i64 n = read / i64(sizeof(X)) / 4 * 4;
  for (i64 i = 0; i < n; i += 4)
    for (int k = 0; k < 4; k++) {
      ask_to_read_ahead(in + (i + k) * N);
      X v = load<X>(in + (i + k) * N);
      seen[k] = choose<X>(v > seen[k], v, seen[k]);
    }
  for (int k = 1; k < 4; k++) seen[0] = choose<X>(seen[k] > seen[0], seen[k], seen[0]);
  for (i64 i = 0; i + i64(sizeof(X)) <= written; i += i64(sizeof(X)))
    save<X>(reinterpret_cast<float *>(to + i), seen[0]);
}

}  // namespace

extern const Kernels NDPOOL_JOIN(kernels_, NDPOOL_ISA);
const Kernels NDPOOL_JOIN(kernels_, NDPOOL_ISA) = {NDPOOL_TEXT(NDPOOL_ISA), run, units, stream};

}  // namespace ndpool
