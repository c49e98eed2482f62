// Runs the small training under a plan of faults and collects what every rank observed. Time is virtual and the
// costs are constants, so expected times are exact.
#include "tests/sim/faults/faulty_runs.hpp"

#include <c10/util/Type.h>

#include <algorithm>

#include "sim/faults/fault_injector.hpp"
#include "sim/faults/fault_plan.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::testing {
namespace {

// Only the class name without namespaces, as tests compare it with the texts.
std::string type_of(const std::exception& error) {
  const auto name = c10::demangle(typeid(error).name());
  return name.substr(name.rfind(':') + 1);
}

// The type and the text of an error; "" if there is none.
std::string describe(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return type_of(exception) + ": " + exception.what();
  }
}

// Splits the error of the run into one text for each rank.
void take_errors(FaultyRun& run) {
  run.errors.resize(kFaultyRanks);
  if (!run.report.error) return;
  try {
    std::rethrow_exception(run.report.error);
  } catch (const sim::RunError& error) {
    run.exit_code = programs::exit_code_of(error);
    for (const auto& outcome : error.outcomes()) run.errors[outcome.rank] = describe(outcome.error);
  }
}

}  // namespace

// The virtual time at which the last rank ended.
double FaultyRun::seconds() const {
  double last = 0;
  for (const auto& rank : report.times) last = std::max(last, rank.now);
  return last;
}

std::vector<int> FaultyRun::updates() const {
  std::vector<int> updates;
  for (const auto& rank : ranks) updates.push_back(rank.updates);
  return updates;
}

FaultyRun run_program(std::vector<sim::Fault> faults, const std::function<void(RankContext&)>& program,
                      const FaultyRunOptions& options) {
  sim::SimulationOptions simulation{
      .num_ranks = kFaultyRanks, .timeout = options.timeout, .schedule = options.schedule};
  // Every collective takes the same time after its last arrival, so differences in time are due to the faults.
  simulation.finish_times = [](const sim::EngineGroup&, const Call&, std::span<const double> ready) {
    return std::vector<double>(ready.size(), *std::max_element(ready.begin(), ready.end()) + kCollectiveSeconds);
  };
  simulation.operator_seconds = [](std::string_view, double, double) { return kOperatorSeconds; };
  if (options.has_injector)
    simulation.faults = std::make_shared<sim::FaultInjector>(sim::plan_faults(std::move(faults), kFaultyRanks));
  FaultyRun run;
  run.report = sim::rehearse(simulation, program);
  take_errors(run);
  return run;
}

// Trains the small model on four ranks with these faults.
FaultyRun run_with(std::vector<sim::Fault> faults, const FaultyRunOptions& options) {
  std::vector<Progress> ranks(kFaultyRanks);
  auto run = run_program(
      std::move(faults),
      [&](RankContext& rank) {
        // A restarted run begins with an empty record.
        auto& progress = ranks[rank.rank] = {};
        train(rank, progress, options.places);
      },
      options);
  run.ranks = std::move(ranks);
  return run;
}

// The run without faults, computed once and used as the reference.
const FaultyRun& clean_run() {
  static const FaultyRun run = run_with({}, {.has_injector = false});
  return run;
}

}  // namespace accel::testing
