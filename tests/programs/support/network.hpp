#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// Hosts with separate networks, connected to a switch: network namespaces and veth pairs of this machine.
///
/// Example: `Network network(2); network.run_on(1, {"./program"});` runs on the host with address
/// `network.address(1)`. `network.pull(1)` pulls its cable and `network.plug(1)` plugs it in again. Tests call
/// `Network::why_not()` first and skip if it returns a reason.
///
/// Thread rule: call run_on from any thread, everything else from one thread.
namespace accel::testing {

class Network {
 public:
  /// Returns the reason why this machine does not support such networks, or "" if it does.
  static std::string why_not();

  explicit Network(int num_hosts);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  [[nodiscard]] static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  [[nodiscard]] CommandResult run_on(int host, const std::vector<std::string>& command,
                                     const CommandOptions& options = {}) const;
  /// Every host knows these names, as by /etc/hosts: of hosts, by their numbers.
  void name_hosts(const std::map<std::string, int>& names) const;
  /// The network namespace of a host, for `ip netns exec`.
  [[nodiscard]] std::string host_name(int host) const { return name_ + "h" + std::to_string(host); }
  void pull(int host) const;
  void plug(int host) const;

 private:
  void remove() const;
  [[nodiscard]] std::string switch_name() const { return name_ + "s"; }

  std::string name_;
  int num_hosts_;
};

}  // namespace accel::testing
