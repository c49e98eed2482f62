// A seed determines a run: every event in a serial schedule, every bit of the result in any schedule, and every
// second of virtual time. This is what makes a hang reproducible and a thousand explored schedules comparable.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>

#include "properties/gen/small_training.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::testing::schedule_laws {
namespace {

using sim::ScheduleKind;

constexpr ScheduleKind kSerial[] = {ScheduleKind::kRoundRobin, ScheduleKind::kRandom, ScheduleKind::kPct};

// Keeps this thread and the threads that it starts on the first `count` cores. One core and two cores interleave
// threads differently, which finds a schedule that depends on the machine.
class CoresScope {
 public:
  explicit CoresScope(int count) {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t some;
    CPU_ZERO(&some);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&some) < count; ++core) {
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &some);
    }
    sched_setaffinity(0, sizeof(some), &some);
  }
  ~CoresScope() { sched_setaffinity(0, sizeof(before_), &before_); }
  CoresScope(const CoresScope&) = delete;
  CoresScope& operator=(const CoresScope&) = delete;

 private:
  cpu_set_t before_;
};

struct Run {
  sim::SimulationReport report;
  std::vector<std::string> parameters;  // by rank
};

Run run(const SmallTraining& training, sim::SimulationOptions options, int num_cores) {
  // Pooled threads of an earlier run keep their cores, so every rank thread sets its own cores as well.
  const CoresScope cores(num_cores);
  options.num_ranks = training.num_ranks;
  Run run{.parameters = std::vector<std::string>(training.num_ranks)};
  run.report = sim::rehearse(options, [&](RankContext& rank) {
    const CoresScope own(num_cores);
    run.parameters[rank.rank] = train(training, rank);
  });
  return run;
}

// Returns where two logs differ first, or "".
std::string first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (std::size_t line = 0; line < std::max(a.size(), b.size()); ++line) {
    const auto of = [&](const auto& lines) { return line < lines.size() ? lines[line] : std::string("(the end)"); };
    if (of(a) != of(b)) return "event " + std::to_string(line) + ": " + of(a) + " or " + of(b);
  }
  return "";
}

// Round-robin, random and PCT are the serial schedules: one rank runs at a time, so a total order of events exists.
TEST(ScheduleLaws, SeedGivesTheSameEventsOnOneCoreAndOnTwo) {
  expect_property(40, [] {
    const auto training = any_training();
    RC_LOG(describe(training));
    for (const auto kind : kSerial) {
      const sim::SimulationOptions options{.schedule = {.kind = kind, .seed = training.seed, .pct_events = 200},
                                           .logs_events = true};
      const auto one = run(training, options, 1), again = run(training, options, 1), two = run(training, options, 2);
      RC_LOG(name_of(kind) + ": " + message_of(one.report.error));
      RC_ASSERT(!one.report.error);
      RC_ASSERT(!one.report.events.empty());
      RC_ASSERT(first_difference(one.report.events, again.report.events) == "");
      RC_ASSERT(first_difference(one.report.events, two.report.events) == "");
    }
  });
}

TEST(ScheduleLaws, EveryScheduleGivesTheSameParametersOnEveryRank) {
  expect_property(40, [] {
    const auto training = any_training();
    RC_LOG(describe(training));
    // The parallel schedule is the reference. Its events have no total order, but its results must be the same.
    const auto parallel = run(training, {}, 2);
    RC_LOG(message_of(parallel.report.error));
    RC_ASSERT(!parallel.report.error);
    for (const auto& parameters : parallel.parameters) RC_ASSERT(parameters == parallel.parameters.front());
    for (const auto kind : kSerial) {
      const auto serial = run(training, {.schedule = {.kind = kind, .seed = training.seed, .pct_events = 200}}, 2);
      RC_LOG(name_of(kind) + ": " + message_of(serial.report.error));
      RC_ASSERT(serial.parameters == parallel.parameters);
    }
  });
}

// A network with one latency and one bandwidth, and a table of operator costs. Any pure function would do.
std::vector<double> finish_times(const sim::EngineGroup&, const Call& call, std::span<const double> ready) {
  double latest = 0;
  for (const double time : ready) latest = std::max(latest, time);
  std::vector<double> finish;
  for (std::size_t member = 0; member < ready.size(); ++member) {
    finish.push_back(latest + 1e-5 * static_cast<double>(member + 1) + 1e-9 * static_cast<double>(call.bytes));
  }
  return finish;
}

double operator_seconds(std::string_view, double flops, double bytes) { return 1e-6 + 1e-9 * flops + 1e-10 * bytes; }

// Returns all times of all ranks, to be compared bit by bit.
std::vector<double> numbers_of(const std::vector<sim::RankTimes>& times) {
  std::vector<double> numbers;
  const auto add = [&](const sim::Elapsed& elapsed) {
    for (const double number : {elapsed.compute, elapsed.exposed_communication, elapsed.straggler_wait, elapsed.now})
      numbers.push_back(number);
  };
  for (const auto& rank : times) {
    add(rank);
    for (const auto& update : rank.updates) add(update);
  }
  return numbers;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

TEST(ScheduleLaws, VirtualTimeIsTheSameInEveryRunOnEveryNumberOfCores) {
  expect_property(40, [] {
    const auto training = any_training();
    RC_LOG(describe(training));
    sim::SimulationOptions options{.finish_times = finish_times, .operator_seconds = operator_seconds};
    const auto first = run(training, options, 1);
    RC_LOG(message_of(first.report.error));
    RC_ASSERT(!first.report.error);
    const auto numbers = numbers_of(first.report.times);
    // A time of 0 would satisfy every comparison below.
    RC_ASSERT(first.report.times.front().compute > 0);
    RC_ASSERT(same_bits(numbers, numbers_of(run(training, options, 1).report.times)));
    RC_ASSERT(same_bits(numbers, numbers_of(run(training, options, 2).report.times)));
    for (const auto kind : kSerial) {
      options.schedule = {.kind = kind, .seed = training.seed};
      RC_ASSERT(same_bits(numbers, numbers_of(run(training, options, 2).report.times)));
    }
  });
}

}  // namespace
}  // namespace accel::testing::schedule_laws
