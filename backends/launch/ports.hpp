#pragma once

/// Finds free TCP ports on this machine.
namespace accel::launcher {

/// Whether no process listens on the port now. Thread rule: any thread.
bool is_port_free(int port);

/// Returns a TCP port on which no process listens now.
int free_port();

/// Reserves a port among the launchers of this machine while the value lives. Without it, two launchers that check at
/// the same time would both find the port free, since nobody listens before rank 0 does.
class PortClaim {
 public:
  explicit PortClaim(int port);
  ~PortClaim();
  PortClaim(const PortClaim&) = delete;
  PortClaim& operator=(const PortClaim&) = delete;
  /// False if another launcher holds the port.
  [[nodiscard]] bool holds() const { return holds_; }

 private:
  int descriptor_ = -1;
  bool holds_ = false;
};

}  // namespace accel::launcher
