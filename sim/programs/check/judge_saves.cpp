// Whether a program that is interrupted continues as if nothing had happened, and whether a save that is torn leaves
// something to continue from.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "sim/programs/check/check.hpp"
#include "sim/programs/check/runs.hpp"

namespace accel::programs {
namespace {

using Observations = std::vector<const Observation*>;

// What a rank does in a run, in order.
struct Steps {
  Observations losses, reads;
  Observations weights, states, rates, schedules;  // of the first optimizer: after, before and in each update
  const Observation* initial = nullptr;            // parameters before its first update
  std::vector<std::size_t> updates_at_writes;      // the number of updates before each write
  std::set<std::string> files;

  explicit Steps(const RankRecording& rank) {
    for (const auto& seen : rank) {
      const bool is_first = seen.name == "optimizer 0";
      if (seen.kind == "loss") losses.push_back(&seen);
      if (seen.kind == "read") reads.push_back(&seen);
      if (seen.kind == "weights" && is_first) weights.push_back(&seen);
      if (seen.kind == "optimizer state" && is_first) states.push_back(&seen);
      if (seen.kind == "learning rate" && is_first) rates.push_back(&seen);
      if (seen.kind == "schedule" && is_first) schedules.push_back(&seen);
      if (seen.kind == "initial parameters" && is_first) initial = &seen;
      if (seen.kind != "write") continue;
      updates_at_writes.push_back(weights.size());
      files.insert(std::filesystem::path(seen.value).filename().string());
    }
  }
};

std::vector<Steps> steps_of(const Recording& recording) { return {recording.begin(), recording.end()}; }

bool is_same(const Observation* a, const Observation* b) { return a->value == b->value; }

// The first of the last observations of `rest` that differs from that of `whole`, counted from the end.
std::optional<std::size_t> first_differing(const Observations& whole, const Observations& rest) {
  const auto count = std::min(whole.size(), rest.size());
  for (std::size_t place = 0; place < count; ++place) {
    if (!is_same(whole[whole.size() - count + place], rest[rest.size() - count + place])) return place;
  }
  return std::nullopt;
}

// Before the update that follows this micro-batch.
std::string dying(int rank, std::int64_t micro_batch) {
  return fmt::format("faults:\n  - {{kind: rank_crash_before_optimizer_step, rank: {}, when: {{step: {}}}}}\n", rank,
                     micro_batch);
}

// The run that starts again in the folder of the interrupted one.
const ProgramRun& continued(Runs& runs, const RunRequest& interrupted) {
  static_cast<void>(runs.get(interrupted));
  return runs.get({.ranks = interrupted.ranks, .continues = true, .folder = interrupted.folder});
}

CheckResult failed(std::string text) { return {.verdict = Verdict::kFail, .text = std::move(text)}; }

// The update before which the program continues, by its parameters.
std::optional<std::size_t> place_of_rest(const Steps& before, const Steps& after, std::size_t interrupted_at) {
  std::optional<std::size_t> begin;
  for (std::size_t update = 0; update < std::min(before.weights.size(), interrupted_at + 1); ++update) {
    if (is_same(before.weights[update], after.initial)) begin = update + 1;
  }
  return begin;
}

// Optimizer, schedule and position, where the program continues before update `begin`.
std::optional<CheckResult> problem_of_state(const Steps& before, const Steps& after, std::size_t begin,
                                            const std::string& what) {
  const auto remaining = before.weights.size() - begin;
  if (!is_same(before.states[begin], after.states.front()))
    return failed(what + "the optimizer begins with another state: it is not restored");
  const bool sees_schedules = begin < before.schedules.size() && !after.schedules.empty();
  if (sees_schedules && !is_same(before.schedules[begin], after.schedules.front())) {
    return failed(fmt::format("{}the schedule has made {} steps before update {} instead of {}: it is not restored",
                              what, after.schedules.front()->value, begin, before.schedules[begin]->value));
  }
  const bool has_first_rate = is_same(before.rates[begin], after.rates.front());
  if (has_first_rate && after.weights.size() != remaining) {
    return failed(fmt::format(
        "{}it has the parameters of update {} and makes {} updates where {} are left: the epoch, or the position "
        "in it, is not restored",
        what, begin, after.weights.size(), remaining));
  }
  const auto place = has_first_rate ? first_differing(before.rates, after.rates) : 0;
  if (!place) return std::nullopt;
  return failed(fmt::format("{}the learning rate of update {} is {} instead of {}: the schedule is not restored", what,
                            begin + *place, after.rates[*place]->value, before.rates[begin + *place]->value));
}

std::optional<CheckResult> problem_of_data(const std::vector<Steps>& whole, const std::vector<Steps>& rest,
                                           const std::string& what) {
  for (std::size_t rank = 0; rank < whole.size(); ++rank) {
    if (!first_differing(whole[rank].reads, rest[rank].reads)) continue;
    return CheckResult{
        .verdict = Verdict::kFail,
        .text = fmt::format(
            "{}rank {} reads other samples: the order of the loader, or the position in it, is not restored", what,
            rank),
        .where = rest[rank].reads.front()->name};
  }
  for (std::size_t rank = 0; rank < whole.size(); ++rank) {
    // The first pass of DistributedDataParallel adds gradients in another order than the next ones.
    if (first_differing(whole[rank].losses, rest[rank].losses) != 0) continue;
    return failed(fmt::format(
        "{}the first loss of rank {} differs after equal samples and weights: the random state is not restored", what,
        rank));
  }
  return std::nullopt;
}

// What the program does not restore, in the order of causes.
std::optional<CheckResult> problem_of_rest(const std::vector<Steps>& whole, const std::vector<Steps>& rest,
                                           std::size_t interrupted_at) {
  const auto &before = whole.front(), &after = rest.front();
  if (after.initial == nullptr) return std::nullopt;
  const auto what = fmt::format("interrupted before update {} and started again, ", interrupted_at);
  const auto begin = place_of_rest(before, after, interrupted_at);
  if (!begin) return failed(what + "it begins with parameters that it did not have before: they are not restored");
  if (*begin == before.weights.size() || after.weights.empty()) return std::nullopt;
  if (auto problem = problem_of_state(before, after, *begin, what)) return problem;
  return problem_of_data(whole, rest, what);
}

bool have_same_bits(const std::vector<Steps>& whole, const std::vector<Steps>& rest) {
  for (std::size_t rank = 0; rank < rest.size(); ++rank) {
    if (first_differing(whole[rank].losses, rest[rank].losses) ||
        first_differing(whole[rank].weights, rest[rank].weights))
      return false;
  }
  return true;
}

// Updates that come after a save and before the end, at random.
std::vector<std::size_t> places_to_interrupt(const Steps& whole, std::size_t count) {
  std::vector<std::size_t> places;
  const auto& writes = whole.updates_at_writes;
  for (std::size_t update = 1; update < whole.weights.size(); ++update) {
    if (std::any_of(writes.begin(), writes.end(), [&](auto at) { return at > 0 && at < update; }))
      places.push_back(update);
  }
  std::mt19937 random(static_cast<unsigned>(whole.weights.size()));
  std::shuffle(places.begin(), places.end(), random);
  places.resize(std::min(places.size(), count));
  return places;
}

}  // namespace

CheckResult judge_resume(Runs& runs) {
  const auto& base = runs.base();
  const auto all = steps_of(base.recording);
  const auto& whole = all.front();
  const auto updates = whole.weights.size();
  const auto places = places_to_interrupt(whole, runs.is_quick() ? 1 : 3);
  if (places.empty()) throw CannotJudge{"the program writes nothing before its last steps"};
  bool has_same_bits = true;
  for (const auto update : places) {
    const RunRequest interrupted{.ranks = runs.num_ranks(),
                                 .faults = dying(0, whole.weights[update]->step),
                                 .folder = runs.shared_folder(fmt::format("resume{}", update))};
    const auto& rest_run = continued(runs, interrupted);
    if (!rest_run.has_ended_well()) {
      return {.verdict = Verdict::kFail,
              .text = fmt::format("interrupted before update {} and started again, the program fails: {}", update,
                                  failure_of(rest_run)),
              .where = place_of_failure(rest_run)};
    }
    const auto rest = steps_of(rest_run.recording);
    if (rest.front().weights.size() >= updates && rest.front().losses.size() >= whole.losses.size())
      throw CannotJudge{
          "after an interruption it starts from the beginning; --resume-args gives the arguments with which it "
          "continues"};
    if (auto problem = problem_of_rest(all, rest, update)) return *problem;
    has_same_bits = has_same_bits && have_same_bits(all, rest);
  }
  return {.text = fmt::format(
              "interrupted before update{} {} and started again, it {}", places.size() == 1 ? "" : "s",
              fmt::join(places, ", "),
              has_same_bits
                  ? "ends with the same bits"
                  : "continues with equal state, samples and random numbers; later bits differ by rounding, as "
                    "DistributedDataParallel adds gradients in another order in its first step")};
}

CheckResult judge_crash(Runs& runs) {
  const auto& base = runs.base();
  const Steps whole(base.recording.front());
  const auto& writes = whole.updates_at_writes;
  if (std::none_of(writes.begin(), writes.end(), [](auto at) { return at > 0; }))
    throw CannotJudge{"the program writes nothing after its first step"};
  const std::vector<std::string> files(whole.files.begin(), whole.files.end());
  const int trials = runs.is_quick() ? 1 : 10;
  std::mt19937 random(1);
  int torn = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const auto& file = files[static_cast<std::size_t>(trial) % files.size()];
    const auto bytes = trial < static_cast<int>(files.size()) ? 1 : random() % 4096;
    const RunRequest interrupted{
        .ranks = runs.num_ranks(),
        .faults = fmt::format("faults:\n  - {{kind: torn_write, rank: 0, file: '{}', bytes: {}}}\n", file, bytes),
        .folder = runs.shared_folder(fmt::format("crash{}", trial)),
        .processes = !runs.program().command.empty()};
    if (runs.get(interrupted).has_ended_well()) continue;  // the write was not observed
    ++torn;
    const auto& rest = continued(runs, interrupted);
    if (rest.has_ended_well()) continue;
    return {
        .verdict = Verdict::kFail,
        .text = fmt::format("killed after {} bytes of {}, the next start fails: {}; write to another name, and rename",
                            bytes, file, failure_of(rest)),
        .where = place_of_failure(rest)};
  }
  if (torn == 0) throw CannotJudge{"no write of its files could be interrupted"};
  return {.text = fmt::format("killed at {} moments of its saves, the next start finds a complete state", torn)};
}

}  // namespace accel::programs
