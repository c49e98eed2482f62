#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/pipeline/schedules/schedule_check.hpp"

/// Runs a schedule on the ranks of a group, each of which holds one or more stages of a model.
///
///     PipelineExecutor executor(mesh["pp"], {{.index = 0, .forward = first}}, make_schedule("1f1b", sizes));
///     executor.step(micro_batches, loss);   // on every rank; adds gradients
///
/// Stages exchange floating-point tensors with gradients, and others without. Gradients, added over micro-batches in
/// their order, have the bits of one rank that computes the micro-batches one after the other. Thread rule: the rank's
/// thread.
namespace accel::pipeline {

using Tensors = std::vector<at::Tensor>;

struct PipelineStage {
  int index = 0;  ///< from the input of the model on
  /// Computes one micro-batch: the outputs from the inputs of the stage. Called once per size of micro-batches without
  /// a micro-batch and without gradients, when nothing but the sizes of the outputs matters.
  std::function<Tensors(const Tensors& inputs, std::optional<int> micro_batch)> forward;
};

struct ExecutorOptions {
  Receives receives = Receives::kEager;
  std::optional<int> send_capacity =
      std::nullopt;  ///< messages to another rank that may be in flight before a send waits
};

class PipelineExecutor {
 public:
  /// `stages`: those that the schedule gives to this rank, in any order. Throws ConfigError, before any communication,
  /// if the check of the schedule finds a problem, and if the group or this rank's stages are others than the
  /// schedule's.
  PipelineExecutor(Group group, std::vector<PipelineStage> stages, const Schedule& schedule,
                   ExecutorOptions options = {});
  ~PipelineExecutor();
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  /// Returns the scalar on which to call backward for the outputs of the last stage. Called on its rank only.
  using Loss = std::function<at::Tensor(int micro_batch, const Tensors& outputs)>;
  /// Computes forward and backward of all micro-batches. `micro_batches`: the inputs of the first stage, of which other
  /// ranks need the sizes only; every rank passes as many as the schedule has. Returns the detached losses on the last
  /// stage's rank, and nothing on others. Collective.
  Tensors step(const std::vector<Tensors>& micro_batches, const Loss& loss);

  /// Forwards only, without gradients: returns the outputs of each micro-batch on the last stage's rank. The number of
  /// micro-batches may be any. Collective.
  std::vector<Tensors> forward(const std::vector<Tensors>& micro_batches);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accel::pipeline
