#include "reference/metrics/regression.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/metrics/batch_check.hpp"

namespace accel::metrics {
namespace {

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU, at::kDouble).contiguous(); }

}  // namespace

void PairSums::update(const at::Tensor& predictions, const at::Tensor& targets) {
  check_argument(at::isFloatingType(predictions.scalar_type()) && at::isFloatingType(targets.scalar_type()) &&
                     predictions.sizes() == targets.sizes(),
                 "metrics: predictions {} and targets {}; expected floating, of equal sizes", described(predictions),
                 described(targets));
  const auto of_x = on_host(predictions), of_y = on_host(targets);
  const auto *const x = of_x.const_data_ptr<double>(), *const y = of_y.const_data_ptr<double>();
  for (std::int64_t sample = 0; sample < of_x.numel(); ++sample) {
    const double error = y[sample] - x[sample];
    x_.add(x[sample]);
    y_.add(y[sample]);
    xx_.add_product(x[sample], x[sample]);
    yy_.add_product(y[sample], y[sample]);
    xy_.add_product(x[sample], y[sample]);
    squared_errors_.add_product(error, error);
    absolute_errors_.add(std::abs(error));
  }
  num_samples_ += of_x.numel();
}

void PairSums::merge_sums(const PairSums& other) {
  num_samples_ += other.num_samples_;
  for (const auto sum : {&PairSums::x_, &PairSums::y_, &PairSums::xx_, &PairSums::yy_, &PairSums::xy_,
                         &PairSums::squared_errors_, &PairSums::absolute_errors_})
    (this->*sum).add(other.*sum);
}

Value PairSums::state_dict() const {
  return Value::Dict{{"samples", num_samples_},
                     {"x", x_.to_value()},
                     {"y", y_.to_value()},
                     {"xx", xx_.to_value()},
                     {"yy", yy_.to_value()},
                     {"xy", xy_.to_value()},
                     {"squared_errors", squared_errors_.to_value()},
                     {"absolute_errors", absolute_errors_.to_value()}};
}

void PairSums::load_state_dict(const Value& state) {
  num_samples_ = state.at("samples").as<std::int64_t>();
  x_ = ExactSum::of_value(state.at("x"));
  y_ = ExactSum::of_value(state.at("y"));
  xx_ = ExactSum::of_value(state.at("xx"));
  yy_ = ExactSum::of_value(state.at("yy"));
  xy_ = ExactSum::of_value(state.at("xy"));
  squared_errors_ = ExactSum::of_value(state.at("squared_errors"));
  absolute_errors_ = ExactSum::of_value(state.at("absolute_errors"));
}

namespace {

// num_samples * the sum of a * b, minus the sum of a times that of b: num_samples^2 times the covariance.
ExactSum scaled_covariance(double num_samples, const ExactSum& a, const ExactSum& b, const ExactSum& products) {
  ExactSum count, covariance;
  count.add(num_samples);
  covariance.add_product(count, products);
  covariance.add_product(a, b, /*is_negative=*/true);
  return covariance;
}

}  // namespace

double R2Score::compute() const {
  if (num_samples_ < 2) return kNan;
  const double errors = squared_errors_.value() * num_samples();
  const double variance = scaled_covariance(num_samples(), y_, y_, yy_).value();
  if (variance == 0) return errors == 0 ? 1 : 0;
  return 1 - errors / variance;
}

double PearsonCorrelation::compute() const {
  if (num_samples_ < 2) return kNan;
  const double of_x = scaled_covariance(num_samples(), x_, x_, xx_).value(),
               of_y = scaled_covariance(num_samples(), y_, y_, yy_).value();
  if (of_x == 0 || of_y == 0) return kNan;
  const double both = scaled_covariance(num_samples(), x_, y_, xy_).value();
  return std::clamp(both / (std::sqrt(of_x) * std::sqrt(of_y)), -1.0, 1.0);
}

void Perplexity::update(const at::Tensor& logits, const at::Tensor& targets) {
  std::vector<std::string> problems;
  if (!at::isFloatingType(logits.scalar_type()) || logits.dim() < 1)
    problems.push_back(fmt::format("logits {}; expected floating [..., vocabulary]", described(logits)));
  else if (!at::isIntegralType(targets.scalar_type(), false) ||
           targets.sizes() != logits.sizes().slice(0, logits.dim() - 1))
    problems.push_back(fmt::format("targets {} for logits {}; expected tokens of the same sizes, without the last",
                                   described(targets), described(logits)));
  at::Tensor tokens, rows;
  if (problems.empty()) {
    tokens = targets.detach().to(at::kLong).flatten();
    rows = logits.detach().reshape({tokens.numel(), logits.size(-1)});
    if (ignore_index_) {
      const auto counted = tokens.ne(*ignore_index_).nonzero().flatten();
      tokens = tokens.index_select(0, counted);
      rows = rows.index_select(0, counted.to(rows.device()));
    }
    const auto is_wrong = tokens.lt(0).logical_or(tokens.ge(logits.size(-1)));
    if (is_wrong.any().item<bool>())
      problems.push_back(fmt::format("a token of {}; expected 0 to {}",
                                     tokens.masked_select(is_wrong)[0].item<std::int64_t>(), logits.size(-1) - 1));
  }
  check_argument(problems.empty(), "metrics: {}", listed(problems, "; "));
  constexpr std::int64_t kRows = 1024;  // at a time, since they are copied in double precision
  for (std::int64_t begin = 0; begin < tokens.numel(); begin += kRows) {
    const auto end = std::min(begin + kRows, tokens.numel());
    const auto chosen = tokens.slice(0, begin, end).to(rows.device()).unsqueeze(1);
    const auto likelihood = on_host(rows.slice(0, begin, end).to(at::kDouble).log_softmax(1).gather(1, chosen));
    for (std::int64_t token = 0; token < likelihood.numel(); ++token)
      negative_log_likelihood_.add(-likelihood.const_data_ptr<double>()[token]);
  }
  num_tokens_ += tokens.numel();
}

void Perplexity::merge(const Perplexity& other) {
  negative_log_likelihood_.add(other.negative_log_likelihood_);
  num_tokens_ += other.num_tokens_;
}

void Perplexity::reset() {
  negative_log_likelihood_ = {};
  num_tokens_ = 0;
}

double Perplexity::compute() const {
  return std::exp(negative_log_likelihood_.value() / static_cast<double>(num_tokens_));
}

Value Perplexity::state_dict() const {
  return Value::Dict{{"negative_log_likelihood", negative_log_likelihood_.to_value()}, {"tokens", num_tokens_}};
}

void Perplexity::load_state_dict(const Value& state) {
  negative_log_likelihood_ = ExactSum::of_value(state.at("negative_log_likelihood"));
  num_tokens_ = state.at("tokens").as<std::int64_t>();
}

}  // namespace accel::metrics
