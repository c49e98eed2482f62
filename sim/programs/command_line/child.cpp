#include "sim/programs/command_line/child.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <thread>

namespace accel::programs {
namespace {

std::string quoted(const std::string& word) {
  const bool is_plain = !word.empty() && word.find_first_not_of(
                                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,") ==
                                             std::string::npos;
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

ChildEnd run_child(launcher::ProcessOptions options, const std::string& output, const std::string& error,
                   std::optional<std::chrono::seconds> limit) {
  const int flags = O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC;
  const int to_output = open(output.c_str(), flags, 0600), to_error = open(error.c_str(), flags, 0600);
  options.descriptors.insert(options.descriptors.end(), {{to_output, STDOUT_FILENO}, {to_error, STDERR_FILENO}});
  options.own_group = limit.has_value();
  const auto begin = std::chrono::steady_clock::now();
  const auto pid = launcher::start_process(options);
  close(to_output);
  close(to_error);
  ChildEnd end;
  int status = 0;
  while (true) {
    const auto ended = waitpid(pid, &status, limit && !end.is_late ? WNOHANG : 0);
    if (ended == pid || (ended < 0 && errno != EINTR)) break;
    if (ended != 0 || !limit) continue;
    if (std::chrono::steady_clock::now() - begin > *limit) {
      end.is_late = true;
      kill(-pid, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (options.own_group) kill(-pid, SIGKILL);  // what it leaves running
  end.exit_code = launcher::exit_code_of_status(status);
  return end;
}

}  // namespace accel::programs
