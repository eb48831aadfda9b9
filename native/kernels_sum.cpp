// Sums and means of real numbers.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

namespace {

template <class T> Outcome sum(Job &job, i64 unit, Arena &arena) {
  return job.mode == Mode::vjp ? vjp(Add<T, 1>(), job, unit, arena) : forward(Add<T, 1>(), job, unit, arena);
}

}  // namespace

Outcome sum_f32(Job &job, i64 unit, Arena &arena) { return sum<float>(job, unit, arena); }
Outcome sum_f64(Job &job, i64 unit, Arena &arena) { return sum<double>(job, unit, arena); }

}  // namespace ndpool::NDPOOL_SET
