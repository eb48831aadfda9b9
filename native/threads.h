// A pool of threads. Any number of threads may run tasks at the same time, and the process may fork at any moment.
//
// A task is work that is cut into units, which any thread may do in any order. All of its state is its own: which unit
// is next, who is inside, how it went. The pool only knows which tasks are open, that is, still welcome helpers.
//
// Who owns a task: whoever has a shared_ptr to it: the caller, the pool while the task is open, and each worker while
// it is inside. The last of them destroys it, so a caller may leave a task to its workers.
//
// When it ends: once it is not open and nobody is inside. `run` returns only then, so that what units write, and what
// they read, is the caller's alone again.
//
// The invariants, all under `mutex_`:
//   a worker learns of a task only from `open_`, and is counted in `inside_` before it lets go of the mutex;
//   a worker touches a task, its inputs and its results only while it is counted;
//   a task leaves `open_` once no more workers are wanted, or when its caller has no unit left to do;
//   a worker is idle (on the stack `idle_`), awake (counted in `awake_`), inside a task, or on its way between these.
//
// Who has nothing to do stays awake for `AWAKE` before it sleeps: it takes 20 to 50 us to wake a thread, which is as long
// as many a run. So calls that follow one another find their workers awake, and a caller whose last units end within
// that time does not sleep either.
//
// Memory order: the mutex orders everything. What the caller wrote before it opened the task is seen by those who find
// it in `open_`, and what workers wrote is seen by the caller once it finds `inside_` at 0. The counter of units hands
// out numbers and publishes nothing, so it is relaxed.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace ndpool {

class Task {
 public:
  explicit Task(int64_t units) : units_(units) {}
  virtual ~Task() = default;

  // Does units until none is left, like `for (i64 unit; claim(unit);) ...`; several threads are in it at once.
  virtual void work(bool caller) = 0;
  // Before all units are done once more: forget what was done.
  virtual void start_over() {}
  int64_t units() const { return units_; }

 protected:
  bool claim(int64_t &unit) { return (unit = next_.fetch_add(1, std::memory_order_relaxed)) < units_; }
  void stop() { next_.store(units_, std::memory_order_relaxed); }  // no unit is claimed any more

 private:
  friend class Pool;
  const int64_t units_;
  std::atomic<int64_t> next_{0};
  // under the pool's mutex:
  int wanted_ = 0;                // workers that may still come
  std::atomic<int> inside_{0};    // workers that are in `work`; looked at without the mutex, but not believed
  std::condition_variable left_;  // the last of them has left
};

class Pool {
 public:
  static constexpr std::chrono::milliseconds LOOKS{50};  // how often a caller looks for signals

  static Pool &get() {
    static Pool *pool = new Pool;  // never destroyed: workers outlive static destruction
    return *pool;
  }

  // Runs a task to its end. The caller takes part, with at most `threads` - 1 workers.
  void run(const std::shared_ptr<Task> &task, int threads) {
    unsigned born = forks_;
    int helpers = int(std::min<int64_t>(threads, task->units())) - 1;
    bool open = helpers > 0 && offer(task, helpers, threads - 1);
    task->work(true);
    if (forks_ != born) return again(*task);
    if (!open) return;
    std::unique_lock<std::mutex> lock(mutex_);
    withdraw(task);
    if (task->inside_ == 0) return;
    lock.unlock();
    look_while([&] { return task->inside_.load(std::memory_order_relaxed) != 0; });
    lock.lock();
    task->left_.wait(lock, [&] { return task->inside_ == 0; });
  }

