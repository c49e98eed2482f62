#pragma once

#include <source_location>

#include "reference/accelerator/preparation.hpp"
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
/// Its methods are declared in these base classes:
///
/// | part | methods |
/// |---|---|
/// | PartialState | num_processes, device, wait_for_everyone, print, on_main_process, split_between_processes ... |
/// | AcceleratorState | mixed_precision, sync_gradients, split_batches, select_deepspeed_plugin ... |
/// | Preparation | prepare, prepare_model, unwrap_model, free_memory ... |
/// | TrainingStep | accumulate, no_sync, backward, clip_grad_norm_, autocast, join_uneven_inputs, check_trigger ... |
/// | StateSaving | save_state, load_state, save_model, get_state_dict, gathered_parameters ... |
/// | TreeOperations | gather, gather_for_metrics, reduce, broadcast, pad_across_processes ... |
/// | RunTracking | init_trackers, log, get_tracker, profile, memory_account ... |
///
/// An Accelerator serves the rank that this thread runs: a single process, a rank of a Gloo or NCCL job, or a simulated
/// rank. Thread rule: the rank's thread. Every rank must call the methods marked "Collective", in the same order.
/// Source: accelerate/accelerator.py.
namespace accel {

class Accelerator final : public Preparation,
                          public TrainingStep,
                          public StateSaving,
                          public TreeOperations,
                          public RunTracking {
 public:
  /// Validates the options and the environment. Collective: it creates process groups. Throws ConfigError that lists
  /// all problems, the same on every rank.
  explicit Accelerator(AcceleratorOptions options = {});
  Accelerator(AcceleratorOptions options, RankContext& context);

  /// Ends a training run: waits for checkpoints that are still being written and finishes the trackers. Call it last.
  /// Collective.
  void end_training(std::source_location where = std::source_location::current()) {
    finish_saving(where);
    finish_trackers();
  }
};

}  // namespace accel
