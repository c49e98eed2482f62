#include "reference/data/batch_sampler.hpp"

#include <utility>

namespace accel {
namespace {

ShardPlan plan_for(const Sampler& sampler, ShardPlanOptions options) {
  options.num_samples = sampler.size();
  return plan_shards(options);
}

}  // namespace

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<Sampler> sampler, ShardPlanOptions options, int rank)
    : sampler_(std::move(sampler)), plan_(plan_for(*sampler_, options)), rank_(rank) {}

void BatchSamplerShard::begin_pass() {
  step_ = 0;
  started_ = exhausted_ = false;
}

std::optional<std::vector<std::int64_t>> BatchSamplerShard::next() {
  // Like Python's generators, the sampler draws when the first batch is asked for.
  if (!std::exchange(started_, true)) order_ = sampler_->begin_pass();
  if (step_ >= size()) {
    if (!std::exchange(exhausted_, true)) {
      sampler_->end_pass();
      order_ = {};
    }
    return std::nullopt;
  }
  auto batch = plan_.batch(rank_, step_++);
  for (auto& position : batch) position = order_[position];
  return batch;
}

}  // namespace accel
