// Max in float with its winners, the first of equals, NaN above all.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

Outcome winners_f32(Job &job, i64 unit, Arena &arena) {
  return winners(Winner<float, false, false>(), job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
