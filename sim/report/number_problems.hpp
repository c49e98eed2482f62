#pragma once

#include <string>

namespace accel::sim::report {

/// Collects the numbers of a report that cannot be drawn, so that one error lists all of them.
class NumberProblems {
 public:
  void expect_amount(double value, const std::string& name);
  void expect_ranks(int ranks, const std::string& name);
  /// Throws ArgumentError if there are problems.
  void raise() const;

 private:
  std::string text_;
};

}  // namespace accel::sim::report
