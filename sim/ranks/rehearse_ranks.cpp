// Builds the world of a run, starts its ranks again after a fault that restarts them, and collects the report.
#include "sim/ranks/rehearse_ranks.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "sim/ranks/joined_call.hpp"
#include "sim/ranks/newcomers.hpp"
#include "sim/ranks/replica_comparison.hpp"

namespace accel::sim {
namespace {

// Everything that the ranks of one attempt share. A restarted run gets a new Simulation; its report and clocks
// continue.
struct Simulation {
  Simulation(const SimulationOptions& options, const SimulationReport& before,
             std::chrono::steady_clock::time_point started)
      : world(std::make_shared<World>(WorldOptions{.num_ranks = options.num_ranks,
                                                   .timeout = options.timeout,
                                                   .schedule = options.schedule,
                                                   .checks = options.checks,
                                                   .send_capacity = options.send_capacity,
                                                   .finish_times = options.finish_times,
                                                   .times_before = before.times,
                                                   .started = started,
                                                   .cpu_factor = options.operator_seconds ? 0 : options.cpu_factor,
                                                   .processor_seconds = options.processor_seconds,
                                                   .sleep = options.sleep,
                                                   .continue_rank = options.continue_rank,
                                                   .records_times = options.records_times,
                                                   .records_spans = options.records_spans,
                                                   .logs_events = options.logs_events,
                                                   .faults = options.faults,
                                                   .corrupt = corrupt_call,
                                                   .on_stuck = on_stuck_of(options, before)})),
        comparison(std::make_shared<ReplicaComparison>(*world)),
        recorder(options.records_steps ? std::make_shared<StepRecorder>(options.num_ranks) : nullptr),
        newcomers(std::make_shared<Newcomers>(*world, options.faults.get())) {}

  std::shared_ptr<World> world;
  std::shared_ptr<ReplicaComparison> comparison;
  std::shared_ptr<StepRecorder> recorder;
  std::shared_ptr<Newcomers> newcomers;

 private:
  OnStuck on_stuck_of(const SimulationOptions& options, const SimulationReport& before);
};

// Adds to what the report already holds from earlier attempts of a restarted run.
void append_findings(World& world, SimulationReport& report) {
  report.diagnosis = world.failures().diagnosis();
  for (auto& finding : world.failures().findings()) {
    if (std::find(report.findings.begin(), report.findings.end(), finding) == report.findings.end())
      report.findings.push_back(std::move(finding));
  }
  for (auto& event : world.log().lines()) report.events.push_back(std::move(event));
  for (const auto& [op, volume] : world.volumes()) {
    auto& sum = report.volumes[op];
    sum.calls += volume.calls;
    sum.bytes += volume.bytes;
    sum.seconds += volume.seconds;
  }
  for (auto& strike : world.failures().strikes()) report.strikes.push_back(std::move(strike));
}

OnStuck Simulation::on_stuck_of(const SimulationOptions& options, const SimulationReport& before) {
  if (!options.on_stuck) return nullptr;
  return [this, tell = options.on_stuck, &before](const RunError& error) {
    auto report = before;
    report.error = std::make_exception_ptr(error);
    report.times.clear();
    append_findings(*world, report);
    tell(report);
  };
}

void take_seat(Simulation& simulation, const SimulationOptions& options, int rank, int restart_count,
               const std::function<void(const SimulatedRank&)>& body) {
  const auto& world = simulation.world;
  const Member member{
      .world = world, .guard = std::make_shared<BufferGuard>(*world, rank), .rank = rank, .library = options.library};
  if (options.faults) options.faults->on_rendezvous(*world, rank);
  body({.member = member,
        .comparison = simulation.comparison,
        .recorder = simulation.recorder,
        .newcomers = simulation.newcomers,
        .faults = options.faults.get(),
        .restart_count = restart_count});
}

// Times accumulate within the clocks (`times_before`), so the last attempt's replace those of earlier ones.
void take(World& world, SimulationReport& report) {
  append_findings(world, report);
  report.times.clear();
  for (int rank = 0; rank < world.num_ranks(); ++rank) report.times.push_back(world.clocks().times(rank));
}

}  // namespace

void SimulationReport::add(const CheckLevels& levels, Check check, const std::string& text) {
  const auto named = with_name(text, check);
  if (levels[check] == CheckLevel::kFinding) findings.push_back(named);
  if (levels[check] == CheckLevel::kError && !error) error = std::make_exception_ptr(Error(named));
}

// The loop is the launcher of a restarting fault: each attempt gets a new World, and the report accumulates.
SimulationReport rehearse_ranks(const SimulationOptions& options,
                                const std::function<void(const SimulatedRank&)>& body) {
  SimulationReport report;
  try {
    const auto started = std::chrono::steady_clock::now();
    for (int restart_count = 0;; ++restart_count) {
      Simulation simulation(options, report, started);
      report.error = nullptr;
      try {
        run_ranks(*simulation.world, [&](int rank) { take_seat(simulation, options, rank, restart_count, body); });
      } catch (...) {
        report.error = std::current_exception();
      }
      take(*simulation.world, report);
      if (simulation.recorder) report.steps = simulation.recorder->records();
      if (!report.error || !options.faults || !options.faults->restarts()) break;
    }
    if (!report.error && options.faults) {
      for (const auto& fault : options.faults->not_struck())
        report.add(
            options.checks, Check::kUnstruckFaults,
            fmt::format("the fault has not struck: the run never reached the event that triggers it: {}", fault));
    }
  } catch (...) {
    report.error = std::current_exception();
  }
  return report;
}

}  // namespace accel::sim
