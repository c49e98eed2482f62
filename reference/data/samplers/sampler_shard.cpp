// Applies a shard plan to a sampler's order. Every rank draws the complete order, because ranks must stay at the
// same place of the random stream; the memory for it is shared and released as the pass proceeds.
#include "reference/data/samplers/sampler_shard.hpp"

#include <algorithm>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"

namespace accel {
namespace {

ShardPlanOptions options_for(const Sampler& sampler, ShardPlanOptions options) {
  options.num_samples = sampler.size();
  return options;
}

}  // namespace

SamplerShard::SamplerShard(std::shared_ptr<Sampler> sampler, ShardPlanOptions options, int rank)
    : sampler_(std::move(sampler)),
      options_(options_for(*sampler_, options)),
      rank_(rank),
      plan_(plan_shards(options_)) {}

void SamplerShard::begin_pass(std::int64_t num_read, bool draws_at_once) {
  auto options = options_;
  options.num_read = num_read;
  plan_ = plan_shards(options);
  step_ = 0;
  started_ = exhausted_ = false;
  if (draws_at_once) start();
}

// A resumed pass draws the first step (it pads the last one) and then skips, or draws and discards, the indices
// that were read before.
void SamplerShard::start() {
  if (std::exchange(started_, true)) return;
  first_.reset();
  begin_ = 0;
  order_ = shared_indices(sampler_->begin_pass());
  read_order(plan_.total_batch_size());
  first_ = order_;
  while (num_drawn() < plan_.num_read()) {
    const auto skipped = sampler_->skip(plan_.num_read() - num_drawn());
    if (skipped == 0) {
      read_order(num_drawn() + 1);
    } else {
      begin_ = num_drawn() + skipped;
      order_ = shared_indices({});
    }
  }
}

// Draws until `end`, which covers the batches of all ranks in a step, so that all ranks draw the same number of
// parts.
void SamplerShard::read_order(std::int64_t end) {
  end = std::min(end, plan_.num_samples());
  if (num_drawn() >= end) return;
  // Indices that all ranks have passed are dropped.
  const auto num_behind = first_
                              ? std::clamp<std::int64_t>(plan_.num_read() + step_ * plan_.total_batch_size() - begin_,
                                                         0, static_cast<std::int64_t>(order_->size()))
                              : 0;
  std::vector<std::int64_t> order(order_->begin() + num_behind, order_->end());
  begin_ += num_behind;
  const auto num_given = [&] { return begin_ + static_cast<std::int64_t>(order.size()); };
  while (num_given() < end) {
    const auto part = sampler_->continue_pass();
    check_argument(!part.empty(),
                   "sampler: the pass ended after {} indices, but size() is {}; expected equal numbers; correct size() "
                   "or the pass",
                   num_given(), plan_.num_samples());
    order.insert(order.end(), part.begin(), part.end());
  }
  order_ = shared_indices(std::move(order));
}

// See Note [Parts of a pass]: indices that drop_last discards, and the end of the pass, must be drawn too.
void SamplerShard::end_pass() {
  read_order(plan_.num_samples());
  check_argument(sampler_->continue_pass().empty() && num_drawn() == plan_.num_samples(),
                 "sampler: the pass has more than {} indices, the value of size(); expected equal numbers; correct "
                 "size() or the pass",
                 plan_.num_samples());
  order_.reset();
  first_.reset();
}

// Positions before begin_ occur only in the padding of the last step, which comes from the first step.
std::int64_t SamplerShard::index_at(std::int64_t position) const {
  return position >= begin_ ? (*order_)[position - begin_] : (*first_)[position];
}

std::optional<Step> SamplerShard::next() {
  start();  // as in Python, the sampler draws when the first batch is requested
  if (step_ >= plan_.num_batches(rank_)) {
    if (!std::exchange(exhausted_, true)) end_pass();
    return std::nullopt;
  }
  read_order(plan_.num_read() + (step_ + 1) * plan_.total_batch_size());
  Step step{.indices = plan_.batch(rank_, step_), .remainder = plan_.remainder(step_)};
  ++step_;
  for (auto& position : step.indices) position = index_at(position);
  return step;
}

// The first ranks get the tail.
LastStep SamplerShard::last_step() const {
  const auto own = plan_.num_batches(rank_);
  if (own < plan_.num_batches(/*rank=*/0)) return LastStep::kOthersContinue;
  return plan_.num_batches(options_.num_ranks - 1) < own ? LastStep::kOthersEnded : LastStep::kOfAllRanks;
}

}  // namespace accel
