#include "sim/programs/check/parting.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace accel::programs {

std::optional<Parting> first_parting(const Recording& recording, const std::string& kind) {
  std::map<std::string, std::vector<const Observation*>> first;  // of rank 0, by name
  for (const auto& seen : recording.front()) {
    if (seen.kind == kind) first[seen.name].push_back(&seen);
  }
  std::optional<Parting> found;
  for (std::size_t rank = 1; rank < recording.size(); ++rank) {
    std::map<std::string, std::size_t> counts;
    for (const auto& seen : recording[rank]) {
      if (seen.kind != kind) continue;
      const auto count = counts[seen.name]++;
      const auto& same = first[seen.name];
      if (count >= same.size() || same[count]->value == seen.value) continue;
      if (!found || static_cast<int>(count) < found->count)
        found = {&seen, static_cast<int>(rank), static_cast<int>(count)};
      break;
    }
  }
  return found;
}

std::optional<Parting> passing_difference(const Recording& recording) {
  const auto& first = recording.front();
  const bool knows_end =
      std::any_of(first.begin(), first.end(), [](const auto& seen) { return seen.kind == "last parameters"; });
  if (!knows_end || first_parting(recording, "last parameters")) return std::nullopt;
  return first_parting(recording, "weights");
}

}  // namespace accel::programs
