#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "reference/data/dataset.hpp"

/// A dataset that applies a function to each sample of another dataset.
///
///     auto images = accel::transformed(accel::ImageFolder("photos"), [](auto sample) {
///       return std::pair(crop(sample.first), sample.second);
///     });
///
/// It is map-style or iterable like the other dataset and forwards `size`, `num_shards`, `shard`, `skip` and
/// `set_epoch` if the other dataset defines them. It does not forward `get_batch`, because the function takes single
/// samples.
/// Thread rule: that of the dataset; the workers of a loader call the function concurrently.
namespace accel {

namespace detail {
template <typename T>
concept Sized = requires(const T& dataset) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
};
template <typename T>
concept Shardable = requires(const T& dataset) {
  dataset.num_shards();
  dataset.shard(std::int64_t{}, std::int64_t{});
};
template <typename T>
concept Indexed = requires(T& dataset) { dataset.get(std::int64_t{}); };
template <typename T>
concept Skippable = requires(T& dataset) { dataset.skip(std::int64_t{}); };
template <typename T>
concept HasGeneratorMember = requires(T& dataset) {
  { dataset.generator } -> std::convertible_to<at::Generator>;
};
// Shares the generator object of the inner dataset, so that synchronizing it affects both.
struct NoGenerator {
  template <typename Dataset>
  explicit NoGenerator(const Dataset&) {}
};
struct GeneratorOf {
  template <typename Dataset>
  explicit GeneratorOf(const Dataset& dataset) : generator(dataset.generator) {}
  at::Generator generator = {};
};
template <typename T>
concept HasEpochs = requires(T& dataset) { dataset.set_epoch(std::int64_t{}); };
}  // namespace detail

template <typename Dataset, typename F>
class Transformed
    : public std::conditional_t<detail::HasGeneratorMember<Dataset>, detail::GeneratorOf, detail::NoGenerator> {
 public:
  Transformed(Dataset dataset, F f)
      : std::conditional_t<detail::HasGeneratorMember<Dataset>, detail::GeneratorOf, detail::NoGenerator>(dataset),
        dataset_(std::move(dataset)),
        f_(std::move(f)) {}

  [[nodiscard]] std::int64_t size() const
    requires detail::Sized<Dataset>
  {
    return static_cast<std::int64_t>(dataset_.size());
  }
  auto get(std::int64_t index)
    requires detail::Indexed<Dataset>
  {
    return std::invoke(f_, dataset_.get(index));
  }

  void reset()
    requires StreamDataset<Dataset>
  {
    dataset_.reset();
  }
  auto next()
    requires StreamDataset<Dataset>
  {
    auto sample = dataset_.next();
    using Result = std::remove_cvref_t<decltype(std::invoke(f_, std::move(*sample)))>;
    return sample ? std::optional<Result>(std::invoke(f_, std::move(*sample))) : std::nullopt;
  }
  auto skip(std::int64_t num_samples)
    requires detail::Skippable<Dataset>
  {
    return dataset_.skip(num_samples);
  }
  void set_epoch(std::int64_t epoch)
    requires detail::HasEpochs<Dataset>
  {
    dataset_.set_epoch(epoch);
  }

  [[nodiscard]] std::int64_t num_shards() const
    requires detail::Shardable<Dataset>
  {
    return dataset_.num_shards();
  }
  [[nodiscard]] auto shard(std::int64_t num_shards, std::int64_t index) const
    requires detail::Shardable<Dataset>
  {
    auto part = dataset_.shard(num_shards, index);
    return Transformed<decltype(part), F>(std::move(part), f_);
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
