#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/samplers/sampler.hpp"
#include "sim/programs/equivalence/number_sources.hpp"

/// The data that the properties of loaders read: sample i is the number i.
namespace accel::testing {

using Ids = std::vector<std::int64_t>;

/// Returns the rows of an int64 tensor.
inline Ids ids_of(const at::Tensor& tensor) {
  const auto rows = tensor.contiguous();
  return {rows.const_data_ptr<std::int64_t>(), rows.const_data_ptr<std::int64_t>() + rows.numel()};
}

/// A stream of unknown length.
struct NumberStream {
  std::int64_t length = 0, place = 0;
  void reset() { place = 0; }
  std::optional<std::int64_t> next() { return place < length ? std::optional(place++) : std::nullopt; }
};

/// A stream of several parts, which can be distributed over ranks and workers.
struct Parts {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  ///< first number, length
  std::size_t part = 0;
  std::int64_t place = 0;

  /// Makes parts whose numbers are 0, 1, 2, ... in sequence.
  static Parts of(const std::vector<std::int64_t>& lengths) {
    Parts parts;
    std::int64_t first = 0;
    for (const auto length : lengths) parts.parts.emplace_back(std::exchange(first, first + length), length);
    return parts;
  }
  void reset() { part = 0, place = 0; }
  std::optional<std::int64_t> next() {
    while (part < parts.size() && place == parts[part].second) ++part, place = 0;
    return part < parts.size() ? std::optional(parts[part].first + place++) : std::nullopt;
  }
  void skip(std::int64_t num_samples) {
    while (part < parts.size() && num_samples > 0) {
      const auto here = std::min(num_samples, parts[part].second - place);
      place += here, num_samples -= here;
      if (place == parts[part].second) ++part, place = 0;
    }
  }
  [[nodiscard]] std::int64_t num_shards() const { return static_cast<std::int64_t>(parts.size()); }
  [[nodiscard]] Parts shard(std::int64_t num_shards, std::int64_t index) const {
    Parts own;
    for (auto p = index; p < this->num_shards(); p += num_shards) own.parts.push_back(parts[p]);
    return own;
  }
};

/// A sampler that is shorter than its dataset: the other samples are never read.
class EveryThird : public Sampler {
 public:
  explicit EveryThird(std::int64_t length) : length_(length) {}
  [[nodiscard]] std::int64_t size() const override { return (length_ + 2) / 3; }
  Ids begin_pass() override {
    Ids order;
    for (std::int64_t index = 0; index < length_; index += 3) order.push_back(index);
    return order;
  }

 private:
  std::int64_t length_;
};

using programs::NumberBatches;

}  // namespace accel::testing
