#include "sim/programs/run_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "backends/launch/local_launch.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "sim/engine/world.hpp"
#include "sim/programs/sim_request.hpp"

namespace accel::programs {

void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("--ranks", options.ranks, "Number of ranks")->capture_default_str();
  app.add_option("--backend", options.backend, "sim (threads of one process), gloo or nccl (local processes)")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kBackends), std::end(kBackends))))->capture_default_str();
  app.add_flag("--quiet", options.quiet, "No progress bar");
  app.add_option("--progress", options.progress, "auto (on a terminal), on or off")->check(CLI::IsMember({"auto", "on", "off"}))->capture_default_str();
}

std::vector<std::string> problems_of(const RunOptions& options) {
  std::vector<std::string> problems;
  const int limit = options.backend == "sim" ? sim::World::kMaxRanks : launch::kMaxProcesses;
  if (options.ranks < 1 || options.ranks > limit) problems.push_back(fmt::format("--ranks: {} ranks; expected 1 to {}", options.ranks, limit));
  if (options.backend == "nccl" && !nccl::is_available()) {
    problems.emplace_back("--backend nccl: this build has no CUDA, or this machine no GPU that CUDA sees; build with `./dev build gpu`, or use gloo or sim");
  }
  return problems;
}

}  // namespace accel::programs
