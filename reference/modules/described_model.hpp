#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/modules/model_description.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

/// A module tree as the plan sees it, with its tensors in the description's order.
struct DescribedModel {
  ModelDescription description = {};
  std::vector<at::Tensor> parameters = {};  ///< each once, under its first name
  struct NamedModule {
    std::string name = {};
    std::shared_ptr<torch::nn::Module> module = {};
  };
  std::vector<NamedModule> modules = {};  ///< in the description's order: a module, then its children
  NamedTensors names = {};                ///< every place of every parameter
  NamedTensors buffers = {};              ///< likewise
};

enum class Repeats { kOnce, kEverywhere };

/// A module that stands at several places is described at its first, or at each. Thread rule: the rank's thread.
DescribedModel describe(const std::shared_ptr<torch::nn::Module>& module, Repeats repeats = Repeats::kOnce);

}  // namespace accel
