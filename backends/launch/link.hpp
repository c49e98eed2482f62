#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

/// A TCP connection between two launchers: lines of text both ways, and the time since the other was last heard.
///
/// Thread rule: one thread. Nothing here waits.
namespace accel::launcher {

class Link {
 public:
  explicit Link(int descriptor);
  ~Link();
  Link(Link&& other) noexcept;
  Link& operator=(Link&& other) noexcept;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Begins to connect; the link is usable at once, and `is_lost` if nobody answers, or the host has no address yet.
  /// Throws ConfigError for what is no name of a host.
  static Link connect_to(const std::string& host, int port);

  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// One line; a newline in it becomes a space.
  void send(std::string line);
  /// The whole lines that have come.
  std::vector<std::string> receive();
  /// The other has closed it, or cannot be reached.
  [[nodiscard]] bool is_lost() const { return lost_; }
  [[nodiscard]] std::chrono::milliseconds silence() const;
  /// Tells the other that no more will come; what was sent still arrives.
  void finish();

 private:
  void write_pending();

  int descriptor_ = -1;
  bool lost_ = false;
  std::string unsent_, received_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
};

/// Listens on a port of every interface.
class Listener {
 public:
  /// Throws ConfigError if the port is taken.
  explicit Listener(int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }
  std::optional<Link> accept() const;

 private:
  int descriptor_ = -1;
};

}  // namespace accel::launcher
