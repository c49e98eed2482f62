#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"

/// What a program hands to `prepare` where a DeepSpeed file has the optimizer and the schedule.
///
///     accel::DummyOptim dummy_optimizer{.params = net->parameters(), .lr = 3e-4};
///     accel::DummyScheduler dummy_scheduler(dummy_optimizer, {.total_num_steps = 1000, .warmup_num_steps = 100});
///     auto [model, optimizer, scheduler] = accelerator.prepare(net, dummy_optimizer, dummy_scheduler);
///
/// They fill what the file leaves "auto". The prepared schedule steps when the optimizer has stepped, once for each
/// step over all ranks; its own `step` does nothing. Thread rule: the rank's thread. Source:
/// accelerate/utils/deepspeed.py; deepspeed/runtime/engine.py.
namespace accel {

struct DummyOptim {
  std::vector<at::Tensor> params = {};
  double lr = 0.001;        ///< for "auto"
  double weight_decay = 0;  ///< for "auto"
};

struct DummySchedulerOptions {
  std::optional<int> total_num_steps =
      {};  ///< batches of one rank, on all of them together: a step over P ranks is P of them, unless batches are split
  int warmup_num_steps = 0;                         ///< optimizer steps
  ScheduleFactory lr_scheduler_callable = nullptr;  ///< in place of the file's schedule
};

class DummyScheduler {
 public:
  using Options = DummySchedulerOptions;
  /// It refers to the optimizer, which must live longer.
  explicit DummyScheduler(DummyOptim& optimizer, Options options = {})
      : dummy_(&optimizer), options_(std::move(options)) {}
  explicit DummyScheduler(torch::optim::Optimizer& optimizer, Options options = {})
      : optimizer_(&optimizer), options_(std::move(options)) {}

  [[nodiscard]] const DummyOptim* dummy() const { return dummy_; }  ///< or null
  [[nodiscard]] torch::optim::Optimizer* optimizer() const { return optimizer_; }
  [[nodiscard]] const Options& options() const { return options_; }

 private:
  const DummyOptim* dummy_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  Options options_;
};

/// The optimizers and schedules that stand in for dummies.
class DeepSpeedObjects {
 public:
  /// The one of a dummy, made by the file's section when it is first asked for. Throws ConfigError if the file has
  /// none, or one that is not built.
  torch::optim::Optimizer& optimizer_for(const DummyOptim& dummy, const std::string& file);
  /// `num_batches_per_step`: ranks, unless batches are split.
  LRScheduler& scheduler_for(const DummyScheduler& dummy, const std::string& file, int num_batches_per_step);

 private:
  struct Made {
    const DummyOptim* dummy;
    std::shared_ptr<torch::optim::Optimizer> optimizer = {};  // shared: whoever includes this need not know the class
  };
  std::vector<Made> optimizers_;
  std::vector<std::unique_ptr<LRScheduler>> schedulers_;
};

}  // namespace accel
