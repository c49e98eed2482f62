#include "sim/engine/diagnosis.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

// Ranks with one message share a line, the ranks that caused the failure come before those that were freed by it.
std::string join_outcomes(const std::vector<RankOutcome>& outcomes) {
  std::vector<std::pair<std::string, std::vector<int>>> causes;
  std::vector<int> released;
  for (const auto& outcome : outcomes) {
    if (!outcome.error) continue;
    if (outcome.released) {
      released.push_back(outcome.rank);
      continue;
    }
    auto same = std::find_if(causes.begin(), causes.end(), [&](auto& cause) { return cause.first == outcome.message; });
    if (same == causes.end()) same = causes.insert(causes.end(), {outcome.message, {}});
    same->second.push_back(outcome.rank);
  }
  std::string text;
  for (const auto& [message, ranks] : causes) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", describe_ranks(ranks), message);
  }
  if (!released.empty()) text += fmt::format("\n{}: freed from waiting by this failure", describe_ranks(released));
  return text;
}

}  // namespace

RunError::RunError(std::vector<RankOutcome> outcomes) : Error(join_outcomes(outcomes)), outcomes_(std::move(outcomes)) {}

const Diagnosis* RunError::diagnosis() const {
  for (const auto& outcome : outcomes_) {
    if (!outcome.error || outcome.released) continue;
    try {
      std::rethrow_exception(outcome.error);
    } catch (const DiagnosedError& error) {
      return &error.diagnosis();  // the object lives as long as `outcome.error`
    } catch (...) {
      continue;
    }
  }
  return nullptr;
}

}  // namespace accel::sim
