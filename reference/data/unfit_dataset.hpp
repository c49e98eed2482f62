#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "reference/core/never.hpp"
#include "reference/data/data_loader.hpp"

/// `accel::DataLoader loader(object, {.batch_size = n})` with an object that is no dataset: one sentence in place of
/// the list of deduction guides that do not fit.
namespace accel {
namespace detail {

template <typename T>
concept NoDataset = !MapDataset<T> && !IterableDataset<T> && !LibTorchDataset<T> && !std::is_null_pointer_v<T>;

template <typename T>
constexpr void check_dataset() {
  if constexpr (
      requires(T& dataset) { dataset.get(std::int64_t{}); } ||
      requires(T& dataset) { dataset.get_batch(std::vector<std::int64_t>{}); } ||
      requires(T& dataset) { *dataset.next(); }) {
    static_assert(
        kNever<T>,
        "DataLoader: samples of this dataset are no tree of tensors, numbers and strings, or size() is missing; "
        "a struct becomes a tree by `template <> inline constexpr auto accel::tree_members<Sample> = "
        "std::tuple(&Sample::image, &Sample::label);`");
  } else {
    static_assert(
        kNever<T>,
        "DataLoader: this is no dataset; expected size() and get(index), or reset() and next(), or a range of "
        "samples");
  }
}

/// Stands for T, so that the sentence is the only error.
template <typename T>
struct UnfitDataset {
  UnfitDataset(const T& /*object*/) { check_dataset<T>(); }
  [[nodiscard]] std::int64_t size() const { return 0; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const { return index; }
};

}  // namespace detail

template <detail::NoDataset T>
DataLoader(T) -> DataLoader<detail::UnfitDataset<T>>;
template <detail::NoDataset T>
DataLoader(T, DataLoaderOptions) -> DataLoader<detail::UnfitDataset<T>>;

}  // namespace accel
