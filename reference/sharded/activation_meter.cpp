#include "reference/sharded/activation_meter.hpp"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <limits>

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

// Keeps the memory of the allocator below, and tells when it is freed.
struct Block {
  c10::DataPtr memory;
  std::shared_ptr<ActivationMeter::Taken> taken;
  std::int64_t size;

  static void free(void* pointer) {
    const std::unique_ptr<Block> block(static_cast<Block*>(pointer));
    block->taken->remove(block->size);
  }
};

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& below) : below_(below) {}

  c10::DataPtr allocate(std::size_t size) override {
    auto memory = below_.allocate(size);
    if (!taken_of_thread || size == 0) return memory;
    const auto bytes = static_cast<std::int64_t>(size);
    taken_of_thread->add(bytes);
    auto* data = memory.get();
    const auto device = memory.device();
    return {data, new Block{std::move(memory), taken_of_thread, bytes}, &Block::free, device};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return below_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override { below_.copy_data(to, from, count); }

 private:
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
