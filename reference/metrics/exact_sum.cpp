#include "reference/metrics/exact_sum.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

namespace accel::metrics {

void ExactSum::add(double term) {
  if (!std::isfinite(term)) {
    not_finite_ += term;
    return;
  }
  std::size_t kept = 0;
  for (double partial : partials_) {
    if (std::abs(term) < std::abs(partial)) std::swap(term, partial);
    const double sum = term + partial, error = partial - (sum - term);
    if (error != 0) partials_[kept++] = error;
    term = sum;
  }
  partials_.resize(kept);
  partials_.push_back(term);
}

void ExactSum::add(const ExactSum& other) {
  for (const double partial : other.partials_) add(partial);
  not_finite_ += other.not_finite_;
}

void ExactSum::add_product(double a, double b) {
  const double product = a * b;
  add(product);
  if (std::isfinite(product)) add(std::fma(a, b, -product));
}

void ExactSum::add_product(const ExactSum& a, const ExactSum& b, bool is_negative) {
  for (const double of_a : a.partials_) {
    for (const double of_b : b.partials_) add_product(is_negative ? -of_a : of_a, of_b);
  }
  if (a.not_finite_ != 0 || b.not_finite_ != 0) not_finite_ += (is_negative ? -1 : 1) * a.value() * b.value();
}

// Rounds once. The largest partial is the sum up to half a bit; the next ones decide in which direction a tie goes.
double ExactSum::value() const {
  if (not_finite_ != 0) return not_finite_;
  if (partials_.empty()) return 0;
  auto index = partials_.size() - 1;
  double sum = partials_[index], error = 0;
  while (index > 0) {
    const double before = sum, next = partials_[--index];
    sum = before + next;
    error = next - (sum - before);
    if (error != 0) break;
  }
  const bool goes_on = index > 0 && std::signbit(error) == std::signbit(partials_[index - 1]);
  if (error == 0 || !goes_on) return sum;
  const double doubled = error * 2, rounded = sum + doubled;
  return doubled == rounded - sum ? rounded : sum;
}

Value ExactSum::to_value() const {
  return Value::Dict{{"partials", at::tensor(partials_, at::kDouble)}, {"not_finite", not_finite_}};
}

ExactSum ExactSum::of_value(const Value& value) {
  ExactSum sum;
  const auto partials = value.at("partials").as<at::Tensor>().contiguous();
  sum.partials_.assign(partials.const_data_ptr<double>(), partials.const_data_ptr<double>() + partials.numel());
  sum.not_finite_ = value.at("not_finite").as<double>();
  return sum;
}

}  // namespace accel::metrics
