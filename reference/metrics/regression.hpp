#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>

#include "reference/metrics/exact_sum.hpp"
#include "reference/tree/value.hpp"

/// Metrics of predicted numbers, and the perplexity of predicted tokens. Sums have no rounding errors, so that results
/// do not depend on how samples are divided among ranks, nor on their order.
///
/// Values equal those of scikit-learn and of torchmetrics. Thread rule: values.
namespace accel::metrics {

/// The base of the metrics of pairs of numbers: sums over all of them.
class PairSums {
 public:
  /// Both floating, of equal sizes; all elements count. Throws ArgumentError for others.
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  void reset();
  [[nodiscard]] Value state_dict() const;
  /// Throws ArgumentError for the state of another metric.
  void load_state_dict(const Value& state);

 protected:
  /// What is summed, of x, a prediction, and y, a target.
  enum class Term { kX, kY, kXX, kYY, kXY, kSquaredError, kAbsoluteError };
  explicit PairSums(std::initializer_list<Term> terms);
  void merge_sums(const PairSums& other);
  [[nodiscard]] double num_samples() const { return static_cast<double>(num_samples_); }
  [[nodiscard]] const ExactSum& sum(Term term) const { return sums_.at(term); }
  [[nodiscard]] double mean(Term term) const { return sum(term).value() / num_samples(); }
  /// num_samples() times the sum of `products` of `a` and `b`, minus the sum of a times that of b.
  [[nodiscard]] double scaled_covariance(Term a, Term b, Term products) const;

 private:
  std::int64_t num_samples_ = 0;
  std::map<Term, ExactSum> sums_;
};

/// NaN without samples, as all metrics of this file.
class MeanSquaredError : public PairSums {
 public:
  MeanSquaredError() : PairSums({Term::kSquaredError}) {}
  void merge(const MeanSquaredError& other) { merge_sums(other); }
  [[nodiscard]] double compute() const { return mean(Term::kSquaredError); }
};

class MeanAbsoluteError : public PairSums {
 public:
  MeanAbsoluteError() : PairSums({Term::kAbsoluteError}) {}
  void merge(const MeanAbsoluteError& other) { merge_sums(other); }
  [[nodiscard]] double compute() const { return mean(Term::kAbsoluteError); }
};

/// The coefficient of determination: 1 for right predictions, 0 for those that are always the mean of the targets. With
/// equal targets 1 if all predictions are right, else 0. NaN for fewer than two samples.
class R2Score : public PairSums {
 public:
  R2Score() : PairSums({Term::kY, Term::kYY, Term::kSquaredError}) {}
  void merge(const R2Score& other) { merge_sums(other); }
  [[nodiscard]] double compute() const;
};

/// Pearson's correlation of predictions and targets. NaN if either are all equal, or for fewer than two samples.
class PearsonCorrelation : public PairSums {
 public:
  PearsonCorrelation() : PairSums({Term::kX, Term::kY, Term::kXX, Term::kYY, Term::kXY}) {}
  void merge(const PearsonCorrelation& other) { merge_sums(other); }
  [[nodiscard]] double compute() const;
};

/// The exponential of the mean negative log likelihood of tokens.
class Perplexity {
 public:
  /// Targets of `ignore_index` do not count.
  explicit Perplexity(std::optional<std::int64_t> ignore_index = std::nullopt) : ignore_index_(ignore_index) {}

  /// `logits`: floating (..., vocabulary). `targets`: tokens, int64 (...). Throws ArgumentError for other shapes and
  /// dtypes, and for tokens out of range.
  void update(const at::Tensor& logits, const at::Tensor& targets);
  void merge(const Perplexity& other);
  void reset();
  [[nodiscard]] double compute() const;
  [[nodiscard]] Value state_dict() const;
  void load_state_dict(const Value& state);

 private:
  std::optional<std::int64_t> ignore_index_;
  ExactSum negative_log_likelihood_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace accel::metrics
