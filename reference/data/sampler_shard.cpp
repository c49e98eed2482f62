#include "reference/data/sampler_shard.hpp"

#include <algorithm>
#include <utility>

#include "reference/core/errors.hpp"

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

// As far as all ranks' batches of a step need it: they read the sampler to the same place.
void SamplerShard::read_order(std::int64_t end) {
  end = std::min(end, plan_.num_samples());
  while (static_cast<std::int64_t>(order_.size()) < end) {
    const auto more = sampler_->continue_pass();
    check_argument(!more.empty(), "sampler: it gave {} indices, and its size() says {}", order_.size(), plan_.num_samples());
    order_.insert(order_.end(), more.begin(), more.end());
  }
}

void SamplerShard::end_pass() {
  read_order(plan_.num_samples());  // what drop_last leaves over is drawn all the same
  check_argument(sampler_->continue_pass().empty() && static_cast<std::int64_t>(order_.size()) == plan_.num_samples(),
                 "sampler: it gives more than the {} indices that its size() says", plan_.num_samples());
  order_ = {};
}

std::optional<Step> SamplerShard::next() {
  // Like Python's generators, the sampler draws when the first batch is asked for.
  if (!std::exchange(started_, true)) order_ = sampler_->begin_pass();
  if (step_ >= plan_.num_batches(rank_)) {
    if (!std::exchange(exhausted_, true)) end_pass();
    return std::nullopt;
  }
  read_order((step_ + 1) * plan_.total_batch_size());
  Step step{.indices = plan_.batch(rank_, step_), .remainder = plan_.remainder(step_)};
  ++step_;
  for (auto& position : step.indices) position = order_[position];
  return step;
}

}  // namespace accel
