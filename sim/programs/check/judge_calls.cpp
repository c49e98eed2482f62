// Whether all ranks make the same calls, whatever the schedule and the data; what they write and print; and whether all
// end when one dies.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "reference/diagnosis/collective_call.hpp"
#include "sim/programs/check/check.hpp"
#include "sim/programs/check/runs.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

std::optional<CheckResult> problem_of_calls(Runs& runs, const RunRequest& request) {
  const auto& run = runs.get(request);
  if (run.exit_code != kDiagnosed) return std::nullopt;
  return CheckResult{.verdict = Verdict::kFail,
                     .text = fmt::format("on {} ranks: {}", request.ranks, failure_of(run)),
                     .where = place_of_failure(run),
                     .replay = runs.replay(request),
                     .run = request};
}

struct Doers {
  std::vector<int> ranks;  // ascending
  std::string place;       // of the first: a line of the program
};

// Who has written each file, or printed each line.
std::map<std::string, Doers> ranks_by(const Recording& recording, std::string_view kind) {
  std::map<std::string, Doers> doers;
  for (std::size_t rank = 0; rank < recording.size(); ++rank) {
    for (const auto& seen : recording[rank]) {
      if (seen.kind != kind) continue;
      auto& own = doers[seen.value];
      if (own.ranks.empty()) own.place = seen.detail;
      if (own.ranks.empty() || own.ranks.back() != static_cast<int>(rank)) own.ranks.push_back(static_cast<int>(rank));
    }
  }
  return doers;
}

std::optional<CheckResult> problem_under_schedule(Runs& runs, std::uint64_t seed, bool is_deterministic) {
  const RunRequest request{.ranks = runs.num_ranks(), .schedule = seed};
  if (auto problem = problem_of_calls(runs, request)) {
    problem->text = fmt::format("under schedule {}, {}", seed, problem->text);
    return problem;
  }
  const auto& run = runs.get(request);
  if (!run.has_ended_well() || !is_deterministic) return std::nullopt;
  const auto difference = first_difference(computed(runs.base().recording), computed(run.recording));
  if (!difference) return std::nullopt;
  return CheckResult{.verdict = Verdict::kFail,
                     .text = fmt::format("under schedule {} the results are others: {}", seed,
                                         describe(*difference, "parallel ranks", "this schedule")),
                     .replay = runs.replay(request)};
}

}  // namespace

CheckResult judge_calls(Runs& runs) {
  if (auto problem = problem_of_calls(runs, {.ranks = runs.num_ranks()})) return *problem;
  static_cast<void>(runs.base());
  const auto uneven = runs.uneven_ranks();
  if (auto problem = problem_of_calls(runs, {.ranks = uneven})) return *problem;
  for (const auto* kind : {"nan", "zero"}) {
    const auto& run = runs.get({.ranks = runs.num_ranks(), .disturb = kind});
    if (run.exit_code != kDiagnosed) continue;
    return {
        .verdict = Verdict::kFail,
        .text = fmt::format("if the loss of rank {} is {} in its second micro-batch, its calls are others: {}",
                            runs.num_ranks() - 1, kind == std::string("nan") ? "not a number" : "0", failure_of(run)),
        .where = place_of_failure(run),
        .run = run.request};
  }
  const auto is_deterministic = judge_determinism(runs).verdict == Verdict::kPass;
  const std::uint64_t schedules = runs.is_quick() ? 2 : 20;
  for (std::uint64_t seed = 0; seed < schedules; ++seed) {
    if (auto problem = problem_under_schedule(runs, seed, is_deterministic)) return *problem;
  }
  return {.text = fmt::format(
              "{} ranks under {} schedules and with other losses, and {} with uneven data, make the same calls",
              runs.num_ranks(), schedules, uneven)};
}

CheckResult judge_files(Runs& runs) {
  const auto& recording = runs.base().recording;
  const auto& first = recording.front();
  if (std::none_of(first.begin(), first.end(), [](const auto& seen) { return seen.kind == "end"; }))
    throw CannotJudge{"the program ended before its files and lines were recorded"};
  const auto writers = ranks_by(recording, "write"), printers = ranks_by(recording, "print");
  for (const auto& [file, who] : writers) {
    if (who.ranks.size() < 2) continue;
    return {.verdict = Verdict::kFail,
            .text = fmt::format("{} write {}: only the main process should", describe_ranks(who.ranks),
                                std::filesystem::path(file).filename().string()),
            .where = who.place};
  }
  for (const auto& [line, who] : printers) {
    if (who.ranks.size() < 2) continue;
    return {.verdict = Verdict::kFinding,
            .text = fmt::format("{} print '{}': only the main process should", describe_ranks(who.ranks), line),
            .where = who.place};
  }
  return {.text = fmt::format("{} file{} written, each by one rank; no line is printed by several", writers.size(),
                              writers.size() == 1 ? "" : "s")};
}

CheckResult judge_failure(Runs& runs) {
  const auto& base = runs.base();
  if (runs.num_ranks() == 1) throw CannotJudge{"there is one rank"};
  const auto updates = std::count_if(base.recording.front().begin(), base.recording.front().end(),
                                     [](const auto& seen) { return seen.kind == "generator state"; });
  if (updates < 2) throw CannotJudge{"the program makes fewer than two optimizer steps"};
  const int victim = runs.num_ranks() - 1;
  const RunRequest request{
      .ranks = runs.num_ranks(),
      .faults = fmt::format("faults:\n  - {{kind: rank_crash_before_optimizer_step, rank: {}, when: {{step: 1}}}}\n",
                            victim)};
  const auto& run = runs.get(request);
  const auto what = fmt::format("rank {} dies before its second optimizer step", victim);
  const bool has_ended = !run.is_late && run.diagnosis && run.diagnosis->kind == Diagnosis::Kind::kFault;
  if (!has_ended) {
    return {.verdict = Verdict::kFail,
            .text = fmt::format("{}, and {}", what,
                                run.has_ended_well() ? "the program ends as if nothing had happened"
                                                     : "the others do not end: " + failure_of(run)),
            .where = place_of_failure(run),
            .run = request};
  }
  return {.text = fmt::format("{}: all ranks end, after {:.1f} s; the whole program takes {:.1f} s", what, run.seconds,
                              base.seconds)};
}

}  // namespace accel::programs
