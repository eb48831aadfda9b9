// What a frame of XLA's holds, and XLA's threads: what xla.cpp reads calls with. Nothing in a frame is believed.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base.h"
#include "xla_ffi.h"

namespace ndpool::xla {

struct Wrong {  // what stands in the way
  Code code;
  std::string message;
};

[[noreturn]] inline void refuse(std::string message) { throw Wrong{Code::invalid_argument, std::move(message)}; }

constexpr std::pair<DataType, Type> TYPES[] = {
    {DataType::boolean, Type::u8}, {DataType::i8, Type::i8},   {DataType::i16, Type::i16}, {DataType::i32, Type::i32},
    {DataType::i64, Type::i64},    {DataType::u8, Type::u8},   {DataType::u16, Type::u16}, {DataType::u32, Type::u32},
    {DataType::u64, Type::u64},    {DataType::f16, Type::f16}, {DataType::f32, Type::f32}, {DataType::f64, Type::f64},
    {DataType::bf16, Type::bf16},
};

inline Type type_of(DataType type) {
  for (auto [theirs, ours] : TYPES)
    if (theirs == type) return ours;
  refuse("the kernels do not take elements of this type");
}

inline const Buffer &buffer(const Buffers &from, i64 i) {
  if (from.types[i] != BUFFER) refuse("an argument is not a buffer");
  return *static_cast<const Buffer *>(from.items[i]);
}

// -- threads: XLA's own
// --------------------------------------------------------------------------------------------------

// Units of work that several threads take. Who comes late finds it closed, and touches nothing else of it.
struct Shared {
  explicit Shared(i64 all) : units(all) {}
  virtual ~Shared() = default;
  virtual void work() = 0;  // units, until `claim` has none

  const i64 units;
  bool claim(i64 &unit) { return (unit = next.fetch_add(1, std::memory_order_relaxed)) < units; }
  void stop() { next.store(units, std::memory_order_relaxed); }

  void close() {
    std::unique_lock<std::mutex> lock(mutex);
    open = false;
    left.wait(lock, [&] { return inside == 0; });
  }

  static void help(void *data) {
    std::unique_ptr<std::shared_ptr<Shared>> mine(static_cast<std::shared_ptr<Shared> *>(data));
    Shared &shared = **mine;
    {
      std::lock_guard<std::mutex> lock(shared.mutex);
      if (!shared.open) return;
      shared.inside++;
    }
    shared.work();
    std::lock_guard<std::mutex> lock(shared.mutex);
    if (--shared.inside == 0) shared.left.notify_all();
  }

 private:
  std::atomic<i64> next{0};
  std::mutex mutex;
  std::condition_variable left;
  int inside = 0;
  bool open = true;
};

// The threads of XLA's pool; 1 where it has none.
inline i64 threads(const Frame &frame) {
  const Api &api = *frame.api;
  if (!api.has(api.count_threads) || !api.count_threads || !api.schedule) return 1;
  i64 found = 1;
  CountThreads ask{sizeof(CountThreads), nullptr, frame.context, &found};
  if (Error *error = api.count_threads(&ask)) {
    DestroyError drop{sizeof(DestroyError), nullptr, error};
    api.destroy_error(&drop);
    return 1;
  }
  return found;
}

// All units: the caller works too, and waits only for helpers that have begun. `helped` where that is worth it.
inline void run_shared(const Frame &frame, const std::shared_ptr<Shared> &shared, bool helped) {
  i64 helpers = helped ? least(threads(frame), shared->units) - 1 : 0;
  for (i64 i = 0; i < helpers; i++) {
    auto mine = std::make_unique<std::shared_ptr<Shared>>(shared);
    Schedule ask{sizeof(Schedule), nullptr, frame.context, Shared::help, mine.get()};
    if (Error *error = frame.api->schedule(&ask)) {
      DestroyError drop{sizeof(DestroyError), nullptr, error};
      frame.api->destroy_error(&drop);
      break;
    }
    mine.release();  // its own now
  }
  shared->work();
  shared->close();
}

}  // namespace ndpool::xla
