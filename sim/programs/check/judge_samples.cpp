// Which samples the ranks read, and which of them a metric counts.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "reference/core/input/listed.hpp"
#include "sim/programs/check/check.hpp"
#include "sim/programs/check/runs.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

// A pass of all ranks over one loader.
struct SharedPass {
  std::vector<const LoaderPass*> ranks;  // those that made it

  [[nodiscard]] const LoaderPass& any() const { return *ranks.front(); }
  [[nodiscard]] bool is_complete() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto* pass) { return pass->is_complete; });
  }
  [[nodiscard]] bool trains() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto* pass) { return pass->trains; });
  }
  [[nodiscard]] std::map<std::string, int> counts() const {
    std::map<std::string, int> counts;
    for (const auto* pass : ranks) {
      for (const auto& sample : pass->samples()) ++counts[sample];
    }
    return counts;
  }
};

std::vector<SharedPass> shared_passes(const std::vector<std::vector<LoaderPass>>& ranks) {
  std::vector<std::pair<std::string, int>> order;
  std::map<std::pair<std::string, int>, SharedPass> shared;
  for (const auto& passes : ranks) {
    for (const auto& pass : passes) {
      const std::pair key(pass.loader, pass.number);
      if (!shared.contains(key)) order.push_back(key);
      shared[key].ranks.push_back(&pass);
    }
  }
  std::vector<SharedPass> passes;
  for (const auto& key : order) passes.push_back(shared[key]);
  return passes;
}

struct Coverage {
  std::int64_t size = 0;  // samples that there are, or that were read if that is unknown
  std::vector<std::string> repeated, missing;
  bool all_by_every_rank = false;
  std::int64_t padding = 0;  // samples that may be read twice, or left out, to make the batches even

  [[nodiscard]] bool has_padding_only() const { return static_cast<std::int64_t>(repeated.size()) <= padding; }
};

using Counts = std::map<std::string, int>;  // of samples

// How often each sample is there: samples that are known by their content may be equal, as often as one rank reads
// them. Of other samples than one rank reads, such as augmented ones, each is there once.
Counts samples_of(const SharedPass& pass, const Counts& counts, const Counts& of_one_rank) {
  Counts samples;
  for (std::int64_t index = 0; index < pass.any().size.value_or(0); ++index) samples[std::to_string(index)] = 1;
  if (pass.any().size) return samples;
  const auto is_known = [&](const auto& entry) { return of_one_rank.contains(entry.first); };
  if (std::all_of(counts.begin(), counts.end(), is_known)) return of_one_rank;
  for (const auto& [sample, count] : counts) samples[sample] = 1;
  return samples;
}

// `of_one_rank`: what one rank reads in this pass, if that is known.
Coverage coverage_of(const SharedPass& pass, int num_ranks, const Counts& of_one_rank = {}) {
  const auto counts = pass.counts();
  const auto samples = samples_of(pass, counts, of_one_rank);
  Coverage coverage;
  coverage.all_by_every_rank = num_ranks > 1 && static_cast<int>(pass.ranks.size()) == num_ranks && !counts.empty();
  for (const auto& [sample, expected] : samples) {
    const auto found = counts.find(sample);
    const int count = found == counts.end() ? 0 : found->second;
    coverage.size += expected;
    if (count > expected) coverage.repeated.push_back(sample);
    if (count < expected) coverage.missing.push_back(sample);
    if (count > 0 && count < num_ranks * expected) coverage.all_by_every_rank = false;
  }
  std::size_t largest = 1;
  for (const auto* rank : pass.ranks) {
    for (const auto& batch : rank->batches) largest = std::max(largest, batch.size());
  }
  coverage.padding = static_cast<std::int64_t>(largest) * num_ranks - 1;
  return coverage;
}

// Of a pass in which every rank reads all samples.
CheckResult repeated_by_every_rank(const SharedPass& pass, const Coverage& coverage, int num_ranks) {
  const auto& loader = pass.any().loader;
  CheckResult result{.verdict = Verdict::kFinding, .text = {}, .where = loader};
  if (coverage.has_padding_only() && pass.any().is_divided) {
    result.text = fmt::format(
        "the {} samples of the loader at {} are fewer than one batch of {} ranks, so that every rank reads all of them",
        coverage.size, loader, num_ranks);
  } else if (!pass.trains()) {
    result.text = fmt::format("every rank evaluates all {} samples of the loader at {}, {} times the work of one",
                              coverage.size, loader, num_ranks);
  } else {
    result.verdict = Verdict::kFail;
    result.text = fmt::format(
        "every rank reads all {} samples of the loader at {}: it is not prepared and has no DistributedSampler",
        coverage.size, loader);
  }
  return result;
}

