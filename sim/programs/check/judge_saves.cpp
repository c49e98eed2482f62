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

// What rank 0 does in a run, in order.
struct Steps {
  std::vector<const Observation*> losses, weights, rates, reads;
  const Observation* initial = nullptr;  // parameters before the first update of the first optimizer
  const Observation* last_parameters = nullptr;
  const Observation* last_state = nullptr;     // of the optimizer
  std::vector<std::size_t> updates_at_writes;  // the number of updates before each write
  std::set<std::string> files;

  explicit Steps(const RankRecording& rank) {
    for (const auto& seen : rank) {
      const bool is_first = seen.name == "optimizer 0";
      if (seen.kind == "loss") losses.push_back(&seen);
      if (seen.kind == "weights" && is_first) weights.push_back(&seen);
      if (seen.kind == "learning rate" && is_first) rates.push_back(&seen);
      if (seen.kind == "initial parameters" && is_first) initial = &seen;
      if (seen.kind == "last parameters" && is_first) last_parameters = &seen;
      if (seen.kind == "last optimizer state" && is_first) last_state = &seen;
      if (seen.kind == "read") reads.push_back(&seen);
      if (seen.kind != "write") continue;
      updates_at_writes.push_back(weights.size());
      files.insert(std::filesystem::path(seen.value).filename().string());
    }
  }
};

std::string dying(int rank, std::int64_t update) {
  return fmt::format("faults:\n  - {{kind: rank_crash_before_optimizer_step, rank: {}, when: {{step: {}}}}}\n", rank,
                     update);
}

// Both runs work in one folder. Throws CannotJudge if the program starts from the beginning.
const ProgramRun& continued(Runs& runs, const RunRequest& interrupted) {
  static_cast<void>(runs.get(interrupted));
  return runs.get({.ranks = interrupted.ranks, .continues = true, .folder = interrupted.folder});
}

CheckResult failed(std::string text) { return {.verdict = Verdict::kFail, .text = std::move(text)}; }

// What differs between the uninterrupted run and the one that continues it, in the order of causes.
std::optional<CheckResult> difference_of(const Steps& whole, const Steps& rest, std::size_t interrupted_at) {
  const auto is_same = [](const Observation* a, const Observation* b) {
    return a != nullptr && b != nullptr && a->value == b->value;
  };
  // The update after which the program continues, by its parameters.
  std::optional<std::size_t> begin;
  for (std::size_t update = 0; update < whole.weights.size() && update <= interrupted_at; ++update) {
    if (is_same(whole.weights[update], rest.initial)) begin = update + 1;
  }
  const auto what = fmt::format("interrupted before update {} and started again, ", interrupted_at);
  if (!begin) {
    if (rest.initial == nullptr) return std::nullopt;
    return failed(what + "the program does not begin with parameters that it had before: they are not restored");
  }
  const auto remaining = whole.weights.size() - *begin;
  if (rest.weights.size() != remaining) {
    return failed(
        fmt::format("{}it has the parameters of update {} and makes {} updates where {} were left: its position in the "
                    "epoch, or its epoch, is not restored",
                    what, *begin, rest.weights.size(), remaining));
  }
  for (std::size_t update = 0; update < remaining; ++update) {
    const auto place = *begin + update;
    if (place < whole.rates.size() && update < rest.rates.size() && !is_same(whole.rates[place], rest.rates[update])) {
      return failed(fmt::format(
          "{}its learning rate of update {} is {} instead of {}: the schedule, or the optimizer, is not restored", what,
          place, rest.rates[update]->value, whole.rates[place]->value));
    }
    if (update < rest.losses.size() && whole.losses.size() >= rest.losses.size()) {
      const auto own = rest.losses.size() * update / remaining, offset = whole.losses.size() - rest.losses.size();
      if (!is_same(whole.losses[offset + own], rest.losses[own])) {
        const auto reads = std::min(whole.reads.size(), rest.reads.size());
        const bool reads_differ =
            reads > 0 && !std::equal(rest.reads.end() - static_cast<std::ptrdiff_t>(reads), rest.reads.end(),
                                     whole.reads.end() - static_cast<std::ptrdiff_t>(reads), is_same);
        return failed(
            fmt::format("{}the loss of update {} differs: {}", what, place,
                        reads_differ ? "other samples are read: the order or the position of the loader is not restored"
                                     : "equal samples and weights: the random state is not restored"));
      }
    }
    if (!is_same(whole.weights[place], rest.weights[update])) {
      return failed(fmt::format(
          "{}the parameters after update {} differ although the loss is equal: the optimizer's state is not restored",
          what, place));
    }
  }
  return std::nullopt;
}

}  // namespace

