#pragma once

#include <vector>

#include "reference/tree/value.hpp"

/// A sum of doubles without rounding errors, whatever the order of its terms and however they are divided among ranks.
///
///     ExactSum sum;
///     for (const double value : values) sum.add(value);
///     sum.add(of_another_rank);
///     double total = sum.value();   // the double that is nearest to the exact sum
///
/// Source: Shewchuk, "Adaptive Precision Floating-Point Arithmetic"; CPython, Modules/mathmodule.c, fsum. Thread rule:
/// a value.
namespace accel::metrics {

class ExactSum {
 public:
  /// An infinity or NaN makes the value one, as in an ordinary sum.
  void add(double term);
  void add(const ExactSum& other);
  /// Adds the exact product. Neither factor may be so small or large that the error of their product is none.
  void add_product(double a, double b);
  /// Adds the exact product of two sums, times -1 if `is_negative`.
  void add_product(const ExactSum& a, const ExactSum& b, bool is_negative = false);

  [[nodiscard]] double value() const;

  [[nodiscard]] Value to_value() const;
  /// Throws ArgumentError for another value.
  static ExactSum of_value(const Value& value);

 private:
  std::vector<double> partials_;  // without common bits, ascending in magnitude: their sum is exact
  double not_finite_ = 0;
};

}  // namespace accel::metrics
