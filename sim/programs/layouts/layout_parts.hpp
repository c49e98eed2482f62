#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/mesh/mesh.hpp"
#include "sim/programs/comparison/recorded_run.hpp"

/// What the ranks of a mesh should hold of the tensors that one rank computed: their share of the samples, their
/// positions of the sequence, their features.
///
///     LayoutParts parts(one, mesh, {.tp_size = 2});
///     const auto [found, expected] = parts.own_values(key, 0, /*rank=*/1, whole);
///
/// Sizes tell which of these divisions apply. Where several positions are possible (a context-parallel rank holds
/// contiguous or balanced chunks) there are several expected tensors. Thread rule: values; both runs must outlive it.
namespace accel::programs {

class LayoutParts {
 public:
  LayoutParts(const RecordedRun& one, const RecordedRun& mesh, const ParallelismConfig& layout)
      : one_(one), mesh_(mesh), layout_(layout), grid_(mesh_of(layout)) {
    for (const auto& kind : mesh_group_kinds()) groups_.emplace(kind.name, grid_.groups(kind.axes));
  }

  /// A rank's tensor, and what it may be.
  struct Own {
    at::Tensor found = {};
    std::vector<at::Tensor> expected = {};
  };
  /// Reads the sizes of the samples of a step from what its model is called with.
  void note_batch(const ObservationKey& key);
  /// Tensor `index` of an observation: inputs, outputs and their gradients. Where tensor-parallel ranks hold parts of a
  /// sum, the sum is found.
  [[nodiscard]] Own own_values(const ObservationKey& key, std::size_t index, int rank, const at::Tensor& whole) const;
  /// A parameter or its gradient.
  [[nodiscard]] Own own_parameter(const ObservationKey& key, int rank, const at::Tensor& whole) const;

  /// The ranks of a rank's group, their number, and the rank's place among them.
  [[nodiscard]] const std::vector<int>& members(int rank, const std::string& group) const;
  [[nodiscard]] int size(const std::string& group) const { return static_cast<int>(members(0, group).size()); }
  [[nodiscard]] int place(int rank, const std::string& group) const;
  [[nodiscard]] const RankGroups& groups(const std::string& group) const { return groups_.at(group); }
  [[nodiscard]] const Mesh& grid() const { return grid_; }
  /// Whether context-parallel ranks are called with their own positions.
  [[nodiscard]] bool divides_positions() const { return divides_positions_; }

 private:
  // Sizes of the samples that a model is called with.
  struct Batch {
    std::int64_t rows = 0, length = 0;
  };
  using Indices = std::vector<std::int64_t>;
  using Tensors = std::vector<at::Tensor>;
  using Sizes = std::vector<std::int64_t>;

  [[nodiscard]] int context_size() const { return layout_.cp_size * layout_.sp_size; }
  [[nodiscard]] int context_place(int rank) const {
    return layout_.cp_size > 1 ? place(rank, "cp") : place(rank, "sp");
  }
  [[nodiscard]] std::vector<Indices> positions(int rank, std::int64_t count) const;
  [[nodiscard]] Tensors positions_of(const at::Tensor& rows, int rank, std::int64_t expected_length) const;
  [[nodiscard]] Tensors shares_of(const at::Tensor& whole, int rank, const Sizes& sizes) const;
  [[nodiscard]] Tensors features_of(Tensors options, int rank, const Sizes& sizes, const Indices& sections) const;
  [[nodiscard]] Indices sections_of(const std::string& module) const;
  [[nodiscard]] at::Tensor found_parameter(const ObservationKey& key, int rank, const at::Tensor& expected) const;
  [[nodiscard]] at::Tensor found_values(const ObservationKey& key, std::size_t index, int rank) const;

  [[nodiscard]] at::Tensor mean_of_ranks(const ObservationKey& key, std::size_t index) const;

  const RecordedRun& one_;
  const RecordedRun& mesh_;
  ParallelismConfig layout_;
  Mesh grid_;
  std::map<std::string, RankGroups> groups_;  // by the names of mesh_group_kinds()
  Batch batch_;
  bool divides_positions_ = false;
};

}  // namespace accel::programs
