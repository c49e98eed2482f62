#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "reference/mesh/axes.hpp"

/// How the ranks of a mesh hold one tensor, and which part of it a rank holds, as DTensor's placements. Pure: no
/// tensors, no communication. modules/divided_parameter.hpp moves tensors by these plans.
///
///     // Queries, keys and values of one linear layer, divided over 2 tensor-parallel ranks; this is the second.
///     ParameterLayout layout{.sizes = {12, 8}, .divisions = {{.axis = kTensorAxis, .placement = Shard{0, {4, 4, 4}},
///                                                             .index = 1, .num_parts = 2}}};
///     layout.part_sizes();  // {6, 8}
///
/// Thread rule: values.
namespace accel {

/// Elements [begin, end).
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

/// Empty if the ranges do not overlap.
[[nodiscard]] ElementRange intersection(ElementRange a, ElementRange b);

/// Part `index` of `num_parts`.
struct PartIndex {
  int index = 0, num_parts = 1;
};

/// Parts are equal if the length divides, else the last ones are shorter or empty.
/// Source: torch.chunk, by which DTensor divides.
[[nodiscard]] ElementRange part_of_length(std::int64_t length, PartIndex which);

/// Every rank of the axis holds the tensor.
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};

/// A part of dimension `dim`. The dimension of the complete tensor consists of `sections`, each of which is divided by
/// itself; a rank's parts of all sections are concatenated.
struct Shard {
  std::int64_t dim = 0;
  std::vector<std::int64_t> sections = {};

  /// Of the complete tensor along `dim`.
  [[nodiscard]] std::int64_t length() const;
  /// Of a part along `dim`.
  [[nodiscard]] std::int64_t length_of_part(PartIndex which) const;
  /// The elements along `dim` of a part, one range per section.
  [[nodiscard]] std::vector<ElementRange> ranges_of_part(PartIndex which) const;
  /// Whether a complete tensor of these sizes can be divided.
  [[nodiscard]] bool fits(const std::vector<std::int64_t>& sizes) const;
  friend bool operator==(const Shard&, const Shard&) = default;
};

/// A range of the elements, in row-major order. Tensors follow one another in a flat buffer, of which each rank holds
/// `shard_numel` elements.
struct FlatShard {
  ElementRange range = {};  ///< of the tensor in the buffer
  std::int64_t shard_numel = 0;

  /// The elements that part `index` holds, counted from the tensor's first one; empty if it holds none.
  [[nodiscard]] ElementRange part(int index) const;
  /// The same elements, counted from the first element of the rank's shard.
  [[nodiscard]] ElementRange part_in_shard(int index) const;
  friend bool operator==(const FlatShard&, const FlatShard&) = default;
};

using Placement = std::variant<Replicate, Shard, FlatShard>;

struct ParameterLayout {
  /// The ranks of an axis divide what the divisions before this one left. FlatShard: the axes that shard one model.
  struct Division {
    MeshAxis axis = kTensorAxis;
    Placement placement = {};
    int index = 0, num_parts = 1;  ///< the part that the rank holds
    [[nodiscard]] PartIndex which() const { return {.index = index, .num_parts = num_parts}; }
    friend bool operator==(const Division&, const Division&) = default;
  };

  std::vector<std::int64_t> sizes = {};  ///< of the complete tensor
  std::vector<Division> divisions = {};  ///< the axes that do not replicate

  /// Replicate for an axis that has no division.
  [[nodiscard]] Placement placement(MeshAxis axis) const;
  [[nodiscard]] bool is_complete() const { return divisions.empty(); }
  /// The division of a layer that holds a part of its weight: the first Shard. Null if there is none.
  [[nodiscard]] const Division* layer_division() const;
  /// The index of the part that `layer_division` leaves to this rank; kUndivided without one. Ranks with equal indices
  /// hold equal values.
  [[nodiscard]] int layer_part() const;
  static constexpr int kUndivided = -1;
  /// Whether FSDP shards what layers leave: the last division is a FlatShard.
  [[nodiscard]] bool is_sharded() const;
  /// The sizes of what the first `count` divisions leave to the rank. A FlatShard leaves one dimension.
  [[nodiscard]] std::vector<std::int64_t> sizes_after(std::size_t count) const;
  [[nodiscard]] std::vector<std::int64_t> part_sizes() const { return sizes_after(divisions.size()); }
  friend bool operator==(const ParameterLayout&, const ParameterLayout&) = default;
};

}  // namespace accel
