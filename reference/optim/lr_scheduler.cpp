#include "reference/optim/lr_scheduler.hpp"

#include <torch/optim/optimizer.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer) : optimizer_(optimizer), base_lrs_(rates_of(optimizer)) {}

void LRScheduler::step() {
  ++last_epoch_;
  const auto rates = get_lr(rates_of(optimizer_));
  auto& groups = optimizer_.param_groups();
  ensure(rates.size() == groups.size(), "a schedule gave {} rates for {} groups", rates.size(), groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(rates[group]);
}

std::vector<double> LRScheduler::get_last_lr() const { return rates_of(optimizer_); }

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(int)> factor)
    : LRScheduler(optimizer), factor_(std::move(factor)) {
  initial_step();
}

std::vector<double> LambdaLR::get_lr(const std::vector<double>& /*current*/) const {
  auto rates = base_lrs();
  for (auto& rate : rates) rate *= factor_(last_epoch());
  return rates;
}

StepLR::StepLR(torch::optim::Optimizer& optimizer, int step_size, double gamma)
    : LRScheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  check_argument(step_size >= 1, "StepLR: step_size: expected 1 or more, got {}", step_size);
  initial_step();
}

std::vector<double> StepLR::get_lr(const std::vector<double>& current) const {
  auto rates = current;
  if (last_epoch() != 0 && last_epoch() % step_size_ == 0) {
    for (auto& rate : rates) rate *= gamma_;
  }
  return rates;
}

}  // namespace accel
