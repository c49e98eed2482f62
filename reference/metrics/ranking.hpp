#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reference/tree/value.hpp"

/// Metrics of scores at all thresholds. They keep all scores, 8 bytes each, since only these show the exact values.
///
///     accel::metrics::Auroc auroc;
///     auroc.update(probabilities, labels);
///     const double value = auroc.compute();
///
/// Values equal those of scikit-learn and of torchmetrics. Thread rule: values.
namespace accel::metrics {

struct RankingOptions {
  /// 2: scores of class 1. More: scores of each class, which is compared with all others; the result is the mean over
  /// the classes that have both targets and others.
  std::int64_t num_classes = 2;
};

/// The base of both: scores and targets.
class Ranking {
 public:
  /// `scores`: floating (n), or (n, num_classes) for more than two classes. `targets`: classes, int64 (n). Throws
  /// ArgumentError for other shapes and dtypes, for classes out of range, and for a score that is NaN.
  void update(const at::Tensor& scores, const at::Tensor& targets);
  void reset();
  [[nodiscard]] Value state_dict() const;
  /// Throws ArgumentError for the state of another number of classes.
  void load_state_dict(const Value& state);

 protected:
  // Samples with equal scores, the highest first: how many there are of each kind.
  struct Step {
    std::int64_t positives = 0, negatives = 0;
  };
  explicit Ranking(RankingOptions options);
  void merge_samples(const Ranking& other);
  // The mean of `of_class` over the classes that have positives, and negatives if `needs_negatives`.
  template <typename OfClass>
  [[nodiscard]] double mean_over_classes(bool needs_negatives, const OfClass& of_class) const;

 private:
  [[nodiscard]] std::vector<Step> steps_of(const at::Tensor& scores, const at::Tensor& are_positive) const;

  RankingOptions options_;
  std::vector<at::Tensor> scores_, targets_;  // of batches, on the CPU: float64 (n, columns), int64 (n)
};

/// The area under the receiver operating characteristic: the probability that a sample of the class has a higher score
/// than another, where equal scores count half. NaN if no class has both.
class Auroc : public Ranking {
 public:
  /// Throws ConfigError unless num_classes is 2 or more.
  explicit Auroc(RankingOptions options = {}) : Ranking(options) {}
  void merge(const Auroc& other) { merge_samples(other); }
  [[nodiscard]] double compute() const;
};

/// The mean of the precisions at the thresholds, weighted by how much recall grows there. NaN without targets.
class AveragePrecision : public Ranking {
 public:
  /// Throws ConfigError unless num_classes is 2 or more.
  explicit AveragePrecision(RankingOptions options = {}) : Ranking(options) {}
  void merge(const AveragePrecision& other) { merge_samples(other); }
  [[nodiscard]] double compute() const;
};

}  // namespace accel::metrics
