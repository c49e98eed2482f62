#include "sim/programs/processes/process_run.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <iostream>

#include "backends/launch/process.hpp"
#include "reference/core/errors.hpp"
#include "sim/backend/sim_backend.hpp"
#include "sim/programs/processes/rank_proxy.hpp"
#include "sim/programs/runtime/exit_code.hpp"
#include "sim/programs/runtime/real_rank.hpp"
#include "sim/programs/runtime/rehearsal.hpp"
#include "sim/programs/runtime/report_run.hpp"

namespace accel::programs {

namespace {

int run(RankProgram program, const std::shared_ptr<process::SharedArea>& area, const SimRequest& request) {
  const Rehearsal rehearsal(request.rehearsal, request.ranks);
  Supervisor supervisor(std::move(program), area);
  if (const auto code = supervisor.wait_until_ready()) {
    if (*code > kDiagnosed)
      std::cerr << "sim-run: the program " << launcher::describe_exit_code(*code) << " before its ranks started"
                << std::endl;
    return *code;
  }
  std::vector<double> processor_seconds(request.ranks);
  std::vector<std::unique_ptr<RankProxy>> proxies(request.ranks);
  const auto report = rehearsal.run_seats(
      collective_timeout(),
      [&](const sim::Seat& seat) {
        check_config(seat.restart_count == 0, "a fault restarts the ranks, which only threads can do");
        supervisor.watch(seat.member.world);
        const int rank = seat.member.rank;
        proxies[rank] = std::make_unique<RankProxy>(seat, area, processor_seconds[rank],
                                                    [&supervisor, rank] { return supervisor.has_stopped(rank); });
        proxies[rank]->run();
      },
      [&](int rank) { return processor_seconds[rank]; },
      [&](int rank, const sim::Completion& completion) { proxies[rank]->sleep(completion); });
  supervisor.finish();
  return report_run(rehearsal, request, report, "sim-run");
}

}  // namespace

int run_process_ranks(RankProgram program, const SimRequest& request) {
  if (request.ranks == 1) program.prefix.clear();
  return run(std::move(program), process::SharedArea::create(request.ranks), request);
}

// Ends with the process that starts the ranks: nobody else could tell when they have ended.
int attach_to_ranks(int descriptor, const SimRequest& request) {
  const auto parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  check_config(getppid() == parent, "attach: the process that starts the ranks has ended");
  const auto area = process::SharedArea::attach(descriptor);
  check_config(area->num_ranks() == request.ranks, "--ranks {}: descriptor {} has {} ranks", request.ranks, descriptor,
               area->num_ranks());
  return run({}, area, request);
}

}  // namespace accel::programs
