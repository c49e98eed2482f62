#include "sim/programs/processes/fork_server.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "backends/launch/process.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "sim/programs/processes/process_run.hpp"

namespace accel::programs {

// The interpreter reads a line per run, "AREA RESTARTS FOLDER", and writes one when it is ready for the next.
ForkServer::ForkServer(RankProgram program) : name_(program.command.front()) {
  std::array<int, 2> ends{};
  checked_descriptor(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "the program of the ranks");
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
ForkServer::~ForkServer() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

bool ForkServer::is_ready() {
  char line = 0;
  while (true) {
    const auto bytes = read(socket_, &line, 1);
    if (bytes >= 0 || errno != EINTR) return bytes == 1;
  }
}

// No run was started if the ranks ended before their programs.
void ForkServer::finish_run() {
  ensure(!std::exchange(is_running_, false) || is_ready(), "'{}' has ended during a run", name_);
}

std::unique_ptr<Supervisor> ForkServer::start(int num_ranks, const std::string& folder, int restart_count) {
  finish_run();  // the one before a restart
  const auto area = process::SharedArea::create(num_ranks);
  const auto request = fmt::format("{} {} {}\n", area->descriptor(), restart_count, folder);
  ensure(send(socket_, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()),
         "'{}' has ended: {}", name_, std::strerror(errno));
  is_running_ = true;
  return std::make_unique<Supervisor>(RankProgram{.starter = pid_}, area);
}

sim::SimulationReport ForkServer::run(const Rehearsal& rehearsal, int num_ranks, const std::string& folder) {
  auto report = run_ranks_as_processes(rehearsal, num_ranks,
                                       [&](int restart_count) { return start(num_ranks, folder, restart_count); });
  finish_run();
  return report;
}

}  // namespace accel::programs
