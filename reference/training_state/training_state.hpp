#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "reference/checkpoint/module_state.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/core/value.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/prepared/accelerated_optimizer.hpp"
#include "reference/prepared/parallel_model.hpp"

namespace accel {

/// What an Accelerator has prepared, in that order, and what else a checkpoint holds of a program.
struct TrainingState {
  /// An object of the program's own.
  struct Custom {
    std::function<Value()> state_dict;
    std::function<void(const Value&)> load_state_dict;
  };
  std::vector<std::shared_ptr<ParallelModel>> models = {};
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

}  // namespace checkpoint
}  // namespace accel
