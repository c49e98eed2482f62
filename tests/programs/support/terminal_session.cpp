// Runs a program on a pseudo-terminal. The slave end stays open in this process, so that the terminal's mode can be
// read after the program has ended.
#include "tests/programs/support/terminal_session.hpp"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace accel::testing {
namespace {

std::vector<char*> as_arguments(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> with_variables(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  return entries;
}

}  // namespace

TerminalSession::TerminalSession(const std::vector<std::string>& command, const CommandOptions& options)
    : deadline_(std::chrono::steady_clock::now() + options.limit) {
  auto words = command, entries = with_variables(options.environment);
  const auto arguments = as_arguments(words), environment = as_arguments(entries);
  if (openpty(&master_, &slave_, nullptr, nullptr, nullptr) != 0) throw std::runtime_error("no pseudo-terminal");
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {  // only async-signal-safe calls from here to exec
    // A new session with a controlling terminal, so that Ctrl-C reaches the program as SIGINT.
    setsid();
    ioctl(slave_, TIOCSCTTY, 0);
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(slave_, descriptor);
    close(master_);
    execvpe(arguments[0], arguments.data(), environment.data());
    _exit(127);
  }
}

TerminalSession::~TerminalSession() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(slave_);
  close(master_);
}

void TerminalSession::type(const std::string& keys) {
  if (write(master_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("typing failed");
}

// Returns false if no output arrives within 100 ms.
bool TerminalSession::read_more() {
  pollfd waiting{master_, POLLIN, 0};
  if (poll(&waiting, 1, 100) <= 0) return false;
  std::array<char, 4096> buffer{};
  const auto count = read(master_, buffer.data(), buffer.size());
  if (count > 0) shown_.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

void TerminalSession::wait_for(const std::string& text) {
  // The search starts after the previous match, so waiting twice for the same text needs it to appear twice.
  for (auto found = shown_.find(text, waited_);; found = shown_.find(text, waited_)) {
    if (found != std::string::npos) {
      waited_ = found + text.size();
      return;
    }
    if (std::chrono::steady_clock::now() > deadline_)
      throw std::runtime_error("'" + text + "' was not shown; shown was:\n" + shown_);
    read_more();
  }
}

bool TerminalSession::is_in_shell_mode() const {
  termios mode{};
  // Canonical mode, echo and signals are what a shell expects after a program has ended.
  return tcgetattr(slave_, &mode) == 0 && (mode.c_lflag & ICANON) != 0 && (mode.c_lflag & ECHO) != 0 &&
         (mode.c_lflag & ISIG) != 0;
}

int TerminalSession::finish() {
  int status = 0;
  // Output must be read while waiting, or a full terminal buffer would block the program.
  for (pid_t ended = 0; ended == 0; ended = waitpid(pid_, &status, WNOHANG)) {
    read_more();
    if (std::chrono::steady_clock::now() > deadline_) throw std::runtime_error("still running; shown was:\n" + shown_);
  }
  while (read_more()) continue;
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace accel::testing
