#pragma once

#include <source_location>

#include "reference/accelerator/preparation.hpp"
#include "reference/accelerator/process_control.hpp"
#include "reference/accelerator/run_tracking.hpp"
#include "reference/accelerator/state_saving.hpp"
#include "reference/accelerator/training_step.hpp"
#include "reference/accelerator/tree_operations.hpp"

/// The front end: Hugging Face Accelerate's Accelerator for C++ and LibTorch.
///
///     accel::Accelerator accelerator({.mixed_precision = "bf16"});
///     auto [model, optimizer, batches] = accelerator.prepare(net, sgd, loader);
///     for (auto& [image, label] : batches) {
///       auto window = accelerator.accumulate(model);
///       auto loss = torch::nn::functional::cross_entropy(model(image), label);
///       accelerator.backward(loss);
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// Its methods are declared by part:
///
/// | part | methods |
/// |---|---|
/// | AcceleratorState | num_processes, device, sync_gradients, split_batches, select_deepspeed_plugin ... |
/// | Preparation | prepare, prepare_model, unwrap_model, free_memory ... |
/// | TrainingStep | accumulate, no_sync, backward, clip_grad_norm_, autocast, join_uneven_inputs ... |
/// | StateSaving | save_state, load_state, save_model, get_state_dict, gathered_parameters ... |
/// | TreeOperations | gather, gather_for_metrics, reduce, broadcast, split_between_processes ... |
/// | ProcessControl | wait_for_everyone, print, on_main_process, main_process_first, check_trigger ... |
/// | RunTracking | init_trackers, log, get_tracker, profile, memory_account ... |
///
/// It works over the rank that this thread runs: one process alone, one of a Gloo or NCCL job, or a simulated rank.
/// Thread rule: the rank's thread. Methods that say "collective" are called by every rank, in the same order.
/// Source: accelerate/accelerator.py.
namespace accel {

class Accelerator : public Preparation,
                    public TrainingStep,
                    public StateSaving,
                    public TreeOperations,
                    public ProcessControl,
                    public RunTracking {
 public:
  /// Throws ConfigError with all problems of the options and of the environment, the same on every rank.
  explicit Accelerator(AcceleratorOptions options = {});
  Accelerator(AcceleratorOptions options, RankContext& context);

  /// The last call of a training: checkpoints that are being written get their names, trackers finish. Collective.
  void end_training(std::source_location where = std::source_location::current()) {
    finish_saving(where);
    finish_trackers();
  }
};

}  // namespace accel
