// The derivative of a max whose ties share it (ties="all" and "split"), in double.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

namespace {

template <bool IGNORE> Outcome share(Job &job, i64 unit, Arena &arena) {
  bool split = job.plan->ties == Ties::split;
  if (job.mode == Mode::jvp) return jvp(Share<double, IGNORE, 3>{{}, split}, job, unit, arena);
  Share<double, IGNORE, 2> law{{}, split};
  return job.mode == Mode::states ? keep_states(law, job, unit, arena) : vjp(law, job, unit, arena);
}

}  // namespace

Outcome max_sharing_ties(Job &job, i64 unit, Arena &arena) {
  return job.plan->ignore_nan ? share<true>(job, unit, arena) : share<false>(job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
