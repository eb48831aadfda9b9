// One table of kernels for one instruction set. Everything is in an unnamed namespace: no function compiled for one
// instruction set may be merged by the linker with one compiled for another.
#include "residual.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace ndpool {
namespace {

template <class T> Outcome find(Job &job, i64 unit, Arena &arena) {
  bool last = job.plan->ties == Ties::last;
  auto go = [&](auto law) { return winners(law, job, unit, arena); };
  if constexpr (!is_float<T>) return last ? go(Winner<T, true, false>()) : go(Winner<T, false, false>());
  else if (last) return job.plan->ignore_nan ? go(Winner<T, true, true>()) : go(Winner<T, true, false>());
  else return job.plan->ignore_nan ? go(Winner<T, false, true>()) : go(Winner<T, false, false>());
}

template <class T> Outcome select(Job &job, i64 unit, Arena &arena) {
  if constexpr (is_float<T>)  // equal integers are the same
    if (job.plan->ties == Ties::last || job.plan->ignore_nan) return find<T>(job, unit, arena);
  return forward(Select<T>(), job, unit, arena);
}

// the laws of real numbers, computed in T
template <class T> Outcome real(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  T parameter = T(p.parameter);
  switch (job.mode) {
    case Mode::winners: return find<T>(job, unit, arena);
    case Mode::pick: return pick<T>(job, unit, arena);
    case Mode::spread: return spread<T>(job, unit, arena);
    default: break;
  }
  if (p.law == Law::max) {
    bool split = p.ties == Ties::split;
    if (job.mode == Mode::forward) return select<T>(job, unit, arena);
    if (job.mode == Mode::push)
      return p.ignore_nan ? push(Share<T, true, 3>{{}, split}, job, unit, arena) : push(Share<T, false, 3>{{}, split}, job, unit, arena);
    return p.ignore_nan ? pull(Share<T, true, 2>{{}, split}, job, unit, arena) : pull(Share<T, false, 2>{{}, split}, job, unit, arena);
  }
  if (p.law == Law::sum) {
    if (job.mode == Mode::pull) return pull(Add<T, 1>(), job, unit, arena);
    return forward(Add<T, 1>(), job, unit, arena);
  }
  auto smooth = [&](auto law) {
    law.ratio = {parameter};
    if constexpr (decltype(law)::planes == 3) return push(law, job, unit, arena);
    else return job.mode == Mode::pull ? pull(law, job, unit, arena) : forward(law, job, unit, arena);
  };
  if (p.law == Law::smooth_max) return job.mode == Mode::push ? smooth(SmoothMax<T, 3>()) : smooth(SmoothMax<T, 2>());
  return job.mode == Mode::push ? smooth(Lp<T, 3>()) : smooth(Lp<T, 2>());
}

Outcome run(Job &job, i64 unit, Arena &arena) {
  const Plan &p = *job.plan;
  if (job.mode == Mode::positions) return positions(job, unit, arena);
  bool follows = job.mode == Mode::pick || job.mode == Mode::spread;
  Type type = follows ? job.moved : p.type;
  bool wide = p.taps > 0x7fffffff;
  switch (type) {
    case Type::f64: return real<double>(job, unit, arena);
    case Type::f32: case Type::f16: case Type::bf16:
      return wide && (job.mode == Mode::winners || follows) ? real<double>(job, unit, arena) : real<float>(job, unit, arena);
    default: break;
  }
  if (p.law == Law::sum) return size_of(type) == 8 ? integer_sum<2>(job, unit, arena) : integer_sum<1>(job, unit, arena);
  if (job.mode == Mode::winners)
    return size_of(type) == 8 || wide ? find<int64_t>(job, unit, arena) : find<int32_t>(job, unit, arena);
  switch (size_of(type)) {
    case 1: return select<int8_t>(job, unit, arena);
    case 2: return select<int16_t>(job, unit, arena);
    case 4: return select<int32_t>(job, unit, arena);
    default: return select<int64_t>(job, unit, arena);
  }
}

i64 units(const Plan &p, Mode mode) { return count_units(p, mode == Mode::pull || mode == Mode::spread); }

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
  for (i64 i = 0; i + i64(sizeof(X)) <= written; i += i64(sizeof(X))) save<X>(reinterpret_cast<float *>(to + i), seen[0]);
}

}  // namespace

extern const Kernels JOIN(kernels_, NDPOOL_ISA);
const Kernels JOIN(kernels_, NDPOOL_ISA) = {TEXT(NDPOOL_ISA), run, units, stream};

}  // namespace ndpool
