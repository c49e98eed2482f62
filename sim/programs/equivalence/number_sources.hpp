#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/samplers/batch_sampler.hpp"

/// Data whose sample i is the row {i, d}, where d is a random number if reading draws one, else 0.
namespace accel::programs {

struct NumberSample {
  bool draws = false;
  bool has_epoch = false;  ///< d also contains the epoch

  /// Shape [2], float64.
  [[nodiscard]] at::Tensor operator()(std::int64_t index, std::int64_t epoch = 0) const {
    const double drawn = draws ? at::rand({1}, at::kDouble).item<double>() : 0.0;
    return at::tensor({static_cast<double>(index), drawn + static_cast<double>(has_epoch ? epoch : 0)}, at::kDouble);
  }
};

struct NumberDataset {
  std::int64_t length = 0;
  NumberSample sample;
  std::int64_t epoch = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] at::Tensor get(std::int64_t index) const { return sample(index, epoch); }
  void set_epoch(std::int64_t next) { epoch = next; }
};

/// A stream of unknown length.
struct NumberStream {
  std::int64_t length = 0;
  NumberSample sample;
  std::int64_t place = 0, epoch = 0;
  void reset() { place = 0; }
  void set_epoch(std::int64_t next) { epoch = next; }
  std::optional<at::Tensor> next() { return place < length ? std::optional(sample(place++, epoch)) : std::nullopt; }
};

/// A stream that owns a generator: each sample also contains a number drawn from it.
struct NumberDraws {
  std::int64_t length = 0;
  NumberSample sample;
  at::Generator generator = {};
  std::int64_t place = 0;
  void reset() { place = 0; }
  std::optional<at::Tensor> next() {
    if (place >= length) return std::nullopt;
    return sample(place++) + at::rand({2}, generator, at::kDouble) * at::tensor({0.0, 1.0}, at::kDouble);
  }
};

/// A stream of parts of 1, 2, 3, ... samples, which can be distributed over ranks and workers.
class NumberParts {
 public:
  NumberParts(std::int64_t length, NumberSample sample) : sample_(sample) {
    for (std::int64_t first = 0, size = 1; first < length; first += size++)
      parts_.emplace_back(first, std::min(first + size, length));
  }
  void reset() { part_ = 0, place_ = 0; }
  void set_epoch(std::int64_t next) { epoch_ = next; }
  std::optional<at::Tensor> next() {
    while (part_ < parts_.size() && parts_[part_].first + place_ == parts_[part_].second) ++part_, place_ = 0;
    return part_ < parts_.size() ? std::optional(sample_(parts_[part_].first + place_++, epoch_)) : std::nullopt;
  }
  [[nodiscard]] std::int64_t num_shards() const { return static_cast<std::int64_t>(parts_.size()); }
  [[nodiscard]] NumberParts shard(std::int64_t num_shards, std::int64_t index) const {
    NumberParts own(0, sample_);
    own.epoch_ = epoch_;
    for (auto part = index; part < this->num_shards(); part += num_shards)
      own.parts_.push_back(parts_[static_cast<std::size_t>(part)]);
    return own;
  }

 private:
  NumberSample sample_;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts_;  // first number, end
  std::size_t part_ = 0;
  std::int64_t place_ = 0, epoch_ = 0;
};

/// A batch sampler that yields 0, 1, 2, ... in batches.
class NumberBatches : public BatchSampler {
 public:
  struct Options {
    std::optional<std::int64_t> batch_size = {};  ///< if absent, sizes alternate between one and two
    bool drop_last = false;
    bool reports_size = true;  ///< where batches do not vary
  };
  NumberBatches(std::int64_t length, Options options) : length_(length), options_(options) {}
  [[nodiscard]] std::optional<std::int64_t> size() const override {
    if (!options_.reports_size || !options_.batch_size) return std::nullopt;
    return options_.drop_last ? length_ / *options_.batch_size
                              : (length_ + *options_.batch_size - 1) / *options_.batch_size;
  }
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override { return options_.batch_size; }
  [[nodiscard]] bool drop_last() const override { return options_.drop_last; }
  void begin_pass() override { next_ = count_ = 0; }
  std::optional<std::vector<std::int64_t>> next() override {
    const auto size = std::min(options_.batch_size.value_or(1 + count_++ % 2), length_ - next_);
    if (size <= 0 || (options_.drop_last && size < *options_.batch_size)) return std::nullopt;
    std::vector<std::int64_t> batch(static_cast<std::size_t>(size));
    std::iota(batch.begin(), batch.end(), next_);
    next_ += size;
    return batch;
  }

 private:
  std::int64_t length_;
  Options options_;
  std::int64_t next_ = 0, count_ = 0;
};

}  // namespace accel::programs
