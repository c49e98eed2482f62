#pragma once

/// TCP ports of this machine.
namespace accel::launcher {

/// Whether nobody listens on it now. Thread rule: any thread.
bool is_port_free(int port);

/// A TCP port that nobody listens on now.
int free_port();

/// Keeps the port from this machine's other launchers while the value lives: two that look at the same time would both
/// find it free, since nobody listens before rank 0 does.
class PortClaim {
 public:
  explicit PortClaim(int port);
  ~PortClaim();
  PortClaim(const PortClaim&) = delete;
  PortClaim& operator=(const PortClaim&) = delete;
  /// False: another launcher has claimed it.
  [[nodiscard]] bool holds() const { return holds_; }

 private:
  int descriptor_ = -1;
  bool holds_ = false;
};

}  // namespace accel::launcher
