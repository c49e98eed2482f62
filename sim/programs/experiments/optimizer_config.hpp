#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "reference/config/yaml_reader.hpp"
#include "reference/optim/optimizers/optimizers.hpp"

/// The `optimizer` of an experiment: a name, and the arguments of Python's class by their names.
///
///     optimizer: {name: rmsprop, lr: 0.01, momentum: 0.9, centered: true}
///
/// The names are those of `optim::kOptimizers`, and `sgd`: LibTorch's class, since Python's SGD is not fused by
/// default. Thread rule: pure functions.
namespace accel::programs {

struct OptimizerConfig {
  std::string name;
  optim::OptionsOfAll<std::variant> options;
};

OptimizerConfig read_optimizer(YamlReader reader);
std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerConfig& config,
                                                         std::vector<at::Tensor> parameters);

}  // namespace accel::programs
