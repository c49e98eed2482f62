#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine/world.hpp"

/// Random programs of ranks that communicate: groups of any ranks, collectives and messages, waited for at once or
/// later. Every rank follows one list in order, so a program ends successfully under every schedule.
///
/// Example: `const auto program = any_program(seed); World world({.num_ranks = program.num_ranks});
/// run_ranks(world, [&](int rank) { wrong += run_rank(world, program, rank); });`
namespace accel::sim {

/// The schedules that let one rank run at a time.
inline constexpr ScheduleKind kSerial[] = {ScheduleKind::kRoundRobin, ScheduleKind::kRandom, ScheduleKind::kPct};

struct ProgramStep {
  int group = 0;
  int source = -1, destination = -1;  // group ranks of a message; -1: a collective
  int tag = 0;
  int value = 0;        // what a message holds; a collective adds `value + rank` of its members
  int waits_after = 0;  // the rank waits for it this many steps later
};

struct Program {
  int num_ranks = 1;
  std::vector<std::vector<int>> groups;
  std::vector<ProgramStep> steps;
};

/// A rank's deviation from the program. By default there is none.
struct Deviation {
  int rank = -1;
  std::size_t step = 0;
  enum class Kind { kSkips, kThrows, kEnds } kind = Kind::kSkips;
};

Program any_program(std::uint64_t seed, int most_ranks = 6);

/// Performs one rank's part and returns how many of its results were wrong.
int run_rank(World& world, const Program& program, int rank, const Deviation& deviation = {});

/// Returns the index of a collective in which `rank` takes part, or -1 if there is none.
int some_collective_of(const Program& program, int rank, std::uint64_t seed);

}  // namespace accel::sim
