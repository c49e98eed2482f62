#include "sim/programs/accel/mpirun_command.hpp"

#include <sstream>

namespace accel::programs {

std::vector<std::string> mpirun_command(const MpirunOptions& options,
                                        const std::map<std::string, std::string>& variables) {
  const bool is_open = options.is_open_mpi;
  std::vector<std::string> command{"mpirun",
                                   is_open ? "--hostfile" : "-f",
                                   options.hostfile,
                                   is_open ? "--npernode" : "-ppn",
                                   std::to_string(options.num_per_host),
                                   "-n",
                                   std::to_string(options.num_ranks)};
  if (is_open)
    command.insert(command.end(),
                   {"--bind-to", options.binds_to_cores ? "core:overload-allowed" : "socket:overload-allowed"});
  for (const auto& [name, value] : variables) {
    if (is_open)
      command.insert(command.end(), {"-x", name + "=" + value});
    else
      command.insert(command.end(), {"-genv", name, value});
  }
  return command;
}

std::vector<std::string> parse_hostfile(const std::string& text) {
  std::vector<std::string> hosts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string host;
    std::istringstream(line.substr(0, line.find('#'))) >> host;
    host = host.substr(0, host.find(':'));
    if (!host.empty()) hosts.push_back(host);
  }
  return hosts;
}

}  // namespace accel::programs
