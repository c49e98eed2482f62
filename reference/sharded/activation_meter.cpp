#include "reference/sharded/activation_meter.hpp"

#include <algorithm>
#include <atomic>

namespace accel::sharded {

// What was allocated under a meter and is not yet freed.
class ActivationMeter::Taken final : public MemorySource {
 public:
  explicit Taken(MemoryAccount& account) : account_(&account), others_before_(others()) {}

  // On the rank's thread.
  void* allocate(std::size_t bytes, c10::Allocator& below) override {
    auto* data = below.raw_allocate(bytes);
    bytes_ += static_cast<std::int64_t>(bytes);
    update();
    return data;
  }
  // On any.
  void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) override {
    bytes_ -= static_cast<std::int64_t>(bytes);
    free_below(data);
  }
  void update() {
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
