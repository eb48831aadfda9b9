// Max in double, the first of equals, NaN above all: values, tangents and winners.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

Outcome max_f64(Job &job, i64 unit, Arena &arena) {
  if (job.mode == Mode::jvp) return jvp(Follow<double, false, false>(), job, unit, arena);
  return forward(Select<double>(), job, unit, arena);
}

Outcome winners_f64(Job &job, i64 unit, Arena &arena) {
  return winners(Winner<double, false, false>(), job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
