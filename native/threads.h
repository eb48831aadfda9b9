// A small pool that lives as long as the process: workers wait for a job, the caller takes part, units are claimed from
// a counter. A second caller at the same time runs its own job alone. A forked child starts afresh.
#pragma once
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include "kernels.h"

namespace ndpool {

class Pool {
 public:
  // work(unit, worker) returns false to stop; `worker` is 0 for the caller
  struct Work {
    virtual bool operator()(int64_t unit, int worker) = 0;

   protected:
    ~Work() = default;
  };

  static Pool &get() {
    static Pool *pool = new Pool;  // never destroyed: workers may outlive static destruction
    return *pool;
  }

  void run(int64_t units, int threads, Work &work) {
    std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
    if (threads > 1 && units > 1 && turn.try_lock() && start(threads - 1)) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work, units_ = units, next_ = 0, wanted_ = threads - 1, epoch_++;
      }
      wake_.notify_all();
      claim(0);
      std::unique_lock<std::mutex> lock(mutex_);
      work_ = nullptr, wanted_ = 0;
      done_.wait(lock, [this] { return busy_ == 0; });
    } else {
      for (int64_t unit = 0; unit < units && work(unit, 0); unit++) {
      }
    }
  }

  // Scratch is passed on from unit to unit. It belongs to no thread: memory of threads cannot be refused politely.
  Arena take_arena() {
    std::lock_guard<std::mutex> lock(arenas_mutex_);
    return arenas_ > 0 ? arena_[--arenas_] : Arena{nullptr, 0};
  }
  void give_arena(Arena arena) {
    {
      std::lock_guard<std::mutex> lock(arenas_mutex_);
      if (arenas_ < MOST_ARENAS && arena.size <= LARGEST_ARENA) {
        arena_[arenas_++] = arena;
        return;
      }
    }
    std::free(arena.data);
  }

 private:
  static constexpr int MOST_ARENAS = 64;
  static constexpr i64 LARGEST_ARENA = 64 << 20;

  void claim(int worker) {
    for (int64_t unit; (unit = next_.fetch_add(1)) < units_;)
      if (!(*work_)(unit, worker)) next_ = units_;
  }

  bool start(int workers) {
    static bool once = [] { return pthread_atfork(nullptr, nullptr, [] { new (&get()) Pool; }) == 0; }();
    try {
      for (; once && started_ < workers; started_++) std::thread([this, id = started_ + 1] { serve(id); }).detach();
    } catch (const std::system_error &) {  // no more threads to be had: those that are there will do
    }
    return once && started_ > 0;
  }

  void serve(int id) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint64_t seen = 0;;) {
      wake_.wait(lock, [&] { return epoch_ != seen; });
      seen = epoch_;
      if (!work_ || wanted_ <= 0) continue;
      wanted_--, busy_++;
      lock.unlock();
      claim(id);
      lock.lock();
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex turn_, mutex_, arenas_mutex_;
  Arena arena_[MOST_ARENAS];
  int arenas_ = 0;
  std::condition_variable wake_, done_;
  Work *work_ = nullptr;
  int64_t units_ = 0;
  std::atomic<int64_t> next_{0};
  int started_ = 0, wanted_ = 0, busy_ = 0;
  uint64_t epoch_ = 0;
};

}  // namespace ndpool
