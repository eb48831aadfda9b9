// One run of a plan: the job, and what its units share. Whose arrays they are, and which threads do the units, is the
// caller's business: the module's or xla.cpp's.
#pragma once
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace ndpool {

constexpr i64 SMALL = 16384;  // elements that are not worth a second thread

extern const Kernels *chosen;  // the instruction set in use

// Some threads (XLA's) take numbers below the normal ones for 0. While this lives they are numbers, so that every
// thread gives the same bits.
class WithSmallNumbers {
#if defined(__x86_64__)
  static constexpr unsigned FLUSH = 0x8040;  // of results, of operands
  unsigned before_ = __builtin_ia32_stmxcsr();

 public:
  WithSmallNumbers() {
    if (before_ & FLUSH) __builtin_ia32_ldmxcsr(before_ & ~FLUSH);
  }
  ~WithSmallNumbers() {
    if (before_ & FLUSH) __builtin_ia32_ldmxcsr(before_);
  }
#else
  std::fenv_t before_;

 public:
  WithSmallNumbers() { std::fegetenv(&before_), std::fesetenv(FE_DFL_ENV); }
  ~WithSmallNumbers() { std::fesetenv(&before_); }
#endif
};

struct Run {
  Job job{};
  const Kernels *kernels = chosen;
  std::atomic<i64> refused{0};  // bytes of scratch that there was no memory for
  std::vector<char> states;

  Run(const Plan &p, Mode mode, Type tangents) {
    job.plan = &p, job.mode = mode, job.tangent_type = tangents;
    if (p.pieces > 1 && kernels->units(p, mode) > 0) {
      i64 outputs = p.tiles * p.axes[0].outputs;
      piece_states_.resize(size_t(outputs * p.pieces * PIECE_BYTES));
      missing_.assign(size_t(outputs), p.pieces);
      job.piece_states = piece_states_.data(), job.missing = missing_.data();
      if (mode == Mode::states) use_states(std::vector<char>(size_t(outputs * PIECE_BYTES)));
    }
  }

  // The states of long windows: where the mode `states` leaves them, and where a vjp finds them.
  void use_states(std::vector<char> &&given) {
    states = std::move(given);
    job.states = states.empty() ? nullptr : states.data();
  }

  // Does the units that `claim(unit)` hands out, until it has none; false stops the others too.
  template <class Claim, class GoesOn> bool work(Claim claim, GoesOn goes_on) {
    WithSmallNumbers small;
    Arena arena = Memory::get().take_arena();
    bool fine = true;
    for (i64 unit; fine && claim(unit);) {
      if (kernels->run(job, unit, arena) == Outcome::no_memory) refused = std::max<i64>(1, arena.refused), fine = false;
      fine = goes_on() && fine;
    }
    Memory::get().give_arena(arena);
    return fine;
  }

  void start_over() { std::fill(missing_.begin(), missing_.end(), job.plan->pieces); }

  // Elements that a run looks at, about.
  static i64 elements(const Plan &p) {
    i64 n = p.tiles * p.lanes;
    for (int i = 0; i < p.rank; i++) n *= std::max(p.axes[i].size, p.axes[i].outputs);
    return n;
  }

 private:
  std::vector<char> piece_states_;
  std::vector<i64> missing_;
};

}  // namespace ndpool
