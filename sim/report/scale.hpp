#pragma once

#include <vector>

/// From numbers to places on a picture. Thread rule: any thread.
namespace accel::sim::report {

struct Interval {
  double low = 0, high = 0;
};

class Scale {
 public:
  enum class Kind { kLinear, kLogarithmic };

  /// Maps `domain` to `range`, which may run backwards. The domain is finite, not empty, and positive if logarithmic.
  Scale(Interval domain, Interval range, Kind kind = Kind::kLinear);

  [[nodiscard]] double operator()(double value) const;
  /// Round numbers within the domain, about `count` of them; on a logarithmic scale powers of ten, or 1, 2, 5 times
  /// them.
  [[nodiscard]] std::vector<double> ticks(int count) const;
  [[nodiscard]] Interval range() const { return range_; }

 private:
  Interval domain_, range_;
  Kind kind_;
};

/// The round numbers around an interval, so that a linear axis begins and ends at a tick; where the interval is (next
/// to) empty, one around it.
Interval rounded_out(Interval interval, int tick_count);

}  // namespace accel::sim::report
