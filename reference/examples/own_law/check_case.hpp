#pragma once

#include <accel/testing/loader_cases.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bucket_sampler.hpp"

/// Batches of samples, over two epochs.
using Batches = std::vector<std::vector<std::int64_t>>;

/// A dataset whose sample i is the number i.
struct Numbers {
  std::int64_t length;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] static std::int64_t get(std::int64_t index) { return index; }
};

/// Reads two epochs with a BucketSampler and returns the batches of this rank. Throws accel::Error if a sample is
/// missing, or read more often than once an epoch although the case asks for no padding. Collective: every rank calls
/// it.
inline Batches check_case(const accel::testing::loader_cases::Case& one) {
  namespace cases = accel::testing::loader_cases;
  accel::Accelerator accelerator({.dataloader_config = cases::configuration_of(one)});
  accel::set_seed(static_cast<std::uint64_t>(one.seed));
  std::vector<std::int64_t> lengths;
  for (std::int64_t sample = 0; sample < one.length; ++sample) lengths.push_back(sample * 7 % 11);
  auto options = cases::options_of(one);
  options.shuffle = false;  // the sampler decides on the order
  options.sampler = std::make_shared<BucketSampler>(lengths, /*bucket_size=*/4);
  auto loader = accelerator.prepare(accel::DataLoader(Numbers{one.length}, options));

  constexpr int kEpochs = 2;
  Batches batches;
  auto counts = torch::zeros({one.length + 1}, torch::kLong);  // never empty, which not every backend accepts
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& numbers : loader) {
      batches.emplace_back(numbers.template data_ptr<std::int64_t>(),
                           numbers.template data_ptr<std::int64_t>() + numbers.numel());
      counts.index_add_(0, numbers, torch::ones_like(numbers));
    }
  }
  accel::current_rank().world.all_reduce(counts).wait();
  const bool is_padded = one.even || one.dispatch;
  for (std::int64_t sample = 0; sample < one.length; ++sample) {
    const auto count = counts[sample].item<std::int64_t>();
    const bool holds = (count >= kEpochs || one.drop_last) && (count <= kEpochs || is_padded);
    if (!holds)
      throw accel::Error("sample " + std::to_string(sample) + " was read " + std::to_string(count) + " times in " +
                         std::to_string(kEpochs) + " epochs; " + cases::describe(one));
  }
  return batches;
}
