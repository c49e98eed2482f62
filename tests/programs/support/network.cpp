// Hosts are network namespaces, joined by veth pairs to a bridge in a namespace of its own. Everything has the
// process id in its name, so that tests in parallel do not collide.
#include "tests/programs/support/network.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace accel::testing {
namespace {

void ip(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"ip"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto run = run_command(command);
  if (run.exit_code == 0) return;
  std::string text;
  for (const auto& word : command) text += word + " ";
  throw std::runtime_error(text + "failed: " + run.error);
}

std::string files_of(const std::string& network_namespace) { return "/etc/netns/" + network_namespace; }

}  // namespace

// Trying it is the only reliable check: containers differ in which of the needed capabilities they have.
std::string Network::why_not() {
  try {
    const Network one(1);
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

Network::Network(int num_hosts) : name_("accel" + std::to_string(getpid())), num_hosts_(num_hosts) {
  try {
    ip({"netns", "add", switch_name()});
    ip({"-n", switch_name(), "link", "add", "bridge", "type", "bridge"});
    ip({"-n", switch_name(), "link", "set", "bridge", "up"});
    for (int host = 0; host < num_hosts; ++host) {
      const auto cable = "cable" + std::to_string(host);
      ip({"netns", "add", host_name(host)});
      ip({"-n", host_name(host), "link", "set", "lo", "up"});
      ip({"-n", switch_name(), "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", host_name(host)});
      ip({"-n", switch_name(), "link", "set", cable, "master", "bridge", "up"});
      ip({"-n", host_name(host), "addr", "add", address(host) + "/24", "dev", "eth0"});
      ip({"-n", host_name(host), "link", "set", "eth0", "up"});
    }
    // A constructor that throws has no destructor call, so the namespaces made so far are removed here.
  } catch (...) {
    remove();
    throw;
  }
}

Network::~Network() { remove(); }

void Network::remove() const {
  // Deleting a namespace deletes its interfaces and thereby the other ends of its cables.
  for (int host = 0; host < num_hosts_; ++host) {
    run_command({"ip", "netns", "del", host_name(host)});
    std::filesystem::remove_all(files_of(host_name(host)));
  }
  run_command({"ip", "netns", "del", switch_name()});
}

CommandResult Network::run_on(int host, const std::vector<std::string>& command, const CommandOptions& options) const {
  std::vector<std::string> inside{"ip", "netns", "exec", host_name(host)};
  inside.insert(inside.end(), command.begin(), command.end());
  return run_command(inside, options);
}

// `ip netns exec` lays the files of this folder over those of /etc.
void Network::name_hosts(const std::map<std::string, int>& names) const {
  for (int host = 0; host < num_hosts_; ++host) {
    std::filesystem::create_directories(files_of(host_name(host)));
    std::ofstream file(files_of(host_name(host)) + "/hosts");
    file << "127.0.0.1 localhost\n";
    for (const auto& [name, number] : names) file << address(number) << ' ' << name << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write the names of hosts");
  }
}

// The end at the switch goes down, so the host itself notices nothing, as with a pulled cable at the far end.
void Network::pull(int host) const { ip({"-n", switch_name(), "link", "set", "cable" + std::to_string(host), "down"}); }
void Network::plug(int host) const { ip({"-n", switch_name(), "link", "set", "cable" + std::to_string(host), "up"}); }

}  // namespace accel::testing
