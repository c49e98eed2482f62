// Runs cases on simulated ranks, and compares what the ranks of two backends observed.
#include "sim/programs/equivalence/simulated_case.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/backend/simulate.hpp"

namespace accel::programs {

RankObservations observe_on_simulated_ranks(const EquivalenceCase& one, const sim::RankSchedule& schedule) {
  RankObservations seen(static_cast<std::size_t>(one.ranks));
  const auto report = sim::rehearse({.num_ranks = one.ranks, .schedule = schedule}, [&](RankContext& rank) {
    rank.print = [](const std::string&) {};
    seen[static_cast<std::size_t>(rank.rank)] = observe_case(rank, one);
  });
  if (!report.error) return seen;
  try {
    std::rethrow_exception(report.error);
  } catch (const std::exception& error) {
    for (auto& of_rank : seen) of_rank.push_back(std::string("the run failed: ") + error.what());
  }
  return seen;
}

sim::RankSchedule serial_schedule_of(const EquivalenceCase& one) {
  return {.kind = one.seed % 2 == 0 ? sim::ScheduleKind::kRandom : sim::ScheduleKind::kPct,
          .seed = static_cast<std::uint64_t>(one.seed)};
}

std::string first_difference(const std::string& left, const RankObservations& of_left, const std::string& right,
                             const RankObservations& of_right) {
  if (of_left.size() != of_right.size())
    return fmt::format("{} has {} ranks, {} has {}", left, of_left.size(), right, of_right.size());
  for (std::size_t rank = 0; rank < of_left.size(); ++rank) {
    const auto &lines = of_left[rank], &others = of_right[rank];
    const auto [line, other] = std::mismatch(lines.begin(), lines.end(), others.begin(), others.end());
    if (line == lines.end() && other == others.end()) continue;
    return fmt::format("rank {}, observation {}:\n  {}: {}\n  {}: {}", rank, line - lines.begin(), left,
                       line == lines.end() ? "nothing" : *line, right, other == others.end() ? "nothing" : *other);
  }
  return "";
}

}  // namespace accel::programs
