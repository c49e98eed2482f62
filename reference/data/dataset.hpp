#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/core/tree.hpp"

/// Map-style datasets: anything with `size()` and `get(index)`, where a sample is a tree (core/tree.hpp). A dataset that
/// has `get_batch(indices)` as well is asked for whole batches, and no collate function runs.
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

namespace detail {
/// Rows of dimension 0; the same bytes as stacking the rows one by one.
at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows);
void check_rows(const std::vector<at::Tensor>& tensors);
}  // namespace detail

/// Samples are rows of tensors of equal length. Source: torch/utils/data/dataset.py, TensorDataset.
template <std::same_as<at::Tensor>... Tensors>
class TensorDataset {
 public:
  using Batch = std::tuple<Tensors...>;

  /// Throws ArgumentError if the tensors' first dimensions differ.
  explicit TensorDataset(Tensors... tensors) : tensors_(std::move(tensors)...) { detail::check_rows(tensors_of(tensors_)); }

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
