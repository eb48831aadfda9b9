// Memory in pieces of any size. Large ones come straight from the system and go straight back to it, whichever thread
// gives them back: malloc keeps up to 64 MB for every thread that ever freed so much, ended ones too.
#pragma once
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace ndpool {
namespace {

constexpr size_t PAGE = 4096, HUGE_PAGE = 2 << 20;
constexpr size_t MAPPED = 1 << 20;  // bytes from which on memory is the system's

// `size` bytes that begin at a page, or at a huge page if there are several of those; null if there is no memory. The
// same size must be given back.
inline void *take_memory(size_t size) {
  if (size > SIZE_MAX - 2 * HUGE_PAGE) return nullptr;
#if defined(MAP_ANONYMOUS)
  if (size >= MAPPED) {
    bool huge = size >= 2 * HUGE_PAGE;
    size_t length = (size + PAGE - 1) / PAGE * PAGE, spare = huge ? HUGE_PAGE : 0;
    void *mapped = mmap(nullptr, length + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char *begin = static_cast<char *>(mapped), *data = begin;
    if (huge) {
      data += -reinterpret_cast<uintptr_t>(begin) % HUGE_PAGE;
      if (data > begin) munmap(begin, size_t(data - begin));
      if (size_t end = size_t(begin + spare - data)) munmap(data + length, end);
#if defined(MADV_HUGEPAGE)
      madvise(data, length, MADV_HUGEPAGE);
#endif
    }
    return data;
  }
#endif
  return std::aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);
}

inline void give_memory(void *data, size_t size) {
#if defined(MAP_ANONYMOUS)
  if (size >= MAPPED) {
    munmap(data, (size + PAGE - 1) / PAGE * PAGE);
    return;
  }
#endif
  std::free(data);
}

}  // namespace
}  // namespace ndpool
