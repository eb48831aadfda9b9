// Scratch memory of a unit of work.
#pragma once
#include "kernels.h"
#include "pages.h"

namespace ndpool {
namespace {

// Memory of one unit, taken from the front and given back all at once.
struct Scratch {
  Arena &arena;
  i64 used = 0;
  bool failed = false;
  struct Block {
    Block *next;
    size_t size;
  } *spilled = nullptr;
  explicit Scratch(Arena &a) : arena(a) {}
  NOINLINE ~Scratch() {
    while (spilled) {
      Block *next = spilled->next;
      give_memory(spilled, spilled->size);
      spilled = next;
    }
    if (used <= arena.size) return;
    if (arena.data) give_memory(arena.data, size_t(arena.size));  // next time it is large enough
    arena.size = (used + 4095) / 4096 * 4096;
    arena.data = static_cast<char *>(take_memory(size_t(arena.size)));
    if (!arena.data) arena.size = 0;
  }
  // n elements, and 64 bytes more: a vector may be read past the end. Null if there is no memory, which `failed` says.
  template <class T> T *take(i64 n) { return reinterpret_cast<T *>(take_bytes(n * i64(sizeof(T)))); }

 private:
  NOINLINE char *take_bytes(i64 wanted) {
    i64 bytes = (wanted + 191) / 64 * 64;
    char *p = arena.data + used;
    if (used + bytes > arena.size) {
      auto *block = static_cast<Block *>(take_memory(size_t(bytes + 64)));
      if (!block) {
        failed = true;
        arena.refused = used + bytes;
        return nullptr;
      }
      *block = {.next = spilled, .size = size_t(bytes + 64)};
      spilled = block;
      p = reinterpret_cast<char *>(block) + 64;
    }
    used += bytes;
    return p;
  }
};

}  // namespace
}  // namespace ndpool
