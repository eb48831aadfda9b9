// Running a plan on arrays that Python owns: what a run borrows from the interpreter, the interpreter's lock, signals.
// For the two files that know Python, `module.cpp` and `tensors.cpp`; nothing here knows whose arrays they are.
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <pthread.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <chrono>
#include <memory>

#include "kernels.h"
#include "memory.h"
#include "plan.h"
#include "run.h"
#include "threads.h"

namespace ndpool {

namespace {

// Numbers of a sequence, added to `to`.
inline bool ints(PyObject *sequence, std::vector<i64> &to) {
  Py_ssize_t n = PySequence_Size(sequence);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PySequence_GetItem(sequence, i);
    if (!item) return false;
    to.push_back(PyLong_AsLongLong(item));
    Py_DECREF(item);
    if (PyErr_Occurred()) return false;
  }
  return n >= 0;
}

// Whether signal handlers run on this thread.
inline bool is_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#else
  return pthread_main_np();
#endif
}

// The interpreter's lock, given up so that other Python threads run. While the interpreter shuts down, taking the lock
// again ends a thread there and then: its stack is unwound, and nothing that is destroyed on the way may touch Python,
// or be in use by a worker.
struct Unlocked {
  PyThreadState *state = PyEval_SaveThread();
  void lock_again() { PyEval_RestoreThread(state); }
  // Ctrl-C and the like: false if a handler raised. For the main thread alone, which no shutdown ends.
  bool look_for_signals() {
    lock_again();
    bool fine = PyErr_CheckSignals() == 0;
    state = PyEval_SaveThread();
    return fine;
  }
};

constexpr i64 LARGE = 1 << 22;  // elements of a unit after which Ctrl-C would come late: some take 50 ns each

// What a task borrows from the interpreter: buffers, and other objects that must stay: a plan, tensors.
struct Borrowed {
  Py_buffer views[4]{};
  PyObject *objects[5]{};
  void give_back() {  // with the interpreter's lock
    for (Py_buffer &view : views)
      if (view.obj) PyBuffer_Release(&view);
    for (PyObject *&object : objects) Py_CLEAR(object);
  }
};

// A task on arrays. Workers may outlast the call that began it: who leaves a task to them says so (`left`), and its end
// then has the interpreter take back what it borrowed.
struct ArrayTask : Task {
  Borrowed borrowed;
  std::atomic<bool> left{false};
  bool interrupted = false;      // a signal's handler raised, the caller's own
  Unlocked *unlocked = nullptr;  // set if the caller looks for signals between two units
  std::chrono::steady_clock::time_point looked{};

  using Task::Task;
  ~ArrayTask() override {
    if (left) leave_to_interpreter();
  }
  // What the caller asks after each unit. The clock costs less than a look.
  bool goes_on(bool caller) {
    if (!caller || !unlocked) return true;
    auto now = std::chrono::steady_clock::now();
    if (now - looked < Pool::LOOKS) return true;
    looked = now;
    interrupted = !unlocked->look_for_signals();
    return !interrupted;
  }

 private:
  // The interpreter's main thread takes it back, between two of its steps. Its list of such wishes is short, so they
  // may have to wait; and once it has ended there is nobody to ask.
  void leave_to_interpreter() {
    auto *last = new (std::nothrow) Borrowed(borrowed);
    auto release = [](void *given) {
      static_cast<Borrowed *>(given)->give_back();
      delete static_cast<Borrowed *>(given);
      return 0;
    };
    for (int tries = 0; last && Py_IsInitialized() && Py_AddPendingCall(release, last) != 0 && tries < 100; tries++)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
};

// Runs a task without the interpreter's lock, with units of about so many elements. False if a signal's handler raised:
// what the task borrowed is given back then, or will be.
inline bool run_unlocked(const std::shared_ptr<ArrayTask> &task, int threads, i64 unit_size) {
  bool main = is_main_thread(), finished = true;
  Unlocked unlocked;
  if (main && unit_size > LARGE) {
    finished = Pool::get().watch(task, threads, [&] { return unlocked.look_for_signals(); });
  } else {
    if (main) task->unlocked = &unlocked, task->looked = std::chrono::steady_clock::now();
    Pool::get().run(task, threads);
  }
  unlocked.lock_again();
  if (!finished) return task->left = true, false;
  if (task->interrupted) task->borrowed.give_back();
  return !task->interrupted;
}

// A run of a plan.
struct Running final : ArrayTask {
  Run run;

