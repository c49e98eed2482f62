#pragma once

#include <concepts>
#include <initializer_list>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "reference/files/safetensors.hpp"

/// Datasets whose samples are the rows of tensors in one or more safetensors files. Only requested rows are read.
///
///     accel::SafetensorsDataset rows("train.safetensors", "image", "label");     // std::tuple of two tensors
///     accel::SafetensorsTable table({"a.safetensors", "b.safetensors"});         // std::map of all tensors
///
/// Thread rule: any number of readers; copies share the files.
namespace accel {

namespace sources {

/// The rows of some tensors, concatenated over the shards.
class SafetensorsRows {
 public:
  /// Empty `names`: all tensors of the first file; a warning names others. Throws ConfigError, which names file and
  /// tensor, if a tensor is missing or has no dimensions, if tensors of a file have different numbers of rows, or if
  /// tensors of one name differ in dtype or row shape.
  SafetensorsRows(const std::vector<std::string>& paths, std::vector<std::string> names);

  [[nodiscard]] std::int64_t size() const { return begins_.back(); }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] at::Tensor get(std::size_t name, std::int64_t index) const;
  [[nodiscard]] at::Tensor get_batch(std::size_t name, const std::vector<std::int64_t>& indices) const;

 private:
  struct Place {
    std::size_t shard = 0;
    std::int64_t row = 0;
  };
  void add_shard(const std::string& path);
  [[nodiscard]] Place place_of(std::int64_t index) const;

  std::vector<std::string> names_;
  bool reads_all_;                                 // of the first file
  std::vector<std::vector<StoredTensor>> shards_;  // each in the order of names_
  std::vector<std::int64_t> begins_{0};  // index of the first row of each shard, then the total number of rows
};

}  // namespace sources

/// A dataset whose samples are tuples in the order of the given names.
template <std::size_t N>
class SafetensorsDataset {
 public:
  template <typename... Names>
    requires(sizeof...(Names) == N)
  SafetensorsDataset(const std::vector<std::string>& paths, Names... names) : rows_(paths, {std::string(names)...}) {}
  template <typename... Names>
  SafetensorsDataset(const std::string& path, Names... names) : SafetensorsDataset(std::vector{path}, names...) {}
  template <typename... Names>
  SafetensorsDataset(std::initializer_list<std::string> paths, Names... names)
      : SafetensorsDataset(std::vector(paths), names...) {}

  [[nodiscard]] std::int64_t size() const { return rows_.size(); }
  [[nodiscard]] auto get(std::int64_t index) const {
    return tuple([&](std::size_t name) { return rows_.get(name, index); });
  }
  [[nodiscard]] auto get_batch(const std::vector<std::int64_t>& indices) const {
    return tuple([&](std::size_t name) { return rows_.get_batch(name, indices); });
  }

 private:
  template <typename F>
  static auto tuple(F&& tensor_of) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::tuple{tensor_of(I)...};
    }(std::make_index_sequence<N>());
  }

  sources::SafetensorsRows rows_;
};

template <typename Paths, typename... Names>
SafetensorsDataset(Paths, Names...) -> SafetensorsDataset<sizeof...(Names)>;
template <typename... Names>
SafetensorsDataset(std::initializer_list<const char*>, Names...) -> SafetensorsDataset<sizeof...(Names)>;

/// A dataset whose samples are maps from name to tensor.
class SafetensorsTable {
 public:
  using Batch = std::map<std::string, at::Tensor>;

  using Names = std::vector<std::string>;  ///< empty: all tensors of the first file

  explicit SafetensorsTable(const std::vector<std::string>& paths, Names names = {}) : rows_(paths, std::move(names)) {}
  explicit SafetensorsTable(const std::string& path, Names names = {})
      : SafetensorsTable(std::vector{path}, std::move(names)) {}
  explicit SafetensorsTable(std::initializer_list<std::string> paths, Names names = {})
      : SafetensorsTable(std::vector(paths), std::move(names)) {}

  [[nodiscard]] std::int64_t size() const { return rows_.size(); }
  [[nodiscard]] Batch get(std::int64_t index) const;
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  sources::SafetensorsRows rows_;
};

}  // namespace accel
