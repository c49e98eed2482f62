// Samplers with the draws of Python's. Equal bits need more than an equal distribution: the same calls of
// randperm, randint and multinomial, with the same sizes, at the same moments. See Note [Parts of a pass].
//
// Note [Parts of a pass]
// Python's samplers are generators: they draw when the next index is requested. RandomSampler draws a permutation per
// `length` samples, 32 indices at a time with replacement, and one more permutation at the end of a pass of which it
// uses nothing. Others may draw from the same generator in between. Therefore begin_pass and continue_pass return the
// indices in the same parts, and consumers must request every part, including the last, empty one.
#include "reference/data/samplers/sampler.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/core/integers.hpp"
#include "reference/rank_local/random.hpp"

namespace accel {
namespace {

std::vector<std::int64_t> values_of(const at::Tensor& numbers) {
  const auto* data = numbers.const_data_ptr<std::int64_t>();
  return {data, data + numbers.numel()};
}

std::vector<std::int64_t> permutation(std::int64_t size, const at::Generator& generator) {
  return values_of(at::randperm(size, generator, at::kLong));
}

constexpr std::int64_t kDrawsAtOnce = 32;       // RandomSampler.__iter__ with replacement draws 32 at a time
constexpr std::int64_t kSequentialPart = 8192;  // indices per part; bounds the memory for any number of samples

Value::Dict identity(const Sampler& sampler) { return {{"kind", sampler.kind()}, {"size", sampler.size()}}; }

void check_identity(const Sampler& sampler, const Value& state) {
  for (const auto& [key, own] : identity(sampler)) {
    const auto text = [](const Value& value) {
      return value.is<std::string>() ? value.as<std::string>() : fmt::format("{}", value.as<std::int64_t>());
    };
    const auto& other = state.at(key);
    check_argument(other == own, "the state is of a sampler of {} {}, but this sampler is of {} {}", key,
                   other.is<std::string>() || other.is<std::int64_t>() ? text(other) : other.type_name(), key,
                   text(own));
  }
}

}  // namespace

// 0 makes the caller generate and discard the indices, which is correct for every sampler.
std::int64_t Sampler::skip(std::int64_t) { return 0; }

Value Sampler::state_dict() const {
  auto state = identity(*this);
  if (const auto own = generator()) state.emplace("generator", own->get_state());
  return state;
}

void Sampler::load_state_dict(const Value& state) {
  check_identity(*this, state);
  if (!state.contains("generator")) {
    set_generator(std::nullopt);
    return;
  }
  const auto& generator_state = state.at("generator").as<at::Tensor>();
  if (auto own = generator()) {
    restore_generator(*own, generator_state);  // in place: the user may hold the same generator
  } else {
    set_generator(generator_of_state(generator_state));
  }
}

std::vector<std::int64_t> SequentialSampler::begin_pass() {
  num_given_ = 0;
  return continue_pass();
}

// Generates the order in parts: 10^9 samples must not need 8 GB of indices.
std::vector<std::int64_t> SequentialSampler::continue_pass() {
  const auto begin = num_given_;
  num_given_ = std::min(begin + kSequentialPart, num_samples_);
  return range(begin, num_given_);
}

std::int64_t SequentialSampler::skip(std::int64_t num_indices) {
  const auto skipped = std::min(num_indices, num_samples_ - num_given_);
  num_given_ += skipped;
  return skipped;
}

RandomSampler::RandomSampler(std::int64_t length, RandomSamplerOptions options)
    : DrawingSampler(std::move(options.generator)),
      length_(length),
      num_samples_(options.num_samples.value_or(length)),
      replacement_(options.replacement) {
  check_argument(length_ >= 0 && num_samples_ >= 0,
                 "RandomSampler: num_samples is {} and the dataset length is {}; expected 0 or more", num_samples_,
                 length_);
  check_argument(
      length_ > 0 || num_samples_ == 0,
      "RandomSampler: cannot draw {} samples from an empty dataset; expected a dataset with samples, or num_samples 0",
      num_samples_);
}

// Source: torch/utils/data/sampler.py, RandomSampler.__iter__: without a generator, each pass seeds a new one
// with one int64 of the default generator.
std::vector<std::int64_t> RandomSampler::begin_pass() {
  const auto own = generator();
  current_ = own ? *own : make_generator(static_cast<std::uint64_t>(draw_int64(default_generator())));
  num_given_ = 0;
  ended_ = false;
  return next_part();
}

std::vector<std::int64_t> RandomSampler::continue_pass() { return next_part(); }

std::vector<std::int64_t> RandomSampler::next_part() {
  if (length_ == 0 || ended_) return {};
  const auto left = num_samples_ - num_given_;
  std::vector<std::int64_t> part;
  // The pass ends with the first incomplete part, which may be empty. See Note [Parts of a pass].
  ended_ = left < (replacement_ ? kDrawsAtOnce : length_);
  if (replacement_) {
    part = values_of(at::randint(length_, {std::min(left, kDrawsAtOnce)}, *current_, at::TensorOptions(at::kLong)));
  } else {
    part = permutation(length_, *current_);
    part.resize(std::min(left, length_));
  }
  num_given_ += static_cast<std::int64_t>(part.size());
  return part;
}

// Source: accelerate/data_loader.py, SeedableRandomSampler. The seed of a pass is initial_seed + epoch, so the
// order does not depend on earlier draws. The state therefore needs no generator.
SeedableRandomSampler::SeedableRandomSampler(std::int64_t length, std::optional<std::int64_t> data_seed,
                                             RandomSamplerOptions options)
    : RandomSampler(length, std::move(options)),
      initial_seed_(data_seed ? static_cast<std::uint64_t>(*data_seed) : default_generator().current_seed()) {}

std::vector<std::int64_t> SeedableRandomSampler::begin_pass() {
  if (!generator()) set_generator(make_generator(initial_seed_));
  auto generator_of_pass = *generator();
  generator_of_pass.set_current_seed(initial_seed_ + static_cast<std::uint64_t>(epoch_));
  return RandomSampler::begin_pass();
}

// The epoch advances when the pass is exhausted, as in Python. Loaders also call set_epoch before each pass.
std::vector<std::int64_t> SeedableRandomSampler::continue_pass() {
  auto part = RandomSampler::continue_pass();
  if (part.empty()) ++epoch_;
  return part;
}

// Seed and epoch determine the order completely, so the state is the same on any number of ranks.
Value SeedableRandomSampler::state_dict() const {
  auto state = identity(*this);
  state.emplace("epoch", epoch_);
  state.emplace("seed", static_cast<std::int64_t>(initial_seed_));
  return state;
}

void SeedableRandomSampler::load_state_dict(const Value& state) {
  check_identity(*this, state);
  const auto epoch = state.at("epoch").as<std::int64_t>(), seed = state.at("seed").as<std::int64_t>();
  epoch_ = epoch;
  initial_seed_ = static_cast<std::uint64_t>(seed);
}

// Unlike RandomSampler, this class and WeightedRandomSampler draw directly from the default generator if they
// have none.
// Source: torch/utils/data/sampler.py.
std::vector<std::int64_t> SubsetRandomSampler::begin_pass() {
  auto order = permutation(size(), generator().value_or(default_generator()));
  for (auto& place : order) place = indices_[place];
  return order;
}

WeightedRandomSampler::WeightedRandomSampler(const std::vector<double>& weights, Options options)
    : DrawingSampler(std::move(options.generator)),
      weights_(at::tensor(weights, at::kDouble)),
      num_samples_(options.num_samples),
      replacement_(options.replacement) {
  check_argument(num_samples_ >= 1, "WeightedRandomSampler: num_samples is {}; expected 1 or more", num_samples_);
  std::int64_t num_possible = 0;
  for (const auto weight : weights) {
    check_argument(std::isfinite(weight) && weight >= 0,
                   "WeightedRandomSampler: a weight is {}; expected a finite number of 0 or more", weight);
    num_possible += weight > 0 ? 1 : 0;
  }
  check_argument(
      num_possible >= (replacement_ ? 1 : num_samples_),
      "WeightedRandomSampler: {} positive weights are too few to draw {} samples {} replacement; expected {} or more",
      num_possible, num_samples_, replacement_ ? "with" : "without", replacement_ ? 1 : num_samples_);
}

std::vector<std::int64_t> WeightedRandomSampler::begin_pass() {
  return values_of(at::multinomial(weights_, num_samples_, replacement_, generator().value_or(default_generator())));
}

DistributedSampler::DistributedSampler(std::int64_t length, Options options) : length_(length), options_(options) {
  check_argument(length_ >= 0, "DistributedSampler: the dataset length is {}; expected 0 or more", length_);
  check_argument(options_.rank >= 0 && options_.rank < options_.num_replicas,
                 "DistributedSampler: rank {} is out of range; expected 0 or more and less than num_replicas {}",
                 options_.rank, options_.num_replicas);
}

std::int64_t DistributedSampler::size() const {
  return options_.drop_last ? length_ / options_.num_replicas
                            : (length_ + options_.num_replicas - 1) / options_.num_replicas;
}

Value DistributedSampler::state_dict() const {
  auto state = identity(*this);
  state.emplace("epoch", epoch_);
  return state;
}

void DistributedSampler::load_state_dict(const Value& state) {
  check_identity(*this, state);
  epoch_ = state.at("epoch").as<std::int64_t>();
}

// Source: torch/utils/data/distributed.py, __iter__. Pads cyclically from the start of the order, hence the
// modulo.
std::vector<std::int64_t> DistributedSampler::begin_pass() {
  const auto shared = options_.shuffle
                          ? permutation(length_, make_generator(static_cast<std::uint64_t>(options_.seed + epoch_)))
                          : range(0, length_);
  std::vector<std::int64_t> order(size());
  for (std::int64_t step = 0; step < size(); ++step)
    order[step] = shared[(step * options_.num_replicas + options_.rank) % length_];
  return order;
}

}  // namespace accel
