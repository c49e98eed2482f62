#pragma once

#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// Hosts with networks of their own, joined by cables to a switch: network namespaces and veth pairs of this machine.
///
///     if (const auto reason = Network::why_not(); !reason.empty()) GTEST_SKIP() << reason;
///     Network network(2);
///     network.run_on(1, {"./program"});     // its address is network.address(1)
///     network.pull(1);                      // the cable out; plug(1) puts it back
///
/// Thread rule: run_on from any thread, the rest from one.
namespace accel::testing {

class Network {
 public:
  /// What stands in the way of such networks on this machine; empty: nothing.
  static std::string why_not();

  explicit Network(int num_hosts);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  [[nodiscard]] static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  [[nodiscard]] CommandResult run_on(int host, const std::vector<std::string>& command,
                                     const CommandOptions& options = {}) const;
  void pull(int host) const;
  void plug(int host) const;

 private:
  void remove() const;
  [[nodiscard]] std::string host_name(int host) const { return name_ + "h" + std::to_string(host); }
  [[nodiscard]] std::string switch_name() const { return name_ + "s"; }

  std::string name_;
  int num_hosts_;
};

}  // namespace accel::testing
