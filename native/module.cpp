// The extension: plan(...) makes a plan, run(plan, mode, ...) runs it on arrays (anything with a buffer).
#include <cstdlib>
#include <cstring>

#include "processor.h"
#include "running.h"
#include "tensors.h"
#include "unpool.h"
#include "xla.h"

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

const Kernels *chosen = nullptr;

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
#ifdef NDPOOL_HAS_v2
    if (has_x86_64_level(2)) found.push_back(&kernels_v2);
#endif
#ifdef NDPOOL_HAS_v3
    if (has_x86_64_level(3)) found.push_back(&kernels_v3);
#endif
#ifdef NDPOOL_HAS_v4
    if (has_x86_64_level(4)) found.push_back(&kernels_v4);
#endif
#endif
    return found;
  }();
  return tables;
}

// -- reading arguments
// ---------------------------------------------------------------------------------------------------

// An axis: (size, outputs, stride, taps, step, origin, before, after), or (size, outputs) for bins. Of a part of it,
// also (first output, outputs, first position, size).
bool read_axis(PyObject *given, std::vector<OwnedAxis> &to) {
  std::vector<i64> f, p;
  if (!ints(given, f)) return false;
  if (f.size() == 6 || f.size() == 12) p.assign(f.end() - 4, f.end()), f.resize(f.size() - 4);
  bool valid = (f.size() == 2 || f.size() == 8) && f[0] > 0 && f[1] > 0;
  if (valid && f.size() == 8) valid = f[2] > 0 && f[3] > 0 && f[4] > 0 && f[6] >= 0 && f[7] >= 0;
  if (valid && !p.empty()) {
    auto within = [](i64 first, i64 n, i64 all) { return first >= 0 && n > 0 && n <= all && first <= all - n; };
    valid = within(p[0], p[1], f[1]) && within(p[2], p[3], f[0]);
  }
  if (!valid) return PyErr_Format(PyExc_ValueError, "%R is not an axis", given), false;
  to.push_back(f.size() == 2 ? OwnedAxis::bins(f[0], f[1])
                             : OwnedAxis::sliding(f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]));
  if (!p.empty()) to.back() = OwnedAxis::part(to.back().axis, p[0], p[1], p[2], p[3]);
  return true;
}

void destroy(PyObject *capsule) { delete static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan")); }

// plan(law, ties, ignore_nan, flip, mean, type, parameter, divisor, lanes, order, lead_sizes, folds, tap_steps,
//      position_steps, axes), with an axis as `read_axis` has it
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
      bool ok = axis && read_axis(axis, owned->axes);
      Py_XDECREF(axis);
      if (!ok) return nullptr;
    }
    owned->finish();
    return PyCapsule_New(owned.release(), "ndpool.plan", destroy);
  } catch (const std::bad_alloc &) {
    return PyErr_NoMemory();
  }
}

// -- running
// -------------------------------------------------------------------------------------------------------------

// run(plan, mode, tangent_type, x, a, y, b, threads) -> whether all integer sums fitted
PyObject *run(PyObject *, PyObject *args) {
  PyObject *capsule, *objects[4];
  int mode, tangents, threads;
  if (!PyArg_ParseTuple(args, "OiiOOOOi", &capsule, &mode, &tangents, objects, objects + 1, objects + 2, objects + 3,
                        &threads))
    return nullptr;
  auto *owned = static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan"));
  if (!owned) return nullptr;
  return run_plan(
      capsule, *owned, Mode(mode), Type(tangents), [=] { return threads; },
      [&](Running &running) { return running.take(objects, *owned); });
}

// -- max-unpooling
// -------------------------------------------------------------------------------------------------------

struct Unpooling final : ArrayTask {
  Unpool job;
  i64 rows, rows_per_unit;
  std::atomic<Put> worst{Put::done};

  Unpooling(const Unpool &unpool, i64 all, i64 per_unit)
      : ArrayTask((all + per_unit - 1) / per_unit), job(unpool), rows(all), rows_per_unit(per_unit) {}

  void work(bool caller) override {
    for (i64 unit; claim(unit);) {
      Put put = unpool(job, unit * rows_per_unit, std::min(rows, (unit + 1) * rows_per_unit));
      for (Put before = worst; put > before && !worst.compare_exchange_weak(before, put);) {
      }
      if (put >= Put::no_memory || !goes_on(caller)) stop();
    }
  }
};

// unpool(values, places, out, type, meet, rows, columns, size, threads) -> the number of a Put
PyObject *run_unpool(PyObject *, PyObject *args) {
  Borrowed borrowed;
  auto &[values, places, out, unused] = borrowed.views;
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
    borrowed.give_back();
    PyErr_SetString(PyExc_ValueError, "values, places and out must be rows of the sizes and types given");
    return nullptr;
  }
  Unpool job{Type(type),
             Meet(meet),
             holds(places, columns, 8),
             static_cast<const char *>(values.buf),
             static_cast<const char *>(places.buf),
             static_cast<char *>(out.buf),
             columns,
             size};
  i64 per_unit = job.rows_per_unit();
  Put worst;
  try {
    auto task = std::make_shared<Unpooling>(job, columns || size ? rows : 0, per_unit);  // rows may hold nothing
    std::swap(task->borrowed, borrowed);
    if (rows * (columns + size) < SMALL)
      task->work(true);
    else if (!run_unlocked(task, threads, per_unit * (columns + size)))
      return nullptr;
    task->borrowed.give_back();
    worst = task->worst;
  } catch (const std::bad_alloc &) {
    borrowed.give_back();
    worst = Put::no_memory;
  }
  if (worst == Put::no_memory) return PyErr_NoMemory();
  return PyLong_FromLong(long(worst));
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
  return PyErr_Format(PyExc_MemoryError, "no memory for a result of %zd bytes", wanted);
}

