#pragma once

#include <functional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

/// Learning-rate schedules with the values of Python's torch.optim.lr_scheduler.
///
///     accel::LambdaLR scheduler(optimizer, [](int k) { return std::max(0.0, 1.0 - k / 100.0); });
///     optimizer.step();
///     scheduler.step();
///
/// A schedule keeps a reference to its optimizer, which must live longer. Thread rule: the rank's thread.
/// Source: torch/optim/lr_scheduler.py.
namespace accel {

class LRScheduler {
 public:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);
  virtual ~LRScheduler() = default;

  void step();
  [[nodiscard]] int last_epoch() const { return last_epoch_; }
  /// Of each parameter group, as last set.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return optimizer_; }

 protected:
  /// The rates for `last_epoch()`; `current` are the groups' rates now.
  virtual std::vector<double> get_lr(const std::vector<double>& current) const = 0;
  /// To be called at the end of a derived constructor: sets the rates of epoch 0.
  void initial_step() { step(); }
  [[nodiscard]] const std::vector<double>& base_lrs() const { return base_lrs_; }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_lrs_;
  int last_epoch_ = -1;
};

/// The initial rate times `factor(epoch)`.
class LambdaLR : public LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(int epoch)> factor);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::function<double(int)> factor_;
};

/// The rate times `gamma` after every `step_size` epochs.
class StepLR : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, int step_size, double gamma = 0.1);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  int step_size_;
  double gamma_;
};

}  // namespace accel
