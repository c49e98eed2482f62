#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "reference/comm/parameter_state.hpp"

namespace accel::sim {

/// Returns the indices whose value is not the most frequent one; all of them on a tie, none if all values are equal.
template <typename T>
std::vector<int> minority(const std::vector<T>& values) {
  std::map<T, std::vector<int>> parties;
  for (std::size_t index = 0; index < values.size(); ++index) parties[values[index]].push_back(static_cast<int>(index));
  if (parties.size() == 1) return {};
  std::vector<std::vector<int>> by_size;
  for (auto& [value, members] : parties) by_size.push_back(members);
  std::stable_sort(by_size.begin(), by_size.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
  std::vector<int> others;
  const std::size_t first = by_size[0].size() == by_size[1].size() ? 0 : 1;
  for (std::size_t party = first; party < by_size.size(); ++party)
    others.insert(others.end(), by_size[party].begin(), by_size[party].end());
  std::sort(others.begin(), others.end());
  return others;
}

/// Says why a parameter's replicas may differ and what to do, as "likely cause: ...; ", from the states that the ranks
/// had after the update, in the order of `ranks`. Empty if the states do not say.
std::string likely_cause(const std::vector<ParameterState>& states, const std::vector<int>& ranks);

}  // namespace accel::sim
