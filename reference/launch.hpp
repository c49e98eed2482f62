#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Starts ranks from inside a program: one function of it, on several processes, or on simulated ranks of this one.
///
///     int train(const std::vector<std::string>& arguments) { accel::Accelerator accelerator; ...; return 0; }
///     const accel::Launchable kTrain("train", train);
///
///     int main() {
///       accel::run_launched();                          // a process that accel::launch has started ends here
///       accel::launch("train", {"--epochs", "3"}, 4);   // four ranks; returns when all have ended well
///     }
///
/// Each rank is a fresh execution of the same program, never a fork of one in which LibTorch has threads: what main has
/// done before is not there. Ranks are over NCCL where the build has CUDA and a GPU is there, else over Gloo. On
/// simulated ranks the function runs on threads of this process, so what it changes must not be global.
///
/// Thread rule: one launch at a time, from a thread that runs no rank.
/// Source: accelerate/launchers.py, notebook_launcher and debug_launcher, which fork.
namespace accel {

/// What a rank runs, and the exit code of its process; another than 0, or an exception, is a failure of the launch.
using LaunchedFunction = std::function<int(const std::vector<std::string>& arguments)>;

/// Gives a function the name under which it is launched. At namespace scope, so that it is there before main; names are
/// looked up in main and later, by any thread.
struct Launchable {
  /// Throws ConfigError if another has the name.
  Launchable(std::string name, LaunchedFunction function);
};

/// With Accelerate's names.
struct NotebookLauncherOptions {
  std::optional<int> num_processes = {};  ///< on this machine; default: one for each GPU, or one
  std::string mixed_precision = "no";     ///< no, fp16, bf16 or fp8; "no" leaves the choice to the environment
  std::optional<int> use_port = {};       ///< default: a free one; several machines name the same
  std::string master_addr = "127.0.0.1";
  int node_rank = 0, num_nodes = 1;
  int max_restarts = 0;
  double monitor_interval = 0.1;  ///< seconds
  bool use_cpu = false;           ///< over Gloo, whatever is there
  bool simulate = false;          ///< on threads of this process; mixed_precision is the function's own then
};

/// Runs the function on every rank, and returns when all have ended well. Throws ConfigError for an impossible option
/// or an unknown name, StateError on a rank, or in a process that a launch has started; Error with the rank that failed
/// first, and its message.
void launch(const std::string& name, const std::vector<std::string>& arguments, const NotebookLauncherOptions& options);
void launch(const std::string& name, const std::vector<std::string>& arguments, int num_processes);

void notebook_launcher(const std::string& name, const std::vector<std::string>& arguments = {},
                       const NotebookLauncherOptions& options = {});
/// On CPUs. Source: accelerate/launchers.py, debug_launcher.
void debug_launcher(const std::string& name, const std::vector<std::string>& arguments = {}, int num_processes = 2);

/// In a process that a launch has started: runs the function, and ends the process. In any other: nothing. The first
/// line of main.
void run_launched();

}  // namespace accel
