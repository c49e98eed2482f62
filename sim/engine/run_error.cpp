#include "sim/engine/run_error.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

// Ranks with the same message share a line. The ranks that caused the failure come first, then those released
// by it.
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
  if (!released.empty()) text += fmt::format("\n{}: released from waiting by this failure", describe_ranks(released));
  return text;
}

}  // namespace

// The text is Gloo's; programs and tests that match it behave alike on both backends.
bool runs_after(const std::vector<ProcessChange>& changes, int rank) {
  const auto last =
      std::find_if(changes.rbegin(), changes.rend(), [&](const auto& change) { return change.rank == rank; });
  return last == changes.rend() || last->is_start;
}

std::exception_ptr connection_closed(int rank) {
  return std::make_exception_ptr(GlooError(fmt::format("Connection closed by peer [rank {}]", rank)));
}

RunError::RunError(std::vector<RankOutcome> outcomes, std::optional<Diagnosis> diagnosis)
    : Error(join_outcomes(outcomes)), outcomes_(std::move(outcomes)), diagnosis_(std::move(diagnosis)) {}

}  // namespace accel::sim
