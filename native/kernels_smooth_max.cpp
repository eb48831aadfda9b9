// Smooth max.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

namespace {

template <class T> Outcome smooth_max(Job &job, i64 unit, Arena &arena) {
  ExpRatio<T> ratio(job.plan->parameter);
  if (job.mode == Mode::jvp) return jvp(SmoothMax<T, 3>{{{}, ratio}}, job, unit, arena);
  SmoothMax<T, 2> law{{{}, ratio}};
  if (job.mode == Mode::states) return keep_states(law, job, unit, arena);
  return job.mode == Mode::vjp ? vjp(law, job, unit, arena) : forward(law, job, unit, arena);
}

}  // namespace

Outcome smooth_max_f32(Job &job, i64 unit, Arena &arena) { return smooth_max<float>(job, unit, arena); }
Outcome smooth_max_f64(Job &job, i64 unit, Arena &arena) { return smooth_max<double>(job, unit, arena); }

}  // namespace ndpool::NDPOOL_SET
