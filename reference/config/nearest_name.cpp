#include "reference/config/nearest_name.hpp"

#include <algorithm>
#include <numeric>

namespace accel {

std::size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    auto diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const auto changed = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

namespace {

// True if `text` is `name` with characters omitted, such as "num_procs" for "num_processes".
bool is_abbreviation(const std::string& text, const std::string& name) {
  std::size_t found = 0;
  for (const char letter : name) found += found < text.size() && text[found] == letter ? 1 : 0;
  return found == text.size();
}

// A larger limit would suggest unrelated names for short texts.
std::size_t distance_max(const std::string& text, const std::string& name) {
  return std::max<std::size_t>(1, text.size() / (is_abbreviation(text, name) ? 2 : 3));
}

}  // namespace

// On a tie the first name wins, so the result does not depend on anything but the order of `names`.
std::optional<std::string> nearest_name(const std::string& text, const std::vector<std::string>& names) {
  std::optional<std::string> nearest;
  std::size_t least = 0;
  for (const auto& name : names) {
    const auto distance = edit_distance(text, name);
    if (distance > distance_max(text, name) || (nearest && distance >= least)) continue;
    nearest = name;
    least = distance;
  }
  return nearest;
}

std::string nearest_name_hint(const std::string& text, const std::vector<std::string>& names) {
  const auto nearest = nearest_name(text, names);
  return nearest ? "; did you mean '" + *nearest + "'?" : "";
}

}  // namespace accel
