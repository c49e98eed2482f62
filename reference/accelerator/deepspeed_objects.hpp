#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"

/// Placeholders that a program passes to `prepare` when a DeepSpeed file defines the optimizer and the schedule.
///
///     accel::DummyOptim dummy_optimizer{.params = net->parameters(), .lr = 3e-4};
///     accel::DummyScheduler dummy_scheduler(dummy_optimizer, {.total_num_steps = 1000, .warmup_num_steps = 100});
///     auto [model, optimizer, scheduler] = accelerator.prepare(net, dummy_optimizer, dummy_scheduler);
///
/// Their members replace the values that the file sets to "auto". The prepared schedule advances automatically with
/// each optimizer step; calling its `step` has no effect. Thread rule: the rank's thread. Source:
/// accelerate/utils/deepspeed.py; deepspeed/runtime/engine.py.
namespace accel {

struct DummyOptim {
  std::vector<at::Tensor> params = {};
  double lr = 0.001;        ///< replaces "auto"
  double weight_decay = 0;  ///< replaces "auto"
};

struct DummySchedulerOptions {
  /// In batches summed over the data-parallel ranks: one step over P of them counts P, unless batches are split.
  std::optional<int> total_num_steps = {};
  int warmup_num_steps = 0;                         ///< in optimizer steps
  ScheduleFactory lr_scheduler_callable = nullptr;  ///< creates the schedule instead of the file
};

class DummyScheduler {
 public:
  using Options = DummySchedulerOptions;
  /// Borrows the optimizer, which must outlive this object.
  explicit DummyScheduler(DummyOptim& optimizer, Options options = {})
      : dummy_(&optimizer), options_(std::move(options)) {}
  explicit DummyScheduler(torch::optim::Optimizer& optimizer, Options options = {})
      : optimizer_(&optimizer), options_(std::move(options)) {}

  [[nodiscard]] const DummyOptim* dummy() const { return dummy_; }  ///< null if made from a real optimizer
  [[nodiscard]] torch::optim::Optimizer* optimizer() const { return optimizer_; }
  [[nodiscard]] const Options& options() const { return options_; }

 private:
  const DummyOptim* dummy_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  Options options_;
};

/// Creates and owns the real optimizers and schedules that replace the placeholders.
class DeepSpeedObjects {
 public:
  /// Returns the optimizer that replaces `dummy`; creates it from the file's section on the first call. Throws
  /// ConfigError if the file has no optimizer section or names an unsupported type.
  torch::optim::Optimizer& optimizer_for(const DummyOptim& dummy, const std::string& file);
  /// `num_batches_per_step`: the number of data-parallel ranks, or 1 if batches are split.
  LRScheduler& scheduler_for(const DummyScheduler& dummy, const std::string& file, int num_batches_per_step);

 private:
  struct Made {
    const DummyOptim* dummy;
    std::shared_ptr<torch::optim::Optimizer> optimizer = {};  // shared_ptr, since the class is incomplete here
  };
  std::vector<Made> optimizers_;
  std::vector<std::unique_ptr<LRScheduler>> schedulers_;
};

}  // namespace accel
