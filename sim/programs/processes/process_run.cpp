#include "sim/programs/processes/process_run.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "backends/launch/process.hpp"
#include "reference/core/errors.hpp"
#include "sim/backend/sim_backend.hpp"
#include "sim/programs/processes/rank_proxy.hpp"
#include "sim/programs/runtime/exit_code.hpp"
#include "sim/programs/runtime/real_rank.hpp"
#include "sim/programs/runtime/report_run.hpp"

namespace accel::programs {
namespace {

// Runs the engine over ranks that are ready to start.
sim::SimulationReport simulate(const Rehearsal& rehearsal, Supervisor& supervisor,
                               const std::shared_ptr<process::SharedArea>& area) {
  std::vector<double> processor_seconds(area->num_ranks());
  DividedWeights weights(area->num_ranks());
  std::vector<std::unique_ptr<RankProxy>> proxies(area->num_ranks());
  auto report = rehearsal.run_seats(
      collective_timeout(),
      [&](const sim::Seat& seat) {
        check_config(seat.restart_count == 0, "a fault restarts the ranks, which only threads can do");
        supervisor.watch(seat.member.world);
        const int rank = seat.member.rank;
        proxies[rank] = std::make_unique<RankProxy>(seat, area, weights, processor_seconds[rank],
                                                    [&supervisor, rank] { return supervisor.has_stopped(rank); });
        proxies[rank]->run();
      },
      [&](int rank) { return processor_seconds[rank]; },
      [&](int rank, const sim::Completion& completion) { proxies[rank]->sleep(completion); });
  supervisor.finish();
  return report;
}

int run(RankProgram program, const std::shared_ptr<process::SharedArea>& area, const SimRequest& request) {
  const Rehearsal rehearsal(request.rehearsal, request.ranks);
  Supervisor supervisor(std::move(program), area);
  if (const auto code = supervisor.wait_until_ready()) {
    if (*code > kDiagnosed)
      std::cerr << "sim-run: the program " << launcher::describe_exit_code(*code) << " before its ranks started"
                << std::endl;
    return *code;
  }
  return report_run(rehearsal, request, simulate(rehearsal, supervisor, area), "sim-run");
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

// The interpreter reads a line per run, "AREA FOLDER", and writes one when it is ready for the next.
WarmProgram::WarmProgram(RankProgram program) : name_(program.command.front()) {
  std::array<int, 2> ends{};
  ensure(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair: {}", std::strerror(errno));
  socket_ = ends[0];
  program.environment["ACCEL_RUNS"] = std::to_string(ends[1]);
  pid_ = launcher::start_process({.command = std::move(program.command),
                                  .environment = std::move(program.environment),
                                  .descriptors = {{ends[1], ends[1]}}});
  close(ends[1]);
  if (is_ready()) return;
  close(socket_);
  int status = 0;
  waitpid(pid_, &status, 0);
  throw ConfigError(fmt::format("'{}' {} before its ranks started", name_,
                                launcher::describe_exit_code(launcher::exit_code_of_status(status))));
}

// It ends when nobody can send it requests any more.
WarmProgram::~WarmProgram() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

bool WarmProgram::is_ready() {
  char line = 0;
  while (true) {
    const auto bytes = read(socket_, &line, 1);
    if (bytes >= 0 || errno != EINTR) return bytes == 1;
  }
}

sim::SimulationReport WarmProgram::run(const Rehearsal& rehearsal, int num_ranks, const std::string& folder) {
  const auto area = process::SharedArea::create(num_ranks);
  const auto request = fmt::format("{} {}\n", area->descriptor(), folder);
  ensure(send(socket_, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()),
         "'{}' has ended: {}", name_, std::strerror(errno));
  Supervisor supervisor({.starter = pid_}, area);
  auto report = simulate(rehearsal, supervisor, area);
  ensure(is_ready(), "'{}' has ended during a run", name_);
  return report;
}

}  // namespace accel::programs
