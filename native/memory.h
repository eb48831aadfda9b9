// Memory for large results, kept for the next result once nobody holds the last. A system clears every page that it
// hands out, which costs as much again as writing a result; a loop that makes results and drops them pays it once.
// All of it runs under the interpreter's lock.
#pragma once
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <vector>

namespace ndpool {

struct Block {
  void *data;
  size_t size;
};

class Memory {
 public:
  static Memory &get() {
    static Memory *memory = new Memory;  // never destroyed: results may outlive static destruction
    return *memory;
  }

  // The smallest kept block that is not much too large, or a new one; its data is null if there is no memory.
  Block take(size_t size) {
    size_t grain = size < 2 * HUGE_PAGE ? PAGE : HUGE_PAGE;
    size = (size + grain - 1) / grain * grain;
    size_t best = kept_.size();
    for (size_t i = 0; i < kept_.size(); i++)
      if (kept_[i].size >= size && kept_[i].size <= size + size / 4 &&
          (best == kept_.size() || kept_[i].size < kept_[best].size))
        best = i;
    if (best < kept_.size()) {
      Block block = kept_[best];
      kept_.erase(kept_.begin() + std::ptrdiff_t(best));
      return held_ -= block.size, block;
    }
    Block block{nullptr, size};
    auto found = [&] { return posix_memalign(&block.data, grain, size) == 0; };
    if (!found() && (shrink(0), !found())) block.data = nullptr;
#if defined(__linux__)
    if (block.data && grain == HUGE_PAGE) madvise(block.data, size, MADV_HUGEPAGE);
#endif
    return block;
  }

  void give(Block block) {
    kept_.push_back(block);
    held_ += block.size;
    shrink(limit_);
  }

  // From now on at most that many bytes stay.
  void keep(size_t limit) { shrink(limit_ = limit); }
  size_t held() const { return held_; }

 private:
  // the longest kept go back to the system first
  void shrink(size_t limit) {
    while (held_ > limit) {
      std::free(kept_.front().data);
      held_ -= kept_.front().size;
      kept_.erase(kept_.begin());
    }
  }

  static constexpr size_t PAGE = 4096, HUGE_PAGE = 2 << 20;
  std::vector<Block> kept_;  // the longest kept first
  size_t held_ = 0, limit_ = 256 << 20;
};

}  // namespace ndpool
