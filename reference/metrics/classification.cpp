#include "reference/metrics/classification.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/metrics/batch_check.hpp"

namespace accel::metrics {
namespace {

std::int64_t checked_classes(std::int64_t num_classes) {
  check_config(num_classes >= 2, "metrics: num_classes: expected 2 or more, got {}", num_classes);
  return num_classes;
}

// All problems at once, before anything has changed.
void check_predictions(const at::Tensor& predictions, const at::Tensor& targets, std::int64_t num_classes,
                       bool needs_scores) {
  std::vector<std::string> problems;
  const bool are_scores = at::isFloatingType(predictions.scalar_type());
  const bool are_classes = at::isIntegralType(predictions.scalar_type(), /*includeBool=*/true);
  const bool is_table = are_scores && predictions.dim() == 2 && predictions.size(1) == num_classes;
  const bool is_list = predictions.dim() == 1 && (are_classes || (are_scores && num_classes == 2));
  if (!is_table && (!is_list || needs_scores))
    problems.push_back(fmt::format("predictions {}; expected {}scores of [n, {}]", described(predictions),
                                   needs_scores ? "" : "classes of [n], or ", num_classes));
  check_targets(problems, targets, predictions.dim() > 0 ? predictions.size(0) : 1);
  if (problems.empty()) check_range(problems, "targets", targets, num_classes);
  if (problems.empty() && are_classes) check_range(problems, "predictions", predictions, num_classes);
  check_argument(problems.empty(), "metrics: {}", listed(problems, "; "));
}

// argmax leaves the choice among equal scores open.
at::Tensor classes_of(const at::Tensor& predictions) {
  if (!at::isFloatingType(predictions.scalar_type())) return predictions.to(at::kLong);
  if (predictions.dim() == 1) return predictions.gt(0.5).to(at::kLong);
  const auto is_highest = predictions.eq(predictions.amax(1, /*keepdim=*/true));
  return is_highest.to(at::kInt).cumsum(1).eq(0).sum(1).clamp_max(predictions.size(1) - 1);
}

ClassScoreOptions checked(ClassScoreOptions options) {
  std::vector<std::string> problems;
  const auto& average = options.average;
  if (average != "micro" && average != "macro" && average != "weighted" && average != "binary")
    problems.push_back(fmt::format("average: expected micro, macro, weighted or binary, got '{}'", average));
  if (average == "binary" && options.num_classes != 2)
    problems.push_back(fmt::format("average: binary is for 2 classes, not {}", options.num_classes));
  if (!(options.beta > 0)) problems.push_back(fmt::format("beta: expected above 0, got {}", options.beta));
  if (options.num_classes < 2)
    problems.push_back(fmt::format("num_classes: expected 2 or more, got {}", options.num_classes));
  check_config(problems.empty(), "metrics: {}", listed(problems, "; "));
  return options;
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::int64_t num_classes)
    : counts_(at::zeros({checked_classes(num_classes), num_classes}, at::kLong)) {}

void ConfusionMatrix::update(const at::Tensor& predictions, const at::Tensor& targets) {
  check_predictions(predictions, targets, num_classes(), /*needs_scores=*/false);
  const auto cells =
      (targets.to(at::kLong) * num_classes() + classes_of(predictions).to(targets.device())).to(at::kCPU);
  counts_ += at::bincount(cells, {}, num_classes() * num_classes()).view_as(counts_);
}

void ConfusionMatrix::merge(const ConfusionMatrix& other) {
  check_argument(other.num_classes() == num_classes(), "metrics: {} classes cannot be merged with {}", num_classes(),
                 other.num_classes());
  counts_ += other.counts_;
}

void ConfusionMatrix::reset() { counts_ = at::zeros_like(counts_); }

Value ConfusionMatrix::state_dict() const { return Value::Dict{{"counts", counts_.clone()}}; }

void ConfusionMatrix::load_state_dict(const Value& state) {
  const auto& counts = state.at("counts").as<at::Tensor>();
  check_argument(counts.sizes() == counts_.sizes(), "metrics: the state is of {} classes; expected {}", counts.size(0),
                 num_classes());
  counts_ = counts.clone();
}

Accuracy::Accuracy(AccuracyOptions options) : options_(options) {
  (void)checked_classes(options.num_classes);
  check_config(options.top_k >= 1 && options.top_k < options.num_classes,
               "metrics: top_k: expected 1 or more, and less than the {} classes, got {}", options.num_classes,
               options.top_k);
}

void Accuracy::update(const at::Tensor& predictions, const at::Tensor& targets) {
  check_predictions(predictions, targets, options_.num_classes, /*needs_scores=*/options_.top_k > 1);
  at::Tensor are_right;
  if (options_.top_k == 1) {
    are_right = classes_of(predictions).eq(targets);
  } else {
    const auto column = targets.to(at::kLong).unsqueeze(1);
    const auto own = predictions.gather(1, column);
    const auto before = at::arange(options_.num_classes, column.options()).unsqueeze(0).lt(column);
    const auto is_higher = predictions.gt(own).logical_or(predictions.eq(own).logical_and(before));
    are_right = is_higher.sum(1).lt(options_.top_k);
  }
  num_right_ += are_right.sum().item<std::int64_t>();
  num_samples_ += targets.numel();
}

void Accuracy::merge(const Accuracy& other) {
  num_right_ += other.num_right_;
  num_samples_ += other.num_samples_;
}

double Accuracy::compute() const {
  return num_samples_ == 0 ? kNan : static_cast<double>(num_right_) / static_cast<double>(num_samples_);
}

Value Accuracy::state_dict() const { return Value::Dict{{"right", num_right_}, {"samples", num_samples_}}; }

void Accuracy::load_state_dict(const Value& state) {
  num_right_ = state.at("right").as<std::int64_t>();
  num_samples_ = state.at("samples").as<std::int64_t>();
}

ClassScore::ClassScore(ClassScoreOptions options, Weights weights)
    : options_(checked(std::move(options))), weights_(weights), matrix_(options_.num_classes) {}

at::Tensor ClassScore::score(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const {
  const auto numerator = right.to(at::kDouble) * (weights_.predicted + weights_.actual);
  const auto denominator = predicted.to(at::kDouble) * weights_.predicted + actual.to(at::kDouble) * weights_.actual;
  return at::where(denominator.eq(0), at::zeros_like(numerator), numerator / denominator);
}

at::Tensor ClassScore::per_class() const {
  const auto counts = matrix_.compute();
  return score(counts.diagonal(), counts.sum(0), counts.sum(1));
}

double ClassScore::compute() const {
  const auto counts = matrix_.compute();
  const auto total = counts.sum();
  if (total.item<std::int64_t>() == 0) return kNan;
  if (options_.average == "micro") return score(counts.diagonal().sum(), total, total).item<double>();
  const auto scores = per_class();
  if (options_.average == "binary") return scores[1].item<double>();
  const auto actual = counts.sum(1).to(at::kDouble);
  const auto weights = options_.average == "weighted" ? actual : (counts.sum(0) + counts.sum(1)).gt(0).to(at::kDouble);
  return ((scores * weights).sum() / weights.sum()).item<double>();
}

Precision::Precision(ClassScoreOptions options) : ClassScore(std::move(options), {.predicted = 1, .actual = 0}) {}

Recall::Recall(ClassScoreOptions options) : ClassScore(std::move(options), {.predicted = 0, .actual = 1}) {}

FBeta::FBeta(ClassScoreOptions options)
    : ClassScore(options, {.predicted = 1, .actual = options.beta * options.beta}) {}

double MatthewsCorrelation::compute() const {
  const auto counts = matrix_.compute().to(at::kDouble);
  const double total = counts.sum().item<double>(), right = counts.diagonal().sum().item<double>();
  if (total == 0) return kNan;
  const auto predicted = counts.sum(0), actual = counts.sum(1);
  const double both = (predicted * actual).sum().item<double>();
  const double of_predicted = total * total - predicted.square().sum().item<double>();
  const double of_actual = total * total - actual.square().sum().item<double>();
  if (of_predicted == 0 || of_actual == 0) return 0;
  return (right * total - both) / std::sqrt(of_predicted * of_actual);
}

}  // namespace accel::metrics
