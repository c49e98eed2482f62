// Answers a plan by running prepared loaders on simulated or real ranks: samples are their own numbers, so that what a
// loader yields is the plan. Exactly what a training program sees, including gather_for_metrics and end_of_dataloader.

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rng_sync.hpp"
#include "sim/backend/simulate.hpp"
#include "sim/engine/run_error.hpp"
#include "sim/programs/experiments/data_plan.hpp"

namespace accel::programs {
namespace {

// A stream whose sample i is the number i.
class NumberStream {
 public:
  explicit NumberStream(std::int64_t length) : length_(length) {}
  void reset() { next_ = 0; }
  std::optional<std::int64_t> next() { return next_ < length_ ? std::optional(next_++) : std::nullopt; }

 private:
  std::int64_t length_, next_ = 0;
};

struct RankEpoch {
  PlanBatches batches, gathered;
  std::vector<bool> ends;
};
using RankEpochs = std::vector<RankEpoch>;

// A gathered batch may be a view with strides, so it is made contiguous before its memory is read.
std::vector<std::int64_t> values_of(const at::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  return {whole.const_data_ptr<std::int64_t>(), whole.const_data_ptr<std::int64_t>() + whole.numel()};
}

// end_of_dataloader is read inside the loop: it describes the current batch and is reset when the loop ends.
template <typename Loader>
RankEpoch read_epoch(Accelerator& accelerator, Loader loader, bool gathers) {
  RankEpoch epoch;
  for (auto& batch : loader) {
    at::Tensor ids;
    for_each_tensor(batch, [&](const at::Tensor& tensor) { ids = tensor; });
    epoch.batches.push_back(values_of(ids));
    epoch.ends.push_back(accelerator.gradient_state().end_of_dataloader());
    if (gathers) epoch.gathered.push_back(values_of(accelerator.gather_for_metrics(ids)));
  }
  return epoch;
}

// Skips batches in the first epoch only, as a resumed training does.
template <typename Dataset>
RankEpochs read_epochs(Accelerator& accelerator, const PlanRequest& request, Dataset dataset) {
  DataLoader plain(std::move(dataset),
                   {.batch_size = request.batch_size, .shuffle = request.shuffle, .drop_last = request.drop_last});
  const auto loader = accelerator.prepare(plain);
  RankEpochs epochs;
  for (int epoch = 0; epoch < request.epochs; ++epoch) {
    epochs.push_back(
        read_epoch(accelerator, skip_first_batches(loader, epoch == 0 ? request.skip_batches : 0), request.gathers()));
  }
  return epochs;
}

RankEpochs read_rank(RankContext& context, const PlanRequest& request) {
  // The seed is set before the loader is created, as the oracle's Python programs do; both must draw the same numbers.
  Accelerator accelerator({.dataloader_config = request.configuration()}, context);
  set_seed(static_cast<std::uint64_t>(request.seed));
  if (request.iterable) return read_epochs(accelerator, request, NumberStream(request.length));
  return read_epochs(accelerator, request, TensorDataset(at::arange(request.length, at::TensorOptions(at::kLong))));
}

std::vector<PlanEpoch> plan_of(const PlanRequest& request, std::vector<RankEpochs> of_ranks) {
  std::vector<PlanEpoch> epochs(request.epochs);
  for (int index = 0; index < request.epochs; ++index) {
    auto& epoch = epochs[index];
    for (auto& of_rank : of_ranks) epoch.ranks.push_back(std::move(of_rank[index].batches));
    epoch.end_of_dataloader = of_ranks.front()[index].ends;
    if (request.gathers()) epoch.gathered_for_metrics = std::move(of_ranks.front()[index].gathered);
  }
  return epochs;
}

}  // namespace

std::vector<PlanEpoch> plan_by_loaders(const PlanRequest& request) {
  std::vector<RankEpochs> of_ranks(request.ranks);
  try {
    sim::simulate({.num_ranks = request.ranks},
                  [&](RankContext& context) { of_ranks[context.rank] = read_rank(context, request); });
  } catch (const sim::RunError& error) {
    for (const auto& outcome : error.outcomes()) {
      // All ranks fail alike, and the caller expects the plain ArgumentError instead of a RunError that wraps it.
      if (outcome.error && !outcome.released) std::rethrow_exception(outcome.error);
    }
    throw;
  }
  return plan_of(request, std::move(of_ranks));
}

std::vector<PlanEpoch> plan_by_loaders(RankContext& rank, const PlanRequest& request) {
  check_argument(rank.world_size == request.ranks, "plan: the request is for {} ranks, but this job has {}",
                 request.ranks, rank.world_size);
  using Packed = std::tuple<PlanBatches, PlanBatches, std::vector<std::int64_t>>;
  std::vector<Packed> own;
  for (auto& epoch : read_rank(rank, request))
    own.emplace_back(std::move(epoch.batches), std::move(epoch.gathered),
                     std::vector<std::int64_t>(epoch.ends.begin(), epoch.ends.end()));
  std::vector<RankEpochs> of_ranks;
  for (auto& packed : gather_object(rank, std::vector<std::vector<Packed>>{own})) {
    RankEpochs epochs;
    for (auto& [batches, gathered, ends] : packed)
      epochs.push_back({std::move(batches), std::move(gathered), {ends.begin(), ends.end()}});
    of_ranks.push_back(std::move(epochs));
  }
  return plan_of(request, std::move(of_ranks));
}

}  // namespace accel::programs
