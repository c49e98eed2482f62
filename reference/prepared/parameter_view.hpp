#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "reference/comm/group.hpp"

namespace accel {

namespace sharded {
class MemorySource;
}

/// Which values a prepared model's parameters show: those that an optimizer steps, or complete ones.
///
/// Every rank must call functions marked "Collective", in the same order. Thread rule: the rank's thread.
class ParameterView {
 public:
  virtual ~ParameterView() = default;

  /// Makes the parameters show the values that an optimizer steps: shards, or float32 master weights.
  virtual void before_step() = 0;
  /// Undoes `before_step`, also one that threw. Does not throw unless `has_stepped`.
  virtual void after_step(bool has_stepped) = 0;
  /// Creates the memory in which the state of the model's optimizers is allocated; null: LibTorch's memory.
  [[nodiscard]] virtual std::shared_ptr<sharded::MemorySource> make_optimizer_memory() const = 0;

  /// The ranks that together hold the parameters and gradients; null: every rank holds all of them.
  [[nodiscard]] virtual const Group* shard_group() const = 0;
  [[nodiscard]] bool is_sharded() const { return shard_group() != nullptr; }
  /// This rank's gradient shards of those `parameters` that are sharded, for a norm over `shard_group`.
  [[nodiscard]] virtual std::vector<at::Tensor> sharded_gradients(const std::vector<at::Tensor>& parameters) const = 0;

  /// Makes parameters complete on every rank until `release_parameters`. Collective.
  virtual void gather_parameters() = 0;
  /// `modified_on`: the rank of `world` whose values all ranks adopt; empty: changes are discarded. Collective.
  virtual void release_parameters(const Group& world, std::optional<int> modified_on) = 0;
};

}  // namespace accel
