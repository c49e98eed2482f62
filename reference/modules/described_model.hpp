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

/// A module tree in the form that plans use, with its tensors in the order of the description.
struct DescribedModel {
  ModelDescription description = {};
  std::vector<at::Tensor> parameters = {};  ///< each once, under its first name
  struct NamedModule {
    std::string name = {};
    std::shared_ptr<torch::nn::Module> module = {};
  };
  std::vector<NamedModule> modules = {};  ///< in the description's order: a module, then its children
  NamedTensors names = {};                ///< every name of every parameter; a shared one has several
  NamedTensors buffers = {};              ///< every name of every buffer
};

enum class Repeats { kOnce, kEverywhere };

/// Describes a module tree. A module that occurs at several places is described at the first, or at each. Thread rule:
/// the rank's thread.
DescribedModel describe(const std::shared_ptr<torch::nn::Module>& module, Repeats repeats = Repeats::kOnce);

}  // namespace accel
