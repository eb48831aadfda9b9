// Plans on torch's CPU tensors, without a step in Python: a small call is over before as many attributes of a tensor
// could be asked for. Tensors are read and made by the functions of DLPack that torch.Tensor offers; what else there is
// to know of torch, `use_torch` is told.
//
// Reading order: `Asked` (what torch was asked for), `look` (is it a plain tensor?), `fresh` (memory of results),
// `TensorPlan`, and what is called: tensor_plan and tensor_key once, pool for each call; by autograd linearize, backward.
// What may not live here: geometry, and decisions about which plan runs.
#include "tensors.h"

#include <cstring>

#include "dlpack.h"

namespace ndpool {
namespace {

using dlpack::Dtype, dlpack::Managed;

constexpr size_t LINE_BYTES = 64;     // results begin at a cache line
constexpr size_t KEPT_FROM = 1 << 19;  // bytes of a result from which on its memory is worth keeping

// -- what torch was asked for
// ------------------------------------------------------------------------------------------

struct Asked {
  const dlpack::Exchange *exchange = nullptr;
  PyObject *tensor = nullptr, *parameter = nullptr;  // the types of tensors that are nothing else
  PyObject *transforms = nullptr, *modes = nullptr, *tracing = nullptr, *gradients = nullptr;  // questions
  PyObject *forward_mode = nullptr, *level = nullptr;  // a module's dict, and the name of its level
  PyObject *negated = nullptr, *threads = nullptr;
  PyObject *otherwise = nullptr;                // the cotangent of what is not plain
  // names of attributes
  PyObject *wants_gradient = nullptr, *plan = nullptr, *to_save = nullptr, *saved_tensors = nullptr;
} asked;

// use_torch(exchange, tensor, parameter, transforms, modes, tracing, gradients, forward_mode, negated, threads,
//           otherwise) -> whether it can be used
PyObject *use_torch(PyObject *, PyObject *args) {
  PyObject *capsule;
  Asked a;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &capsule, &a.tensor, &a.parameter, &a.transforms, &a.modes, &a.tracing,
                        &a.gradients, &a.forward_mode, &a.negated, &a.threads, &a.otherwise))
    return nullptr;
  if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) Py_RETURN_FALSE;
  auto *header = static_cast<dlpack::Header *>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  while (header && header->version.major != dlpack::MAJOR) header = header->previous;
  a.exchange = reinterpret_cast<const dlpack::Exchange *>(header);
  if (!header || !a.exchange->tensor_from_object || !a.exchange->object_from_managed) Py_RETURN_FALSE;
  a.level = PyUnicode_InternFromString("_current_level");
  a.wants_gradient = PyUnicode_InternFromString("requires_grad");
  a.plan = PyUnicode_InternFromString("plan");
  a.to_save = PyUnicode_InternFromString("to_save");  // what save_for_backward sets
  a.saved_tensors = PyUnicode_InternFromString("saved_tensors");
  if (!a.level || !a.wants_gradient || !a.plan || !a.to_save || !a.saved_tensors) return nullptr;
  for (PyObject *kept : {a.tensor, a.parameter, a.transforms, a.modes, a.tracing, a.gradients, a.forward_mode,
                         a.negated, a.threads, a.otherwise})
    Py_INCREF(kept);  // for ever, as torch is there for ever
  asked = a;
  Py_RETURN_TRUE;
}

// What a question without arguments is answered: 1 yes, 0 no, -1 an error.
int answer(PyObject *question) {
  PyObject *said = PyObject_CallNoArgs(question);
  int yes = said ? PyObject_IsTrue(said) : -1;
  Py_XDECREF(said);
  return yes;
}

int threads() {
  PyObject *said = PyObject_CallNoArgs(asked.threads);
  long n = said ? PyLong_AsLong(said) : 1;
  Py_XDECREF(said);
  PyErr_Clear();
  return int(std::min(1024L, std::max(1L, n)));
}

// -- plain tensors
// -----------------------------------------------------------------------------------------------------

using View = dlpack::Tensor;
enum class Look { plain, other, error };

