// ndpool._native: the one file that knows Python. Limited C API from 3.11.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

namespace {

using ndpool::Kernels;

// The kernels that were built, best first.
const Kernels *const built[] = {
#if NDPOOL_HAS_v4
    &ndpool::kernels_v4,
#endif
#if NDPOOL_HAS_v3
    &ndpool::kernels_v3,
#endif
#if NDPOOL_HAS_v2
    &ndpool::kernels_v2,
#endif
#if NDPOOL_HAS_generic
    &ndpool::kernels_generic,
#endif
};
constexpr Py_ssize_t count = sizeof built / sizeof *built;

// The best of them that this processor runs. The last runs everywhere: v2 is every x86-64 processor since 2009.
const Kernels *best() {
#if NDPOOL_HAS_v2
  __builtin_cpu_init();
#if NDPOOL_HAS_v4
  if (__builtin_cpu_supports("x86-64-v4")) return &ndpool::kernels_v4;
#endif
  if (__builtin_cpu_supports("x86-64-v3")) return &ndpool::kernels_v3;
#endif
  return built[count - 1];
}

PyObject *isa(PyObject *, PyObject *) { return PyUnicode_FromString(best()->isa); }

PyObject *isas(PyObject *, PyObject *) {
  PyObject *names = PyTuple_New(count);
  for (Py_ssize_t i = 0; names && i < count; i++) {
    PyObject *name = PyUnicode_FromString(built[i]->isa);
    if (!name || PyTuple_SetItem(names, i, name) < 0) {
      Py_DECREF(names);
      return nullptr;
    }
  }
  return names;
}

PyMethodDef methods[] = {
    {"isa", isa, METH_NOARGS, "The instruction set in use."},
    {"isas", isas, METH_NOARGS, "The instruction sets built in, best first."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "ndpool._native", "The native engine.", 0, methods, nullptr, nullptr, nullptr, nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
