#pragma once

/// Finds and reserves TCP ports on this machine.
namespace accel::launcher {

/// Reserves a TCP port while the value lives: other launchers cannot claim it, and the kernel gives it to no socket
/// that asks for any free port, such as those of Gloo. A process that names the port, such as rank 0 with its store,
/// can listen on it if it sets SO_REUSEADDR. Without a claim, the port could be lost between its choice and the moment
/// when rank 0 listens, seconds later. Thread rule: any thread.
class PortClaim {
 public:
  /// 0: any free port. Throws Error if this machine has none left.
  explicit PortClaim(int port);
  PortClaim(const PortClaim&) = delete;
  PortClaim& operator=(const PortClaim&) = delete;
  /// False if the port cannot be bound, because another process listens on it for example, or if another launcher holds
  /// it.
  [[nodiscard]] bool holds() const { return holds_; }
  [[nodiscard]] int port() const { return port_; }

 private:
  struct Socket {
    Socket(int domain, int type);
    ~Socket();
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    const int descriptor;
  };

  Socket port_socket_;  // bound, but never listens
  Socket name_socket_;  // bound to a name that all launchers give the port; closed first
  int port_ = 0;
  bool holds_ = false;
};

/// A TCP port on which no process listens now, and which is not reserved.
int free_port();

}  // namespace accel::launcher
