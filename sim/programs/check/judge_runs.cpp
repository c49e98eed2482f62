// Whether the program starts and ends, and whether a second run computes the same.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "sim/programs/check/check.hpp"
#include "sim/programs/check/runs.hpp"

namespace accel::programs {
namespace {

// What differs before anything else does names the source of randomness.
std::string source_of(const Difference& difference, const Recording& recording) {
  const auto& seen = difference.a ? *difference.a : *difference.b;
  if (seen.kind == "read" && difference.a && difference.b && difference.a->value == difference.b->value)
    return fmt::format(
        "equal samples of the loader at {} have other contents: random numbers of the dataset are not seeded",
        seen.name);
  if (seen.kind == "read" || seen.kind == "pass")
    return fmt::format("the loader at {} reads its samples in another order: its shuffle is not seeded", seen.name);
  if (seen.kind == "initial parameters" || seen.kind == "prepared parameters" || seen.kind == "prepared parameter")
    return "the initial weights differ: the generator is not seeded before the model is made";
  if (seen.kind == "loss" || seen.kind == "output") {
    // With one generator state before, the operators are not deterministic; with another, dropout draws other numbers.
    const auto& rank = recording[difference.rank];
    const bool is_first = std::none_of(rank.begin(), rank.begin() + static_cast<std::ptrdiff_t>(difference.place),
                                       [](const auto& other) { return other.kind == "generator state"; });
    return is_first ? "the first loss differs: the initial weights or the dropout masks are not seeded"
                    : "the loss differs after equal samples and weights: dropout or another operator draws unseeded "
                      "numbers, "
                      "or an operator is not deterministic";
  }
  if (seen.kind == "generator state") return "the program draws random numbers from a generator that it does not seed";
  return fmt::format("{} differs", describe(seen));
}

}  // namespace

CheckResult judge_runs(Runs& runs) {
  std::vector<int> counts{runs.num_ranks(), 1};
  for (std::size_t index = 0; index < counts.size(); ++index) {
    const auto ranks = counts[index];
    const auto& run = runs.get({.ranks = ranks});
    if (!run.has_ended_well()) {
      const bool misses_file = run.error.find("No such file") != std::string::npos && !runs.program().in_place;
      return {.verdict = Verdict::kFail,
              .text = fmt::format("on {} rank{}: {}{}", ranks, ranks == 1 ? "" : "s", failure_of(run),
                                  misses_file ? "; it runs in an empty folder, and with --in-place in this one" : ""),
              .where = place_of_failure(run),
              .replay = runs.replay({.ranks = ranks}),
              .run = run.request};
    }
    if (ranks == 1) counts.push_back(runs.uneven_ranks());
  }
  std::sort(counts.begin(), counts.end());
  return {.text = fmt::format("it starts and ends on {} ranks", fmt::join(counts, ", "))};
}

CheckResult judge_determinism(Runs& runs) {
  const auto first = computed(runs.base().recording);
  const RunRequest again{.ranks = runs.num_ranks(), .seed = 1};
  const auto& second = runs.get(again);
  if (!second.has_ended_well()) {
    return {.verdict = Verdict::kFail,
            .text = fmt::format("a second run ends otherwise: {}", failure_of(second)),
            .where = place_of_failure(second),
            .replay = runs.replay(again)};
  }
  const auto difference = first_difference(first, computed(second.recording));
  if (!difference) {
    std::size_t count = 0;
    for (const auto& rank : first) count += rank.size();
    return {.text = fmt::format("two runs agree in {} losses, samples, gradients and parameters, bit by bit", count)};
  }
  const auto& seen = difference->a ? *difference->a : *difference->b;
  return {
      .verdict = Verdict::kFail,
      .text = fmt::format("rank {}, step {}: {}", difference->rank, difference->step, source_of(*difference, first)),
      .where = seen.kind == "read" || seen.kind == "pass" ? seen.name : ""};
}

}  // namespace accel::programs
