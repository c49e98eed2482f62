#include "reference/sharded/activation_meter.hpp"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "reference/core/errors.hpp"
#include "reference/sharded/memory_scope.hpp"

namespace accel::sharded {
namespace {

// What was allocated under a meter and not freed yet. Allocations come from the rank's thread, which owns the account.
// Memory may be freed on any thread; the next allocation or the end of the meter brings the account up to date.
class Taken {
 public:
  explicit Taken(MemoryAccount& account) : account_(&account), others_before_(others()) {}

  void add(std::size_t bytes) {
    bytes_ += static_cast<std::int64_t>(bytes);
    update();
  }
  void remove(std::size_t bytes) { bytes_ -= static_cast<std::int64_t>(bytes); }
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

// Blocks share ownership of it (see memory_scope.cpp), because activations may be freed after the meter's scope.
class HostMemory final : public MemorySource {
 public:
  explicit HostMemory(std::shared_ptr<Taken> taken) : taken_(std::move(taken)) {}
  void* allocate(std::size_t bytes, c10::Allocator& below) override {
    auto* data = below.raw_allocate(bytes);
    taken_->add(bytes);
    return data;
  }
  void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) override {
    taken_->remove(bytes);
    free_below(data);
  }

 private:
  std::shared_ptr<Taken> taken_;
};

// The allocators of all devices report to the profiler of the thread, whose place this takes. LibTorch expects an
// object of this class there.
class DeviceMemory final : public torch::profiler::impl::ProfilerStateBase {
 public:
  DeviceMemory(std::shared_ptr<Taken> taken, c10::Device device)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        taken_(std::move(taken)),
        device_(device) {}

  void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    if (device != device_) return;
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      blocks_[data] = static_cast<std::size_t>(bytes);
      taken_->add(static_cast<std::size_t>(bytes));
    } else if (const auto block = blocks_.extract(data)) {
      taken_->remove(block.mapped());
    }
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

 private:
  std::shared_ptr<Taken> taken_;
  c10::Device device_;
  std::mutex mutex_;
  std::map<void*, std::size_t> blocks_;  // allocated under the meter
};

}  // namespace

struct ActivationMeter::State {
  std::shared_ptr<Taken> taken;
  MemoryScope host;
  std::optional<c10::DebugInfoGuard> on_device = {};
};

ActivationMeter::ActivationMeter(MemoryAccount& account, c10::Device device) {
  check_state(device.is_cpu() || c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == nullptr,
              "measure_activations: a profiler records, or another meter measures, and both use the reports of the "
              "device's allocator; measure in steps without them");
  const auto taken = std::make_shared<Taken>(account);
  state_.reset(new State{taken, MemoryScope(device.is_cpu() ? std::make_shared<HostMemory>(taken) : nullptr)});
  if (!device.is_cpu())
    state_->on_device.emplace(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<DeviceMemory>(taken, device));
}

ActivationMeter::~ActivationMeter() { state_->taken->update(); }

}  // namespace accel::sharded
