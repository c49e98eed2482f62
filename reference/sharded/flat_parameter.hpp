#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/memory_scope.hpp"
#include "reference/sharded/unit_plan.hpp"

namespace accel::sharded {

/// The ranks that shard a model, as groups of one rank's. Gathers and reductions have groups of their own, since a rank
/// may be ahead of another in one of them.
struct ShardGroups {
  Group gathers = {}, reductions = {};
  std::optional<Group> replicas = {};  ///< of hybrid sharding: the ranks that hold the same shard
  int peer = 0;  ///< this rank's number among those that share its batch, and hold the same shard too
  /// Whether this rank's shard is the one of its copies that is written.
  [[nodiscard]] bool is_first_copy() const { return peer == 0 && (!replicas || replicas->rank() == 0); }
  [[nodiscard]] int num_ranks() const { return gathers.size() * (replicas ? replicas->size() : 1); }
};

struct FlatParameterOptions {
  std::optional<c10::ScalarType> param_dtype = {}, reduce_dtype = {};
  bool frees_parameters =
      true;  ///< when no unit computes; else they stay whole, and are gathered when they have changed
  bool syncs_from_first = false;                             ///< rank 0's values are everybody's
  c10::Device device = c10::kCPU, shard_device = c10::kCPU;  ///< of whole parameters, and of shards
  std::shared_ptr<MemorySource> shard_memory = {};           ///< of shards on the CPU; null: LibTorch's
};

/// Tensors of one flat buffer: this rank's shard, the whole while it is needed, and gradients on their way to shards.
///
/// The module's parameters stay the module's own tensors; what they show is either this rank's part of them,
/// one-dimensional and maybe empty, which an optimizer steps, or the whole, which the module computes with. Thread
/// rule: the rank's thread.
class FlatParameter {
 public:
  /// Collective if values are synchronised.
  FlatParameter(const FlatParameterPlan& plan, std::vector<at::Tensor> parameters, ShardGroups groups,
                const FlatParameterOptions& options, MemoryAccount& memory);

  [[nodiscard]] const FlatPlan& layout() const { return plan_.layout; }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] bool requires_grad() const { return plan_.requires_grad; }
  [[nodiscard]] int shard_index() const { return groups_.gathers.rank(); }
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }

  /// --- parameters ---
  /// Begins to bring the whole, if it is not there. Collective with `finish_gather` behind it.
  void begin_gather();
  /// Parameters show the whole.
  void finish_gather();
  /// Parameters show the whole as optimizers keep it, whatever units compute with. Collective.
  void gather_stored();
  /// Parameters show this rank's parts; the whole is freed, if it is to be.
  void release();
  /// The shards have changed.
  void mark_stale() { is_stale_ = true; }
  /// Of whole parameters of this rank, into its shard.
  void write_shard(std::size_t parameter, const at::Tensor& whole);

  /// --- gradients ---
  /// Takes gradients of parts away from the parameters, which are about to get whole ones.
  void stash_gradients();
  /// Notes that a whole gradient has come in this backward pass; returns whether all have.
  bool count_gradient(std::size_t parameter);
  /// Sums whole gradients over the ranks, and keeps this rank's parts of their mean. Collective with `finish_reduce`
  /// behind it.
  void begin_reduce();
  /// Parameters have their parts' gradients, added to those that were stashed.
  void finish_reduce();
  /// The parts' gradients as one tensor, with the zeros between them; as long as a part's own gradient is there.
  [[nodiscard]] const at::Tensor& gradient_shard() const { return gradient_shard_; }
  /// Whether parameters have gradients of their parts, which a checkpoint inside an accumulation window holds.
  [[nodiscard]] bool has_part_gradients() const { return has_part_gradients_; }
  /// In the order of the parameters; undefined where there is none.
  void load_part_gradients(const std::vector<at::Tensor>& gradients);
  /// Puts stashed gradients back, where nothing was reduced, unless there are whole ones beside them.
  void restore_gradients();
  /// After a backward that was cut off.
  void drop_whole_gradients();

 private:
  [[nodiscard]] at::Tensor flattened() const;
  void make_storage(const at::Tensor& values);
  void show(const std::vector<at::Tensor>& views);
  [[nodiscard]] bool has_any_gradient() const;

  FlatParameterPlan plan_;
  std::vector<at::Tensor> parameters_;
  ShardGroups groups_;
  FlatParameterOptions options_;
  MemoryAccount* memory_;
  at::Tensor shard_, whole_, stored_whole_;
  std::vector<at::Tensor> parts_, wholes_;  // views of them for each parameter
  std::optional<Work> gather_;
  at::Tensor gather_input_;
  bool is_whole_ = false, is_stale_ = true, has_part_gradients_ = false;
  std::vector<at::Tensor> stashed_;
  std::vector<bool> is_counted_;  // whole gradients that the account has
  std::int64_t whole_gradient_bytes_ = 0, part_gradient_bytes_ = 0;
  std::size_t num_gradients_ = 0;
  std::optional<Work> reduction_;
  at::Tensor bucket_, reduced_, gradient_shard_;
};

}  // namespace accel::sharded
