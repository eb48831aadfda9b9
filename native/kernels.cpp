// One table of kernels for one instruction set. Everything is in an unnamed namespace: no function compiled for one
// instruction set may be merged by the linker with one compiled for another.
#include "residual.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace ndpool {
namespace {

// Which order of taps a plan asks for. Only the plainest is worth kernels for float, too; any other runs in double.
bool plain_order(const Plan &p) { return p.ties != Ties::last && !p.ignore_nan; }

template <class T> Outcome follow(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  auto go = [&](auto law) { return push(law, job, unit, arena); };
  if constexpr (std::is_same_v<T, float>)
    return go(Follow<T, false, false>());
  else if (p.ties == Ties::last)
    return p.ignore_nan ? go(Follow<T, true, true>()) : go(Follow<T, true, false>());
  else
    return p.ignore_nan ? go(Follow<T, false, true>()) : go(Follow<T, false, false>());
}

// Blocks are summed from end to end: beyond some length float would lose too much.
constexpr i64 LONGEST_BLOCK = 512;
bool long_sums(const Plan &p) {
  bool any = false;
  for (int i = 0; i < p.rank; i++) any = any || (p.axes[i].blocks && p.axes[i].most_taps > LONGEST_BLOCK);
  return any;
}

template <class T> Outcome find(Job &job, i64 unit, Arena &arena) {
  bool last = job.plan->ties == Ties::last;
  auto go = [&](auto law) { return winners(law, job, unit, arena); };
  if constexpr (std::is_same_v<T, float>)
    return go(Winner<T, false, false>());
  else if constexpr (!is_float<T>)
    return last ? go(Winner<T, true, false>()) : go(Winner<T, false, false>());
  else if (last)
    return job.plan->ignore_nan ? go(Winner<T, true, true>()) : go(Winner<T, true, false>());
  else
    return job.plan->ignore_nan ? go(Winner<T, false, true>()) : go(Winner<T, false, false>());
}

template <class T> Outcome smooth(Job &job, i64 unit, Arena &arena) {
  ExpRatio<T> ratio(job.plan->parameter);
  if (job.mode == Mode::push) return push(SmoothMax<T, 3>{{{}, ratio}}, job, unit, arena);
  SmoothMax<T, 2> law{{{}, ratio}};
  return job.mode == Mode::pull ? pull(law, job, unit, arena) : forward(law, job, unit, arena);
}

Outcome norm(Job &job, i64 unit, Arena &arena) {
  PowerRatio<double> ratio{job.plan->parameter};
  if (job.mode == Mode::push) return push(Lp<double, 3>{{{}, ratio}}, job, unit, arena);
  Lp<double, 2> law{{{}, ratio}};
  return job.mode == Mode::pull ? pull(law, job, unit, arena) : forward(law, job, unit, arena);
}

template <bool IGNORE> Outcome share(Job &job, i64 unit, Arena &arena) {
  bool split = job.plan->ties == Ties::split;
  if (job.mode == Mode::push) return push(Share<double, IGNORE, 3>{{}, split}, job, unit, arena);
  return pull(Share<double, IGNORE, 2>{{}, split}, job, unit, arena);
}

// The laws of real numbers, computed in T.
template <class T> Outcome real(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  switch (job.mode) {
    case Mode::winners:
      return find<T>(job, unit, arena);
    case Mode::pick:
      return pick<T>(job, unit, arena);
    case Mode::spread:
      return spread<T>(job, unit, arena);
    default:
      break;
  }
  switch (p.law) {
    case Law::sum:
      return job.mode == Mode::pull ? pull(Add<T, 1>(), job, unit, arena) : forward(Add<T, 1>(), job, unit, arena);
    case Law::smooth_max:
      return smooth<T>(job, unit, arena);
    case Law::lp:
      return norm(job, unit, arena);
    default:
      break;
  }
  if (job.mode == Mode::push && (p.ties == Ties::first || p.ties == Ties::last)) return follow<T>(job, unit, arena);
  if (job.mode != Mode::forward) return p.ignore_nan ? share<true>(job, unit, arena) : share<false>(job, unit, arena);
  return plain_order(p) ? forward(Select<T>(), job, unit, arena) : find<T>(job, unit, arena);
}

Outcome run(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  if (job.mode == Mode::positions) return positions(job, unit, arena);
  bool follows = job.mode == Mode::pick || job.mode == Mode::spread, wide = p.taps > 0x7fffffff;
  Type type = follows ? job.moved : p.type;
  if (type <= Type::bf16) {
    bool finds = job.mode == Mode::winners ||
                 (p.law == Law::max && (job.mode == Mode::forward || job.mode == Mode::push) && !plain_order(p));
    bool in_double = type == Type::f64 || (finds && (wide || !plain_order(p))) || (p.law == Law::sum && long_sums(p));
    return in_double ? real<double>(job, unit, arena) : real<float>(job, unit, arena);
  }
  if (p.law == Law::sum && fits_short_sum(p)) return short_sum(job, unit, arena);
  if (p.law == Law::sum)
    return size_of(type) == 8 ? integer_sum<2>(job, unit, arena) : integer_sum<1>(job, unit, arena);
  if (job.mode == Mode::winners) return find<int64_t>(job, unit, arena);
  switch (size_of(type)) {
    case 1:
      return forward(Select<uint8_t>(), job, unit, arena);
    case 2:
      return forward(Select<int16_t>(), job, unit, arena);
    case 4:
      return forward(Select<int32_t>(), job, unit, arena);
    default:
      return forward(Select<int64_t>(), job, unit, arena);
  }
}

i64 units(const Plan &p, Mode mode) {
  bool folds = mode == Mode::forward || mode == Mode::winners || mode == Mode::push;
  if (folds && p.pieces > 1) return p.tiles * p.axes[0].outputs * p.pieces;
  return count_units(p, mode == Mode::pull || mode == Mode::spread);
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
      X v = load<X>(in + (i + k) * N);
      seen[k] = choose<X>(v > seen[k], v, seen[k]);
    }
  for (int k = 1; k < 4; k++) seen[0] = choose<X>(seen[k] > seen[0], seen[k], seen[0]);
  for (i64 i = 0; i + i64(sizeof(X)) <= written; i += i64(sizeof(X)))
    save<X>(reinterpret_cast<float *>(to + i), seen[0]);
}

}  // namespace

extern const Kernels JOIN(kernels_, NDPOOL_ISA);
const Kernels JOIN(kernels_, NDPOOL_ISA) = {TEXT(NDPOOL_ISA), run, units, stream};

}  // namespace ndpool
