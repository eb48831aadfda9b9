// Memory that is kept for the next run once nobody holds it: blocks for large results, and scratch (arenas). A system
// clears every page that it hands out, which costs as much again as writing a result; a loop that makes results and
// drops them pays it once. Blocks and arenas together never keep more than the limit. Safe from any thread.
#pragma once
#include <mutex>
#include <new>
#include <vector>

#include "kernels.h"
#include "pages.h"

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
    if (size > SIZE_MAX - grain) return {nullptr, size};
    size = (size + grain - 1) / grain * grain;
    Block block{nullptr, size};
    if (find(size, block)) return block;
    block.data = take_memory(size);
    if (!block.data) free_all(), block.data = take_memory(size);
    return block;
  }
  void give(Block block) { keep_or_free(blocks_, block, block.size); }

  // Scratch of one thread, for as long as it works on a job.
  Arena take_arena() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (arenas_.empty()) return {nullptr, 0, 0};
    Arena arena = arenas_.back();
    arenas_.pop_back();
    held_ -= size_t(arena.size);
    arena.refused = 0;
    return arena;
  }
  void give_arena(Arena arena) {
    if (arena.data) keep_or_free(arenas_, arena, size_t(arena.size));
  }

  // From now on at most that many bytes stay.
  void keep(size_t limit) {
    std::lock_guard<std::mutex> lock(mutex_);
    shrink(limit_ = limit);
  }
  size_t held() {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_;
  }

  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }  // in parent and child: what is kept is the child's, too

 private:
  bool find(size_t size, Block &block) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t best = blocks_.size();
    for (size_t i = 0; i < blocks_.size(); i++)
      if (blocks_[i].size >= size && blocks_[i].size <= size + size / 4 &&
          (best == blocks_.size() || blocks_[i].size < blocks_[best].size))
        best = i;
    if (best == blocks_.size()) return false;
    block = blocks_[best];
    blocks_.erase(blocks_.begin() + std::ptrdiff_t(best));
    held_ -= block.size;
    return true;
  }

  template <class Item> void keep_or_free(std::vector<Item> &list, Item item, size_t size) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      try {
        if (size <= limit_) {
          list.push_back(item);
          held_ += size;
          shrink(limit_);
          return;
        }
      } catch (const std::bad_alloc &) {  // no memory even to remember it
      }
    }
    give_memory(item.data, size);
  }

  void free_all() {
    std::lock_guard<std::mutex> lock(mutex_);
    shrink(0);
  }

  // The longest kept go back to the system first, blocks before arenas.
  void shrink(size_t limit) {
    auto drop = [&](auto &list) {
      give_memory(list.front().data, size_t(list.front().size));
      held_ -= size_t(list.front().size);
      list.erase(list.begin());
    };
    while (held_ > limit && !blocks_.empty()) drop(blocks_);
    while (held_ > limit && !arenas_.empty()) drop(arenas_);
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;  // the longest kept first
  std::vector<Arena> arenas_;
  size_t held_ = 0, limit_ = 256 << 20;
};

}  // namespace ndpool
