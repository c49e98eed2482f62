// Runs the ranks of a rehearsal as threads of this process, with what only they have: a GPU, and the time of operators
// by a cost table.
#include "sim/programs/rehearsal/thread_ranks.hpp"

#include <atomic>
#include <iostream>
#include <map>

#include "backends/nccl/nccl_backend.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/exit_point.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/backend/simulate.hpp"

namespace accel::programs {
namespace {

// Records which entries of a cost table the program has used, to warn about misspelled operators. The map's keys are
// fixed in the constructor; ranks that run as threads only set the atomic flags, so no lock is needed. Relaxed order
// suffices, because the flags are read after the ranks have been joined.
class CostTableUsage {
 public:
  explicit CostTableUsage(const sim::ComputeCosts& costs) {
    for (const auto& entry : costs.op_seconds) is_used_[entry.first] = false;
  }
  void mark(std::string_view op) {
    if (const auto entry = is_used_.find(op); entry != is_used_.end())
      entry->second.store(true, std::memory_order_relaxed);
  }
  void report_unused(sim::SimulationReport& report, const sim::CheckLevels& levels) const {
    if (report.error) return;
    for (const auto& [op, is_used] : is_used_) {
      if (!is_used)
        report.add(
            levels, sim::Check::kUnusedCosts,
            fmt::format("the network file's compute.ops.{} had no effect: the program does not call this operator, or "
                        "the operator consists of others, whose costs count; remove the entry or name those operators",
                        op));
    }
  }

 private:
  std::map<std::string, std::atomic<bool>, std::less<>> is_used_;
};

// Ends the process without running destructors: rank threads that cannot be ended still use what they would destroy.
[[noreturn]] void exit_with(const Rehearsal& rehearsal, const sim::SimulationReport& report,
                            const std::string& program) {
  const auto& options = rehearsal.options();
  try {
    rehearsal.write(report);
    if (!options.report.empty()) {
      auto unfinished = rehearsal.page(report);
      unfinished.title = fmt::format("{} simulated ranks, some of which did not return", rehearsal.num_ranks());
      write_page(unfinished, options.report);
    }
    if (!options.timeline.empty())
      std::cerr << program << ": --timeline: not written, because a rank is still running" << std::endl;
  } catch (const std::exception& error) {
    std::cerr << program << ": " << message_of(error) << std::endl;
  }
  // Errors of writing are printed and not thrown: the diagnosis below matters more than a file that cannot be written.
  const int code = conclude(report, program);
  flush_and_exit(code);
}

// `on_stuck` is called if ranks do not return after a failure, e.g. in an endless loop. Their threads cannot be ended,
// so it must end the process; null lets sim::rehearse wait for them.
sim::SimulationReport run(const Rehearsal& rehearsal, std::chrono::milliseconds timeout,
                          const std::function<void(RankContext&)>& body,
                          std::function<void(const sim::SimulationReport&)> on_stuck) {
  const auto& network = rehearsal.network();
  auto options = rehearsal.simulation_options();
  options.timeout = timeout;
  options.on_stuck = std::move(on_stuck);
  if (rehearsal.options().device == "cuda") options.place = nccl::share_gpu;
  // Compute time comes either from a table of operators, which is the same on every machine, or from the processor time
  // that this machine needs, scaled by a factor.
  if (!network || network->compute.kind != sim::ComputeCosts::Kind::kTable) return sim::rehearse(options, body);
  // Shared with the lambda in `options`, which rank threads may call after this function has returned by an exception.
  const auto use = std::make_shared<CostTableUsage>(network->compute);
  options.operator_seconds = [compute = network->compute, use](std::string_view op, double flops, double bytes) {
    use->mark(op);
    return compute.seconds_of(op, flops, bytes);
  };
  auto report = sim::rehearse(options, body);
  use->report_unused(report, options.checks);
  return report;
}

}  // namespace

sim::SimulationReport run_threads(const Rehearsal& rehearsal, std::chrono::milliseconds timeout,
                                  const std::function<void(RankContext&)>& body) {
  return run(rehearsal, timeout, body, nullptr);
}

sim::SimulationReport run_threads_or_exit(const Rehearsal& rehearsal, const std::string& program,
                                          std::chrono::milliseconds timeout,
                                          const std::function<void(RankContext&)>& body) {
  return run(rehearsal, timeout, body,
             [&](const sim::SimulationReport& report) { exit_with(rehearsal, report, program); });
}

}  // namespace accel::programs
