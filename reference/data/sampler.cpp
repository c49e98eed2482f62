#include "reference/data/sampler.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include <numeric>

#include "reference/core/random.hpp"

namespace accel {
namespace {

std::vector<std::int64_t> permutation(std::int64_t size, const at::Generator& generator) {
  const auto order = at::randperm(size, generator, at::kLong);
  const auto* data = order.const_data_ptr<std::int64_t>();
  return {data, data + size};
}

}  // namespace

std::vector<std::int64_t> SequentialSampler::begin_pass() {
  std::vector<std::int64_t> order(num_samples_);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

at::Generator RandomSampler::pass_generator() {
  return generator_ ? *generator_ : make_generator(static_cast<std::uint64_t>(draw_int64(default_generator())));
}

std::vector<std::int64_t> RandomSampler::begin_pass() {
  current_ = pass_generator();
  return num_samples_ == 0 ? std::vector<std::int64_t>{} : permutation(num_samples_, *current_);
}

void RandomSampler::end_pass() {
  if (num_samples_ > 0) permutation(num_samples_, *current_);
}

SeedableRandomSampler::SeedableRandomSampler(std::int64_t num_samples, std::optional<std::int64_t> data_seed,
                                             std::optional<at::Generator> generator)
    : RandomSampler(num_samples, std::move(generator)),
      initial_seed_(data_seed ? static_cast<std::uint64_t>(*data_seed) : default_generator().current_seed()) {}

std::vector<std::int64_t> SeedableRandomSampler::begin_pass() {
  if (!generator()) set_generator(make_generator(initial_seed_));
  auto generator_of_pass = *generator();
  generator_of_pass.set_current_seed(initial_seed_ + static_cast<std::uint64_t>(epoch_));
  return RandomSampler::begin_pass();
}

void SeedableRandomSampler::end_pass() {
  RandomSampler::end_pass();
  ++epoch_;
}

}  // namespace accel