  // The same, but the caller only waits, and calls look() every so often: for units that take long. Once look() says
  // false the task is left to its workers, who finish the units they have begun; the answer is then false.
  template <class Look> bool watch(const std::shared_ptr<Task> &task, int threads, Look look) {
    unsigned born = forks_;
    int helpers = int(std::min<int64_t>(threads, task->units()));
    if (!offer(task, helpers, 0)) return run(task, 1), true;
    for (bool stays = true;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        auto ended = [&] { return task->wanted_ < helpers && task->inside_ == 0; };  // somebody came, and all have left
        if (!stays || task->left_.wait_for(lock, LOOKS, ended)) {
          withdraw(task);
          return stays;
        }
      }
      stays = look();
      if (!stays) task->stop();
      if (forks_ != born) return again(*task), stays;
    }
  }

  // Threads of this pool that are alive.
  int workers() {
    std::lock_guard<std::mutex> lock(mutex_);
    return workers_;
  }

  // A fork copies the pool as it is, and no thread but the one that forks. With the mutex held nobody is in the middle
  // of a change; the child's pool begins anew, because its workers are not there.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child() {
    new (&open_) std::vector<std::shared_ptr<Task>>;  // not cleared: nobody is left to end the tasks of other threads
    idle_ = nullptr, workers_ = 0, awake_ = 0, forks_++;
    mutex_.unlock();
  }

 private:
  static constexpr std::chrono::microseconds AWAKE{50};  // how long who has nothing to do does not sleep
  static constexpr std::chrono::seconds IDLE{2};         // how long a worker waits for work before it ends

  struct Worker {
    std::condition_variable wake;
    bool called = false;
    Worker *below = nullptr;  // in the stack of idle workers
  };

  // Opens a task for workers: those awake see it, idle ones are called, the last to have been busy first, and new ones
  // are started while there are fewer than `most` (or none is idle, if `most` is 0). False if nobody can be expected.
  bool offer(const std::shared_ptr<Task> &task, int helpers, int most) {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      open_.push_back(task);
    } catch (const std::bad_alloc &) {
      return false;
    }
    task->wanted_ = helpers;
    opened_.fetch_add(1, std::memory_order_relaxed);
    int called = std::min(awake_, helpers);
    for (; called < helpers && idle_; called++) {
      Worker *worker = idle_;
      idle_ = worker->below;
      worker->called = true;
      worker->wake.notify_one();
    }
    while (called < helpers && (most == 0 || workers_ < most) && start()) called++;
    if (called > 0 || (workers_ > 0 && most > 0)) return true;
    withdraw(task);
    return false;
  }

  void withdraw(const std::shared_ptr<Task> &task) {
    for (size_t i = 0; i < open_.size(); i++)
      if (open_[i] == task) {
        open_.erase(open_.begin() + std::ptrdiff_t(i));
        return;
      }
  }

  bool start() {
    sigset_t all, before;  // signals are for the threads of the caller's program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
      std::thread([this] { serve(); }).detach();
      workers_++;
    } catch (const std::exception &) {  // no more threads, or no memory for one: those that are there will do
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void serve() {
    Worker self;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (open_.empty() && !sees_one(lock) && !waits(self, lock)) break;
      if (open_.empty()) continue;
      std::shared_ptr<Task> task = open_.front();
      task->inside_++;
      if (--task->wanted_ == 0) open_.erase(open_.begin());
      lock.unlock();
      task->work(false);
      lock.lock();
      if (--task->inside_ == 0) task->left_.notify_all();
      lock.unlock();
      task.reset();  // perhaps its end, which may take time
      lock.lock();
    }
    workers_--;
  }

  // Looks for a task without sleeping: whether there is one.
  bool sees_one(std::unique_lock<std::mutex> &lock) {
    awake_++;
    unsigned before = opened_.load(std::memory_order_relaxed);
    lock.unlock();
    look_while([&] { return opened_.load(std::memory_order_relaxed) == before; });
    lock.lock();
    awake_--;
    return !open_.empty();
  }

  // Leaves the core to its other thread for a moment.
  static void rest() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  template <class Same> static void look_while(Same same) {
    for (auto until = std::chrono::steady_clock::now() + AWAKE; same() && std::chrono::steady_clock::now() < until;)
      rest();
  }

  // Whether there may be something to do; false once nothing was for a while.
  bool waits(Worker &self, std::unique_lock<std::mutex> &lock) {
    self.called = false;
    self.below = idle_;
    idle_ = &self;
    if (self.wake.wait_for(lock, IDLE, [&] { return self.called; })) return true;
    Worker **at = &idle_;
    while (*at != &self) at = &(*at)->below;
    *at = self.below;
    return false;
  }

  // A signal handler forked in the middle of a task. In the child, units that workers had claimed stay undone, so all
  // of them are done once more: a unit gives the same results however often it runs.
  static void again(Task &task) {
    task.start_over();
    task.next_.store(0, std::memory_order_relaxed);
    task.work(true);
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Task>> open_;  // the first opened first
  std::atomic<unsigned> opened_{0};          // how many were, so that who is awake looks there
  int awake_ = 0;                            // workers that look for a task
  Worker *idle_ = nullptr;                   // the last to have been busy on top
  int workers_ = 0;
  unsigned forks_ = 0;  // how often this process' line has forked
};

}  // namespace ndpool
