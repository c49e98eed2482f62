#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/core/value.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/prepared/accelerated_optimizer.hpp"
#include "reference/prepared/prepared_model.hpp"

namespace accel {

/// What an Accelerator has prepared, in that order, and what else a checkpoint holds of a program.
struct TrainingState {
  struct Model {
    std::shared_ptr<torch::nn::Module> module = {};
    std::shared_ptr<ModelWrapper> wrapper = {};
  };
  /// An object of the program's own.
  struct Custom {
    std::function<Value()> state_dict;
    std::function<void(const Value&)> load_state_dict;
  };
  std::vector<Model> models = {};
  std::vector<AcceleratedOptimizer> optimizers = {};
  std::vector<AcceleratedScheduler> schedulers = {};
  std::vector<std::weak_ptr<LoaderCore>> loaders = {};
  std::vector<Custom> custom = {};
  std::shared_ptr<GradientPath> path = {};
  int step = 0;                                      ///< micro-batches of the current accumulation window
  std::size_t num_models_with_optimizer_sought = 0;  ///< the first of `models`, which were looked at in a backward
};

namespace checkpoint {

using Weights = std::vector<NamedTensors>;  ///< of models, in their order

/// Parameters and buffers as Python's `state_dict` orders and names them: a module's own, then its children's.
[[nodiscard]] NamedTensors state_dict_of(const torch::nn::Module& module);

}  // namespace checkpoint
}  // namespace accel
