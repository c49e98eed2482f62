#pragma once

#include <accel/accel.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// The code under test: visits samples of similar length together, so that batches need little padding. Each pass
/// shuffles all samples, cuts the order into buckets and sorts each bucket by length. Include <torch/torch.h> first.
class BucketSampler : public accel::DrawingSampler {
 public:
  BucketSampler(std::vector<std::int64_t> lengths, std::ptrdiff_t bucket_size)
      : DrawingSampler(accel::make_generator(0)), lengths_(std::move(lengths)), bucket_size_(bucket_size) {}

  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }

  // Draws only from the sampler's generator, whose state prepare makes equal on all ranks.
  std::vector<std::int64_t> begin_pass() override {
    const auto shuffled = torch::randperm(size(), *generator(), torch::kLong);
    std::vector<std::int64_t> order(shuffled.data_ptr<std::int64_t>(), shuffled.data_ptr<std::int64_t>() + size());
    for (auto begin = order.begin(); begin != order.end();) {
      const auto end = begin + std::min(bucket_size_, order.end() - begin);
      std::stable_sort(begin, end, [this](auto a, auto b) { return lengths_[a] < lengths_[b]; });
      begin = end;
    }
    return order;
  }

 private:
  std::vector<std::int64_t> lengths_;
  std::ptrdiff_t bucket_size_;
};
