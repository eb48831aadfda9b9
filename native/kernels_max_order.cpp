// Max in double in the other orders: ties="last", nan="ignore", or both. Values come with their winners.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

namespace {

template <bool LAST, bool IGNORE> Outcome in_order(Job &job, i64 unit, Arena &arena) {
  if (job.mode == Mode::jvp) return jvp(Follow<double, LAST, IGNORE>(), job, unit, arena);
  return winners(Winner<double, LAST, IGNORE>(), job, unit, arena);
}

}  // namespace

Outcome max_in_any_order(Job &job, i64 unit, Arena &arena) {
  if (job.plan->ties != Ties::last) return in_order<false, true>(job, unit, arena);
  return job.plan->ignore_nan ? in_order<true, true>(job, unit, arena) : in_order<true, false>(job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
