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
  for (auto& [term, sum] : sums_) {
    for (std::int64_t sample = 0; sample < of_x.numel(); ++sample) {
      const double error = y[sample] - x[sample];
      switch (term) {
        case Term::kX: sum.add(x[sample]); break;
        case Term::kY: sum.add(y[sample]); break;
        case Term::kXX: sum.add_product(x[sample], x[sample]); break;
        case Term::kYY: sum.add_product(y[sample], y[sample]); break;
        case Term::kXY: sum.add_product(x[sample], y[sample]); break;
        case Term::kSquaredError: sum.add_product(error, error); break;
        case Term::kAbsoluteError: sum.add(std::abs(error)); break;
      }
    }
  }
  num_samples_ += of_x.numel();
}

PairSums::PairSums(std::initializer_list<Term> terms) {
  for (const auto term : terms) sums_[term] = {};
}

void PairSums::reset() {
  num_samples_ = 0;
  for (auto& [term, sum] : sums_) sum = {};
}

void PairSums::merge_sums(const PairSums& other) {
  num_samples_ += other.num_samples_;
  for (auto& [term, sum] : sums_) sum.add(other.sums_.at(term));
}

Value PairSums::state_dict() const {
  Value::List sums;
  for (const auto& [term, sum] : sums_) sums.push_back(sum.to_value());
  return Value::Dict{{"samples", num_samples_}, {"sums", std::move(sums)}};
}

void PairSums::load_state_dict(const Value& state) {
  const auto& sums = state.at("sums").as<Value::List>();
  check_argument(sums.size() == sums_.size(), "metrics: the state has {} sums; expected {}", sums.size(), sums_.size());
  num_samples_ = state.at("samples").as<std::int64_t>();
  auto saved = sums.begin();
  for (auto& [term, sum] : sums_) sum = ExactSum::of_value(*saved++);
}

double PairSums::scaled_covariance(Term a, Term b, Term products) const {
  ExactSum count, covariance;
  count.add(num_samples());
  covariance.add_product(count, sum(products));
  covariance.add_product(sum(a), sum(b), /*is_negative=*/true);
  return covariance.value();
}

double R2Score::compute() const {
  if (num_samples() < 2) return kNan;
  const double errors = sum(Term::kSquaredError).value() * num_samples();
  const double variance = scaled_covariance(Term::kY, Term::kY, Term::kYY);
  if (variance == 0) return errors == 0 ? 1 : 0;
  return 1 - errors / variance;
}

double PearsonCorrelation::compute() const {
  if (num_samples() < 2) return kNan;
  const double of_x = scaled_covariance(Term::kX, Term::kX, Term::kXX),
               of_y = scaled_covariance(Term::kY, Term::kY, Term::kYY);
  if (of_x == 0 || of_y == 0) return kNan;
  const double both = scaled_covariance(Term::kX, Term::kY, Term::kXY);
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
