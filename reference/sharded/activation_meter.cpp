#include "reference/sharded/activation_meter.hpp"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace accel::sharded {

// What was allocated under a meter and is not yet freed.
class ActivationMeter::Taken {
 public:
  explicit Taken(MemoryAccount& account) : account_(&account), others_before_(others()) {}

  // On the rank's thread.
  void add(std::int64_t bytes) {
    bytes_ += bytes;
    update();
  }
  // On any.
  void remove(std::int64_t bytes) { bytes_ -= bytes; }
  void update() { account_->set(MemoryKind::kActivations, std::max<std::int64_t>(0, bytes_ - (others() - others_before_))); }

 private:
  [[nodiscard]] std::int64_t others() const { return account_->total() - account_->now(MemoryKind::kActivations); }

  MemoryAccount* account_;
  std::int64_t others_before_;
  std::atomic<std::int64_t> bytes_ = 0;
};

namespace {

thread_local std::shared_ptr<ActivationMeter::Taken> taken_of_thread;

// Which memory was taken under a meter. Kernels take some raw, so that all is freed by its address.
class Blocks {
 public:
  void add(void* data, std::shared_ptr<ActivationMeter::Taken> taken, std::int64_t size) {
    const std::lock_guard lock(mutex_);
    blocks_[data] = {std::move(taken), size};
    count_ = blocks_.size();
  }
  void remove(void* data) {
    if (count_ == 0) return;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    if (block == blocks_.end()) return;
    block->second.taken->remove(block->second.size);
    blocks_.erase(block);
    count_ = blocks_.size();
  }

 private:
  struct Block {
    std::shared_ptr<ActivationMeter::Taken> taken;
    std::int64_t size = 0;
  };
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::atomic<std::size_t> count_ = 0;
};

Blocks& blocks() {
  static Blocks* const all = new Blocks;  // tensors may be freed when the process ends
  return *all;
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& below) : below_(below) { free_below = below.raw_deleter(); }

  c10::DataPtr allocate(std::size_t size) override {
    auto memory = below_.allocate(size);
    if (!taken_of_thread || size == 0 || memory.get() != memory.get_context()) return memory;
    const auto bytes = static_cast<std::int64_t>(size);
    taken_of_thread->add(bytes);
    const auto device = memory.device();
    auto* data = memory.release_context();
    blocks().add(data, taken_of_thread, bytes);
    return {data, data, &CountingAllocator::free, device};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t count) const override { below_.copy_data(to, from, count); }

 private:
  static void free(void* data) {
    blocks().remove(data);
    free_below(data);
  }

  static inline c10::DeleterFnPtr free_below = nullptr;
  c10::Allocator& below_;
};

void count_allocations() {
  [[maybe_unused]] static const bool is_counting = [] {
    static CountingAllocator counting(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(&counting, /*priority=*/std::numeric_limits<std::uint8_t>::max());
    return true;
  }();
}

}  // namespace

ActivationMeter::ActivationMeter(MemoryAccount& account) : taken_(std::make_shared<Taken>(account)) {
  count_allocations();
  taken_of_thread = taken_;
}

ActivationMeter::~ActivationMeter() {
  taken_->update();
  taken_of_thread.reset();
}

}  // namespace accel::sharded
