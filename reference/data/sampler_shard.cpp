#include "reference/data/sampler_shard.hpp"

#include <utility>

namespace accel {
namespace {

ShardPlan plan_for(const Sampler& sampler, ShardPlanOptions options) {
  options.num_samples = sampler.size();
  return plan_shards(options);
}

}  // namespace

SamplerShard::SamplerShard(std::shared_ptr<Sampler> sampler, ShardPlanOptions options, int rank)
    : sampler_(std::move(sampler)), plan_(plan_for(*sampler_, options)), rank_(rank) {}

void SamplerShard::begin_pass() {
  step_ = 0;
  started_ = exhausted_ = false;
}

std::optional<Step> SamplerShard::next() {
  // Like Python's generators, the sampler draws when the first batch is asked for.
  if (!std::exchange(started_, true)) order_ = sampler_->begin_pass();
  if (step_ >= plan_.num_batches(rank_)) {
    if (!std::exchange(exhausted_, true)) {
      sampler_->end_pass();
      order_ = {};
    }
    return std::nullopt;
  }
  Step step{.indices = plan_.batch(rank_, step_), .remainder = plan_.remainder(step_)};
  ++step_;
  for (auto& position : step.indices) position = order_[position];
  return step;
}

}  // namespace accel