std::optional<CheckResult> problem_of_pass(const SharedPass& pass, const Coverage& coverage, int num_ranks) {
  const auto& loader = pass.any().loader;
  const auto fail = [&](std::string text) {
    return CheckResult{.verdict = Verdict::kFail, .text = std::move(text), .where = loader};
  };
  if (coverage.all_by_every_rank) return repeated_by_every_rank(pass, coverage, num_ranks);
  if (!coverage.has_padding_only()) {
    return fail(fmt::format("pass {} of the loader at {} reads {} samples more than once: {}", pass.any().number,
                            loader, coverage.repeated.size(), listed(coverage.repeated, ", ")));
  }
  if (!pass.is_complete() || pass.any().begins_inside) return std::nullopt;
  const auto may_miss = pass.any().drops_last ? coverage.padding : 0;
  if (static_cast<std::int64_t>(coverage.missing.size()) > may_miss) {
    const auto readers = pass.ranks.size();
    return fail(fmt::format(
        "pass {} of the loader at {} never reads {} of {} samples: {}{}", pass.any().number, loader,
        coverage.missing.size(), coverage.size, listed(coverage.missing, ", "),
        static_cast<int>(readers) < num_ranks ? fmt::format("; only {} of {} ranks read it", readers, num_ranks) : ""));
  }
  return std::nullopt;
}

// Null for samples that are known by their content only.
std::optional<sim::ReadSamples> figure_of(const SharedPass& pass, int num_ranks) {
  const auto& any = pass.any();
  if (!any.size) return std::nullopt;
  sim::ReadSamples figure{.loader = any.loader, .pass = any.number, .size = *any.size};
  for (const auto* rank : pass.ranks) {
    auto& own = figure.by_rank.emplace_back();
    for (const auto& sample : rank->samples()) {
      if (!sample.starts_with("#")) own.push_back(std::strtoll(sample.c_str(), nullptr, 10));
    }
  }
  figure.by_rank.resize(static_cast<std::size_t>(num_ranks));  // ranks that did not make the pass come last
  return figure;
}

// Passes of a loader that shuffles must have different orders.
std::optional<CheckResult> problem_of_orders(const std::vector<std::vector<LoaderPass>>& ranks) {
  for (const auto& passes : ranks) {
    std::map<std::string, const LoaderPass*> last;
    for (const auto& pass : passes) {
      const auto* const before = std::exchange(last[pass.loader], &pass);
      if (before == nullptr || !pass.trains || pass.batches.size() < 2 || !pass.shuffles) continue;
      if (before->batches == pass.batches) {
        return CheckResult{.verdict = Verdict::kFail,
                           .text = fmt::format("passes {} and {} of the loader at {} have the same order: call "
                                               "set_epoch(epoch) of its sampler before each epoch",
                                               before->number, pass.number, pass.loader),
                           .where = pass.loader};
      }
    }
  }
  return std::nullopt;
}

// The value of a draw has the states before it, by generator; its name is that of the worker.
struct Reader {
  int rank = 0;
  std::string worker, samples;
};
using Readers = std::map<std::pair<std::string, std::string>, std::vector<Reader>>;  // by generator and state

Readers readers_of(const ProgramRun& run) {
  Readers readers;
  for (std::size_t rank = 0; rank < run.recording.size(); ++rank) {
    for (const auto* recording : {&run.recording[rank], &run.draws[rank]}) {
      for (const auto& seen : *recording) {
        if (seen.kind != "draw") continue;
        const auto states = Json::parse(seen.value, nullptr, /*allow_exceptions=*/false);
        for (const auto& [generator, state] : states.items())
          readers[{generator, state.get<std::string>()}].push_back({static_cast<int>(rank), seen.name, seen.detail});
      }
    }
  }
  return readers;
}

