#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/data/loader.hpp"
#include "reference/prepared/accelerated_optimizer.hpp"
#include "reference/prepared/parallel_model.hpp"
#include "reference/tree/value.hpp"

namespace accel {

/// Everything that an Accelerator has prepared, in order of preparation, and everything else that a checkpoint stores.
struct TrainingState {
  /// An object that the program has registered for checkpointing. registered_state.hpp has its complete state.
  struct Custom {
    std::function<Value()> state_dict;  ///< of this rank: ranks may hold parts of tensors
    std::function<void(const Value&)> load_state_dict;
    std::shared_ptr<torch::nn::Module> module = {};           ///< null for other objects
    std::shared_ptr<ParameterLayouts> layouts = {};           ///< of the module
    std::shared_ptr<torch::optim::Optimizer> optimizer = {};  ///< null for other objects
  };
  std::vector<std::shared_ptr<ParallelModel>> models = {};
  std::vector<AcceleratedOptimizer> optimizers = {};
  std::vector<AcceleratedScheduler> schedulers = {};
  std::vector<std::weak_ptr<detail::Loader>> loaders = {};
  std::vector<Custom> custom = {};
  std::shared_ptr<GradientPipeline> path = {};
  ParallelismConfig mesh = {};                       ///< of the ranks
  int step = 0;                                      ///< micro-batches of the current accumulation window
  std::size_t num_models_checked_for_optimizer = 0;  ///< number of `models` already checked for an optimizer
};

namespace checkpoint {

using Weights = std::vector<NamedTensors>;  ///< one entry per model, in order

}  // namespace checkpoint
}  // namespace accel
