#include "backends/launch/local_launch.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <optional>

#include "backends/launch/process.hpp"
#include "reference/core/errors.hpp"

namespace accel::launch {
namespace {

constexpr auto kGrace = std::chrono::seconds(2);  // between SIGTERM and SIGKILL for the ranks that are left

// Binds a port of the loopback interface; returns the port, or nothing if it is taken.
std::optional<int> try_port(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  ensure(descriptor >= 0, "socket: {}", std::strerror(errno));
  const int yes = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof(address);
  const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     listen(descriptor, 1) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(descriptor);
  return bound ? std::optional<int>(ntohs(address.sin_port)) : std::nullopt;
}

// One stream of one process, cut into lines.
struct Stream {
  int descriptor = -1;
  int rank = 0;
  bool is_error = false;
  std::string pending;
  std::string last_line;
};

struct Process {
  pid_t pid = -1;
  bool running = true;
};

std::map<std::string, std::string> environment_of(const LocalLaunchOptions& options, int rank, int port) {
  auto variables = options.environment;
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(options.num_processes);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  return variables;
}

class Launch {
 public:
  explicit Launch(const LocalLaunchOptions& options) : options_(options) {}
  ~Launch() { kill_all(SIGKILL); reap(/*block=*/true); }

  LocalLaunchResult run(int port) {
    for (int rank = 0; rank < options_.num_processes; ++rank) start(rank, port);
    while (num_running() > 0 || num_open() > 0) {
      forward_output();
      reap(/*block=*/false);
      if (failed() && !deadline_) {
        deadline_ = std::chrono::steady_clock::now() + kGrace;
        kill_all(SIGTERM);
      }
      if (deadline_ && std::chrono::steady_clock::now() > *deadline_) kill_all(SIGKILL);
      if (num_running() == 0 && deadline_) break;  // a grandchild may hold a pipe open
    }
    drain();
    if (failed()) describe_failure();
    return result_;
  }

 private:
  void start(int rank, int port) {
    int output[2], error[2];
    ensure(pipe2(output, O_CLOEXEC) == 0 && pipe2(error, O_CLOEXEC) == 0, "pipe: {}", std::strerror(errno));
    ProcessOptions process{.command = options_.command, .environment = environment_of(options_, rank, port),
                           .default_environment = {{"OMP_NUM_THREADS", "1"}},  // ranks share the cores
                           .descriptors = {{output[1], STDOUT_FILENO}, {error[1], STDERR_FILENO}}};
    if (rank == 0 && options_.progress_fd >= 0) process.descriptors.emplace_back(options_.progress_fd, 3);
    const pid_t pid = start_process(process);
    close(output[1]);
    close(error[1]);
    processes_.push_back({pid});
    streams_.push_back({output[0], rank, false});
    streams_.push_back({error[0], rank, true});
    for (const int descriptor : {output[0], error[0]}) fcntl(descriptor, F_SETFL, O_NONBLOCK);
  }

  void forward_output() {
    std::vector<pollfd> waiting;
    for (const auto& stream : streams_) waiting.push_back({stream.descriptor, POLLIN, 0});
    poll(waiting.data(), waiting.size(), /*timeout_ms=*/20);
    drain();
  }

  void drain() {
    char buffer[1 << 14];
    for (auto& stream : streams_) {
      if (stream.descriptor < 0) continue;
      ssize_t count = 0;
      while ((count = read(stream.descriptor, buffer, sizeof(buffer))) > 0) take(stream, {buffer, static_cast<std::size_t>(count)});
      if (count == 0) {
        if (!stream.pending.empty()) take(stream, "\n");
        close(stream.descriptor);
        stream.descriptor = -1;
      }
    }
  }

  void take(Stream& stream, std::string_view text) {
    stream.pending += text;
    for (std::size_t end; (end = stream.pending.find('\n')) != std::string::npos;) {
      auto line = stream.pending.substr(0, end);
      stream.pending.erase(0, end + 1);
      auto& out = stream.is_error ? std::cerr : std::cout;
      if (options_.prefix_output) out << "[rank " << stream.rank << "] ";
      out << line << std::endl;
      if (!line.empty()) stream.last_line = std::move(line);
    }
  }

  void reap(bool block) {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      auto& process = processes_[rank];
      if (!process.running) continue;
      int status = 0;
      rusage usage{};
      if (wait4(process.pid, &status, block ? 0 : WNOHANG, &usage) != process.pid) continue;
      process.running = false;
      result_.peak_rss_bytes += usage.ru_maxrss * 1024;
      const int code = exit_code_of_status(status);
      // Of those that ended since the last look, one that was killed is the cause; the others fail because it is gone.
      const bool is_cause = !deadline_ && WIFSIGNALED(status) && result_.exit_code <= 128;
      if (code != 0 && (!failed() || is_cause)) {
        result_.exit_code = code;
        result_.failed_rank = static_cast<int>(rank);
      }
    }
  }

  void describe_failure() {
    result_.message = fmt::format("rank {} {}", result_.failed_rank, describe_exit_code(result_.exit_code));
    const auto& last = streams_[2 * result_.failed_rank + 1].last_line;
    if (!last.empty()) result_.message += ": " + last;
  }

  void kill_all(int signal) {
    for (const auto& process : processes_) {
      if (process.running) kill(process.pid, signal);
    }
  }

  [[nodiscard]] bool failed() const { return result_.failed_rank >= 0; }
  [[nodiscard]] int num_running() const {
    int count = 0;
    for (const auto& process : processes_) count += process.running ? 1 : 0;
    return count;
  }
  [[nodiscard]] int num_open() const {
    int count = 0;
    for (const auto& stream : streams_) count += stream.descriptor >= 0 ? 1 : 0;
    return count;
  }

  const LocalLaunchOptions& options_;
  std::vector<Process> processes_;
  std::vector<Stream> streams_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  LocalLaunchResult result_;
};

}  // namespace

int free_port() {
  const auto port = try_port(0);
  ensure(port.has_value(), "no free TCP port on this machine");
  return *port;
}

LocalLaunchResult launch_local(const LocalLaunchOptions& options) {
  check_config(!options.command.empty(), "launch: no program was given");
  check_config(options.num_processes >= 1 && options.num_processes <= kMaxProcesses, "launch: {} processes; expected 1 to {}", options.num_processes, kMaxProcesses);
  const int port = options.master_port != 0 ? options.master_port : free_port();
  check_config(port > 0 && port <= 65535, "MASTER_PORT: {} is no port; expected 1 to 65535", port);
  check_config(try_port(port).has_value(), "MASTER_PORT: port {} is in use; choose another, or unset MASTER_PORT for a free one", port);
  return Launch(options).run(port);
}

}  // namespace accel::launch
