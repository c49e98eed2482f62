#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "reference/comm/group.hpp"
#include "reference/elastic/shard_tree.hpp"

namespace accel::elastic {

/// Sums one vector per logical shard over all ranks, in the order of shard_tree.hpp, so that the bits of the sum do not
/// depend on the number of ranks.
///
///     ShardSum sum(world, /*num_shards=*/64);
///     for (int shard = sum.shards().first; shard < sum.shards().last; ++shard) sum.add(shard, gradient_of(shard));
///     const at::Tensor total = sum.finish();
///
/// Thread rule: the rank's thread.
class ShardSum {
 public:
  ShardSum(Group group, int num_shards);

  /// Those that this rank adds.
  [[nodiscard]] ShardRange shards() const { return shards_; }
  /// `vector`: shape (n), of one dtype and size on all ranks; it is changed. The shards come in their order.
  void add(int shard, at::Tensor vector);
  /// Returns the sum, shape (n). `like`: a vector of that size and dtype, for a rank without shards. Sends each rank
  /// one part of its subtrees, and gathers the sums of the parts: as much as a ring of all-reduce if every rank has one
  /// subtree, as with powers of 2. Collective.
  [[nodiscard]] at::Tensor finish(const at::Tensor& like);

 private:
  struct AddVectors {
    void operator()(at::Tensor& left, const at::Tensor& right) const;
  };
  [[nodiscard]] at::Tensor rows_to_send(const at::Tensor& like, std::int64_t part) const;
  [[nodiscard]] at::Tensor exchange(const at::Tensor& like) const;

  Group group_;
  int num_shards_;
  ShardRange shards_;
  TreeSum<at::Tensor, AddVectors> own_{AddVectors()};
};

}  // namespace accel::elastic
