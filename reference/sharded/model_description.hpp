#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "reference/sharded/unit_plan.hpp"
#include "reference/state/step_listener.hpp"

namespace torch::nn {
class Module;
}

namespace accel::sharded {

/// A module tree as the plan sees it, with its tensors in the description's order.
struct DescribedModel {
  ModelDescription description;
  std::vector<at::Tensor> parameters;                  ///< each once, under its first name
  struct NamedModule {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
  };
  std::vector<NamedModule> modules;                    ///< in the description's order: a module, then its children
  NamedTensors names;                                  ///< every place of every parameter
  NamedTensors buffers;
};

/// Thread rule: the rank's thread. A module that stands at two places is described at its first.
DescribedModel describe(const std::shared_ptr<torch::nn::Module>& module);

}  // namespace accel::sharded
