// Max of integers: values in their own width, winners in 64 bits.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

Outcome max_of_integers(Job &job, i64 unit, Arena &arena) {
  if (job.mode == Mode::winners)
    return job.plan->ties == Ties::last ? winners(Winner<int64_t, true, false>(), job, unit, arena)
                                        : winners(Winner<int64_t, false, false>(), job, unit, arena);
  switch (size_of(job.plan->type)) {
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

}  // namespace ndpool::NDPOOL_SET
