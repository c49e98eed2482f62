// Connects the command line's files to the simulator: reads faults and network, turns them into SimulationOptions, and
// writes event log, diagnosis, timeline and page. The simulator itself opens no files and prints nothing, so this is
// the only place that does both for every program that rehearses.
#include "sim/programs/rehearsal/rehearsal.hpp"

#include <cstdio>
#include <filesystem>
#include <fmt/ranges.h>
#include <fstream>
#include <iostream>
#include <mutex>
#include <set>
#include <sstream>

#include "reference/core/errors.hpp"
#include "reference/core/system/print_warning.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "sim/faults/fault_file.hpp"
#include "sim/faults/fault_injector.hpp"
#include "sim/faults/fault_plan.hpp"
#include "sim/network/network.hpp"
#include "sim/programs/comparison/step_difference.hpp"
#include "sim/programs/rehearsal/diagnosis_json.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/report/timeline/timeline.hpp"

namespace accel::programs {
namespace {

// Answers the engine's question when each rank finishes a collective. sim::Network is a plain model without locks, and
// ranks that run as threads ask concurrently, so mutex_ guards network_ and numbers_.
class SharedNetwork {
 public:
  SharedNetwork(sim::Network network, int num_ranks, const std::vector<sim::Fault>& plan)
      : network_(std::move(network)) {
    network_.set_ranks(num_ranks);
    // A slow link is a property of the network model when time is virtual; the fault injector then ignores it
    // (network_has_slow_links), or it would count twice.
    for (const auto& fault : plan) {
      if (fault.kind == sim::FaultKind::kSlowLink) network_.scale_link(fault.link->from, fault.link->to, *fault.factor);
    }
  }

  std::vector<double> finish_times(const sim::EngineGroup& group, const Call& call, std::span<const double> ready) {
    const std::lock_guard lock(mutex_);
    // The model identifies groups by number. Names are unique in a run, so the order of first use numbers them.
    const auto number = numbers_.emplace(group.name, numbers_.size()).first->second;
    return network_.finish_times(number,
                                 {.op = call.op,
                                  .bytes = call.bytes,
                                  .element_bytes = call.element_bytes,
                                  .ranks = &group.ranks,
                                  .root = call.root},
                                 ready);
  }

