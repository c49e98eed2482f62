// Runs programs with pipes on both streams. Both are read while the program runs, because a program that fills an
// unread pipe would block forever.
#include "tests/programs/support/run_command.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "tests/support/artifacts.hpp"

extern char** environ;

namespace accel::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// The address sanitizer triples a program's time, and its start takes a second.
#ifdef ACCEL_SANITIZED
constexpr int kSlowness = 5;
#else
constexpr int kSlowness = 1;
#endif

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what + ": " + std::strerror(errno));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set; run the test with ctest");
  return value;
}

// A map, so that a variable of the test replaces an inherited one instead of following it.
std::vector<std::string> environment_of(const CommandOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) {
    // An empty value unsets the variable.
    if (!value.empty()) entries.push_back(name + "=" + value);
  }
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (auto& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Appends the available bytes. Returns false at the end of the stream.
bool read_some(int descriptor, std::string& text) {
  std::array<char, 1 << 14> buffer{};
  const auto count = read(descriptor, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

// Keeps the page of a run with --report among the artifacts, under the name of the test. Temporary folders of tests are
// deleted, so that nobody could look at it.
void keep_report(const std::vector<std::string>& command) {
  const auto option = std::find(command.begin(), command.end(), "--report");
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (command.end() - option < 2 || test == nullptr || !fs::is_directory(option[1])) return;
  auto name = std::string(test->test_suite_name()) + "." + test->name();
  std::replace(name.begin(), name.end(), '/', '_');
  if (const auto folder = artifact_path("reports/" + name))
    fs::copy(option[1], *folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& command, const CommandOptions& options) {
  auto arguments_storage = command;
  auto environment_storage = environment_of(options);
  const auto arguments = pointers_to(arguments_storage);
  const auto environment = pointers_to(environment_storage);
  std::array<std::array<int, 2>, 2> pipes{};
  // O_CLOEXEC keeps the pipes from other children that threads of this test start at the same time.
  for (auto& ends : pipes) require(pipe2(ends.data(), O_CLOEXEC) == 0, "pipe");

  const auto started = Clock::now();
  const pid_t pid = fork();
  require(pid >= 0, "fork");
  if (pid == 0) {   // only async-signal-safe calls from here to exec
    setpgid(0, 0);  // a separate process group, so that its children can be killed with it
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(pipes[0][1], STDOUT_FILENO);
    dup2(pipes[1][1], STDERR_FILENO);
    execvpe(arguments[0], arguments.data(), environment.data());
    _exit(127);
  }
  // Both parent and child call setpgid, because either of them may run first.
  setpgid(pid, pid);
  for (auto& ends : pipes) close(ends[1]);

  CommandResult result;
  std::array<std::string*, 2> texts{&result.output, &result.error};
  std::array<pollfd, 2> waiting{pollfd{pipes[0][0], POLLIN, 0}, pollfd{pipes[1][0], POLLIN, 0}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(started + kSlowness * options.limit - Clock::now())
            .count();
    if (left <= 0 && !result.was_killed_at_limit) {
      result.was_killed_at_limit = true;
      // The whole group is killed; children that keep a pipe open would otherwise make the loop below wait for
      // them.
      kill(-pid, SIGKILL);
    }
    if (poll(waiting.data(), waiting.size(), static_cast<int>(std::max<long long>(left, 100))) <= 0) continue;
    for (std::size_t index = 0; index < waiting.size(); ++index) {
      auto& entry = waiting.at(index);
      if (entry.fd >= 0 && entry.revents != 0 && !read_some(entry.fd, *texts.at(index))) {
        close(entry.fd);
        entry.fd = -1;
      }
    }
  }
  int status = 0;
  // Pipes are closed at this point, so the wait is short.
  while (waitpid(pid, &status, 0) < 0) require(errno == EINTR, "waitpid");
  result.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  keep_report(command);
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

std::string bin(const std::string& program) { return (fs::path(variable("ACCEL_BIN_DIR")) / program).string(); }
std::string source(const std::string& path) { return (fs::path(variable("ACCEL_SOURCE_DIR")) / path).string(); }

BusyPort::BusyPort() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  // Port 0 lets the kernel choose a free port.
  if (bind(listener_, any, length) != 0 || listen(listener_, 1) != 0 || getsockname(listener_, any, &length) != 0) {
    throw std::runtime_error("no port to listen on");
  }
  port_ = ntohs(address.sin_port);
}

BusyPort::~BusyPort() { close(listener_); }

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace accel::testing
