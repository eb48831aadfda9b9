// Lp norms, in double.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

Outcome lp(Job &job, i64 unit, Arena &arena) {
  PowerRatio<double> ratio{job.plan->parameter};
  if (job.mode == Mode::jvp) return jvp(Lp<double, 3>{{{}, ratio}}, job, unit, arena);
  Lp<double, 2> law{{{}, ratio}};
  if (job.mode == Mode::states) return keep_states(law, job, unit, arena);
  return job.mode == Mode::vjp ? vjp(law, job, unit, arena) : forward(law, job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
