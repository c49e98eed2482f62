// Runs cases on simulated ranks, and compares what the ranks of two backends observed.
#include "sim/programs/equivalence/simulated_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace accel::programs {

RankObservations observe_on_simulated_ranks(const EquivalenceCase& one, sim::SimulationOptions options) {
  RankObservations seen(static_cast<std::size_t>(one.ranks));
  options.num_ranks = one.ranks;
  const auto report = sim::rehearse(options, [&](RankContext& rank) {
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
