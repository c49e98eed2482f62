#include "reference/metrics/ranking.hpp"

#include <ATen/ATen.h>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/metrics/batch_check.hpp"

namespace accel::metrics {
namespace {

void check_scores(const at::Tensor& scores, const at::Tensor& targets, std::int64_t num_classes) {
  std::vector<std::string> problems;
  const bool is_binary = num_classes == 2;
  const bool fits = at::isFloatingType(scores.scalar_type()) &&
                    (is_binary ? scores.dim() == 1 : scores.dim() == 2 && scores.size(1) == num_classes);
  if (!fits)
    problems.push_back(fmt::format("scores {}; expected floating [n{}]", described(scores),
                                   is_binary ? "" : fmt::format(", {}", num_classes)));
  check_targets(problems, targets, scores.dim() > 0 ? scores.size(0) : 1);
  if (problems.empty()) check_range(problems, "targets", targets, num_classes);
  if (problems.empty() && scores.isnan().any().item<bool>()) problems.emplace_back("a score is NaN");
  check_argument(problems.empty(), "metrics: {}", listed(problems, "; "));
}

}  // namespace

Ranking::Ranking(RankingOptions options) : options_(options) {
  check_config(options.num_classes >= 2, "metrics: num_classes: expected 2 or more, got {}", options.num_classes);
}

void Ranking::update(const at::Tensor& scores, const at::Tensor& targets) {
  check_scores(scores, targets, options_.num_classes);
  scores_.push_back(scores.detach()
                        .to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true)
                        .reshape({targets.size(0), options_.num_classes == 2 ? 1 : options_.num_classes}));
  targets_.push_back(targets.detach().to(at::kCPU, at::kLong, /*non_blocking=*/false, /*copy=*/true));
}

void Ranking::merge_samples(const Ranking& other) {
  check_argument(other.options_.num_classes == options_.num_classes, "metrics: {} classes cannot be merged with {}",
                 options_.num_classes, other.options_.num_classes);
  scores_.insert(scores_.end(), other.scores_.begin(), other.scores_.end());
  targets_.insert(targets_.end(), other.targets_.begin(), other.targets_.end());
}

void Ranking::reset() {
  scores_.clear();
  targets_.clear();
}

Value Ranking::state_dict() const {
  const auto columns = options_.num_classes == 2 ? 1 : options_.num_classes;
  return Value::Dict{{"scores", scores_.empty() ? at::empty({0, columns}, at::kDouble) : at::cat(scores_)},
                     {"targets", targets_.empty() ? at::empty({0}, at::kLong) : at::cat(targets_)},
                     {"num_classes", options_.num_classes}};
}

void Ranking::load_state_dict(const Value& state) {
  const auto num_classes = state.at("num_classes").as<std::int64_t>();
  check_argument(num_classes == options_.num_classes, "metrics: the state is of {} classes; expected {}", num_classes,
                 options_.num_classes);
  scores_ = {state.at("scores").as<at::Tensor>()};
  targets_ = {state.at("targets").as<at::Tensor>()};
}

std::vector<Ranking::Step> Ranking::steps_of(const at::Tensor& scores, const at::Tensor& are_positive) const {
  const auto order = scores.argsort(/*dim=*/0, /*descending=*/true);
  const auto sorted = scores.index_select(0, order), positive = are_positive.index_select(0, order).to(at::kLong);
  const auto* const score = sorted.const_data_ptr<double>();
  const auto* const is_positive = positive.const_data_ptr<std::int64_t>();
  std::vector<Step> steps;
  for (std::int64_t sample = 0; sample < sorted.numel(); ++sample) {
    if (sample == 0 || score[sample] != score[sample - 1]) steps.emplace_back();
    ++(is_positive[sample] != 0 ? steps.back().positives : steps.back().negatives);
  }
  return steps;
}

template <typename OfClass>
double Ranking::mean_over_classes(bool needs_negatives, const OfClass& of_class) const {
  double sum = 0;
  int num_defined = 0;
  const auto state = state_dict();
  const auto &scores = state.at("scores").as<at::Tensor>(), &targets = state.at("targets").as<at::Tensor>();
  const bool is_binary = options_.num_classes == 2;
  for (std::int64_t index = is_binary ? 1 : 0; index < options_.num_classes; ++index) {
    const auto are_positive = targets.eq(index);
    const auto num_positives = are_positive.sum().item<std::int64_t>();
    if (num_positives == 0 || (needs_negatives && num_positives == targets.numel())) continue;
    sum += of_class(steps_of(scores.select(1, is_binary ? 0 : index).contiguous(), are_positive));
    ++num_defined;
  }
  return num_defined > 0 ? sum / num_defined : kNan;
}

double Auroc::compute() const {
  return mean_over_classes(/*needs_negatives=*/true, [](const std::vector<Step>& steps) {
    // Twice the number of pairs that are ordered rightly, in integers.
    std::int64_t pairs = 0, positives = 0, negatives = 0;
    for (const auto& step : steps) {
      pairs += (2 * positives + step.positives) * step.negatives;
      positives += step.positives;
      negatives += step.negatives;
    }
    return static_cast<double>(pairs) / (2 * static_cast<double>(positives) * static_cast<double>(negatives));
  });
}

double AveragePrecision::compute() const {
  return mean_over_classes(/*needs_negatives=*/false, [](const std::vector<Step>& steps) {
    double sum = 0;
    std::int64_t positives = 0, samples = 0;
    for (const auto& step : steps) {
      positives += step.positives;
      samples += step.positives + step.negatives;
      sum += static_cast<double>(step.positives) * static_cast<double>(positives) / static_cast<double>(samples);
    }
    return sum / static_cast<double>(positives);
  });
}

}  // namespace accel::metrics