// Whether nobody watches: no transform, mode, tracer or level of forward mode is about.
Look unwatched() {
  PyObject *level = PyDict_GetItemWithError(asked.forward_mode, asked.level);
  if (!level || PyLong_AsLong(level) >= 0) return PyErr_Occurred() ? Look::error : Look::other;
  for (PyObject *question : {asked.transforms, asked.modes, asked.tracing})
    if (int yes = answer(question)) return yes < 0 ? Look::error : Look::other;
  return Look::plain;
}

// Whether an object is a tensor, of no subclass, in the memory of this machine; where that is, if so.
bool in_memory(PyObject *object, View &view) {
  auto *type = reinterpret_cast<PyObject *>(Py_TYPE(object));
  if (!asked.exchange || (type != asked.tensor && type != asked.parameter)) return false;
  if (asked.exchange->tensor_from_object(object, &view) != 0) {  // without memory, or of a device that DLPack has not
    PyErr_Clear();
    return false;
  }
  return view.device.kind == dlpack::CPU && view.data && view.ndim < MOST_AXES;
}

// Whether it is memory and nothing else, and nobody watches.
Look look(PyObject *object, View &view) {
  if (!in_memory(object, view)) return Look::other;
  PyObject *negated = PyObject_CallFunctionObjArgs(asked.negated, object, nullptr);
  if (!negated) return Look::error;
  bool other = negated == Py_True;
  Py_DECREF(negated);
  return other ? Look::other : unwatched();
}

// -- memory of results
// -------------------------------------------------------------------------------------------------

// A tensor of our own memory. In front of small data, in a block that is kept beside large data.
struct Result {
  Managed managed;
  Block block;  // of large data
  int64_t extents[2 * MOST_AXES];

  static void drop(Managed *managed) {
    auto *self = static_cast<Result *>(managed->owner);
    if (self->block.data) Memory::get().give(self->block);
    std::free(self);
  }
};

struct Extents {  // a shape and strides in elements
  int ndim = 0;
  int64_t shape[MOST_AXES], strides[MOST_AXES];
  size_t elements = 1;

  bool read(PyObject *sizes, PyObject *steps) {
    std::vector<i64> n, s;
    if (!ints(sizes, n) || !ints(steps, s)) return false;
    if (n.size() != s.size() || n.size() >= size_t(MOST_AXES))
      return PyErr_SetString(PyExc_ValueError, "a shape and strides are of one length"), false;
    ndim = int(n.size());
    std::copy(n.begin(), n.end(), shape), std::copy(s.begin(), s.end(), strides);
    for (i64 size : n) elements *= size_t(size);
    return true;
  }
};

