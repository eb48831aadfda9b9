// Max in float, the first of equals, NaN above all.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

Outcome max_f32(Job &job, i64 unit, Arena &arena) {
  if (job.mode == Mode::jvp) return jvp(Follow<float, false, false>(), job, unit, arena);
  return forward(Select<float>(), job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
