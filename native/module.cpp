// The one file that knows Python: plan(...) makes a plan, run(plan, mode, ...) runs it on arrays (anything with a
// buffer).
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels.h"
#include "memory.h"
#include "plan.h"
#include "threads.h"
#include "unpool.h"

namespace ndpool {

#define DECLARE(isa) extern const Kernels kernels_##isa;
#ifdef NDPOOL_HAS_v2
DECLARE(v2)
#endif
#ifdef NDPOOL_HAS_v3
DECLARE(v3)
#endif
#ifdef NDPOOL_HAS_v4
DECLARE(v4)
#endif
#ifdef NDPOOL_HAS_generic
DECLARE(generic)
#endif

namespace {

// -- instruction sets
// ----------------------------------------------------------------------------------------------------

// Those built in that this processor has, the plainest first.
const std::vector<const Kernels *> &built() {
  static const std::vector<const Kernels *> tables = [] {
    std::vector<const Kernels *> found;
#ifdef NDPOOL_HAS_generic
    found.push_back(&kernels_generic);
#endif
#if defined(__x86_64__)
    __builtin_cpu_init();
#ifdef NDPOOL_HAS_v2
    if (__builtin_cpu_supports("x86-64-v2")) found.push_back(&kernels_v2);
#endif
#ifdef NDPOOL_HAS_v3
    if (__builtin_cpu_supports("x86-64-v3")) found.push_back(&kernels_v3);
#endif
#ifdef NDPOOL_HAS_v4
    if (__builtin_cpu_supports("x86-64-v4")) found.push_back(&kernels_v4);
#endif
#endif
    return found;
  }();
  return tables;
}

const Kernels *chosen = nullptr;

// -- reading arguments
// ---------------------------------------------------------------------------------------------------

bool ints(PyObject *sequence, std::vector<i64> &to) {
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

void destroy(PyObject *capsule) { delete static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan")); }

// plan(law, ties, ignore_nan, flip, mean, type, parameter, divisor, lanes, order, lead_sizes, folds, tap_steps,
//      position_steps, axes); an axis is (size, outputs, step, bytes of its vectors)
PyObject *make_plan(PyObject *, PyObject *args) {
  int law, ties, ignore_nan, flip, mean, type;
  double parameter;
  long long divisor, lanes;
  PyObject *order, *lead_sizes, *folds, *tap_steps, *position_steps, *axes;
  if (!PyArg_ParseTuple(args, "iipppidLLOOOOOO", &law, &ties, &ignore_nan, &flip, &mean, &type, &parameter, &divisor,
                        &lanes, &order, &lead_sizes, &folds, &tap_steps, &position_steps, &axes))
    return nullptr;
  try {
    auto owned = std::make_unique<OwnedPlan>();
    Plan &p = owned->plan;
    p.law = Law(law), p.ties = Ties(ties), p.ignore_nan = ignore_nan, p.flip = flip, p.mean = mean, p.type = Type(type);
    p.parameter = parameter, p.divisor = divisor, p.lanes = lanes;
    std::vector<i64> wanted, sizes, first, taps, steps;
    if (!ints(order, wanted) || !ints(lead_sizes, sizes) || !ints(folds, first) || !ints(tap_steps, taps) ||
        !ints(position_steps, steps))
      return nullptr;
    Py_ssize_t rank = PySequence_Size(axes);
    if (rank < 1 || size_t(rank) != first.size() || taps.size() != first.size() || steps.size() != first.size() ||
        wanted.size() + 1 > MOST_AXES || sizes.size() + size_t(rank) + 1 > MOST_AXES)
      return PyErr_Format(PyExc_ValueError, "a plan has 1 to %d axes", MOST_AXES - 1);
    owned->order.assign(wanted.begin(), wanted.end());
    p.lead = int32_t(sizes.size());
    std::copy(sizes.begin(), sizes.end(), p.sizes);
    for (Py_ssize_t i = 0; i < rank; i++) {
      p.order[i] = int32_t(first[size_t(i)]), p.tap_steps[i] = taps[size_t(i)], p.position_steps[i] = steps[size_t(i)];
      PyObject *axis = PySequence_GetItem(axes, i);
      long long f[3];
      const char *bytes;
      Py_ssize_t length;
      bool ok = axis && PyArg_ParseTuple(axis, "LLLy#", f, f + 1, f + 2, &bytes, &length);
      if (ok && length == Py_ssize_t(5 * f[1] * 8)) {
        OwnedAxis one;
        one.axis.size = f[0], one.axis.outputs = f[1], one.axis.step = f[2];
        one.vectors.resize(size_t(5 * f[1]));
        if (length) std::memcpy(one.vectors.data(), bytes, size_t(length));
        owned->axes.push_back(std::move(one));
      } else if (ok) {
        ok = false;
        PyErr_SetString(PyExc_ValueError, "an axis has five vectors, a number for each output");
      }
      Py_XDECREF(axis);
      if (!ok) return nullptr;
    }
    owned->finish();
    return PyCapsule_New(owned.release(), "ndpool.plan", destroy);
  } catch (const std::bad_alloc &) {
    return PyErr_NoMemory();
  }
}

// A buffer in the plan's order of axes, or nothing for None.
struct Buffer {
  Py_buffer view{};
  bool get(PyObject *object, bool writable, const OwnedPlan &plan, Array &to) {
    if (object == Py_None) return true;
    if (PyObject_GetBuffer(object, &view, PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0))) return false;
    to.data = static_cast<char *>(view.buf);
    int n = int(plan.order.size());
    for (int i = 0; i < n; i++) {
      int axis = plan.order[size_t(i)];
      to.strides[i] = axis < view.ndim ? view.strides[axis] : 0;
    }
    if (plan.plan.lanes == 1) to.strides[n] = view.itemsize;  // lanes that are not there
    return true;
  }
  ~Buffer() {
    if (view.obj) PyBuffer_Release(&view);
  }
};

// -- running
// -------------------------------------------------------------------------------------------------------------

struct Running final : Pool::Work {
  Job job{};
  const Kernels *kernels;
  std::atomic<bool> no_memory{false}, interrupted{false};
  PyThreadState *state = nullptr;  // set while the lock of the interpreter is not held
  std::chrono::steady_clock::time_point checked = std::chrono::steady_clock::now();

  bool operator()(i64 unit, int worker) override {
    Arena arena = Pool::get().take_arena();
    if (kernels->run(job, unit, arena) == Outcome::no_memory) no_memory = true;
    Pool::get().give_arena(arena);
    if (worker == 0 && state) look_for_signals();
    return !no_memory && !interrupted;
  }

  // Ctrl-C ends a long run between two units
  void look_for_signals() {
    auto now = std::chrono::steady_clock::now();
    if (now - checked < std::chrono::milliseconds(50)) return;
    checked = now;
    PyEval_RestoreThread(state);
    if (PyErr_CheckSignals()) interrupted = true;
    state = PyEval_SaveThread();
  }
};

constexpr i64 SMALL = 16384;  // elements that are not worth letting other threads run

// run(plan, mode, moved, x, a, y, b, threads) -> whether all integer sums fitted
PyObject *run(PyObject *, PyObject *args) {
  PyObject *capsule, *objects[4];
  int mode, moved, threads;
  if (!PyArg_ParseTuple(args, "OiiOOOOi", &capsule, &mode, &moved, objects, objects + 1, objects + 2, objects + 3,
                        &threads))
    return nullptr;
  auto *owned = static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan"));
  if (!owned) return nullptr;
  const Plan &p = owned->plan;
  if (mode == int(Mode::pull) || mode == int(Mode::spread)) {
    try {
      owned->find_readers();
    } catch (const std::bad_alloc &) {
      return PyErr_NoMemory();
    }
  }
  Running running;
  Job &job = running.job;
  job.plan = &p, job.mode = Mode(mode), job.moved = Type(moved), running.kernels = chosen;
  Buffer buffers[4];
  Array *arrays[4] = {&job.x, &job.a, &job.y, &job.b};
  for (int i = 0; i < 4; i++)
    if (!buffers[i].get(objects[i], i >= 2, *owned, *arrays[i])) return nullptr;
  i64 units = chosen->units(p, job.mode), work = p.tiles * p.lanes;
  for (int i = 0; i < p.rank; i++) work *= std::max(p.axes[i].size, p.axes[i].outputs);
  if (work < SMALL) {
    for (i64 unit = 0; unit < units && running(unit, 0); unit++) {
    }
  } else {
    running.state = PyEval_SaveThread();
    Pool::get().run(units, threads, running);
    PyEval_RestoreThread(running.state);
  }
  if (running.interrupted) return nullptr;
  if (running.no_memory) return PyErr_NoMemory();
  return PyBool_FromLong(!job.overflow);
}

// -- max-unpooling
// -------------------------------------------------------------------------------------------------------

struct Unpooling final : Pool::Work {
  Unpool job{};
  i64 rows, rows_per_unit;
  std::atomic<Put> worst{Put::done};

  bool operator()(i64 unit, int) override {
    Put put = unpool(job, unit * rows_per_unit, std::min(rows, (unit + 1) * rows_per_unit));
    for (Put before = worst; put > before && !worst.compare_exchange_weak(before, put);) {
    }
    return worst < Put::no_memory;
  }
};

struct Buffers {  // released whatever happens
  Py_buffer views[3]{};
  ~Buffers() {
    for (Py_buffer &view : views)
      if (view.obj) PyBuffer_Release(&view);
  }
};

// unpool(values, places, out, type, meet, rows, columns, size, threads) -> the number of a Put
PyObject *run_unpool(PyObject *, PyObject *args) {
  Buffers buffers;
  auto &[values, places, out] = buffers.views;
  int type, meet, threads;
  long long rows, columns, size;
  if (!PyArg_ParseTuple(args, "y*y*w*iiLLLi", &values, &places, &out, &type, &meet, &rows, &columns, &size, &threads))
    return nullptr;
  bool known = type >= 0 && type < int(std::size(BYTES)) && meet >= 0 && meet <= int(Meet::any);
  // sizes are compared by division, which cannot overflow
  auto holds = [&](const Py_buffer &view, i64 width, i64 bytes) {
    if (rows == 0 || width == 0) return view.len == 0;
    return view.len % bytes == 0 && view.len / bytes % rows == 0 && view.len / bytes / rows == width;
  };
  bool fits = known && rows >= 0 && columns >= 0 && size >= 0 && holds(values, columns, BYTES[type]) &&
              holds(out, size, BYTES[type]) && (holds(places, columns, 8) || holds(places, columns, 4));
  if (!fits || (meet == int(Meet::any) && type != int(Type::u8))) {
    PyErr_SetString(PyExc_ValueError, "values, places and out must be rows of the sizes and types given");
    return nullptr;
  }
  Unpooling work;
  work.job = {Type(type),
              Meet(meet),
              holds(places, columns, 8),
              static_cast<const char *>(values.buf),
              static_cast<const char *>(places.buf),
              static_cast<char *>(out.buf),
              columns,
              size};
  work.rows = columns || size ? rows : 0;  // any number of rows may hold nothing
  work.rows_per_unit = std::max<i64>(1, (256 << 10) / std::max<i64>(1, size * BYTES[type] + columns * 8));
  i64 units = (work.rows + work.rows_per_unit - 1) / work.rows_per_unit;
  if (rows * (columns + size) < SMALL) {
    for (i64 unit = 0; unit < units && work(unit, 0); unit++) {
    }
  } else {
    PyThreadState *state = PyEval_SaveThread();
    Pool::get().run(units, threads, work);
    PyEval_RestoreThread(state);
  }
  if (work.worst == Put::no_memory) return PyErr_NoMemory();
  return PyLong_FromLong(long(work.worst.load()));
}

// -- memory of results
// ---------------------------------------------------------------------------------------------------

struct Held {  // a block as an object with a buffer, which gives its memory back when it goes
  PyObject head;
  Block block;
  Py_ssize_t size;  // what was asked for
};

void release(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (Block block = reinterpret_cast<Held *>(self)->block; block.data) Memory::get().give(block);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

int expose(PyObject *self, Py_buffer *view, int flags) {
  auto *held = reinterpret_cast<Held *>(self);
  return PyBuffer_FillInfo(view, self, held->block.data, held->size, 0, flags);
}

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char *>("The memory of a large result; kept for the next one when it goes.")},
    {Py_tp_dealloc, reinterpret_cast<void *>(release)},
    {Py_bf_getbuffer, reinterpret_cast<void *>(expose)},
    {0, nullptr},
};
PyType_Spec spec = {"ndpool._native.Block", sizeof(Held), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};
PyTypeObject *held_type = nullptr;

PyObject *block(PyObject *, PyObject *size) {
  Py_ssize_t wanted = PyLong_AsSsize_t(size);
  if (wanted < 0) return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_ValueError, "a block has a size >= 0");
  PyObject *self = PyType_GenericAlloc(held_type, 0);
  if (!self) return nullptr;
  auto *held = reinterpret_cast<Held *>(self);
  held->block = Memory::get().take(size_t(wanted)), held->size = wanted;
  if (held->block.data) return self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

PyObject *keep(PyObject *, PyObject *limit) {
  size_t most = PyLong_AsSize_t(limit);
  if (PyErr_Occurred()) return nullptr;
  Memory::get().keep(most);
  Py_RETURN_NONE;
}

PyObject *kept(PyObject *, PyObject *) { return PyLong_FromSize_t(Memory::get().held()); }

PyObject *stream(PyObject *, PyObject *args) {
  Py_buffer from, to;
  int threads;
  if (!PyArg_ParseTuple(args, "y*w*i", &from, &to, &threads)) return nullptr;
  struct Part final : Pool::Work {
    Py_buffer *from, *to;
    i64 parts;
    bool operator()(i64 unit, int) override {
      auto cut = [&](i64 n, i64 i) { return n * i / parts / 64 * 64; };
      chosen->stream(static_cast<char *>(from->buf) + cut(from->len, unit),
                     cut(from->len, unit + 1) - cut(from->len, unit), static_cast<char *>(to->buf) + cut(to->len, unit),
                     cut(to->len, unit + 1) - cut(to->len, unit));
      return true;
    }
  } part;
  part.from = &from, part.to = &to, part.parts = std::max<i64>(1, (from.len + to.len) / (256 << 10));
  PyThreadState *state = PyEval_SaveThread();
  Pool::get().run(part.parts, threads, part);
  PyEval_RestoreThread(state);
  PyBuffer_Release(&from);
  PyBuffer_Release(&to);
  Py_RETURN_NONE;
}

PyObject *isa(PyObject *, PyObject *) { return PyUnicode_FromString(chosen->name); }

PyObject *isas(PyObject *, PyObject *) {
  PyObject *names = PyTuple_New(Py_ssize_t(built().size()));
  for (size_t i = 0; names && i < built().size(); i++)
    PyTuple_SetItem(names, Py_ssize_t(i), PyUnicode_FromString(built()[i]->name));
  return names;
}

PyObject *use(PyObject *, PyObject *name) {
  PyObject *bytes = PyUnicode_AsUTF8String(name);
  if (!bytes) return nullptr;
  for (const Kernels *table : built())
    if (!std::strcmp(table->name, PyBytes_AsString(bytes))) {
      chosen = table;
      Py_DECREF(bytes);
      Py_RETURN_NONE;
    }
  Py_DECREF(bytes);
  return PyErr_Format(PyExc_ValueError, "this processor, or this build, does not have %R", name);
}

PyObject *in_order(PyObject *, PyObject *capsule) {
  auto *owned = static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan"));
  if (!owned) return nullptr;
  bool all = true;
  for (const Axis &axis : owned->flat_axes) all = all && !axis.lines;
  return PyBool_FromLong(all);
}

PyMethodDef methods[] = {
    {"plan", make_plan, METH_VARARGS, "A plan, to be run many times."},
    {"run", run, METH_VARARGS, "Run a plan on arrays; False if an integer sum did not fit."},
    {"unpool", run_unpool, METH_VARARGS,
     "Put values at their places; 1 if an integer sum did not fit, 3 if a place is outside."},
    {"in_order", in_order, METH_O,
     "Whether a plan merges taps in their order, as a max that brings tangents along asks."},
    {"block", block, METH_O, "Memory of that many bytes, with whatever was in it."},
    {"keep", keep, METH_O, "Keep at most that many bytes of blocks that are gone."},
    {"kept", kept, METH_NOARGS, "The bytes kept now."},
    {"stream", stream, METH_VARARGS, "Read all of one buffer and write all of another: the floor of any kernel."},
    {"isa", isa, METH_NOARGS, "The instruction set in use."},
    {"isas", isas, METH_NOARGS, "The instruction sets to choose from, the plainest first."},
    {"use", use, METH_O, "Use another instruction set."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "The CPU engine.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace ndpool

PyMODINIT_FUNC PyInit__native() {
  using namespace ndpool;
  if (built().empty()) {
    PyErr_SetString(PyExc_ImportError, "this processor has none of the instruction sets that ndpool was built for");
    return nullptr;
  }
  chosen = built().back();
  if (!held_type) held_type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
  if (!held_type) return nullptr;
  return PyModule_Create(&module);
}