// A new tensor, with whatever was in its memory, which is at `data`.
PyObject *fresh(const Extents &like, Dtype dtype, void *&data) {
  size_t bytes = like.elements * (dtype.bits / 8), head = sizeof(Managed) + sizeof(Block) + 16 * size_t(like.ndim);
  bool large = bytes >= KEPT_FROM;
  auto *result = static_cast<Result *>(std::malloc(large ? head : head + LINE_BYTES + bytes));
  if (!result) return PyErr_NoMemory();
  result->block = large ? Memory::get().take(bytes) : Block{nullptr, 0};
  auto past = reinterpret_cast<uintptr_t>(result) + head;
  data = large ? result->block.data : reinterpret_cast<void *>((past + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
  if (!data) {
    std::free(result);
    return PyErr_NoMemory();
  }
  int64_t *shape = result->extents, *strides = shape + like.ndim;
  std::copy(like.shape, like.shape + like.ndim, shape), std::copy(like.strides, like.strides + like.ndim, strides);
  result->managed = {{dlpack::MAJOR, dlpack::MINOR}, result, Result::drop, 0,
                     {data, {dlpack::CPU, 0}, like.ndim, dtype, shape, strides, 0}};
  void *tensor = nullptr;
  if (asked.exchange->object_from_managed(&result->managed, &tensor) == 0) return static_cast<PyObject *>(tensor);
  Result::drop(&result->managed);
  return nullptr;
}

// -- a plan for tensors
// ------------------------------------------------------------------------------------------------

// A plan with all that is the same for tensors that lie alike.
struct TensorPlan {
  PyObject head;
  PyObject *bound;  // what runs the plan in Python, for those who take another way
  PyObject *plan;
  PyObject *differentiable;  // (x, this) -> y, where a gradient is wanted
  const OwnedPlan *owned;
  Type type;
  Dtype dtype, tap;  // of elements, and of which tap won
  bool one_winner, any_strides;
  Extents inputs, outputs;  // as results lie
};
PyTypeObject *plan_type = nullptr;

TensorPlan *as_plan(PyObject *object) {
  if (Py_TYPE(object) == plan_type) return reinterpret_cast<TensorPlan *>(object);
  PyErr_SetString(PyExc_TypeError, "not a plan for tensors");
  return nullptr;
}

// tensor_plan(x, bound, plan, type, input_strides, output_shape, output_strides, one_winner, any_strides,
//             differentiable): a plan for tensors that lie as x does. Results have these strides, which are those that
// the plan writes. `any_strides`: cotangents of any can be read.
PyObject *make_tensor_plan(PyObject *, PyObject *args) {
  PyObject *x, *bound, *capsule, *in_strides, *out_shape, *out_strides, *differentiable;
  int type, one_winner, any_strides;
  if (!PyArg_ParseTuple(args, "OOOiOOOppO", &x, &bound, &capsule, &type, &in_strides, &out_shape, &out_strides,
                        &one_winner, &any_strides, &differentiable))
    return nullptr;
  auto *owned = static_cast<OwnedPlan *>(PyCapsule_GetPointer(capsule, "ndpool.plan"));
  if (!owned) return nullptr;
  View view;
  Look found = look(x, view);
  if (found != Look::plain)
    return found == Look::error ? nullptr : PyErr_Format(PyExc_ValueError, "%R is not a plain tensor", x);
  PyObject *in_shape = PyObject_GetAttrString(x, "shape");
  Extents inputs, outputs;
  bool fine = in_shape && inputs.read(in_shape, in_strides) && outputs.read(out_shape, out_strides);
  Py_XDECREF(in_shape);
  if (!fine) return nullptr;
  auto *self = reinterpret_cast<TensorPlan *>(PyType_GenericAlloc(plan_type, 0));
  if (!self) return nullptr;
  self->bound = Py_NewRef(bound), self->plan = Py_NewRef(capsule), self->owned = owned, self->type = Type(type);
  self->differentiable = Py_NewRef(differentiable);
  i64 tap = owned->plan.residual_bytes;  // uint8, and signed beyond
  self->dtype = view.dtype, self->tap = {uint8_t(tap == 1 ? 1 : 0), uint8_t(8 * tap), 1};
  self->one_winner = one_winner, self->any_strides = any_strides, self->inputs = inputs, self->outputs = outputs;
  return reinterpret_cast<PyObject *>(self);
}

void release(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  auto *self = reinterpret_cast<TensorPlan *>(object);
  Py_CLEAR(self->bound);
  Py_CLEAR(self->plan);
  Py_CLEAR(self->differentiable);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

PyObject *get_bound(PyObject *self, void *) { return Py_NewRef(reinterpret_cast<TensorPlan *>(self)->bound); }

PyGetSetDef attributes[] = {
    {"bound", get_bound, nullptr, "What runs the plan in Python.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char *>("A plan for tensors that lie alike.")},
    {Py_tp_dealloc, reinterpret_cast<void *>(release)},
    {Py_tp_getset, attributes},
    {0, nullptr},
};
PyType_Spec spec = {"ndpool._native.TensorPlan", sizeof(TensorPlan), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

// Runs a plan on memory. x and a are what is read, or null; y and b what is written. False with an error.
bool run_on(const TensorPlan &self, Mode mode, PyObject *const (&held)[4], const View *x, const View *a, void *y,
            void *b) {
  auto take = [&](Running &running) {
    for (int i = 0; i < 4; i++) running.borrowed.objects[i + 1] = Py_XNewRef(held[i]);
    Job &job = running.run.job;
    for (auto [array, view] : {std::pair{&job.x, x}, {&job.a, a}}) {
      if (!view) continue;
      i64 item = view->dtype.bits / 8;
      array->data = static_cast<char *>(view->data) + view->byte_offset;
      const std::vector<int> &order = self.owned->order;
      for (size_t k = 0; k < order.size(); k++)
        array->strides[k] = order[k] < view->ndim ? view->strides[order[k]] * item : 0;
      if (self.owned->plan.lanes == 1) array->strides[order.size()] = item;  // lanes that are not there
    }
    job.y.data = static_cast<char *>(y), job.b.data = static_cast<char *>(b);  // dense in the plan's order
    return true;
  };
  PyObject *fits = run_plan(self.plan, *self.owned, mode, self.type, threads, take);
  if (!fits) return false;
  bool fine = fits == Py_True;
  Py_DECREF(fits);
  if (fine) return true;
  PyObject *error = PyObject_CallMethod(self.bound, "does_not_fit", nullptr);
  if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error)), error);
  Py_XDECREF(error);
  return false;
}

// -- what Python calls
// -------------------------------------------------------------------------------------------------

// What tells tensors that lie alike from others: elements, shape and strides.
PyObject *key_of(const View &view) {
  int64_t key[1 + 2 * MOST_AXES];
  size_t n = size_t(view.ndim);
  key[0] = view.dtype.code << 16 | view.dtype.bits << 8 | int(n);
  std::memcpy(key + 1, view.shape, 8 * n), std::memcpy(key + 1 + n, view.strides, 8 * n);
  return PyBytes_FromStringAndSize(reinterpret_cast<char *>(key), Py_ssize_t(8 * (1 + 2 * n)));
}

PyObject *forward(const TensorPlan &self, PyObject *x, const View &view) {
  void *data;
  PyObject *y = fresh(self.outputs, self.dtype, data);
  if (y && !run_on(self, Mode::forward, {x, y}, &view, nullptr, data, nullptr)) Py_CLEAR(y);
  return y;
}

// tensor_key(x) -> the key of its plan, or None if it is not a plain tensor
PyObject *tensor_key(PyObject *, PyObject *x) {
  View view;
  switch (look(x, view)) {
    case Look::plain: return key_of(view);
    case Look::other: Py_RETURN_NONE;
    default: return nullptr;
  }
}

// pool(plans, x) -> y, differentiable if a gradient is wanted; None if x is not a plain tensor, or has no plan yet
PyObject *pool(PyObject *, PyObject *const *args, Py_ssize_t n) {
  if (n != 2 || !PyDict_Check(args[0])) return PyErr_Format(PyExc_TypeError, "pool(plans, x)");
  PyObject *x = args[1];
  View view;
  if (Look found = look(x, view); found != Look::plain) return found == Look::error ? nullptr : Py_NewRef(Py_None);
  PyObject *key = key_of(view);
  PyObject *plan = key ? PyDict_GetItemWithError(args[0], key) : nullptr;
  Py_XDECREF(key);
  if (!plan) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
  TensorPlan *self = as_plan(plan);
  if (!self) return nullptr;
  Py_INCREF(plan);
  PyObject *wants = PyObject_GetAttr(x, asked.wants_gradient), *y = nullptr;
  int differentiable = !wants ? -1 : wants == Py_True ? answer(asked.gradients) : 0;
  Py_XDECREF(wants);
  if (differentiable > 0) y = PyObject_CallFunctionObjArgs(self->differentiable, x, plan, nullptr);
  if (differentiable == 0) y = forward(*self, x, view);
  Py_DECREF(plan);
  return y;
}

// linearize(ctx, x, plan) -> y of a plain tensor of the plan's. `ctx` is that of an autograd.Function: it is given the
// plan, and what the derivative asks for.
PyObject *linearize(PyObject *, PyObject *const *args, Py_ssize_t n) {
  TensorPlan *self = n == 3 ? as_plan(args[2]) : nullptr;
  if (!self) return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_TypeError, "linearize(ctx, x, plan)");
  PyObject *ctx = args[0], *x = args[1];
  View view;
  if (!in_memory(x, view)) return PyErr_Format(PyExc_ValueError, "x is not a plain tensor");
  if (PyObject_SetAttr(ctx, asked.plan, args[2]) < 0) return nullptr;
  if (!self->one_winner) return forward(*self, x, view);
  void *data, *taps;
  PyObject *y = fresh(self->outputs, self->dtype, data), *won = y ? fresh(self->outputs, self->tap, taps) : nullptr;
  bool fine = won && run_on(*self, Mode::winners, {x, y, won}, &view, nullptr, data, taps);
  PyObject *saved = fine ? PyTuple_Pack(1, won) : nullptr;
  fine = saved && PyObject_SetAttr(ctx, asked.to_save, saved) == 0;
  if (!fine) Py_CLEAR(y);
  Py_XDECREF(saved), Py_XDECREF(won);
  return y;
}

// Whether a tensor is such a result, and lies as results do, or anyhow.
bool is_like(const View &view, const Extents &result, Dtype dtype, bool anyhow) {
  if (view.ndim != result.ndim || !(view.dtype == dtype)) return false;
  for (int i = 0; i < view.ndim; i++)
    if (view.shape[i] != result.shape[i] || (!anyhow && view.shape[i] > 1 && view.strides[i] != result.strides[i]))
      return false;
  return true;
}

// The cotangent of x. None if a derivative of this is wanted, or one of the two is not as linearize would give it: hooks
// may put other tensors in their place.
PyObject *vjp(const TensorPlan &self, PyObject *won, PyObject *dy) {
  View views[2];
  Look found = answer(asked.gradients) ? Look::other : look(dy, views[0]);
  if (found == Look::plain && won && !in_memory(won, views[1])) found = Look::other;
  if (PyErr_Occurred()) return nullptr;
  bool fits = found == Look::plain && is_like(views[0], self.outputs, self.dtype, self.any_strides) &&
              (!won || is_like(views[1], self.outputs, self.tap, false));
  if (!fits) Py_RETURN_NONE;
  void *data;
  PyObject *dx = fresh(self.inputs, self.dtype, data);
  if (dx && !run_on(self, won ? Mode::vjp_by_winner : Mode::vjp, {won, dy, dx}, won ? &views[1] : nullptr, &views[0],
                    data, nullptr))
    Py_CLEAR(dx);
  return dx;
}

// What an autograd.Function's backward gives, for what linearize left in its ctx: dx, and None for the plan.
PyObject *differentiate(PyObject *ctx, PyObject *dy) {
  PyObject *plan = PyObject_GetAttr(ctx, asked.plan), *saved = nullptr, *dx = nullptr;
  TensorPlan *self = plan ? as_plan(plan) : nullptr;
  if (self && (!self->one_winner || (saved = PyObject_GetAttr(ctx, asked.saved_tensors)))) {
    PyObject *won = saved ? PyTuple_GetItem(saved, 0) : nullptr;
    if (!saved || won) dx = vjp(*self, won, dy);
    if (dx == Py_None) {
      Py_DECREF(dx);
      dx = PyObject_CallFunctionObjArgs(asked.otherwise, self->bound, won ? won : Py_None, dy, nullptr);
    }
  }
  PyObject *both = dx ? PyTuple_Pack(2, dx, Py_None) : nullptr;
  Py_XDECREF(plan), Py_XDECREF(saved), Py_XDECREF(dx);
  return both;
}

PyObject *backward(PyObject *, PyObject *const *args, Py_ssize_t n) {
  return n == 2 ? differentiate(args[0], args[1]) : PyErr_Format(PyExc_TypeError, "backward(ctx, dy)");
}

PyMethodDef apply = {"apply", differentiate, METH_O, "The cotangents of a node."};

// apply_of(type) -> `apply` for nodes of that type, as a method
PyObject *apply_of(PyObject *, PyObject *type) {
  if (PyType_Check(type)) return PyDescr_NewMethod(reinterpret_cast<PyTypeObject *>(type), &apply);
  return PyErr_Format(PyExc_TypeError, "not a type");
}

template <auto F> PyCFunction fast() { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(F)); }

}  // namespace

PyMethodDef tensor_methods[] = {
    {"use_torch", use_torch, METH_VARARGS, "Where the names of torch are that plans on tensors need."},
    {"tensor_plan", make_tensor_plan, METH_VARARGS, "A plan for tensors that lie as one does."},
    {"tensor_key", tensor_key, METH_O, "The key of a plain tensor's plan, or None."},
    {"pool", fast<pool>(), METH_FASTCALL, "Pool a plain tensor by one of these plans, or None."},
    {"linearize", fast<linearize>(), METH_FASTCALL, "y, and what its derivative asks for."},
    {"backward", fast<backward>(), METH_FASTCALL, "The cotangents of what an autograd.Function linearized."},
    {"apply_of", apply_of, METH_O, "The same as a method of nodes."},
    {nullptr, nullptr, 0, nullptr},
};

bool make_tensor_types() {
  if (!plan_type) plan_type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
  return plan_type;
}

}  // namespace ndpool
