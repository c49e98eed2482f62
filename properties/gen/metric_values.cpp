#include "properties/gen/metric_values.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "reference/metrics/classification.hpp"
#include "reference/metrics/over_ranks.hpp"
#include "reference/metrics/ranking.hpp"
#include "reference/metrics/regression.hpp"
#include "reference/state/rank_context.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::json;

// What a metric reads.
struct Form {
  at::ScalarType predictions{}, targets{};
  std::int64_t columns = 0;  // of predictions; 0: they are a list
};
constexpr Form kClasses{at::kLong, at::kLong}, kNumbers{at::kDouble, at::kDouble};
constexpr Form scores_of(std::int64_t columns) { return {at::kDouble, at::kLong, columns}; }

at::Tensor samples_of(const Json& samples, at::ScalarType dtype, std::int64_t columns) {
  std::vector<double> numbers;
  for (const auto& sample : samples) {
    for (const auto& number : columns > 0 ? sample : Json::array({sample})) numbers.push_back(number);
  }
  const auto tensor = at::tensor(numbers, at::kDouble).to(dtype);
  return columns > 0 ? tensor.view({static_cast<std::int64_t>(samples.size()), columns}) : tensor;
}

Json answer_of(double value) { return std::isnan(value) ? Json() : Json(value); }
Json answer_of(const at::Tensor& counts) {
  if (counts.sum().item<std::int64_t>() == 0) return {};
  auto rows = Json::array();
  for (const auto& row : counts.unbind()) {
    const auto* const values = row.const_data_ptr<std::int64_t>();
    rows.push_back(std::vector<std::int64_t>(values, values + row.numel()));
  }
  return rows;
}

template <metrics::Metric M>
Json value_of(M metric, const Json& request, const Form& form) {
  const auto& rank = current_rank();
  const auto &predictions = request.at("predictions"), &targets = request.at("targets");
  for (std::size_t batch = rank.rank; batch < predictions.size(); batch += rank.world_size)
    metric.update(samples_of(predictions[batch], form.predictions, form.columns),
                  samples_of(targets[batch], form.targets, 0));
  return answer_of(metrics::over_ranks(metric).compute());
}

}  // namespace

Json metric_value(const Json& request) {
  const std::string name = request.at("metric");
  const auto& options = request.at("options");
  const auto num_classes = options.value("num_classes", std::int64_t{2});
  const metrics::ClassScoreOptions score{
      .num_classes = num_classes, .average = options.value("average", "macro"), .beta = options.value("beta", 1.0)};
  const metrics::RankingOptions ranking{.num_classes = num_classes};
  const auto scores = scores_of(num_classes == 2 ? 0 : num_classes);
  if (name == "accuracy")
    return value_of(metrics::Accuracy({.num_classes = num_classes, .top_k = options.value("top_k", std::int64_t{1})}),
                    request, scores_of(num_classes));
  if (name == "precision") return value_of(metrics::Precision(score), request, kClasses);
  if (name == "recall") return value_of(metrics::Recall(score), request, kClasses);
  if (name == "f_beta") return value_of(metrics::FBeta(score), request, kClasses);
  if (name == "confusion_matrix") return value_of(metrics::ConfusionMatrix(num_classes), request, kClasses);
  if (name == "matthews") return value_of(metrics::MatthewsCorrelation(num_classes), request, kClasses);
  if (name == "auroc") return value_of(metrics::Auroc(ranking), request, scores);
  if (name == "average_precision") return value_of(metrics::AveragePrecision(ranking), request, scores);
  if (name == "mse") return value_of(metrics::MeanSquaredError(), request, kNumbers);
  if (name == "mae") return value_of(metrics::MeanAbsoluteError(), request, kNumbers);
  if (name == "r2") return value_of(metrics::R2Score(), request, kNumbers);
  if (name == "pearson") return value_of(metrics::PearsonCorrelation(), request, kNumbers);
  const auto ignored =
      options.contains("ignore_index") ? std::optional<std::int64_t>(options["ignore_index"]) : std::nullopt;
  return value_of(metrics::Perplexity(ignored), request, scores_of(5));
}

}  // namespace accel::testing
