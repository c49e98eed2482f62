// Source: accelerate/data_loader.py, BatchSamplerShard. Differs in one point: batches that contradict
// batch_size() or drop_last() are errors here, while Accelerate silently loses samples.
#include "reference/data/samplers/batch_sampler_shard.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/integers.hpp"
#include "reference/rank_local/random.hpp"

namespace accel {
namespace {

std::int64_t num_samples(const std::vector<std::vector<std::int64_t>>& batches) {
  return std::accumulate(batches.begin(), batches.end(), std::int64_t{0},
                         [](auto sum, const auto& batch) { return sum + static_cast<std::int64_t>(batch.size()); });
}

}  // namespace

Value BatchSampler::state_dict() const {
  const auto number = [](std::optional<std::int64_t> value) { return value ? Value(*value) : Value(); };
  Value::Dict state{{"size", number(size())}, {"batch_size", number(batch_size())}};
  if (const auto own = generator()) state.emplace("generator", own->get_state());
  return state;
}

void BatchSampler::load_state_dict(const Value& state) {
  const auto mine = BatchSampler::state_dict();
  for (const auto* key : {"size", "batch_size"})
    check_argument(state.at(key) == mine.at(key), "the state is of a batch sampler with another {}", key);
  auto own = generator();
  check_argument(own.has_value() == state.contains("generator"),
                 "the state is of a batch sampler {} a generator, but this sampler is {}", own ? "without" : "with",
                 own ? "with one" : "without");
  if (own) restore_generator(*own, state.at("generator").as<at::Tensor>());
}

void BatchSamplerShard::check(const BatchSampler& batches, Options options) {
  const auto batch_size = batches.batch_size();
  check_argument(batch_size.value_or(1) >= 1, "batch_sampler: batch_size() is {}; expected 1 or more, or nullopt",
                 batch_size.value_or(0));
  if (!options.split_batches) return;
  check_argument(batch_size.has_value(),
                 "split_batches: the batch sampler has no batch_size(), so its batches cannot be divided; define "
                 "batch_size() or set split_batches: false");
  check_argument(*batch_size % options.num_ranks == 0,
                 "split_batches: a batch of {} is not divisible by {} ranks; expected a multiple of {}", *batch_size,
                 options.num_ranks, options.num_ranks);
}

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<BatchSampler> batches, Options options, int rank)
    : batches_(std::move(batches)), options_(options), rank_(rank), batch_size_(batches_->batch_size()) {
  check(*batches_, options_);
}

// Without even_batches and drop_last, the number of steps with split_batches depends on the length of the last
// batch, which is unknown before the pass.
std::optional<std::int64_t> BatchSamplerShard::size() const {
  const auto batches = batches_->size();
  if (!batches || options_.num_ranks == 1) return batches;
  const bool every_rank_alike = options_.even_batches || batches_->drop_last();
  if (options_.split_batches) return every_rank_alike ? batches : std::nullopt;
  const auto whole = *batches / options_.num_ranks, rest = *batches % options_.num_ranks;
  if (batches_->drop_last()) return whole;
  return whole + (options_.even_batches ? (rest > 0 ? 1 : 0) : (rank_ < rest ? 1 : 0));
}

void BatchSamplerShard::begin_pass(std::int64_t num_read, bool draws_at_once) {
  batches_->begin_pass();
  first_group_.clear();
  num_read_ = 0;
  saw_short_ = ended_ = false;
  last_step_ = LastStep::kOfAllRanks;
  num_to_skip_ = num_read;
  if (draws_at_once) skip_batches(std::exchange(num_to_skip_, 0));
}

// Skipped batches are still requested from the sampler: a user's sampler cannot jump. The first ones are kept
// because they pad the last step.
void BatchSamplerShard::skip_batches(std::int64_t num_batches) {
  for (; num_batches > 0; --num_batches) {
    auto batch = read();
    if (!batch) return;
    if (static_cast<std::int64_t>(first_group_.size()) < units_per_step()) first_group_.push_back(std::move(*batch));
  }
}

