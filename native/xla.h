// The engine as XLA calls it: a handler of XLA's foreign function interface. `module.cpp` shows its address to Python.
#pragma once

namespace ndpool::xla {

struct Error;
struct Frame;

// Runs a plan on XLA's buffers. Null, or an error of XLA's.
Error *run(Frame *frame);

// Around a fork: no lock is copied in a locked state.
void before_fork();
void after_fork();

}  // namespace ndpool::xla
