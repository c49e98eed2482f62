#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/tree/tree.hpp"

/// Datasets. A sample is a tree (core/tree.hpp).
///
/// Map-style: any type with `size()` and `get(index)`. If it also has `get_batch(indices)`, complete batches are
/// requested and no collate function runs.
///
/// Iterable: any type with `reset()`, which starts a pass, and `next()`, which returns a std::optional of a sample; or
/// an input range of samples:
///
///     class Lines {
///      public:
///       void reset() { file_ = std::ifstream(path_); }
///       std::optional<std::string> next();
///     };
///     accel::DataLoader lines(Lines("text"), {.batch_size = 8});
///     accel::DataLoader numbers(std::views::iota(0, 100), {.batch_size = 8});
///
/// An iterable dataset may also define
/// - `size()`, if its length is known;
/// - `set_epoch(epoch)`, which is called before each pass of a prepared loader;
/// - a member `generator`, which is seeded with the epoch if there is no `set_epoch`;
/// - `skip(n)`, which skips up to n samples faster than `next` would;
/// - `num_shards()` and `shard(num_shards, index)`, if it consists of parts, usually files. `shard` returns a dataset
///   of every num_shards-th part starting at `index`. If every rank reads (dispatch_batches: false), each rank and
///   each worker reads separate parts.
namespace accel {

template <typename T>
concept BatchedDataset = requires(T& dataset, const std::vector<std::int64_t>& indices) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  { dataset.get_batch(indices) } -> Tree;
};

template <typename T>
concept MapDataset = BatchedDataset<T> || requires(T& dataset, std::int64_t index) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  { dataset.get(index) } -> Tree;
};

/// An iterable dataset with `reset()` and `next()`.
template <typename T>
concept StreamDataset = requires(T& dataset) {
  dataset.reset();
  { *dataset.next() } -> Tree;
  { dataset.next().has_value() } -> std::convertible_to<bool>;
};

template <typename T>
concept IterableDataset =
    !MapDataset<T> && (StreamDataset<T> || (std::ranges::input_range<T> && Tree<std::ranges::range_value_t<T>>));

/// An iterable dataset of parts that can be distributed to ranks and workers.
template <typename T>
concept ShardedDataset = IterableDataset<T> && requires(T& dataset, std::int64_t number) {
  { dataset.num_shards() } -> std::convertible_to<std::int64_t>;
  { dataset.shard(number, number) } -> std::convertible_to<T>;
};

namespace detail {

/// torch::data::datasets::Dataset, BatchDataset and transforms of them, which from_torch converts.
template <typename T>
concept LibTorchDataset = requires {
  typename T::BatchType;
  typename T::BatchRequestType;
  { T::is_stateful } -> std::convertible_to<bool>;
};

/// One pass over an iterable dataset.
template <IterableDataset Dataset>
class SampleCursor {
 public:
  explicit SampleCursor(Dataset& dataset) : dataset_(dataset) {
    if constexpr (StreamDataset<Dataset>) {
      dataset_.reset();
    } else {
      place_ = std::ranges::begin(dataset_);
    }
  }

  /// Returns the next sample, or nullopt at the end and in all later calls.
  auto next() {
    using Sample = typename decltype(read())::value_type;
    auto sample = ended_ ? std::optional<Sample>() : read();
    ended_ = !sample;
    return sample;
  }

  void skip(std::int64_t num_samples) {
    if constexpr (StreamDataset<Dataset> && requires { dataset_.skip(num_samples); }) {
      if (num_samples > 0) dataset_.skip(num_samples);
    } else {
      while (num_samples-- > 0 && next()) {
      }
    }
  }

 private:
  struct NoPlace {};
  template <typename T>
  struct PlaceOf {
    using type = NoPlace;
  };
  template <std::ranges::range T>
  struct PlaceOf<T> {
    using type = std::optional<std::ranges::iterator_t<T>>;
  };

  auto read() {
    if constexpr (StreamDataset<Dataset>) {
      return dataset_.next();
    } else {
      if (std::exchange(started_, true)) ++*place_;  // only on demand: incrementing a range may read data
      using Sample = std::ranges::range_value_t<Dataset>;
      return *place_ == std::ranges::end(dataset_) ? std::optional<Sample>() : std::optional<Sample>(**place_);
    }
  }

  Dataset& dataset_;
  typename PlaceOf<Dataset>::type place_;
  bool started_ = false, ended_ = false;
};

template <IterableDataset Dataset>
using SampleOf = typename decltype(std::declval<SampleCursor<Dataset>&>().next())::value_type;

/// Selects rows of dimension 0; gives the same bytes as stacking the rows one by one.
at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows);
void check_rows(const std::vector<at::Tensor>& tensors);
}  // namespace detail

/// A dataset whose samples are the rows of tensors of equal length. Source: torch/utils/data/dataset.py, TensorDataset.
template <std::same_as<at::Tensor>... Tensors>
class TensorDataset {
 public:
  using Batch = std::tuple<Tensors...>;

  /// Throws ArgumentError if the tensors' first dimensions differ.
  explicit TensorDataset(Tensors... tensors) : tensors_(std::move(tensors)...) {
    detail::check_rows(tensors_of(tensors_));
  }

  [[nodiscard]] std::int64_t size() const { return std::get<0>(tensors_).size(0); }
  [[nodiscard]] Batch get(std::int64_t index) const {
    return map_tensors(tensors_, [&](const at::Tensor& tensor) { return tensor.select(0, index); });
  }
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const {
    return map_tensors(tensors_, [&](const at::Tensor& tensor) { return detail::select_rows(tensor, indices); });
  }

 private:
  Batch tensors_;
};

}  // namespace accel
