#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/state/device_mesh.hpp"
#include "sim/programs/experiments/experiment.hpp"

namespace accel::models {
class Model;
}

namespace accel::programs {

/// A map-style dataset that returns batches (inputs, targets) of any kind of samples. Thread rule: any number of
/// readers; copies share the samples.
class TaskDataset {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  /// Wraps anything with size() and get_batch(indices).
  template <typename Samples>
  explicit TaskDataset(Samples samples) : size_(samples.size()) {
    get_batch_ = [samples = std::make_shared<Samples>(std::move(samples))](const auto& indices) {
      return samples->get_batch(indices);
    };
  }

  /// Returns the dataset limited to the first `limit` samples, or unchanged without a limit.
  [[nodiscard]] TaskDataset first(std::optional<std::int64_t> limit) const;
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const { return get_batch_(indices); }

 private:
  std::int64_t size_;
  std::function<Batch(const std::vector<std::int64_t>&)> get_batch_;
};

/// A learning task: its data, and a factory for models. Read-only, shared by all ranks of a process.
///
///     const auto task = load_task(experiment);
///     auto model = task.make_model(accelerator.mesh());
///     auto loss = task_loss(model->forward(inputs), targets);
///
/// Every task is a classification, of an image or of the next byte, so that all tasks share the loss and the metric
/// (accuracy). Thread rule: any number of readers; each model belongs to its rank.
struct Task {
  TaskDataset train, eval;
  /// Draws the weights from the rank's default generator, as the equivalent Python program does.
  /// Divides a gpt over the mesh; other models are complete on every rank.
  std::function<std::shared_ptr<models::Model>(const DeviceMesh& mesh)> make_model;
};

/// Loads the experiment's task. Throws ConfigError that names a missing, damaged or too short file.
Task load_task(const Experiment& experiment);

/// Returns the mean cross entropy of logits (..., C) and classes (...).
at::Tensor task_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace accel::programs
