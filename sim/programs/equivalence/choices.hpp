#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace accel::programs {

/// The numbers from which a case is drawn. A smaller number selects a simpler alternative, and 0 replaces numbers
/// beyond the end, so every vector of numbers yields a case, and making numbers smaller makes the case simpler.
/// RapidCheck and the suite's own reduction rely on this.
///
/// Thread rule: a value.
class Choices {
 public:
  static constexpr std::size_t kCount = 96;  ///< enough for any case
  static constexpr std::uint32_t kEnd = 1 << 16;

  explicit Choices(std::vector<std::uint32_t> numbers) : numbers_(std::move(numbers)) {}

  /// A number in [0, count).
  std::int64_t below(std::int64_t count) {
    const std::uint32_t number = next_ < numbers_.size() ? numbers_[next_++] : 0;
    return count * (number % kEnd) / kEnd;  // by magnitude, so that a smaller number never gives a larger result
  }
  std::int64_t between(std::int64_t first, std::int64_t last) { return first + below(last - first + 1); }
  /// True with this probability; false is the simpler alternative.
  bool chance(int percent) { return below(100) >= 100 - percent; }
  /// One of the values; the simplest comes first.
  template <typename T>
  T among(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
  }

 private:
  std::vector<std::uint32_t> numbers_;
  std::size_t next_ = 0;
};

}  // namespace accel::programs
