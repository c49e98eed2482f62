// Whether the ranks hold equal models at the end, began with equal ones, and draw different random numbers in between.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/programs/check/check.hpp"
#include "sim/programs/check/parting.hpp"
#include "sim/programs/check/runs.hpp"

namespace accel::programs {
namespace {

int num_updates(const RankRecording& rank) {
  return static_cast<int>(
      std::count_if(rank.begin(), rank.end(), [](const auto& seen) { return seen.kind == "weights"; }));
}

}  // namespace

CheckResult judge_replicas(Runs& runs) {
  const auto& recording = runs.base().recording;
  if (recording.size() == 1) throw CannotJudge{"there is one rank"};
  if (num_updates(recording.front()) == 0) throw CannotJudge{"no optimizer step was observed"};
  const auto fail = [](std::string text) { return CheckResult{.verdict = Verdict::kFail, .text = std::move(text)}; };
  if (const auto parting = first_parting(recording, "initial parameters")) {
    return fail(
        fmt::format("{}: rank {} begins with other weights than rank 0: its model is not prepared, nor seeded alike",
                    parting->seen->name, parting->rank));
  }
  if (const auto parting = passing_difference(recording)) {
    return {
        .verdict = Verdict::kFinding,
        .text = fmt::format("{}: the parameters of rank {} differ from those of rank 0 after update {} and agree at "
                            "the end: they are averaged from time to time, as by LocalSGD",
                            parting->seen->name, parting->rank, parting->count)};
  }
  if (const auto parting = first_parting(recording, "weights")) {
    return fail(fmt::format(
        "{}: the parameters of rank {} differ from those of rank 0 after update {}: their gradients are not "
        "averaged",
        parting->seen->name, parting->rank, parting->count));
  }
  for (const auto* kind : {"last learning rate", "last schedule"}) {
    if (const auto parting = first_parting(recording, kind)) {
      return fail(fmt::format("{}: the {} is {} on rank {} and another on rank 0 at the end", parting->seen->name,
                              kind + 5, parting->seen->value, parting->rank));
    }
  }
  if (const auto parting = first_parting(recording, "last optimizer state")) {
    return {.verdict = Verdict::kFinding,
            .text = fmt::format(
                "{}: its state differs on rank {} and rank 0 at the end: divided on purpose, or not restored on "
                "every rank",
                parting->seen->name, parting->rank)};
  }
  if (const auto parting = first_parting(recording, "last buffer")) {
    const bool is_norm = parting->seen->detail.find("BatchNorm") != std::string::npos;
    return {.verdict = Verdict::kFinding,
            .text = fmt::format(
                "the buffer {} differs on rank {} and rank 0 at the end{}", parting->seen->name, parting->rank,
                is_norm ? ": batch norm uses the batch of each rank alone; SyncBatchNorm uses that of all" : "")};
  }
  return {.text = fmt::format("parameters, buffers, optimizer states and schedules agree on {} ranks after {} updates",
                              recording.size(), num_updates(recording.front()))};
}

CheckResult judge_random_streams(Runs& runs) {
  const auto& recording = runs.base().recording;
  if (recording.size() == 1) throw CannotJudge{"there is one rank"};
  if (num_updates(recording.front()) == 0) throw CannotJudge{"no optimizer step was observed"};
  if (const auto parting = first_parting(recording, "initial parameters")) {
    return {
        .verdict = Verdict::kFail,
        .text = fmt::format("{}: rank {} begins with other weights than rank 0", parting->seen->name, parting->rank)};
  }
  std::vector<std::vector<GeneratorState>> states;
  for (const auto& rank : recording) states.push_back(generator_states_of(rank));
  const auto& first = states.front();
  const bool draws = std::any_of(first.begin(), first.end(), [](const auto& state) { return state.is_drawn; });
  if (!draws) return {.text = "initial weights agree; no random numbers are drawn in training"};
  for (std::size_t update = 0; update < first.size(); ++update) {
    if (!first[update].is_drawn) continue;
    const bool are_equal = std::all_of(states.begin(), states.end(), [&](const auto& rank) {
      return update < rank.size() && rank[update].value == first[update].value;
    });
    if (are_equal) {
      return {.verdict = Verdict::kFinding,
              .text = fmt::format(
                  "all ranks draw the same random numbers in update {}: their dropout masks are equal; seed "
                  "each rank differently after the model is made",
                  update)};
    }
  }
  return {.text = "initial weights agree, and the ranks draw different random numbers in training"};
}

}  // namespace accel::programs
