#include "sim/programs/processes/process_run.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <mutex>

#include "backends/launch/process.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "sim/programs/processes/rank_proxy.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/report_run.hpp"
#include "sim/ranks/group_member.hpp"

namespace accel::programs {
namespace {

// The processes of the ranks between two restarts.
struct Attempt {
  explicit Attempt(std::unique_ptr<Supervisor> started)
      : supervisor(std::move(started)), weights(supervisor->area()->num_ranks()) {}
  std::unique_ptr<Supervisor> supervisor;
  DividedWeights weights;
  std::vector<std::unique_ptr<RankProxy>> proxies;  // live as long as the processes; under the mutex of the attempts
};

// Throws Error if the program ends before its ranks start.
std::unique_ptr<Supervisor> start_again(const RankProgram& program, int num_ranks, int restart_count) {
  auto again = program;
  again.environment["ACCEL_RESTART_COUNT"] = std::to_string(restart_count);
  auto supervisor = std::make_unique<Supervisor>(std::move(again), process::SharedArea::create(num_ranks));
  const auto code = supervisor->wait_until_ready();
  if (code) throw Error(fmt::format("the program, started again, {}", launcher::describe_exit_code(*code)));
  return supervisor;
}

// Returns the exit code of a program that ends before its ranks start.
int run(const RankProgram& program, const std::shared_ptr<process::SharedArea>& area, const SimRequest& request) {
  const Rehearsal rehearsal(request.rehearsal, request.ranks);
  auto first = std::make_unique<Supervisor>(program, area);
  if (const auto code = first->wait_until_ready()) {
    if (*code > kDiagnosed)
      std::cerr << "sim-run: the program " << launcher::describe_exit_code(*code) << " before its ranks started"
                << std::endl;
    return *code;
  }
  const auto report = run_ranks_as_processes(rehearsal, request.ranks, [&](int restart_count) {
    if (restart_count == 0) return std::move(first);
    check_config(!program.command.empty(), "a fault restarts the ranks, which the process that started them cannot do");
    return start_again(program, request.ranks, restart_count);
  });
  return report_run(rehearsal, request, report, "sim-run");
}

// The ranks are processes of several programs, any of which may end first, so the simulator is a child of none and gets
// no signal from their terminal. The process that a rank has started ends here, as soon as the ranks can watch the
// simulator.
void detach(process::SharedArea& area) {
  const auto simulator = fork();
  check_config(simulator >= 0, "attach: cannot start a process: {}", describe_system_error(errno));
  if (simulator > 0) {
    area.simulator() = simulator;
    _exit(0);
  }
  setsid();
}

}  // namespace

sim::SimulationReport run_ranks_as_processes(const Rehearsal& rehearsal, int num_ranks, const StartRanks& start) {
  std::mutex mutex;
  std::vector<std::unique_ptr<Attempt>> attempts;           // null: its ranks could not be started
  std::vector<double> processor_seconds(num_ranks);         // by rank, used on its thread
  std::vector<std::atomic<RankProxy*>> proxies(num_ranks);  // null: it has not started
  // The first rank of an attempt starts it; all ranks of the one before have left by then.
  const auto take_proxy = [&](const sim::SimulatedRank& simulated) {
    const std::lock_guard lock(mutex);
    if (static_cast<int>(attempts.size()) == simulated.restart_count) {
      if (simulated.restart_count > 0) attempts.back()->supervisor->finish();
      auto& own = attempts.emplace_back();
      own = std::make_unique<Attempt>(start(simulated.restart_count));
    }
    auto& attempt = attempts.back();
    check_state(attempt != nullptr, "the ranks could not be started again");
    attempt->supervisor->watch(simulated.member.world);
    return attempt->proxies
        .emplace_back(std::make_unique<RankProxy>(
            simulated, attempt->supervisor->area(), attempt->weights, processor_seconds[simulated.member.rank],
            [&supervisor = *attempt->supervisor, rank = simulated.member.rank] { return supervisor.has_stopped(rank); },
            [&supervisor = *attempt->supervisor, rank = simulated.member.rank] { return supervisor.reason_of(rank); }))
        .get();
  };
  const auto run_proxy = [&](const sim::SimulatedRank& simulated) {
    const int rank = simulated.member.rank;
    processor_seconds[rank] = 0;  // of a new process
    simulated.member.world->clocks().discard_compute(rank);
    proxies[rank] = take_proxy(simulated);
    proxies[rank].load()->run();
  };
  auto report = rehearsal.run_process_ranks(
      collective_timeout(),
      {.body = run_proxy,
       .processor_seconds = [&](int rank) { return processor_seconds[rank]; },
       .sleep = [&](int rank, const sim::Completion& completion) { proxies[rank].load()->sleep(completion); },
       .continue_rank =
           [&] {
             return std::count_if(proxies.begin(), proxies.end(), [](const auto& proxy) {
                      return proxy.load() != nullptr && proxy.load()->continue_if_possible();
                    }) > 0;
           }});
  if (!attempts.empty() && attempts.back()) attempts.back()->supervisor->finish();
  return report;
}

int run_process_ranks(RankProgram program, const SimRequest& request) {
  if (request.ranks == 1) program.prefix.clear();
  if (!request.rehearsal.faults.empty()) program = with_watched_writes(std::move(program));
  return run(program, process::SharedArea::create(request.ranks), request);
}

// If one process starts the ranks, it passes its number in ACCEL_STARTER, because it may have ended before this one
// could ask for it. This process ends with it: nobody else could tell when the ranks have ended.
int attach_to_ranks(int descriptor, const SimRequest& request) {
  const auto starter = environment("ACCEL_STARTER");
  if (starter) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_config(getppid() == std::stoi(*starter), "attach: the process that starts the ranks has ended");
  }
  const auto area = process::SharedArea::attach(descriptor);
  check_config(area->num_ranks() == request.ranks, "--ranks {}: descriptor {} has {} ranks", request.ranks, descriptor,
               area->num_ranks());
  if (starter) return run({}, area, request);
  Rehearsal(request.rehearsal, request.ranks);  // its errors are those of the rank that waits for `detach`
  detach(*area);
  return run({.command = {}, .environment = {}, .watches_processes = true}, area, request);
}

}  // namespace accel::programs
