// Lp norms, in double: small whole powers of shorter floats as they are, others relative to the largest tap.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {

namespace {

template <class Law, class WithTangent>
Outcome norm(const Law &law, const WithTangent &with_tangent, Job &job, i64 unit, Arena &arena) {
  if (job.mode == Mode::jvp) return jvp(with_tangent, job, unit, arena);
  if (job.mode == Mode::states) return keep_states(law, job, unit, arena);
  return job.mode == Mode::vjp ? vjp(law, job, unit, arena) : forward(law, job, unit, arena);
}

template <int P> Outcome power_sum(Job &job, i64 unit, Arena &arena) {
  return norm(PowerSum<double, P, 1>(), PowerSum<double, P, 3>(), job, unit, arena);
}

}  // namespace

Outcome lp(Job &job, i64 unit, Arena &arena) {
  double p = job.plan->parameter;
  if (job.plan->type != Type::f64) {
    if (p == 1) return power_sum<1>(job, unit, arena);
    if (p == 2) return power_sum<2>(job, unit, arena);
    if (p == 3) return power_sum<3>(job, unit, arena);
  }
  PowerRatio<double> ratio{p};
  return norm(Lp<double, 2>{{{}, ratio}}, Lp<double, 3>{{{}, ratio}}, job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