std::optional<BatchSamplerShard::Batch> BatchSamplerShard::read() {
  auto batch = batches_->next();
  if (!batch) return batch;
  const auto size = static_cast<std::int64_t>(batch->size());
  check_argument(size > 0, "batch_sampler: batch {} is empty; expected at least one index", num_read_);
  check_argument(!saw_short_,
                 "batch_sampler: batch {} is shorter than batch_size() {} and is not the last; return nullopt from "
                 "batch_size() if batches vary",
                 num_read_ - 1, batch_size_.value_or(0));
  check_argument(size <= batch_size_.value_or(size),
                 "batch_sampler: batch {} has {} indices, but batch_size() is {}; expected at most batch_size()",
                 num_read_, size, batch_size_.value_or(0));
  saw_short_ = is_short(*batch);
  check_argument(
      !saw_short_ || !batches_->drop_last(),
      "batch_sampler: batch {} is shorter than batch_size(), but drop_last() is true; expected no short batch",
      num_read_);
  ++num_read_;
  return batch;
}

std::optional<Step> BatchSamplerShard::next() {
  if (ended_) return std::nullopt;
  skip_batches(std::exchange(num_to_skip_, 0));
  auto step = options_.split_batches ? next_slice() : next_full_batch();
  if (!step) ended_ = true;
  return step;
}

// All ranks read the same group of num_ranks batches and keep one each, so that all of them see the end of the
// pass in the same step.
std::optional<Step> BatchSamplerShard::next_full_batch() {
  std::vector<Batch> group;
  while (static_cast<int>(group.size()) < options_.num_ranks) {
    auto batch = read();
    if (!batch) break;
    if (static_cast<int>(first_group_.size()) < options_.num_ranks) first_group_.push_back(*batch);
    group.push_back(std::move(*batch));
  }
  if (group.empty()) return std::nullopt;
  const bool is_whole = static_cast<int>(group.size()) == options_.num_ranks && !is_short(group.back());
  if (is_whole) return Step{.indices = std::move(group[rank_])};
  ended_ = true;
  if (static_cast<int>(group.size()) == options_.num_ranks) read();  // throws if the short batch is not the last
  if (batches_->drop_last()) return std::nullopt;
  const auto remainder = num_samples(group);
  if (options_.even_batches && options_.num_ranks > 1) fill_up(group);
  end_with(static_cast<int>(group.size()));
  if (rank_ >= static_cast<int>(group.size())) return std::nullopt;
  return Step{.indices = std::move(group[rank_]), .remainder = remainder};
}

// Only the first ranks have a batch in the last step.
void BatchSamplerShard::end_with(int num_ranks_in_step) {
  if (num_ranks_in_step == options_.num_ranks) return;
  last_step_ = rank_ < num_ranks_in_step ? LastStep::kOthersEnded : LastStep::kOthersContinue;
}

// Source: accelerate/data_loader.py, BatchSamplerShard._iter_with_no_split: pads with the first indices of the
// pass, cyclically. If batches vary there is no length to pad to, so complete batches are repeated.
void BatchSamplerShard::fill_up(std::vector<Batch>& group) const {
  if (!batch_size_) {
    for (std::size_t first = 0; static_cast<int>(group.size()) < options_.num_ranks; ++first)
      group.push_back(first_group_[first % first_group_.size()]);
    return;
  }
  Batch first;
  for (const auto& batch : first_group_) first.insert(first.end(), batch.begin(), batch.end());
  group.resize(options_.num_ranks);
  std::size_t place = 0;
  for (auto& batch : group) {
    while (is_short(batch)) batch.push_back(first[place++ % first.size()]);
  }
}

// Source: accelerate/data_loader.py, BatchSamplerShard._iter_with_split.
std::optional<Step> BatchSamplerShard::next_slice() {
  auto batch = read();
  if (!batch) return std::nullopt;
  if (first_group_.empty()) first_group_ = {*batch};
  std::int64_t remainder = 0;
  if (is_short(*batch)) {
    remainder = static_cast<std::int64_t>(batch->size());
    if (options_.even_batches && options_.num_ranks > 1) {
      const auto& first = first_group_.front();
      for (std::size_t place = 0; is_short(*batch); ++place) batch->push_back(first[place % first.size()]);
    }
  }
  const auto length = *batch_size_ / options_.num_ranks, size = static_cast<std::int64_t>(batch->size());
  if (size < *batch_size_) end_with(static_cast<int>(divide_up(size, length)));
  const auto begin = std::min(length * rank_, size), end = std::min(begin + length, size);
  if (begin == end) return std::nullopt;
  return Step{.indices = Batch(batch->begin() + begin, batch->begin() + end), .remainder = remainder};
}

}  // namespace accel
