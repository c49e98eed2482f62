#pragma once

#include <map>
#include <string>

namespace accel::programs {

/// Process groups that the processes of a Python program start, each simulated as a run of its own.
///
///     const StartedWorlds worlds(to_json(request));
///     worlds.serve(environment);   // of the program
///     ... worlds.count()           // once the program has ended
///
/// The environment has package simranks active in every Python process below the program. Where such a process, which
/// is no rank of a simulator, calls init_process_group with the backend gloo, rank 0 starts `sim-run attach`.
class StartedWorlds {
 public:
  /// `request`: what every run is asked for, see to_json; its number of ranks does not count.
  explicit StartedWorlds(std::string request);
  ~StartedWorlds();
  StartedWorlds(const StartedWorlds&) = delete;
  StartedWorlds& operator=(const StartedWorlds&) = delete;

  void serve(std::map<std::string, std::string>& environment) const;
  [[nodiscard]] int count() const;

 private:
  const std::string request_;
  int descriptor_;  // of a file in memory to which each world appends one byte; closed on exec
};

}  // namespace accel::programs
