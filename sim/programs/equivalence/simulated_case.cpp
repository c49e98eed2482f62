// Runs cases on simulated ranks, and compares what the ranks of two backends observed.
#include "sim/programs/equivalence/simulated_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "reference/core/error_text.hpp"

namespace accel::programs {

bool has_failed(const RankObservations& seen) {
  return std::any_of(seen.begin(), seen.end(), [](const Observations& of_rank) {
    return !of_rank.empty() && of_rank.back().starts_with(kFailed);
  });
}

namespace {

Observations next_epochs(const Observations& seen) {
  Observations epochs;
  std::copy_if(seen.begin(), seen.end(), std::back_inserter(epochs),
               [](const std::string& line) { return line.starts_with(kNextEpoch); });
  return epochs;
}

// Backends can agree on what each rank reads while the ranks of a job read different epochs.
std::string disagreement_of(const std::vector<StageResult>& results) {
  const auto expected = next_epochs(results.front().seen);
  for (std::size_t rank = 1; rank < results.size(); ++rank) {
    const auto own = next_epochs(results[rank].seen);
    if (own.size() != expected.size()) continue;  // an error on all ranks, at different places
    const auto [left, right] = std::mismatch(expected.begin(), expected.end(), own.begin());
    if (left != expected.end())
      return fmt::format("the ranks do not continue with the same epoch after pass {}: rank 0: {}, rank {}: {}",
                         left - expected.begin(), *left, rank, *right);
  }
  return "";
}

}  // namespace

RankObservations observe_stages(const EquivalenceCase& one, const RunStage& run_stage) {
  RankObservations seen(static_cast<std::size_t>(one.most_ranks()));
  std::vector<std::string> states(seen.size());
  for (int stage = 0; stage < one.num_stages(); ++stage) {
    std::vector<StageResult> results(static_cast<std::size_t>(one.ranks_of(stage)));
    auto failure = run_stage(one.ranks_of(stage), [&](RankContext& rank) {
      const auto& state = states[static_cast<std::size_t>(one.state_of(rank.rank))];
      results[static_cast<std::size_t>(rank.rank)] = observe_stage(rank, one, stage, state);
    });
    if (failure.empty()) failure = disagreement_of(results);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      std::move(results[rank].seen.begin(), results[rank].seen.end(), std::back_inserter(seen[rank]));
      if (!failure.empty()) seen[rank].push_back(kFailed + failure);
      states[rank] = results[rank].state;
    }
    if (states.front().empty() || !failure.empty()) break;
  }
  return seen;
}

RankObservations observe_on_simulated_ranks(const EquivalenceCase& one, sim::SimulationOptions options) {
  return observe_stages(one, [&](int ranks, const std::function<void(RankContext&)>& body) -> std::string {
    options.num_ranks = ranks;
    const auto report = sim::rehearse(options, [&](RankContext& rank) {
      rank.print = [](const std::string&) {};
      body(rank);
    });
    if (!report.error) return "";
    try {
      std::rethrow_exception(report.error);
    } catch (const std::exception& error) {
      return text_of(error);
    }
  });
}

sim::RankSchedule serial_schedule_of(const EquivalenceCase& one) {
  return {.kind = one.seed % 2 == 0 ? sim::ScheduleKind::kRandom : sim::ScheduleKind::kPct,
          .seed = static_cast<std::uint64_t>(one.seed)};
}

bool equal_up_to_rounding(const std::string& left, const std::string& right) {
  constexpr double kRelative = 1e-4, kAbsolute = 1e-5;
  if (left == right) return true;
  if (!left.starts_with("loss ") || !right.starts_with("loss ")) return false;
  const char *at = left.data(), *other = right.data();
  const char *const end = at + left.size(), *const other_end = other + right.size();
  while (at != end && other != other_end) {
    double number = 0, other_number = 0;
    const auto after = std::from_chars(at, end, number).ptr,
               after_other = std::from_chars(other, other_end, other_number).ptr;
    if (after == at || after_other == other) {
      if (*at++ != *other++) return false;
      continue;
    }
    if (!(std::abs(number - other_number) <= kAbsolute + kRelative * std::abs(number))) return false;
    at = after;
    other = after_other;
  }
  return at == end && other == other_end;
}

std::string first_difference(const std::string& left, const RankObservations& of_left, const std::string& right,
                             const RankObservations& of_right,
                             const std::function<bool(const std::string&, const std::string&)>& equal) {
  if (of_left.size() != of_right.size())
    return fmt::format("{} has {} ranks, {} has {}", left, of_left.size(), right, of_right.size());
  for (std::size_t rank = 0; rank < of_left.size(); ++rank) {
    const auto &lines = of_left[rank], &others = of_right[rank];
    const auto [line, other] = std::mismatch(lines.begin(), lines.end(), others.begin(), others.end(), equal);
    if (line == lines.end() && other == others.end()) continue;
    return fmt::format("rank {}, observation {}:\n  {}: {}\n  {}: {}", rank, line - lines.begin(), left,
                       line == lines.end() ? "nothing" : *line, right, other == others.end() ? "nothing" : *other);
  }
  return "";
}

}  // namespace accel::programs
