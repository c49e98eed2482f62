// fork and exec instead of posix_spawn, which can neither set PR_SET_PDEATHSIG nor CPU affinity in the child.
#include "backends/launch/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "backends/launch/cpu_plan.hpp"
#include "reference/core/system/resource_limits.hpp"

extern char** environ;

namespace accel::launcher {
namespace {

// Precedence: options.environment, then this process's environment, then the defaults. insert and try_emplace keep
// existing entries.
std::vector<std::string> environment_of(const ProcessOptions& options) {
  auto variables = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    variables.try_emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  variables.insert(options.default_environment.begin(), options.default_environment.end());
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

// Describes an error of exec, and what to do about it.
std::string why_not(int reason) {
  const std::string text = std::strerror(reason);
  if (reason == EACCES) return text + "; expected a file that may be executed (chmod +x)";
  return reason == ENOENT ? text + "; expected the path of a program, or the name of a program in PATH" : text;
}

// The null-terminated array that exec expects. The strings must outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (auto& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

pid_t start_process(const ProcessOptions& options) {
  // A successful exec closes this pipe, so read() below returns 0; otherwise the child writes its errno into it.
  std::array<int, 2> failure{};
  checked_descriptor(pipe2(failure.data(), O_CLOEXEC), fmt::format("cannot run '{}'", options.command.front()));
  auto command = options.command;
  auto variables = environment_of(options);
  const auto arguments = pointers_to(command);
  const auto environment = pointers_to(variables);
  // Everything that allocates happens before fork: another thread may hold the allocator's lock at that moment.
  const auto cpus = cpu_set_of(options.cpus);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const int reason = errno;
    for (const int end : failure) close(end);
    throw ConfigError(fmt::format("cannot run '{}': {}", options.command.front(), describe_system_error(reason)));
  }
  if (pid == 0) {  // only async-signal-safe calls from here to exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before prctl took effect
    if (options.own_group) setpgid(0, 0);
    if (!options.working_folder.empty() && chdir(options.working_folder.c_str()) != 0) {
      const int reason = errno;
      (void)!write(failure[1], &reason, sizeof(reason));
      _exit(127);
    }
    if (!options.cpus.empty()) sched_setaffinity(0, sizeof(cpus), &cpus);
    for (const auto& [ours, theirs] : options.descriptors) {
      if (ours == theirs)
        fcntl(ours, F_SETFD, 0);  // dup2 onto itself would keep FD_CLOEXEC
      else
        dup2(ours, theirs);
    }
    if (options.blocked != nullptr) sigprocmask(SIG_SETMASK, options.blocked, nullptr);
    execvpe(arguments[0], arguments.data(), environment.data());
    const int reason = errno;
    (void)!write(failure[1], &reason, sizeof(reason));
    _exit(127);
  }
  close(failure[1]);
  int reason = 0;
  const auto count = read(failure[0], &reason, sizeof(reason));
  close(failure[0]);
  // exec failed: the child has exited, and must be reaped.
  if (count != sizeof(reason)) return pid;
  waitpid(pid, nullptr, 0);
  throw ConfigError(fmt::format("cannot run '{}': {}", options.command.front(), why_not(reason)));
}

int exit_code_of_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string describe_exit_code(int exit_code) {
  if (exit_code <= 128) return fmt::format("ended with exit code {}", exit_code);
  return fmt::format("was killed by signal {} ({})", exit_code - 128, strsignal(exit_code - 128));
}

}  // namespace accel::launcher