CheckResult judge_resume(Runs& runs) {
  const auto& base = runs.base();
  const Steps whole(base.recording.front());
  const auto updates = whole.weights.size();
  std::vector<std::size_t> places;  // updates that come after a save and before the end
  for (std::size_t update = 1; update < updates; ++update) {
    const auto& writes = whole.updates_at_writes;
    if (std::any_of(writes.begin(), writes.end(), [&](auto at) { return at > 0 && at < update; }))
      places.push_back(update);
  }
  if (places.empty()) throw CannotJudge{"the program writes nothing before its last steps"};
  std::mt19937 random(static_cast<unsigned>(updates));
  std::shuffle(places.begin(), places.end(), random);
  places.resize(std::min<std::size_t>(places.size(), runs.is_quick() ? 1 : 3));
  for (const auto update : places) {
    const RunRequest interrupted{.ranks = runs.num_ranks(),
                                 .faults = dying(0, static_cast<std::int64_t>(update)),
                                 .folder = runs.shared_folder(fmt::format("resume{}", update))};
    const auto& rest_run = continued(runs, interrupted);
    if (!rest_run.has_ended_well()) {
      return {.verdict = Verdict::kFail,
              .text = fmt::format("interrupted before update {} and started again, the program fails: {}", update,
                                  failure_of(rest_run)),
              .where = place_of_failure(rest_run)};
    }
    const Steps rest(rest_run.recording.front());
    if (rest.weights.size() >= updates && rest.losses.size() >= whole.losses.size())
      throw CannotJudge{
          "after an interruption it starts from the beginning; --resume-args gives the arguments with which it "
          "continues"};
    if (auto problem = difference_of(whole, rest, update)) return *problem;
    if (rest.last_state != nullptr && whole.last_state != nullptr && rest.last_state->value != whole.last_state->value)
      return failed(
          fmt::format("interrupted before update {} and started again, the optimizer's last state differs", update));
  }
  return {.text = fmt::format("interrupted before update{} {} and started again, it ends with the same bits",
                              places.size() == 1 ? "" : "s", fmt::join(places, ", "))};
}

CheckResult judge_crash(Runs& runs) {
  const auto& base = runs.base();
  const Steps whole(base.recording.front());
  std::vector<std::string> files;
  for (std::size_t place = 0; place < whole.updates_at_writes.size(); ++place) {
    if (whole.updates_at_writes[place] > 0) files.assign(whole.files.begin(), whole.files.end());
  }
  if (files.empty()) throw CannotJudge{"the program writes nothing after its first step"};
  const int trials = runs.is_quick() ? 2 : 10;
  std::mt19937 random(1);
  int torn = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const auto& file = files[static_cast<std::size_t>(trial) % files.size()];
    const auto bytes = trial < static_cast<int>(files.size()) ? 1 : random() % 4096;
    const RunRequest interrupted{
        .ranks = runs.num_ranks(),
        .faults = fmt::format("faults:\n  - {{kind: torn_write, rank: 0, file: '{}', bytes: {}}}\n", file, bytes),
        .folder = runs.shared_folder(fmt::format("crash{}", trial))};
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