std::optional<CheckResult> problem_of_draws(const ProgramRun& run) {
  std::optional<CheckResult> of_workers, of_one_reader, of_ranks;
  for (const auto& [key, equal] : readers_of(run)) {
    const auto& one = equal.front();
    for (const auto& other : equal) {
      if (one.samples == other.samples) continue;
      const auto fail = [](std::string text) {
        return CheckResult{.verdict = Verdict::kFail, .text = std::move(text)};
      };
      if (one.rank == other.rank && one.worker != other.worker) {
        of_workers = fail(fmt::format(
            "{} and {} of rank {}'s loader draw the same random numbers of {}, for samples {} and {}: their "
            "augmentations are equal; let worker_init_fn seed each worker differently",
            one.worker, other.worker, one.rank, key.first, one.samples, other.samples));
      } else if (one.rank == other.rank) {
        of_one_reader = fail(
            fmt::format("samples {} and {} get the same random numbers of {}: the generator is seeded again for each "
                        "of them, or in each epoch",
                        one.samples, other.samples, key.first));
      } else {
        of_ranks = CheckResult{
            .verdict = Verdict::kFinding,
            .text = fmt::format("ranks {} and {} draw the same random numbers of {} for different samples: their "
                                "augmentations are equal",
                                one.rank, other.rank, key.first)};
      }
    }
  }
  return of_workers ? of_workers : of_one_reader ? of_one_reader : of_ranks;
}

// What rank 0 gathers of an evaluation: while the pass is the last one that it reads, up to the next training.
struct Gathered {
  std::int64_t rows = 0;    // by the calls whose result has one row per sample
  std::int64_t cut = 0;     // of these, by `gathered[:n]`
  std::string call, where;  // the last of these; "": none
  bool has_collective = false;
};

Gathered gathered_in(const RankRecording& rank, const LoaderPass& pass) {
  Gathered gathered;
  bool is_inside = false;
  int number = 0;  // of the loader's last pass
  for (const auto& seen : rank) {
    const bool is_of_loader = seen.name == pass.loader;
    if (seen.kind == "pass" && is_of_loader) number = std::atoi(seen.value.c_str());
    if (seen.kind == "read") is_inside = is_of_loader && number == pass.number;
    if (seen.kind == "loss") is_inside = false;
    if (!is_inside) continue;
    if (seen.kind == "collective") gathered.has_collective = true;
    if (seen.kind == "gather cut") gathered.cut += std::atoll(seen.value.c_str());
    if (seen.kind != "gather") continue;
    const auto counts = Json::parse(seen.value, nullptr, false);
    if (counts.empty()) continue;
    gathered.rows += counts.front().get<std::int64_t>();
    gathered.call = seen.name;
    gathered.where = seen.detail;
  }
  return gathered;
}

std::vector<SharedPass> evaluations_of(const std::vector<std::vector<LoaderPass>>& ranks) {
  auto passes = shared_passes(ranks);
  std::erase_if(passes, [](const auto& pass) {
    return pass.trains() || pass.any().batches.empty() || !pass.is_complete() || !pass.any().size;
  });
  return passes;
}

std::optional<CheckResult> problem_of_metrics(const ProgramRun& run, const std::vector<SharedPass>& evaluations) {
  const auto num_ranks = run.request.ranks;
  std::optional<CheckResult> finding;
  for (const auto& pass : evaluations) {
    const auto size = *pass.any().size;
    const auto coverage = coverage_of(pass, num_ranks);
    const auto& loader = pass.any().loader;
    const auto on_ranks = fmt::format("on {} ranks", num_ranks);
    const auto fail = [&](std::string text, const std::string& where) {
      return CheckResult{
          .verdict = Verdict::kFail, .text = std::move(text), .where = where, .samples = figure_of(pass, num_ranks)};
    };
    if (static_cast<int>(pass.ranks.size()) < num_ranks && !coverage.missing.empty()) {
      return fail(
          fmt::format("{} only {} of them evaluate their part of the loader at {}: {} of {} samples are never counted",
                      on_ranks, pass.ranks.size(), loader, coverage.missing.size(), size),
          loader);
    }
    const auto gathered = gathered_in(run.recording.front(), pass.any());
    // A program may show some of the rows; it drops those that are counted twice only if exactly the samples are left.
    if (gathered.rows > size && gathered.rows - gathered.cut != size) {
      return fail(fmt::format("{} {} returns {} rows for the {} samples of the loader at {}: {}", on_ranks,
                              gathered.call, gathered.rows, size, loader,
                              coverage.all_by_every_rank ? "every rank evaluates all of them"
                              : gathered.call == "gather"
                                  ? "samples that fill the last batch are counted twice; use gather_for_metrics"
                                  : "samples are counted twice"),
                  gathered.where);
    }
    const bool is_divided = !coverage.all_by_every_rank && static_cast<int>(pass.ranks.size()) == num_ranks;
    if (is_divided && gathered.call.empty() && !gathered.has_collective) {
      return fail(
          fmt::format(
              "{} each evaluates its part of the {} samples of the loader at {}, and nothing is gathered or reduced: a "
              "metric counts the part of one rank",
              on_ranks, size, loader),
          loader);
    }
    if (is_divided && gathered.call.empty() && !coverage.repeated.empty() && !finding) {
      finding = {.verdict = Verdict::kFinding,
                 .text = fmt::format(
                     "{} {} of the {} samples of the loader at {} are evaluated twice, to fill the last batches, and a "
                     "reduced metric counts them twice",
                     on_ranks, coverage.repeated.size(), size, loader),
                 .where = loader};
    }
  }
  return finding;
}

