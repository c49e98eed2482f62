#include "reference/sharded/memory_scope.hpp"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace accel::sharded {
namespace {

// Per thread, because the ranks of a simulation share the process and its single CPU allocator.
thread_local std::shared_ptr<MemorySource> source_of_thread;

struct Block {
  std::shared_ptr<MemorySource> source;
  std::size_t bytes = 0;
};

// Maps blocks to the sources that allocated them. Kernels also use raw_allocate, which returns a bare pointer without a
// context, so every block must be found by its address when it is freed.
class Blocks {
 public:
  void add(void* data, Block block) {
    const std::lock_guard lock(mutex_);
    blocks_[data] = std::move(block);
    count_ = blocks_.size();
  }
  /// Removes a block; the result has no source if `data` does not belong to one.
  Block remove(void* data) {
    // The common case, no block of any source alive, must not take a lock for every tensor that is freed. A block's own
    // free sees a count above 0, because handing its pointer to this thread synchronized with `add`.
    if (count_ == 0) return {};
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return {};
    auto block = std::move(found->second);
    blocks_.erase(found);
    count_ = blocks_.size();
    return block;
  }
  std::shared_ptr<MemorySource> source_of(const void* data) {
    if (count_ == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(const_cast<void*>(data));
    return found == blocks_.end() ? nullptr : found->second.source;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::atomic<std::size_t> count_ = 0;
};

Blocks& blocks() {
  static Blocks* const all = new Blocks;  // never destroyed: static tensors may be freed after it
  return *all;
}

// Sits in front of LibTorch's allocator for the rest of the process. It cannot be removed again: tensors that it
// allocated keep its deleter.
class ScopedAllocator final : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator& below) : below_(below) { free_below = below.raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    const auto source = source_of_thread;
    auto* data = source && bytes > 0 ? source->allocate(bytes, below_) : nullptr;
    if (data == nullptr) return below_.allocate(bytes);
    blocks().add(data, {source, bytes});
    return {data, data, &ScopedAllocator::free, c10::Device(c10::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &ScopedAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t count) const override { below_.copy_data(to, from, count); }

 private:
  static void free(void* data) {
    if (const auto block = blocks().remove(data); block.source) {
      block.source->free(data, block.bytes, free_below);
    } else {
      free_below(data);
    }
  }

  // Static, since a deleter is a plain function pointer; there is only one ScopedAllocator, see install_allocator.
  static inline c10::DeleterFnPtr free_below = nullptr;
  c10::Allocator& below_;
};

void install_allocator() {
  [[maybe_unused]] static const bool is_in_place = [] {
    static ScopedAllocator allocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(&allocator, /*priority=*/std::numeric_limits<std::uint8_t>::max());
    return true;
  }();
}

}  // namespace

MemoryScope::MemoryScope(std::shared_ptr<MemorySource> source) : does_nothing_(source == nullptr) {
  if (does_nothing_) return;
  install_allocator();
  around_ = std::exchange(source_of_thread, std::move(source));
}

MemoryScope::~MemoryScope() {
  if (!does_nothing_) source_of_thread = std::move(around_);
}

std::shared_ptr<MemorySource> source_of(const void* data) { return blocks().source_of(data); }

}  // namespace accel::sharded
