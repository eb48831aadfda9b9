// The parts of DLPack 1.x that are used here: how tensors are described in C, and the table of functions by which a
// library's objects become such descriptions and back (`__dlpack_c_exchange_api__`). Layouts are fixed by the standard:
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once
#include <cstdint>

namespace ndpool::dlpack {

constexpr uint32_t MAJOR = 1, MINOR = 0;  // the version of what is described below
constexpr int32_t CPU = 1;                // a device

struct Version {
  uint32_t major, minor;
};
struct Device {
  int32_t kind, id;
};
struct Dtype {
  uint8_t code, bits;
  uint16_t lanes;
  bool operator==(const Dtype &) const = default;
};
struct Tensor {
  void *data;
  Device device;
  int32_t ndim;
  Dtype dtype;
  int64_t *shape, *strides;  // in elements
  uint64_t byte_offset;
};
struct Managed {  // a tensor that somebody owns: `deleter` gives it back, on any thread
  Version version;
  void *owner;
  void (*deleter)(Managed *);
  uint64_t flags;
  Tensor tensor;
};
struct Header {
  Version version;
  Header *previous;  // the table of an older version
};
struct Exchange {
  Header header;
  int (*allocate)(Tensor *, Managed **, void *, void (*)(void *, const char *, const char *));
  int (*managed_from_object)(void *, Managed **);
  int (*object_from_managed)(Managed *, void **);  // a new reference
  int (*tensor_from_object)(void *, Tensor *);     // as long as the object lives
  int (*stream)(int32_t, int32_t, void **);
};

}  // namespace ndpool::dlpack
