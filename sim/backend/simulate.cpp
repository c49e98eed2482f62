// Runs a program on simulated ranks: builds the world, gives each rank its context, and collects the report.
// This is the only place that knows both the engine and the library's RankContext.
#include "sim/backend/simulate.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <iostream>
#include <mutex>
#include <numeric>
#include <thread>

#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/exit_point.hpp"
#include "sim/backend/crash_report.hpp"
#include "sim/backend/operator_clock.hpp"
#include "sim/backend/replica_comparison.hpp"
#include "sim/backend/sim_backend.hpp"
#include "sim/backend/sim_observer.hpp"

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
                                                   .finish_times = options.finish_times,
                                                   .times_before = before.times,
                                                   .started = started,
                                                   .cpu_factor = options.operator_seconds ? 0 : options.cpu_factor,
                                                   .processor_seconds = options.processor_seconds,
                                                   .sleep = options.sleep,
                                                   .records_times = options.records_times,
                                                   .records_spans = options.records_spans,
                                                   .logs_events = options.logs_events,
                                                   .faults = options.faults,
                                                   .corrupt = corrupt_buffers,
                                                   .on_stuck = on_stuck_of(options, before)})),
        comparison(std::make_shared<ReplicaComparison>(*world)),
        recorder(options.records_steps ? std::make_shared<StepRecorder>(options.num_ranks) : nullptr) {}

  std::shared_ptr<World> world;
  std::shared_ptr<ReplicaComparison> comparison;
  std::shared_ptr<StepRecorder> recorder;

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

// Builds the rank's context on the rank's own thread: the guard and the operator clock register thread-local
// callbacks, and grad mode and autocast are thread-local as well. The order of construction matters: `scope`
// must end before the objects that it refers to.
void run_thread(const SimulationOptions& options, const SimulatedRank& simulated, std::mutex& output,
                const std::function<void(RankContext&)>& body) {
  const auto& member = simulated.member;
  const auto& world = member.world;
  const int rank = member.rank;
  RankContext context;
  context.rank = context.local_rank = rank;
  context.world_size = context.local_world_size = options.num_ranks;
  context.restart_count = simulated.restart_count;
  context.backend = "sim";
  // One intra-op thread: the ranks already use all cores, and results must not depend on the number of cores.
  context.num_threads = 1;
  context.generator = make_generator(c10::default_rng_seed_val);
  context.libc_random = make_libc_random();
  std::vector<int> everyone(options.num_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  context.world = accel::Group("world", make_process_group(member, "world", everyone));
  // Group names are counted per rank. All ranks create groups in the same order, as c10d requires, so equal
  // names mean the same group; the engine checks that the members agree.
  context.new_group = [member, faults = options.faults, count = 0](const std::vector<int>& ranks) mutable {
    const auto name = fmt::format("group{}", ++count);
    if (faults) faults->on_rendezvous(*member.world, member.rank);
    member.world->group(name, ranks);
    const bool is_member = std::find(ranks.begin(), ranks.end(), member.rank) != ranks.end();
    return is_member ? accel::Group(name, make_process_group(member, name, ranks)) : accel::Group();
  };
  context.listener = std::make_shared<SimObserver>(world, simulated.comparison, simulated.recorder, rank);
  context.print = [&output](const std::string& text) {
    const std::lock_guard lock(output);
    std::cout << text << std::flush;
  };
  context.warn = [world](const std::string& text) { world->failures().warn(text); };
  if (options.faults) context.files = options.faults->files(*world, rank, context.files);
  const auto device = options.place ? options.place(context) : nullptr;
  const RankScope scope(context);
  const CrashScope crash(*world, rank);
  const OperatorClock clock([&](double seconds) { world->clocks().advance(rank, seconds); }, options.operator_seconds);
  const auto program = [&] {
    body(context);
    return 0;
  };
  const auto end = run_until_exit([&] { return run_program(context, program); });
  if (end.code != 0) throw Error(fmt::format("the program called {}({}); expected code 0", end.function, end.code));
  finish_saves(context);  // of a program that called std::exit(0)
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
        .faults = options.faults.get(),
        .restart_count = restart_count});
}

void warm_up_mkl_kernels() {
  const auto matrix = at::ones({64, 64}), batch = at::ones({4, 16, 16}), vector = at::ones({64});
  at::mm(matrix, matrix);
  at::addmm(vector, matrix, matrix.t());
  at::bmm(batch, batch);
  at::bmm(batch, batch.transpose(1, 2));
  at::mv(matrix, vector);
  at::dot(vector, vector);
  for (const auto function : {at::exp, at::log, at::tanh, at::erf, at::sqrt, at::sin, at::cos}) function(matrix);
}

// MKL detects the processor's features in its first call, without a lock. Of two concurrent first calls one
// chose another kernel and produced other bits (2 of 60 runs of a linear layer on 2 ranks). Each family of
// functions has its own first call: 1 of 100 runs of a sharded transformer on 3 ranks had other bits when only
// matrix products had been called before. So all families are called once per process, on a thread with one
// intra-op thread, as ranks have: the caller's OpenMP threads would spin beside busy cores, which made 593
// short runs take 72 s instead of 1.1 s.
void warm_up_mkl_once() {
  static std::once_flag done;
  std::call_once(done, [] {
    start_thread("the thread that prepares MKL", [] {
      at::set_num_threads(1);
      warm_up_mkl_kernels();
    }).join();
  });
}

// Times accumulate within the clocks (`times_before`), so the last attempt's replace those of earlier ones.
void take(World& world, SimulationReport& report) {
  append_findings(world, report);
  report.times.clear();
  for (int rank = 0; rank < world.num_ranks(); ++rank) report.times.push_back(world.clocks().times(rank));
}

}  // namespace

// The loop is the launcher of a restarting fault: each attempt gets a new World, and the report accumulates.
// Errors before the first attempt (a missing interposition) are reported in the same way.
SimulationReport rehearse_ranks(const SimulationOptions& options,
                                const std::function<void(const SimulatedRank&)>& body) {
  SimulationReport report;
  try {
    verify_interposition();
    warm_up_mkl_once();
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
        report.findings.push_back(
            fmt::format("the fault has not struck: the run never reached the event that triggers it: {}", fault));
    }
  } catch (...) {
    report.error = std::current_exception();
  }
  return report;
}

SimulationReport rehearse(const SimulationOptions& options, const std::function<void(RankContext&)>& body) {
  std::mutex output;
  return rehearse_ranks(options, [&](const SimulatedRank& simulated) { run_thread(options, simulated, output, body); });
}

void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body) {
  const auto report = rehearse(options, body);
  for (const auto& finding : report.findings) std::cerr << "simulation: warning: " << finding << std::endl;
  if (report.error) std::rethrow_exception(report.error);
}

}  // namespace accel::sim
