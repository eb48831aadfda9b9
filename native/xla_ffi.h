// XLA's foreign function interface, as far as xla.cpp uses it: the layout of its C structures, which XLA keeps stable
// within a major version. Declared here, so that building ndpool takes no jaxlib; tests/jax/test_header.py compares
// every size and offset with the header that jaxlib ships.
//
// A structure begins with its size and a list of extensions, and newer versions append fields: what may be missing is
// asked for with `has`.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ndpool::xla {

constexpr int MAJOR = 0, MINOR = 1;  // the oldest version that has all of this

struct Extension {
  size_t size;
  int32_t type;  // METADATA alone is known
  Extension *next;
};
constexpr int32_t METADATA = 1;

struct Version {
  size_t size;
  Extension *extensions;
  int major, minor;
};

struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata *metadata;
};

enum class DataType : int32_t {
  boolean = 1,
  i8 = 2,
  i16 = 3,
  i32 = 4,
  i64 = 5,
  u8 = 6,
  u16 = 7,
  u32 = 8,
  u64 = 9,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16
};

struct Buffer {
  size_t size;
  Extension *extensions;
  DataType type;
  void *data;
  int64_t rank;
  int64_t *dims;
};

// A list of arguments or results: `items` are buffers where `types` say BUFFER.
struct Buffers {
  size_t size;
  Extension *extensions;
  int64_t count;
  int32_t *types;
  void **items;
};
constexpr int32_t BUFFER = 1;

struct Text {
  const char *data;
  size_t length;
};

struct Numbers {
  DataType type;
  size_t count;
  void *data;
};

// Attributes by name: `items` are Numbers where `types` say ARRAY.
struct Attributes {
  size_t size;
  Extension *extensions;
  int64_t count;
  int32_t *types;
  Text **names;
  void **items;
};
constexpr int32_t ARRAY = 1;

struct Error;
enum class Code : int32_t { invalid_argument = 3, resource_exhausted = 8, internal = 13 };
struct CreateError {
  size_t size;
  Extension *extensions;
  const char *message;
  Code code;
};

struct Context;
struct Schedule {
  size_t size;
  Extension *extensions;
  Context *context;
  void (*task)(void *);
  void *data;
};

struct CountThreads {
  size_t size;
  Extension *extensions;
  Context *context;
  int64_t *threads;  // out
};

struct DestroyError {
  size_t size;
  Extension *extensions;
  Error *error;
};

struct Api {
  size_t size;
  Extension *extensions;
  Version version;
  const void *internal;
  Error *(*create_error)(CreateError *);
  void *get_message;
  void (*destroy_error)(DestroyError *);
  void *not_used[8];  // registering, streams, states, device memory
  Error *(*schedule)(Schedule *);
  Error *(*count_threads)(CountThreads *);

  template <class Field> bool has(const Field &field) const {
    return reinterpret_cast<const char *>(&field) + sizeof(Field) <= reinterpret_cast<const char *>(this) + size;
  }
};

struct Frame {  // one call of a handler
  size_t size;
  Extension *extensions;
  const Api *api;
  Context *context;
  int32_t stage;
  Buffers arguments, results;
  Attributes attributes;
};

}  // namespace ndpool::xla
