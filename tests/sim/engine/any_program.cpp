// Random programs for the tests of the engine. Every rank follows the same list of steps in order, so no program
// can deadlock under any schedule, and every failure is an error of the engine.
#include "tests/sim/engine/any_program.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

namespace accel::sim {
namespace {

// std::uniform_int_distribution differs between standard libraries, so numbers are drawn with a modulo.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  /// Returns a number in [0, end), the same on every machine.
  int below(int end) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(end)); }

 private:
  std::mt19937_64 engine_;
};

struct Value {
  int input = 0, output = 0;
};

// A call that was issued and not yet awaited, with the expected result.
struct Pending {
  std::shared_ptr<Meeting> meeting;
  std::shared_ptr<Value> value;
  int expected = 0;
  std::size_t wait_at = 0;
};

// The engine knows no tensors. Ints are enough to show a wrong sum, and keep torch out of the ThreadSanitizer
// build.
const Call kSum{.op = Collective::kAllReduce, .reduce_op = "sum", .dtype = "int32", .shapes = {{1}}};

// The operation of all collectives here: every rank gets the sum.
void add(std::span<const Participant> all) {
  int sum = 0;
  for (const auto& one : all) sum += static_cast<Value*>(one.get())->input;
  for (const auto& one : all) static_cast<Value*>(one.get())->output = sum;
}

// Each rank contributes value + rank, so a sum over the wrong group or with a missing rank has another value.
int expected_sum(const ProgramStep& step, const std::vector<int>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), step.value * static_cast<int>(ranks.size()));
}

Pending start(World& world, EngineGroup& group, const ProgramStep& step, int rank) {
  auto value = std::make_shared<Value>();
  if (step.source < 0) {
    value->input = step.value + rank;
    return {world.arrive(group, group.group_rank_of(rank), kSum, value, add), value, expected_sum(step, group.ranks)};
  }
  if (group.ranks[step.source] == rank) {
    value->input = value->output = step.value;
    return {world.send(group, step.source, step.destination, step.tag, {.op = Collective::kSend}, value), value,
            step.value};
  }
  const auto deliver = [](const Participant& sent, const Participant& to, auto) {
    static_cast<Value*>(to.get())->output = static_cast<Value*>(sent.get())->input;
  };
  return {world.receive(group, step.source, step.destination, step.tag, {.op = Collective::kRecv}, value, deliver),
          value, step.value};
}

// Whether the rank has anything to do in the step.
bool takes_part(const Program& program, const ProgramStep& step, int rank) {
  const auto& ranks = program.groups[step.group];
  if (step.source >= 0) return ranks[step.source] == rank || ranks[step.destination] == rank;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

// The same seed gives the same program on every machine.
Program any_program(std::uint64_t seed, int most_ranks) {
  Draws draws(seed);
  Program program{.num_ranks = 2 + draws.below(most_ranks - 1)};
  std::vector<int> everyone(program.num_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  program.groups.push_back(everyone);
  for (int more = draws.below(4); more > 0; --more) {
    auto ranks = everyone;
    // Shuffling is done by hand for the same reason as above.
    for (int place = program.num_ranks - 1; place > 0; --place) std::swap(ranks[place], ranks[draws.below(place + 1)]);
    ranks.resize(1 + draws.below(program.num_ranks));
    program.groups.push_back(ranks);
  }
  for (int count = 10 + draws.below(40); count > 0; --count) {
    ProgramStep step{.group = draws.below(static_cast<int>(program.groups.size())),
                     .tag = draws.below(2),
                     .value = draws.below(1000)};
    const int size = static_cast<int>(program.groups[step.group].size());
    if (size > 1 && draws.below(3) == 0) {
      step.source = draws.below(size);
      // The destination differs from the source by 1 to size - 1.
      step.destination = (step.source + 1 + draws.below(size - 1)) % size;
    }
    // Half of the steps are waited for later, so several collectives are in flight.
    if (draws.below(2) == 0) step.waits_after = draws.below(8);
    program.steps.push_back(step);
  }
  return program;
}

// Runs the steps of one rank and returns the number of wrong results.
int run_rank(World& world, const Program& program, int rank, const Deviation& deviation) {
  std::vector<std::shared_ptr<EngineGroup>> groups;
  for (std::size_t index = 0; index < program.groups.size(); ++index)
    groups.push_back(world.group("group" + std::to_string(index), program.groups[index]));
  int wrong = 0;
  std::vector<Pending> pending;
  const auto wait_for = [&](std::size_t now) {
    for (auto one = pending.begin(); one != pending.end();) {
      if (one->wait_at > now) {
        ++one;
        continue;
      }
      world.wait(rank, *one->meeting);
      if (one->value->output != one->expected) ++wrong;
      one = pending.erase(one);
    }
  };
  for (std::size_t index = 0; index < program.steps.size(); ++index) {
    const auto& step = program.steps[index];
    const bool deviates = deviation.rank == rank && deviation.step == index;
    if (deviates && deviation.kind == Deviation::Kind::kThrows) throw std::runtime_error("planted");
    if (deviates && deviation.kind == Deviation::Kind::kEnds) return wrong;
    if (takes_part(program, step, rank) && !deviates) {
      pending.push_back(start(world, *groups[step.group], step, rank));
      pending.back().wait_at = index + step.waits_after;
    }
    wait_for(index);
  }
  // Adding 1,000 exceeds every wait_at, so this waits for all that are pending.
  wait_for(program.steps.size() + 1000);
  return wrong;
}

// In a group of one rank no other rank can hang, so its collectives are no candidates.
int some_collective_of(const Program& program, int rank, std::uint64_t seed) {
  std::vector<int> candidates;
  for (std::size_t index = 0; index < program.steps.size(); ++index) {
    const auto& step = program.steps[index];
    if (step.source < 0 && program.groups[step.group].size() > 1 && takes_part(program, step, rank))
      candidates.push_back(static_cast<int>(index));
  }
  return candidates.empty() ? -1 : candidates[seed % candidates.size()];
}

}  // namespace accel::sim
