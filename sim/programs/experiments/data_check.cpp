// `accel data-check` counts instead of listing samples: each function derives its numbers from sizes alone, and the
// property tests compare them with the plans that answer_plan lists sample by sample.
#include "sim/programs/experiments/data_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/data/dispatched_batches.hpp"
#include "reference/data/loader.hpp"
#include "reference/data/samplers/shard_plan.hpp"
#include "sim/programs/experiments/data_plan.hpp"

namespace accel::programs {
namespace {

// With dispatching rank 0 reads global batches and slices them, so all ranks have the same number of steps. Only the
// last batch can be short; it is padded with rows from the start of the first batch. Source: accelerate/data_loader.py,
// DataLoaderDispatcher.
EpochCounts count_dispatched(const PlanRequest& request, std::int64_t samples_per_step) {
  const auto num_rows = request.drop_last ? request.length / samples_per_step * samples_per_step : request.length;
  EpochCounts counts{.samples_per_step = samples_per_step,
                     .ranks_with_most_steps = request.ranks,
                     .dropped = request.length - num_rows};
  if (num_rows == 0) {
    counts.ranks_without_batch = request.ranks;
    return counts;
  }
  counts.steps_min = counts.steps_max = (num_rows - 1) / samples_per_step + 1;
  const auto last = plan_dispatch({.num_rows = (num_rows - 1) % samples_per_step + 1,
                                   .num_ranks = request.ranks,
                                   .is_last = true,
                                   .full_rows = request.is_elastic() ? samples_per_step : 0});
  counts.duplicated = last.num_padding;
  counts.shortest_batch = counts.longest_batch = last.rows_per_rank;
  return counts;
}

// The plan gives lower ranks the extra batch, so the last rank has the fewest steps, and rank 0 the most.
EpochCounts count_sharded(const PlanRequest& request, const ShardPlan& plan) {
  const auto total = plan.total_batch_size(), per_rank = total / request.ranks;
  EpochCounts counts{
      .samples_per_step = total, .steps_min = plan.num_batches(request.ranks - 1), .steps_max = plan.num_batches(0)};
  for (int rank = 0; rank < request.ranks; ++rank) {
    const auto batches = plan.num_batches(rank);
    if (batches == counts.steps_max) ++counts.ranks_with_most_steps;
    if (batches == 0) ++counts.ranks_without_batch;
  }
  if (request.drop_last || plan.fills_up()) {
    const auto issued = counts.steps_max * total;
    counts.duplicated = std::max<std::int64_t>(issued - request.length, 0);
    counts.dropped = std::max<std::int64_t>(request.length - issued, 0);
  }
  if (counts.steps_max > 0) {
    const auto of_last = request.length - (counts.steps_max - 1) * total;  // samples left for the last step
    // All ranks of the last step but its last one have full batches; that one gets the rest.
    const auto left_for_last_rank = of_last - (counts.ranks_with_most_steps - 1) * per_rank;
    counts.longest_batch = counts.duplicated > 0 ? per_rank : std::min(per_rank, of_last);
    counts.shortest_batch = counts.duplicated > 0 ? per_rank : std::min(per_rank, left_for_last_rank);
  }
  return counts;
}

std::string count_of(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}
std::string are(std::int64_t count) { return count == 1 ? "is" : "are"; }

std::string share_of(std::int64_t part, std::int64_t whole) {
  return fmt::format("{:.2g} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string ranks_from(int first, int end) {
  return end - first == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {}-{}", first, end - 1);
}

// Every finding about uneven batches ends with this remedy, since a batch size that divides avoids all of them.
std::string batch_size_remedy(const PlanRequest& request) {
  const auto even = even_batch_size(request);
  return even ? fmt::format("batch_size {} divides evenly", *even)
              : fmt::format("no batch_size near {} divides evenly", request.batch_size);
}

Finding no_batch(const PlanRequest& request, const EpochCounts& counts) {
  if (request.length == 0)
    return {"no_batch", "the dataset is empty, so no rank gets a batch; check length or the data"};
  auto text = fmt::format(
      "{} {} fewer than one step of {}, and drop_last drops them: no rank gets a batch; set drop_last: false",
      count_of(request.length, "sample"), are(request.length), counts.samples_per_step);
  const auto per_rank = request.length / request.ranks;
  if (per_rank > 0)
    text += fmt::format(", or batch_size {} or less", per_rank * (request.split_batches ? request.ranks : 1));
  return {"no_batch", text};
}

// If more samples are duplicated than exist, "N samples are read twice" would be false, so the total is given instead.
Finding duplicated(const PlanRequest& request, const EpochCounts& counts) {
  const auto n = request.length, tail = n % counts.samples_per_step;
  auto text =
      counts.duplicated <= n
          ? fmt::format("{} {} read twice per epoch ({})", count_of(counts.duplicated, "sample"),
                        are(counts.duplicated), share_of(counts.duplicated, n))
          : fmt::format("{} {} read {} times in all per epoch", count_of(n, "sample"), are(n), n + counts.duplicated);
  text += tail < n ? fmt::format("; drop_last would drop {} instead", tail)
                   : fmt::format("; one step of {} needs more samples than there are", counts.samples_per_step);
  return {"duplicated", text + "; " + batch_size_remedy(request)};
}

// The remedy states the cost of the alternative, since dropping may well be the better choice.
Finding dropped(const PlanRequest& request, const EpochCounts& counts) {
  auto kept = request;
  kept.drop_last = false;
  const auto twice = count_epoch(kept).duplicated;
  const auto instead = twice > 0 ? fmt::format("would read {} twice instead", twice) : "would read all";
  return {"dropped", fmt::format("{} {} not read in an epoch ({}); drop_last: false {}; {}",
                                 count_of(counts.dropped, "sample"), are(counts.dropped),
                                 share_of(counts.dropped, request.length), instead, batch_size_remedy(request))};
}

// Without even_batches some ranks have one step less. A collective in the last step of the others then waits for ranks
// that have left the loop; this is the most common hang of such programs.
Finding uneven_steps(const PlanRequest& request, const EpochCounts& counts) {
  const auto most = counts.ranks_with_most_steps;
  return {"uneven_steps", fmt::format("{} take{} {}, the other{} {}: a collective in step {} would hang; set "
                                      "even_batches: true or use join_uneven_inputs; {}",
                                      ranks_from(most, request.ranks), request.ranks - most == 1 ? "s" : "",
                                      count_of(counts.steps_min, "step"), most == 1 ? "" : "s", counts.steps_max,
                                      counts.steps_max, batch_size_remedy(request))};
}

Finding short_batch(const PlanRequest& request, const EpochCounts& counts) {
  return {"short_batch", fmt::format("the last batch of rank {} has {}, earlier batches have {}: gather requires equal "
                                     "shapes; set even_batches: true or use "
                                     "pad_across_processes; {}",
                                     counts.ranks_with_most_steps - 1, count_of(counts.shortest_batch, "sample"),
                                     counts.longest_batch, batch_size_remedy(request))};
}

// An epoch without steps has no other findings: counts of duplicates and drops would only repeat the same fact.
std::vector<Finding> findings_of(const PlanRequest& request, const EpochCounts& counts) {
  std::vector<Finding> findings;
  if (counts.steps_max == 0) return {no_batch(request, counts)};
  if (counts.duplicated > 0) findings.push_back(duplicated(request, counts));
  if (counts.dropped > 0) findings.push_back(dropped(request, counts));
  if (counts.has_uneven_steps()) findings.push_back(uneven_steps(request, counts));
  if (counts.shortest_batch < counts.longest_batch) findings.push_back(short_batch(request, counts));
  return findings;
}

// One impossible number of ranks must not hide the findings for the others, so its error becomes a finding.
RanksCheck check_ranks(const PlanRequest& request) {
  try {
    const auto counts = count_epoch(request);
    return {request.ranks, counts, findings_of(request, counts)};
  } catch (const ArgumentError& error) {
    return {request.ranks, std::nullopt, {{"error", error.what()}}};
  }
}

}  // namespace

EpochCounts count_epoch(const PlanRequest& request) {
  const auto plan = shard_plan_of(request);
  return request.dispatches() ? count_dispatched(request, plan.total_batch_size()) : count_sharded(request, plan);
}

std::optional<std::int64_t> even_batch_size(const PlanRequest& request) {
  if (request.length == 0 || request.length % request.ranks != 0) return std::nullopt;
  // A batch size fills every step exactly if it divides the number of samples per rank. The search goes outward from
  // the requested size and stays between half and twice of it: a far-off size would change the training.
  const auto of_rank = request.length / request.ranks;
  const auto unit = request.split_batches ? request.ranks : 1;
  const auto requested_size = std::max<std::int64_t>(request.batch_size / unit, 1);
  constexpr std::int64_t kFarthest = 4096;
  for (std::int64_t distance = 0; distance <= std::min(requested_size, kFarthest); ++distance) {
    for (const auto size : {requested_size - distance, requested_size + distance}) {
      if (2 * size >= requested_size && size > 0 && of_rank % size == 0) return size * unit;
    }
  }
  return std::nullopt;
}

LoaderCheck check_loader(const std::string& name, const PlanRequest& request,
                         const std::vector<int>& numbers_of_ranks) {
  // Constructing the loader runs its own checks, e.g. that a stream is not shuffled.
  try {
    const detail::Loader possible({.is_stream = request.iterable, .size = request.length},
                                  {.batch_size = request.batch_size, .shuffle = request.shuffle});
  } catch (const ArgumentError& error) {
    throw ConfigError(error.what());
  }
  // The number of ranks in `request` is ignored and replaced for each check.
  LoaderCheck check{name, request, {}};
  for (const int ranks : numbers_of_ranks) {
    auto asked = request;
    asked.ranks = ranks;
    check.of_ranks.push_back(check_ranks(asked));
  }
  return check;
}

bool has_findings(const std::vector<LoaderCheck>& checks) {
  return std::any_of(checks.begin(), checks.end(), [](const LoaderCheck& check) {
    return std::any_of(check.of_ranks.begin(), check.of_ranks.end(),
                       [](const RanksCheck& of_ranks) { return !of_ranks.findings.empty(); });
  });
}

}  // namespace accel::programs