PyObject *keep(PyObject *, PyObject *limit) {
  size_t most = PyLong_AsSize_t(limit);
  if (PyErr_Occurred()) return nullptr;
  Memory::get().keep(most);
  Py_RETURN_NONE;
}

PyObject *workers(PyObject *, PyObject *) { return PyLong_FromLong(Pool::get().workers()); }

PyObject *kept(PyObject *, PyObject *) { return PyLong_FromSize_t(Memory::get().held()); }

struct Streaming final : Task {
  const char *from;
  char *to;
  i64 read, written;
  Streaming(const Py_buffer &in, const Py_buffer &out)
      : Task(std::max<i64>(1, (in.len + out.len) / (256 << 10))),
        from(static_cast<char *>(in.buf)),
        to(static_cast<char *>(out.buf)),
        read(in.len),
        written(out.len) {}
  void work(bool) override {
    auto cut = [&](i64 n, i64 i) { return n * i / units() / 64 * 64; };
    for (i64 i; claim(i);)
      chosen->stream(from + cut(read, i), cut(read, i + 1) - cut(read, i), to + cut(written, i),
                     cut(written, i + 1) - cut(written, i));
  }
};

PyObject *stream(PyObject *, PyObject *args) {
  Py_buffer from, to;
  int threads;
  if (!PyArg_ParseTuple(args, "y*w*i", &from, &to, &threads)) return nullptr;
  auto task = std::make_shared<Streaming>(from, to);
  Unlocked unlocked;
  Pool::get().run(task, threads);
  unlocked.lock_again();
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

// The handler that XLA calls, in the capsule that jax.ffi takes.
PyObject *xla_handler(PyObject *, PyObject *) {
  return PyCapsule_New(reinterpret_cast<void *>(&xla::run), nullptr, nullptr);
}

PyObject *in_order(PyObject *, PyObject *capsule) {
  auto *owned = static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan"));
  if (!owned) return nullptr;
  bool all = true;
  for (const Axis &axis : owned->flat_axes) all = all && !axis.lines;
  return PyBool_FromLong(all);
}

// axis(axis, back, outputs) -> what follows from it, and what those outputs read; of its readers if `back`
PyObject *look_at_axis(PyObject *, PyObject *args) {
  PyObject *given, *wanted;
  int back;
  std::vector<OwnedAxis> found;
  std::vector<i64> outputs;
  if (!PyArg_ParseTuple(args, "OpO", &given, &back, &wanted) || !read_axis(given, found) || !ints(wanted, outputs))
    return nullptr;
  OwnedAxis readers = OwnedAxis::readers(found[0].axis);
  const OwnedAxis &owned = back ? readers : found[0];
  const Axis &a = owned.axis;
  PyObject *reads = PyList_New(0);
  for (i64 o : outputs) {
    Clipped w = a.at(o);
    PyObject *one = Py_BuildValue("LLLLLL", (long long)w.start, (long long)a.covers(o).taps, (long long)w.first,
                                  (long long)w.length, (long long)a.count(o), (long long)a.same_until(o));
    if (!reads || !one || PyList_Append(reads, one)) return Py_XDECREF(reads), Py_XDECREF(one), nullptr;
    Py_DECREF(one);
  }
  return Py_BuildValue("{sLsLsLsLsLsLsOsOsOsOsN}", "phases", (long long)a.phases, "stride", (long long)a.stride,
                       "whole_from", (long long)a.whole_from, "whole_to", (long long)a.whole_to, "longest",
                       (long long)a.longest, "most_taps", (long long)a.most_taps, "gaps", a.gaps ? Py_True : Py_False,
                       "even", owned.even() ? Py_True : Py_False, "padded", owned.padded() ? Py_True : Py_False,
                       "empty", owned.empty() ? Py_True : Py_False, "reads", reads);
}

PyMethodDef methods[] = {
    {"plan", make_plan, METH_VARARGS, "A plan, to be run many times."},
    {"run", run, METH_VARARGS, "Run a plan on arrays; False if an integer sum did not fit."},
    {"axis", look_at_axis, METH_VARARGS, "What an axis, or its readers, knows; for tests."},
    {"unpool", run_unpool, METH_VARARGS,
     "Put values at their places; 1 if an integer sum did not fit, 3 if a place is outside."},
    {"in_order", in_order, METH_O,
     "Whether a plan merges taps in their order, as a max that brings tangents along asks."},
    {"block", block, METH_O, "Memory of that many bytes, with whatever was in it."},
    {"keep", keep, METH_O, "Keep at most that many bytes of blocks that are gone."},
    {"kept", kept, METH_NOARGS, "The bytes kept now."},
    {"xla_handler", xla_handler, METH_NOARGS, "The handler that runs plans on XLA's buffers, as jax.ffi takes it."},
    {"workers", workers, METH_NOARGS, "The threads of the pool that are alive."},
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
  // From here on a fork is safe at any moment: no lock is copied in a locked state.
  static bool forks =
      pthread_atfork([] { xla::before_fork(), Pool::get().before_fork(), Memory::get().before_fork(); },
                     [] { Memory::get().after_fork(), Pool::get().after_fork_in_parent(), xla::after_fork(); },
                     [] { Memory::get().after_fork(), Pool::get().after_fork_in_child(), xla::after_fork(); }) == 0;
  if (!forks) return PyErr_NoMemory();
  if (!held_type) held_type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
  if (!held_type || !make_tensor_types()) return nullptr;
  PyObject *made = PyModule_Create(&module);
  if (made && PyModule_AddFunctions(made, tensor_methods) < 0) Py_CLEAR(made);
  return made;
}
