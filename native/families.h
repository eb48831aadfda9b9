// The kernels of one instruction set come from several sources, so that several cores compile them and a change in one
// law compiles one of them. These are the functions by which `kernels.cpp` reaches the others. Their namespace carries
// the set's name: everything else in a kernel source is in an unnamed namespace, because the linker must never take a
// function compiled for one instruction set for another's.
#pragma once
#include "kernels.h"

#define NDPOOL_JOIN_(a, b) a##b
#define NDPOOL_JOIN(a, b) NDPOOL_JOIN_(a, b)
#define NDPOOL_SET NDPOOL_JOIN(set_, NDPOOL_ISA)

namespace ndpool::NDPOOL_SET {

// One unit of a job, in the modes that the law has: forward, winners, jvp, vjp. A name says what is computed with.
using Kernel = Outcome(Job &, i64 unit, Arena &);

Kernel max_f32, max_f64;          // first of equals, NaN above all: forward and jvp
Kernel winners_f32, winners_f64;  // the same order: winners
Kernel max_in_any_order;          // any other order, in double: forward, winners and jvp
Kernel max_of_integers;           // forward and winners
Kernel max_sharing_ties;          // in double: jvp and vjp
Kernel sum_f32, sum_f64;          // forward and vjp
Kernel sum_of_integers;           // forward
Kernel mode_of_labels;            // forward
Kernel smooth_max_f32, smooth_max_f64, lp;
Kernel jvp_by_winner, vjp_by_winner, positions;

}  // namespace ndpool::NDPOOL_SET
