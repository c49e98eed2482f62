#pragma once

#include <string>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "tests/support/torch.hpp"

/// Optimizers and messages for the tests of schedules. Thread rule: the test's thread.
namespace accel::testing {

/// SGD with one parameter group for each rate.
inline torch::optim::SGD sgd(const std::vector<double>& rates, double momentum = 0.0) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto rate : rates) {
    auto options = std::make_unique<torch::optim::SGDOptions>(rate);
    options->momentum(momentum);
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()}, std::move(options));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(1.0).momentum(momentum));
}

inline double rate_of(torch::optim::Optimizer& optimizer, std::size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}
inline void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  optimizer.param_groups()[0].options().set_lr(rate);
}

/// The first group's rates at the start and after each step.
inline std::vector<double> rates_over(LRScheduler& scheduler, int num_steps) {
  std::vector<double> rates = {scheduler.get_last_lr().front()};
  for (int step = 0; step < num_steps; ++step) {
    scheduler.step();
    rates.push_back(scheduler.get_last_lr().front());
  }
  return rates;
}

/// The message that `act` throws if it is an `Error`; "" if it throws nothing.
template <typename Error, typename Act>
std::string message_thrown(Act&& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace accel::testing
