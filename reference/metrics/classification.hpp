#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reference/tree/value.hpp"

/// Metrics of predicted classes: counts, which are exact and do not depend on how samples are divided among ranks.
///
///     accel::metrics::FBeta f1({.num_classes = 3, .average = "macro"});
///     f1.update(logits, labels);
///     const double value = f1.compute();
///
/// Values equal those of scikit-learn and of torchmetrics. Thread rule: values.
namespace accel::metrics {

/// How often each class was predicted for each class.
class ConfusionMatrix {
 public:
  /// Throws ConfigError unless num_classes is 2 or more.
  explicit ConfusionMatrix(std::int64_t num_classes);

  /// `predictions`: classes, int64 (n), or scores, floating (n, num_classes), of which the highest counts, the first of
  /// equal ones; with two classes also the probabilities of class 1, floating (n), which count from above 0.5 on.
  /// `targets`: classes, int64 (n). Throws ArgumentError for other shapes and dtypes, and for classes out of range.
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  void merge(const ConfusionMatrix& other);
  void reset();
  /// int64 (num_classes, num_classes): a row for each target, a column for each prediction.
  [[nodiscard]] at::Tensor compute() const { return counts_.clone(); }
  [[nodiscard]] Value state_dict() const;
  /// Throws ArgumentError for the state of another number of classes.
  void load_state_dict(const Value& state);

  [[nodiscard]] std::int64_t num_classes() const { return counts_.size(0); }

 private:
  at::Tensor counts_;  // on the CPU
};

struct AccuracyOptions {
  std::int64_t num_classes = 2;
  std::int64_t top_k = 1;  ///< a prediction is right if fewer than k classes have a higher score than the target
};

/// The share of right predictions. NaN without samples, as all metrics of this file.
class Accuracy {
 public:
  /// Throws ConfigError for num_classes below 2, and for top_k below 1 or not below num_classes.
  explicit Accuracy(AccuracyOptions options = {});

  /// As ConfusionMatrix::update. With top_k above 1 predictions are scores; of equal ones the first is the higher.
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  void merge(const Accuracy& other);
  void reset() { num_right_ = num_samples_ = 0; }
  [[nodiscard]] double compute() const;
  [[nodiscard]] Value state_dict() const;
  void load_state_dict(const Value& state);

 private:
  AccuracyOptions options_;
  std::int64_t num_right_ = 0, num_samples_ = 0;
};

struct ClassScoreOptions {
  std::int64_t num_classes = 2;
  /// "micro": of all samples together; "macro": the mean over classes; "weighted": the mean weighted by the number of
  /// targets of each class. Classes that are neither predicted nor a target do not count. "binary": of class 1, the
  /// only choice for which other classes do not count.
  std::string average = "macro";
  double beta = 1;  ///< of FBeta: how much more recall counts than precision
};

/// The base of Precision, Recall and FBeta: a value of each class, and their mean.
class ClassScore {
 public:
  void update(const at::Tensor& predictions, const at::Tensor& targets) { matrix_.update(predictions, targets); }
  void reset() { matrix_.reset(); }
  [[nodiscard]] Value state_dict() const { return matrix_.state_dict(); }
  void load_state_dict(const Value& state) { matrix_.load_state_dict(state); }
  /// Returns float64 (num_classes): 0 for a class whose denominator is 0.
  [[nodiscard]] at::Tensor per_class() const;
  [[nodiscard]] double compute() const;

 protected:
  struct Weights {
    double predicted = 0, actual = 0;  // of all that are predicted, or targets, in the denominator
  };
  ClassScore(ClassScoreOptions options, Weights weights);
  void merge_matrix(const ClassScore& other) { matrix_.merge(other.matrix_); }

 private:
  [[nodiscard]] at::Tensor score(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const;

  ClassScoreOptions options_;
  Weights weights_;
  ConfusionMatrix matrix_;
};

/// The share of a class's predictions that are right. Throws ConfigError for num_classes below 2 and another average.
class Precision : public ClassScore {
 public:
  explicit Precision(ClassScoreOptions options = {});
  void merge(const Precision& other) { merge_matrix(other); }
};

/// The share of a class's targets that are predicted. Throws ConfigError as Precision.
class Recall : public ClassScore {
 public:
  explicit Recall(ClassScoreOptions options = {});
  void merge(const Recall& other) { merge_matrix(other); }
};

/// The weighted harmonic mean of precision and recall; F1 with beta 1. Throws ConfigError as Precision, and for a beta
/// that is not above 0.
class FBeta : public ClassScore {
 public:
  explicit FBeta(ClassScoreOptions options = {});
  void merge(const FBeta& other) { merge_matrix(other); }
};

/// Matthews's correlation coefficient of predictions and targets; 0 if either is always the same class.
class MatthewsCorrelation {
 public:
  explicit MatthewsCorrelation(std::int64_t num_classes = 2) : matrix_(num_classes) {}
  void update(const at::Tensor& predictions, const at::Tensor& targets) { matrix_.update(predictions, targets); }
  void merge(const MatthewsCorrelation& other) { matrix_.merge(other.matrix_); }
  void reset() { matrix_.reset(); }
  [[nodiscard]] double compute() const;
  [[nodiscard]] Value state_dict() const { return matrix_.state_dict(); }
  void load_state_dict(const Value& state) { matrix_.load_state_dict(state); }

 private:
  ConfusionMatrix matrix_;
};

}  // namespace accel::metrics
