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
/// `sgd` is LibTorch's own, as Python's default is; `fused_sgd`, `adam`, `adamw` and `adagrad` are the fused kernels,
/// the rest the multi-tensor forms. Thread rule: pure functions.
namespace accel::programs {

struct OptimizerConfig {
  std::string name;
  std::variant<optim::SGDOptions, optim::AdamOptions, optim::AdamWOptions, optim::AdagradOptions, optim::RMSpropOptions,
               optim::AdadeltaOptions, optim::AdamaxOptions, optim::NAdamOptions, optim::RAdamOptions,
               optim::RpropOptions, optim::ASGDOptions>
      options;
};

OptimizerConfig read_optimizer(YamlReader reader);
std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerConfig& config,
                                                         std::vector<at::Tensor> parameters);

}  // namespace accel::programs
