#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Starts ranks from inside a program: runs one of its functions in several processes, or on simulated ranks.
///
///     int train(const std::vector<std::string>& arguments) { accel::Accelerator accelerator; ...; return 0; }
///     const accel::Launchable kTrain("train", train);
///
///     int main() {
///       accel::run_launched();                          // does not return in a process that accel::launch started
///       accel::launch("train", {"--epochs", "3"}, 4);   // four ranks; returns when all have succeeded
///     }
///
/// Each rank is a new execution of the program, not a fork, because a fork of a process with LibTorch's threads is
/// unsafe. State that main has created before is therefore missing. Ranks use NCCL if the build supports CUDA and the
/// machine has a GPU, else Gloo. Simulated ranks run the function on threads of this process, so it must not modify
/// global state.
///
/// Thread rule: one launch at a time, from a thread that runs no rank.
/// Source: accelerate/launchers.py, notebook_launcher and debug_launcher, which fork.
namespace accel {

/// The function that a rank runs. Its result is the exit code of the rank's process. A result other than 0, or an
/// exception, makes the launch fail.
using LaunchedFunction = std::function<int(const std::vector<std::string>& arguments)>;

/// Registers a function under the name by which it is launched. Define it at namespace scope, so that it is registered
/// before main. Thread rule: names may be looked up by any thread, from main on.
struct Launchable {
  /// Throws ConfigError if the name is already registered.
  Launchable(std::string name, LaunchedFunction function);
};

/// Options with the names of Accelerate's notebook_launcher.
struct NotebookLauncherOptions {
  std::optional<int> num_processes = {};  ///< on this machine; default: one per GPU, or one
  std::string mixed_precision = "no";     ///< no, fp16, bf16 or fp8; "no" leaves the choice to the environment
  std::optional<int> use_port = {};       ///< default: a free port; must be equal on all machines
  std::string master_addr = "127.0.0.1";
  int node_rank = 0, num_nodes = 1;
  int max_restarts = 0;
  double monitor_interval = 0.1;  ///< seconds
  bool use_cpu = false;           ///< use Gloo on CPUs even if there are GPUs
  bool simulate = false;          ///< simulated ranks on threads; the function then sets its own mixed_precision
};

/// Runs the function on every rank and returns when all have succeeded. Throws ConfigError for an invalid option or an
/// unknown name, StateError if called on a rank or in a process that a launch started, and Error with the rank that
/// failed first and its message.
void launch(const std::string& name, const std::vector<std::string>& arguments, const NotebookLauncherOptions& options);
void launch(const std::string& name, const std::vector<std::string>& arguments, int num_processes);

void notebook_launcher(const std::string& name, const std::vector<std::string>& arguments = {},
                       const NotebookLauncherOptions& options = {});
/// Runs the function on CPU ranks. Source: accelerate/launchers.py, debug_launcher.
void debug_launcher(const std::string& name, const std::vector<std::string>& arguments = {}, int num_processes = 2);

/// In a process that a launch started: runs the function and ends the process. Does nothing in any other process. Call
/// it in the first line of main.
void run_launched();

}  // namespace accel
