#include "reference/sharded/activation_meter.hpp"

#include <algorithm>
#include <atomic>

namespace accel::sharded {

// Counts what was allocated under a meter and not freed yet. Blocks share ownership of it (see memory_scope.cpp),
// because activations are freed by backward, after the meter's scope has ended.
class ActivationMeter::Taken final : public MemorySource {
 public:
  explicit Taken(MemoryAccount& account) : account_(&account), others_before_(others()) {}

  // Runs on the rank's thread, so it may update the account.
  void* allocate(std::size_t bytes, c10::Allocator& below) override {
    auto* data = below.raw_allocate(bytes);
    bytes_ += static_cast<std::int64_t>(bytes);
    update();
    return data;
  }
  // May run on any thread. It only changes the atomic counter: the account belongs to the rank's thread, which the next
  // allocation or the end of the meter brings up to date.
  void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) override {
    bytes_ -= static_cast<std::int64_t>(bytes);
    free_below(data);
  }
  void update() {
    // Everything allocated minus what other kinds have grown by since the meter started: gathered parameters and
    // buckets pass through the same allocator.
    account_->set(MemoryKind::kActivations, std::max<std::int64_t>(0, bytes_ - (others() - others_before_)));
  }

 private:
  [[nodiscard]] std::int64_t others() const { return account_->total() - account_->now(MemoryKind::kActivations); }

  MemoryAccount* account_;
  std::int64_t others_before_;
  std::atomic<std::int64_t> bytes_ = 0;
};

ActivationMeter::ActivationMeter(MemoryAccount& account) : taken_(std::make_shared<Taken>(account)), scope_(taken_) {}

ActivationMeter::~ActivationMeter() { taken_->update(); }

}  // namespace accel::sharded
