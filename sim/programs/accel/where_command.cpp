// `accel where`: reads the record of a job's calls from another terminal. The ranks take no part, so it works while
// they are stuck or stopped. Stack traces of ranks that wait for no other come from a debugger, if one is installed.
#include <array>
#include <cstdio>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "reference/recorder/job_reader.hpp"
#include "reference/recorder/job_watch.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

// eu-stack belongs to elfutils. Empty if there is no debugger, or the system lets none attach.
std::string stack_of(pid_t pid) {
  const auto command = fmt::format(
      "eu-stack -p {0} 2>/dev/null || gdb -p {0} -batch -nx -ex 'thread apply all backtrace' 2>/dev/null", pid);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "re"), &pclose);
  std::string text;
  std::array<char, 4096> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) text += line.data();
  return text;
}

}  // namespace

int where_main(int argc, char** argv) {
  CLI::App app(
      "Prints what the ranks of a running job on this machine do: the call in which each waits, or its last one");
  int pid = 0;
  bool with_stacks = false;
  app.add_option("PID", pid, "Process of the launcher or of a rank")->required()->check(CLI::PositiveNumber);
  app.add_flag(
      "--stacks", with_stacks,
      "Also print stack traces of ranks that wait for no other; needs eu-stack or gdb, which stops the rank for "
      "a moment");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  const auto record = recorder::record_of_process(pid);
  std::cout << recorder::JobWatch({}, record).whereabouts({}) << std::endl;
  if (!with_stacks) return kSuccess;
  const auto view = recorder::JobReader(record).view();
  for (int rank = 0; rank < record->world_size(); ++rank) {
    if (!record->is_local(rank) || view.job.ranks[rank].activity != Activity::kRuns) continue;
    const auto stack = stack_of(record->rank(rank).pid);
    std::cout << fmt::format(
        "\nrank {}:\n{}", rank,
        stack.empty() ? "no stack trace; install elfutils or gdb, and check ptrace_scope\n" : stack);
  }
  return kSuccess;
}

}  // namespace accel::programs
