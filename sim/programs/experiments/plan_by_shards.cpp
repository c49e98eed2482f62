// Answers a plan without running ranks: the order of an epoch's samples comes from one real sampler, and the shard plan
// divides it. Must agree with plan_by_loaders, which properties check on random requests.

#include <algorithm>
#include <memory>
#include <numeric>

#include "reference/data/dispatched_batches.hpp"
#include "reference/data/loader.hpp"
#include "reference/data/pass.hpp"
#include "sim/programs/experiments/data_plan.hpp"

namespace accel::programs {
namespace {

// One step of all ranks: positions in the epoch's order, [rank][place], and how many of them are not padding.
struct PlannedStep {
  PlanBatches of_ranks;
  std::int64_t num_real = 0;
};

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> positions(end - begin);
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

// Produces the order of samples of each epoch. All ranks draw the same order, so one rank is enough: with a batch that
// holds the complete dataset, its first batch is the order. The context claims the requested world size, because the
// loader of a single rank draws its order differently.
class EpochOrders {
 public:
  explicit EpochOrders(const PlanRequest& request)
      : request_(request), context_(make_single_rank()), scope_(*context_) {
    context_->world_size = request.ranks;
    context_->generator.set_current_seed(static_cast<std::uint64_t>(request.seed));
    if (request.iterable) {
      const detail::Loader checked({.is_stream = true}, {.batch_size = request.batch_size, .shuffle = request.shuffle});
      return;
    }
    const detail::Loader plain({.size = request.length},
                               {.batch_size = std::max<std::int64_t>(request.length, 1), .shuffle = request.shuffle});
    auto config = request.configuration();
    config.dispatch_batches = request.dispatches();
    config.split_batches = false;  // the batch that holds the complete dataset must not be split
    loader_ = std::make_shared<detail::Loader>(
        plain,
        ShardOptions{.context = context_.get(), .data_parallel = {.size = request.ranks}, .config = std::move(config)});
  }

  std::vector<std::int64_t> next() {
    if (!loader_) return range(0, request_.length);
    detail::Pass pass(loader_, /*skip_batches=*/0);
    pass.start();
    loader_->steps().begin_pass();
    // The pass runs to its end even after the first batch, because the end advances the sampler to the next epoch.
    std::vector<std::int64_t> order;
    while (auto step = loader_->steps().next()) {
      pass.hand_out({.num_rows = static_cast<std::int64_t>(step->indices.size())});
      if (order.empty()) order = std::move(step->indices);
    }
    pass.end();
    return order;
  }

 private:
  const PlanRequest& request_;
  std::unique_ptr<RankContext> context_;
  RankScope scope_;
  std::shared_ptr<detail::Loader> loader_;  // null for a stream, which has its own order
};

// Rank 0 has the most steps, so its number of batches is the number of steps; ranks without a batch are left out.
std::vector<PlannedStep> sharded_steps(const PlanRequest& request) {
  const auto plan = shard_plan_of(request);
  std::vector<PlannedStep> steps(plan.num_batches(0));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const auto place = static_cast<std::int64_t>(step);
    const auto remainder = plan.remainder(place);
    steps[step].num_real = remainder > 0 ? remainder : plan.total_batch_size();
    for (int rank = 0; rank < request.ranks && place < plan.num_batches(rank); ++rank)
      steps[step].of_ranks.push_back(plan.batch(rank, place));
  }
  return steps;
}

// Rank 0 reads a global batch and slices it. The last one is padded by repeating rows of the first global batch, of
// which Accelerate keeps only the first num_ranks rows. Source: accelerate/data_loader.py, DataLoaderDispatcher.
std::vector<PlannedStep> dispatched_steps(const PlanRequest& request) {
  const auto rows_per_step = shard_plan_of(request).total_batch_size();
  const auto num_rows = request.drop_last ? request.length / rows_per_step * rows_per_step : request.length;
  std::vector<PlannedStep> steps;
  for (std::int64_t begin = 0; begin < num_rows; begin += rows_per_step) {
    const auto end = std::min(begin + rows_per_step, num_rows);
    const auto plan = plan_dispatch({.num_rows = end - begin, .num_ranks = request.ranks, .is_last = end == num_rows});
    auto positions = range(begin, end);
    const auto num_first = std::min<std::int64_t>(request.ranks, std::min(rows_per_step, num_rows));
    for (std::int64_t padding = 0; padding < plan.num_padding; ++padding) positions.push_back(padding % num_first);
    PlannedStep step{.num_real = end - begin};
    for (int rank = 0; rank < request.ranks; ++rank) {
      const auto first = positions.begin() + rank * plan.rows_per_rank;
      step.of_ranks.emplace_back(first, first + plan.rows_per_rank);
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

// gather_for_metrics drops padding from the last step: num_real of the gathered samples remain.
PlanEpoch epoch_of(const std::vector<PlannedStep>& steps, const std::vector<std::int64_t>& order,
                   const PlanRequest& request, std::int64_t skip) {
  PlanEpoch epoch{.ranks = std::vector<PlanBatches>(request.ranks)};
  if (request.gathers()) epoch.gathered_for_metrics.emplace();
  for (auto step = static_cast<std::size_t>(std::min<std::int64_t>(skip, static_cast<std::int64_t>(steps.size())));
       step < steps.size(); ++step) {
    std::vector<std::int64_t> gathered;
    for (std::size_t rank = 0; rank < steps[step].of_ranks.size(); ++rank) {
      auto batch = steps[step].of_ranks[rank];
      for (auto& position : batch) position = order[position];
      gathered.insert(gathered.end(), batch.begin(), batch.end());
      epoch.ranks[rank].push_back(std::move(batch));
    }
    gathered.resize(std::min<std::size_t>(gathered.size(), steps[step].num_real));
    if (request.gathers()) epoch.gathered_for_metrics->push_back(std::move(gathered));
    epoch.end_of_dataloader.push_back(step + 1 == steps.size());
  }
  return epoch;
}

}  // namespace

// `configured` translates the loader's options to the plan's exactly as a prepared loader does.
ShardPlan shard_plan_of(const PlanRequest& request) {
  return plan_shards(configured({.num_samples = request.length,
                                 .batch_size = request.batch_size,
                                 .num_ranks = request.ranks,
                                 .drop_last = request.drop_last},
                                request.configuration(), request.iterable));
}

std::vector<PlanEpoch> plan_by_shards(const PlanRequest& request) {
  const auto steps = request.dispatches() ? dispatched_steps(request) : sharded_steps(request);
  EpochOrders orders(request);
  std::vector<PlanEpoch> epochs;
  for (int epoch = 0; epoch < request.epochs; ++epoch) {
    epochs.push_back(epoch_of(steps, orders.next(), request, epoch == 0 ? request.skip_batches : 0));
  }
  return epochs;
}

}  // namespace accel::programs
