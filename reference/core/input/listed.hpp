#pragma once

#include <fmt/ranges.h>

#include <iterator>
#include <string>

namespace accel {

inline constexpr std::size_t kListedMax = 20;

/// Formats the first 20 items for a message and counts the others: input may have any number of problems or names.
///
///     listed(problems, "\n")   // "a: unknown key\nb: unknown key\n...\nand 99,980 more"
///
/// Thread rule: pure.
template <typename Range>
std::string listed(const Range& items, std::string_view separator) {
  const auto count = static_cast<std::size_t>(std::size(items));
  if (count <= kListedMax) return fmt::format("{}", fmt::join(items, separator));
  auto hidden = std::to_string(count - kListedMax);
  for (auto place = static_cast<int>(hidden.size()) - 3; place > 0; place -= 3)
    hidden.insert(static_cast<std::size_t>(place), ",");
  return fmt::format("{}{}and {} more", fmt::join(items.begin(), std::next(items.begin(), kListedMax), separator),
                     separator, hidden);
}

}  // namespace accel