 private:
  std::mutex mutex_;
  sim::Network network_;
  std::map<std::string, std::uint64_t> numbers_;
};

sim::SliceKind kind_of(sim::Span::Kind kind) {
  switch (kind) {
    case sim::Span::Kind::kCompute: return sim::SliceKind::kCompute;
    case sim::Span::Kind::kCollective: return sim::SliceKind::kCollective;
    case sim::Span::Kind::kWait: return sim::SliceKind::kWait;
    case sim::Span::Kind::kFault: return sim::SliceKind::kFault;
  }
  throw InternalError("unknown kind of span");
}

// Converts recorded spans to a timeline. With compute costs from a table the virtual clock is exact and the file is the
// same in every run, so the caller then leaves out wall times, which would differ.
sim::Timeline timeline_of(const sim::SimulationReport& report, bool with_virtual, bool with_wall) {
  sim::Timeline timeline;
  for (const auto& rank : report.times) {
    auto& own = timeline.ranks.emplace_back();
    for (const auto& span : rank.spans) {
      sim::Slice slice{.kind = kind_of(span.kind),
                       .name = std::string(span.name),
                       .group = span.group,
                       .sequence = span.sequence,
                       .bytes = span.bytes,
                       .released_by = span.released_by};
      const auto add = [&](std::vector<sim::Slice>& slices, const sim::Span::Interval& time) {
        slice.begin = time.begin;
        slice.end = std::max(time.begin, time.end);
        // Empty slices are dropped: viewers draw them as lines of one pixel that hide their neighbors.
        if (slice.end > slice.begin) slices.push_back(slice);
      };
      if (with_virtual) add(own.virtual_clock, span.virtual_time);
      if (with_wall) add(own.wall_clock, span.wall_time);
    }
  }
  return timeline;
}

}  // namespace

// `explore` passes its own plan: it injects subsets of the faults in the file.
Rehearsal::Rehearsal(const RehearsalOptions& options, int num_ranks)
    : Rehearsal(options, num_ranks,
                options.faults.empty() ? std::vector<sim::Fault>{} : sim::read_faults(options.faults, num_ranks)) {}

Rehearsal::Rehearsal(const RehearsalOptions& options, int num_ranks, std::vector<sim::Fault> plan)
    : options_(options), num_ranks_(num_ranks), plan_(sim::plan_faults(std::move(plan), num_ranks)) {
  if (!options_.is_virtual()) return;
  network_ = sim::read_network(options_.network);
  check_config(options_.device == "cpu" || network_->compute.kind == sim::ComputeCosts::Kind::kTable,
               "--device {}: {} defines the time of compute by that of this machine's processor, which a GPU does not "
               "use; define a table of operators in compute.ops",
               options_.device, options_.network);
  // Built once to validate: it throws ConfigError if the network cannot hold the ranks or a slow link does not exist.
  // Each run builds its own, since a network keeps state between collectives.
  SharedNetwork(sim::Network(*network_), num_ranks_, plan_);
}

// Only what was requested is recorded: events, steps and spans of thousands of ranks cost memory and time. The lambdas
// own what they use, because threads of ranks that never return may still call them when the Rehearsal is gone.
sim::SimulationOptions Rehearsal::simulation_options() const {
  sim::SimulationOptions options{.num_ranks = num_ranks_};
  options.schedule = options_.rank_schedule();
  options.checks = sim::check_levels(options_.checks);
  options.send_capacity = options_.max_unreceived_sends();
  options.logs_events = !options_.event_log.empty();
  options.records_steps = options_.records_steps || !options_.steps.empty();
  options.records_times = !options_.report.empty();
  options.records_spans = !options_.timeline.empty();
  if (!plan_.empty()) {
    options.faults = std::make_shared<sim::FaultInjector>(
        plan_, sim::FaultInjectorOptions{.network_has_slow_links = options_.is_virtual()});
  }
  if (network_) {
    options.library = network_->library;
    if (network_->compute.kind != sim::ComputeCosts::Kind::kTable)
      options.cpu_factor = network_->compute.cpu_time_factor;
    options.finish_times = [shared = std::make_shared<SharedNetwork>(sim::Network(*network_), num_ranks_, plan_)](
                               const sim::EngineGroup& group, const Call& call, std::span<const double> ready) {
      return shared->finish_times(group, call, ready);
    };
  }
  return options;
}

sim::SimulationReport Rehearsal::run_process_ranks(std::chrono::milliseconds timeout, ProcessRanks ranks) const {
  check_config(!network_ || network_->compute.kind != sim::ComputeCosts::Kind::kTable,
               "--network {}: defines the time of compute by a table of operators, which ranks that are processes do "
               "not report; use compute.cpu_time_factor",
               options_.network);
  check_config(options_.device == "cpu", "--device {}: ranks that are processes compute on the CPU", options_.device);
  auto options = simulation_options();
  options.timeout = timeout;
  options.processor_seconds = std::move(ranks.processor_seconds);
  options.sleep = std::move(ranks.sleep);
  options.continue_rank = std::move(ranks.continue_rank);
  return sim::rehearse_ranks(options, ranks.body);
}

void Rehearsal::write(const sim::SimulationReport& report) const {
  if (!options_.event_log.empty()) write_lines(options_.event_log, report.events);
  if (!options_.steps.empty()) write_lines(options_.steps, lines_of(report.steps));
  if (!options_.diagnosis.empty()) write_lines(options_.diagnosis, {diagnosis_json(report)});
  if (!options_.timeline.empty() && !report.times.empty()) {
    // Timelines need recorded spans, which are missing if the run failed before any rank started.
    const bool is_exact = network_ && network_->compute.kind == sim::ComputeCosts::Kind::kTable;
    std::ostringstream text;
    sim::write_timeline(text, timeline_of(report, options_.is_virtual(), /*with_wall=*/!is_exact),
                        sim::timeline_format_of(options_.timeline));
    write_text(options_.timeline, text.str());
  }
}

sim::RunReport Rehearsal::page(const sim::SimulationReport& report) const {
  sim::RunReport page;
  page.facts = {{"ranks", std::to_string(num_ranks_)}, {"schedule", options_.schedule}};
  if (options_.device != "cpu") page.facts.emplace_back("device", options_.device);
  if (options_.map_cuda) page.facts.emplace_back("devices of CUDA", "mapped to the CPU");
  if (options_.schedule != "parallel")
    page.facts.emplace_back("schedule's seed", std::to_string(options_.seed_schedule));
  if (!options_.faults.empty()) page.facts.emplace_back("faults", options_.faults);
  page.facts.emplace_back("clock", options_.is_virtual() ? "virtual, " + options_.network : "wall");
  // The bars of the page show the mean step of the prediction, not sums, so that runs of different length compare.
  page.ranks = predict(report.times).by_rank;
  for (const auto& [op, volume] : report.volumes)
    page.volumes.push_back({op, volume.calls, volume.bytes, volume.seconds});
  for (const auto& strike : report.strikes) page.faults.push_back(strike.text);
  page.findings = report.findings;
  page.diagnosis = diagnosis_of(report).text;
  if (!options_.timeline.empty()) page.timeline_file = std::filesystem::absolute(options_.timeline).filename().string();
  return page;
}

void write_page(const sim::RunReport& page, const std::string& folder) {
  std::filesystem::create_directories(folder);
  write_text((std::filesystem::path(folder) / "index.html").string(), sim::report_page(page));
}

namespace {

// Of an error. Its message lists the errors of all ranks and the diagnosis explains them, and often one contains the
// other: if every rank threw the diagnosis, only the diagnosis is told; if some ranks threw other errors, the message
// already includes it.
std::string explanation_of(const sim::SimulationReport& report, const std::string& message) {
  const auto text = report.diagnosis ? report.diagnosis->text : "";
  const bool covers_message = text.find(message.substr(message.find(": ") + 2)) != std::string::npos;
  const bool contains_diagnosis = message.find(text) != std::string::npos;
  return (contains_diagnosis || covers_message ? "" : text + "\n") + (covers_message ? text : message);
}

// Those that the explanation does not name: a fault that the run survived would leave no trace.
void print_faults(const std::vector<sim::AppliedFault>& strikes, const std::string& program,
                  const std::string& explanation) {
  std::set<std::string> printed;
  for (const auto& strike : strikes) {
    if (explanation.find(strike.text) == std::string::npos && printed.insert(strike.text).second)
      std::cerr << program << ": injected fault: " << strike.text << std::endl;
  }
}

}  // namespace

// Prints each fact once.
int conclude(const sim::SimulationReport& report, const std::string& program) {
  for (const auto& finding : report.findings) print_warning(finding);
  if (!report.error) {
    print_faults(report.strikes, program, "");
    return kSuccess;
  }
  try {
    std::rethrow_exception(report.error);
  } catch (const std::exception& error) {
    const auto explanation = explanation_of(report, message_of(error));
    print_faults(report.strikes, program, explanation);
    std::cerr << program << ": " << explanation << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace accel::programs
