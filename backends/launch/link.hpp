#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

/// A TCP connection between two launchers that carries lines of text in both directions.
///
/// Thread rule: one thread. No function blocks, except that connect_to may wait for name resolution.
namespace accel::launcher {

class LauncherLink {
 public:
  explicit LauncherLink(int descriptor);
  ~LauncherLink();
  LauncherLink(LauncherLink&& other) noexcept;
  LauncherLink& operator=(LauncherLink&& other) noexcept;
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  /// Starts to connect. The link is usable at once; `is_lost` becomes true if nobody listens, or the host name does not
  /// resolve yet. A host may have several addresses, not all of which the peer can be reached at: attempts with
  /// consecutive numbers use them in turn. Throws ConfigError for an invalid host name.
  static LauncherLink connect_to(const std::string& host, int port, int attempt = 0);
  struct Address {
    sockaddr_storage bytes = {};
    socklen_t size = 0;
  };
  /// The addresses of a host; empty if its name does not resolve yet. Throws ConfigError for an invalid host name.
  static std::vector<Address> addresses_of(const std::string& host, int port);
  static LauncherLink connect_to_one(const std::vector<Address>& addresses, int attempt);

  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// Queues one message.
  void send(std::string line);
  /// Returns the complete messages that have arrived. A peer that sends a line of more than 64 KiB is lost.
  std::vector<std::string> receive();
  /// The peer has closed the connection, or cannot be reached.
  [[nodiscard]] bool is_lost() const { return lost_; }
  [[nodiscard]] std::string peer_address() const;
  /// Time since the last data arrived.
  [[nodiscard]] std::chrono::milliseconds silence() const;
  /// Closes the sending direction; lines already sent still arrive.
  void finish();

 private:
  void write_pending();

  int descriptor_ = -1;
  bool lost_ = false;
  std::string unsent_, received_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
};

/// Listens on a port of the interface that `host` names: see sockets::listen_on.
class LauncherListener {
 public:
  /// Throws ConfigError if the port is in use.
  LauncherListener(const std::string& host, int port);
  ~LauncherListener();
  LauncherListener(const LauncherListener&) = delete;
  LauncherListener& operator=(const LauncherListener&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// Returns the next connection, if there is one and this process has a descriptor for it.
  std::optional<LauncherLink> accept();
  /// Whether to poll the descriptor: false for a second after this process had no descriptor for a connection.
  [[nodiscard]] bool is_ready() const { return Clock::now() >= resumes_at_; }

 private:
  using Clock = std::chrono::steady_clock;

  int descriptor_ = -1;
  Clock::time_point resumes_at_ = {};
};

}  // namespace accel::launcher
