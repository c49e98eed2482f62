#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "reference/data/dataset.hpp"

/// A dataset whose samples are another's, each through a function.
///
///     auto images = accel::transformed(accel::ImageFolder("photos"), [](auto sample) {
///       return std::pair(crop(sample.first), sample.second);
///     });
///
/// It is what the other one is, map-style or iterable, and has what the other has of `size`, `num_shards`, `shard`, `skip`
/// and `set_epoch`; whole batches (`get_batch`) are not the other's, since the function takes samples.
/// Thread rule: as the dataset's; the workers of a loader call the function at once.
namespace accel {

template <typename Dataset, typename F>
class Transformed {
 public:
  Transformed(Dataset dataset, F f) : dataset_(std::move(dataset)), f_(std::move(f)) {}

  [[nodiscard]] std::int64_t size() const requires requires(const Dataset& dataset) { { dataset.size() } -> std::convertible_to<std::int64_t>; } {
    return static_cast<std::int64_t>(dataset_.size());
  }
  auto get(std::int64_t index) requires requires(Dataset& dataset) { dataset.get(index); } { return std::invoke(f_, dataset_.get(index)); }

  void reset() requires StreamDataset<Dataset> { dataset_.reset(); }
  auto next() requires StreamDataset<Dataset> {
    auto sample = dataset_.next();
    using Result = std::remove_cvref_t<decltype(std::invoke(f_, std::move(*sample)))>;
    return sample ? std::optional<Result>(std::invoke(f_, std::move(*sample))) : std::nullopt;
  }
  auto skip(std::int64_t num_samples) requires requires(Dataset& dataset) { dataset.skip(num_samples); } { return dataset_.skip(num_samples); }
  void set_epoch(std::int64_t epoch) requires requires(Dataset& dataset) { dataset.set_epoch(epoch); } { dataset_.set_epoch(epoch); }

  [[nodiscard]] std::int64_t num_shards() const requires requires(const Dataset& dataset) { dataset.num_shards(); } { return dataset_.num_shards(); }
  [[nodiscard]] auto shard(std::int64_t num_shards, std::int64_t index) const requires requires(const Dataset& dataset) { dataset.shard(num_shards, index); } {
    return Transformed<std::remove_cvref_t<decltype(dataset_.shard(num_shards, index))>, F>(dataset_.shard(num_shards, index), f_);
  }

 private:
  Dataset dataset_;
  F f_;
};

template <typename Dataset, typename F>
  requires MapDataset<Dataset> || StreamDataset<Dataset>
Transformed<Dataset, F> transformed(Dataset dataset, F f) {
  return {std::move(dataset), std::move(f)};
}

}  // namespace accel
