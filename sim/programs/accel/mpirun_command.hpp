#pragma once

#include <map>
#include <string>
#include <vector>

namespace accel::programs {

struct MpirunOptions {
  std::string hostfile;
  int num_per_host = 1, num_ranks = 1;
  bool is_open_mpi = true;  ///< or takes the options of MPICH and Intel MPI
  bool binds_to_cores = false;
};

/// mpirun with its options, without the program. What Accelerate leaves to mpirun's habits, each variable is handed on
/// by name.
std::vector<std::string> mpirun_command(const MpirunOptions& options,
                                        const std::map<std::string, std::string>& variables);

/// The hosts of an MPI hostfile: "host", "host slots=4" or "host:4" a line, "#" begins a comment.
std::vector<std::string> parse_hostfile(const std::string& text);

}  // namespace accel::programs