// None if all samples have indices, or if the program does not run on one rank.
std::vector<LoaderPass> passes_of_one_rank(Runs& runs, const std::vector<SharedPass>& passes) {
  const bool have_indices =
      std::all_of(passes.begin(), passes.end(), [](const auto& pass) { return pass.any().size.has_value(); });
  if (have_indices || runs.num_ranks() == 1) return {};
  const auto& one = runs.get({.ranks = 1});
  return one.has_ended_well() ? passes_of(one.recording.front()) : std::vector<LoaderPass>{};
}

// Of the same pass on one rank.
Counts counts_in(const std::vector<LoaderPass>& passes, const LoaderPass& same) {
  const auto found = std::find_if(passes.begin(), passes.end(), [&](const auto& pass) {
    return pass.loader == same.loader && pass.number == same.number;
  });
  return found == passes.end() ? Counts{} : SharedPass{{&*found}}.counts();
}

}  // namespace

CheckResult judge_samples(Runs& runs) {
  const auto& ranks = runs.passes();
  const auto passes = shared_passes(ranks);
  if (passes.empty()) throw CannotJudge{"no loader was observed"};
  std::optional<CheckResult> finding;
  const auto keep = [&](std::optional<CheckResult> result) {
    if (result && result->verdict == Verdict::kFinding && !finding) finding = result;
    return result && result->verdict == Verdict::kFail;
  };
  const auto of_one_rank = passes_of_one_rank(runs, passes);
  std::set<std::string> loaders;
  std::size_t repeated = 0;
  for (const auto& pass : passes) {
    const auto coverage = coverage_of(pass, runs.num_ranks(), counts_in(of_one_rank, pass.any()));
    loaders.insert(pass.any().loader);
    repeated = std::max(repeated, coverage.repeated.size());
    auto problem = problem_of_pass(pass, coverage, runs.num_ranks());
    if (problem) problem->samples = figure_of(pass, runs.num_ranks());
    if (keep(problem)) return *problem;
  }
  if (auto problem = problem_of_orders(ranks); keep(problem)) return *problem;
  if (auto problem = problem_of_draws(runs.base()); keep(problem)) return *problem;
  if (finding) return *finding;
  return {.text =
              fmt::format("{} passes of {} loader{} read every sample once{}", passes.size(), loaders.size(),
                          loaders.size() == 1 ? "" : "s",
                          repeated > 0 ? fmt::format(", but for up to {} that fill the last batches", repeated) : "")};
}

CheckResult judge_metrics(Runs& runs) {
  const auto& base = runs.base();
  const auto evaluations = evaluations_of(runs.passes());
  if (evaluations.empty()) throw CannotJudge{"no evaluation was observed"};
  auto result = problem_of_metrics(base, evaluations);
  if (result && result->verdict == Verdict::kFail) return *result;
  // With ranks that do not divide the data, the last batches are filled.
  const auto& uneven = runs.get({.ranks = runs.uneven_ranks()});
  if (uneven.has_ended_well()) {
    std::vector<std::vector<LoaderPass>> passes;
    for (const auto& rank : uneven.recording) passes.push_back(passes_of(rank));
    const auto other = problem_of_metrics(uneven, evaluations_of(passes));
    if (other && (!result || other->verdict == Verdict::kFail)) result = other;
  }
  if (result) return *result;
  return {.text = fmt::format("{} evaluation passes count every sample once", evaluations.size())};
}

}  // namespace accel::programs
