#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/data/collate.hpp"
#include "reference/data/dataset.hpp"
#include "reference/data/loader.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/tree/tree.hpp"

/// Fetching and collating the samples of any kind of dataset. Thread rule: that of the dataset.
namespace accel {

/// Selects default_collate, or the dataset's get_batch if it has one.
struct DefaultCollate {};

namespace detail {

template <typename Collate, typename Sample>
auto collate_with(Collate& collate, const std::vector<Sample>& samples) {
  if constexpr (std::is_same_v<Collate, DefaultCollate>) {
    return default_collate(samples);
  } else {
    return collate(samples);
  }
}

/// `sample_seed`: see RankContext.
template <typename Dataset, typename Collate>
auto fetch_batch(Dataset& dataset, Collate& collate, const std::vector<std::int64_t>& indices,
                 std::optional<std::uint64_t> sample_seed = {}) {
  if constexpr (std::is_same_v<Collate, DefaultCollate> && BatchedDataset<Dataset>) {
    return dataset.get_batch(indices);
  } else {
    std::vector<std::remove_cvref_t<decltype(dataset.get(std::int64_t{}))>> samples;
    samples.reserve(indices.size());
    for (const auto index : indices) {
      std::optional<GeneratorScope> scope;
      if (sample_seed) scope.emplace(make_generator(*sample_seed + static_cast<std::uint64_t>(index)));
      samples.push_back(dataset.get(index));
    }
    return collate_with(collate, samples);
  }
}

/// Returns `batch`, or with `pins` a copy in pinned memory that nobody else has.
template <typename Batch>
Batch pinned(Batch batch, bool pins) {
  if (!pins) return batch;
  return map_tensors(batch, [](const at::Tensor& tensor) {
    if (!tensor.is_cpu() || tensor.layout() != at::kStrided) return tensor;
    return (tensor.is_pinned() ? tensor.clone() : tensor).pin_memory();
  });
}

template <typename Dataset, typename Collate>
auto batch_of() {
  if constexpr (MapDataset<Dataset>) {
    return std::type_identity<decltype(fetch_batch(std::declval<Dataset&>(), std::declval<Collate&>(), {}))>();
  } else {
    return std::type_identity<decltype(collate_with(std::declval<Collate&>(),
                                                    std::declval<const std::vector<SampleOf<Dataset>>&>()))>();
  }
}
template <typename Dataset, typename Collate>
using BatchOf = typename decltype(batch_of<Dataset, Collate>())::type;

template <typename Dataset>
concept HasGenerator = requires(Dataset& dataset) {
  { dataset.generator } -> std::convertible_to<at::Generator>;
};

template <typename Dataset>
DataSource source_of(Dataset& dataset) {
  DataSource source{.is_stream = !MapDataset<Dataset>};
  if constexpr (requires {
                  { dataset.size() } -> std::convertible_to<std::int64_t>;
                })
    source.size = static_cast<std::int64_t>(dataset.size());
  if constexpr (ShardedDataset<Dataset>) source.num_shards = static_cast<std::int64_t>(dataset.num_shards());
  if constexpr (HasGenerator<Dataset>) {
    if (dataset.generator.defined()) source.generator = dataset.generator;
  }
  return source;
}

// Passes the epoch to the user's dataset before each pass of a prepared loader.
template <typename Dataset>
void set_dataset_epoch(Dataset& dataset, const Loader& loader) {
  if constexpr (requires { dataset.set_epoch(std::int64_t{}); }) {
    dataset.set_epoch(loader.iteration());
  } else if constexpr (IterableDataset<Dataset> && HasGenerator<Dataset>) {
    if (loader.data_parallel().size > 1 && !loader.is_dispatched() && dataset.generator.defined())
      dataset.generator.set_current_seed(static_cast<std::uint64_t>(loader.iteration()));
  }
}

}  // namespace detail

}  // namespace accel
