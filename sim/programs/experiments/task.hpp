#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/programs/experiments/experiment.hpp"

namespace accel::models {
class Model;
}

namespace accel::programs {

/// Samples of any kind, batch by batch: (inputs, targets). A map-style dataset. Thread rule: any number of readers;
/// copies share the samples.
class TaskDataset {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  /// Anything with size() and get_batch(indices).
  template <typename Samples>
  explicit TaskDataset(Samples samples) : size_(samples.size()) {
    get_batch_ = [samples = std::make_shared<Samples>(std::move(samples))](const auto& indices) {
      return samples->get_batch(indices);
    };
  }

  /// The first `limit` samples, if there is a limit.
  [[nodiscard]] TaskDataset first(std::optional<std::int64_t> limit) const;
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const { return get_batch_(indices); }

 private:
  std::int64_t size_;
  std::function<Batch(const std::vector<std::int64_t>&)> get_batch_;
};

/// What is to be learnt: data, and networks that can. Read only, shared by all ranks of a process.
///
///     const auto task = load_task(experiment);
///     auto model = task.make_model();
///     auto loss = task_loss(model->forward(inputs), targets);
///
/// Every task names the class of each thing it sees, of an image or of the next byte, so that the loss and the metric
/// (how many names are right) are one. Thread rule: any number of readers; each model belongs to its rank.
struct Task {
  TaskDataset train, eval;
  /// Draws its weights from the rank's default generator, as the Python twin does.
  std::function<std::shared_ptr<models::Model>()> make_model;
};

/// Throws ConfigError that names a file that is missing, damaged or too short.
Task load_task(const Experiment& experiment);

/// Cross entropy of logits (..., C) and classes (...), the mean over all of them.
at::Tensor task_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace accel::programs