  Running(PyObject *capsule, const Plan &p, Mode mode, Type tangents)
      : ArrayTask(chosen->units(p, mode)), run(p, mode, tangents) {
    borrowed.objects[0] = Py_NewRef(capsule);
  }

  // Takes hold of x, a, y and b: buffers, or None. Their strides come in the plan's order of axes.
  bool take(PyObject *const *objects, const OwnedPlan &owned) {
    Array *arrays[4] = {&run.job.x, &run.job.a, &run.job.y, &run.job.b};
    int n = int(owned.order.size());
    for (int i = 0; i < 4; i++) {
      if (objects[i] == Py_None) continue;
      Py_buffer &view = borrowed.views[i];
      if (PyObject_GetBuffer(objects[i], &view, PyBUF_STRIDES | (i >= 2 ? PyBUF_WRITABLE : 0)))
        return borrowed.give_back(), false;
      Array &to = *arrays[i];
      to.data = static_cast<char *>(view.buf);
      for (int k = 0; k < n; k++) {
        int axis = owned.order[size_t(k)];
        to.strides[k] = axis < view.ndim ? view.strides[axis] : 0;
      }
      if (owned.plan.lanes == 1) to.strides[n] = view.itemsize;  // lanes that are not there
    }
    return true;
  }

  // What `run` returns, or the error that it raises.
  PyObject *answer() {
    borrowed.give_back();
    if (i64 bytes = run.refused)
      return PyErr_Format(PyExc_MemoryError, "no memory for %lld bytes of scratch, which a part of this window needs",
                          static_cast<long long>(bytes));
    return PyBool_FromLong(!run.job.overflow);
  }

  void work(bool caller) override {
    if (!run.work([&](i64 &unit) { return claim(unit); }, [&] { return goes_on(caller); })) stop();
  }
  void start_over() override { run.start_over(); }
};

// Runs a plan, in two runs where the states of long windows come first. `take(running)` says where the arrays lie, and
// keeps hold of them; `threads()` is how many may take part.
// Gives what `answer` gives, or null with an error.
template <class Threads, class Take>
PyObject *run_plan(PyObject *capsule, const OwnedPlan &owned, Mode mode, Type tangents, Threads threads, Take take) {
  const Plan &p = owned.plan;
  try {
    std::vector<char> states;
    if (mode == Mode::vjp && p.states_first) {
      auto first = std::make_shared<Running>(capsule, p, Mode::states, tangents);
      if (!take(*first) || !run_unlocked(first, threads(), p.unit_size)) return nullptr;
      PyObject *fine = first->answer();
      if (!fine) return nullptr;
      Py_DECREF(fine);
      states = std::move(first->run.states);
    }
    if (Run::elements(p) < SMALL) {
      Running running(capsule, p, mode, tangents);
      running.run.use_states(std::move(states));
      if (!take(running)) return nullptr;
      running.work(true);
      return running.answer();
    }
    auto running = std::make_shared<Running>(capsule, p, mode, tangents);
    running->run.use_states(std::move(states));
    if (!take(*running)) return nullptr;
    bool back = mode == Mode::vjp || mode == Mode::vjp_by_winner;
    if (!run_unlocked(running, threads(), back ? p.unit_size_back : p.unit_size)) return nullptr;
    return running->answer();
  } catch (const std::bad_alloc &) {
    return PyErr_NoMemory();
  }
}

}  // namespace
}  // namespace ndpool
