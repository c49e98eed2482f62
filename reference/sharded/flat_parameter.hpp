#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/memory_scope.hpp"
#include "reference/sharded/unit_plan.hpp"
#include "reference/state/gradient_marks.hpp"

namespace accel::sharded {

/// The process groups of one rank of a sharded model. Gathers and reductions use separate groups, because one rank may
/// be ahead of another in one of them.
struct ShardGroups {
  Group gathers = {}, reductions = {};
  std::optional<Group> replicas = {};  ///< hybrid sharding: the ranks that hold the same shard
  /// With expert-parallel ranks, the ranks that hold the same shard of all parameters but experts.
  std::optional<Group> replicas_except_experts = {};
  int peer = 0;  ///< index among the tensor- and expert-parallel ranks, which hold different parts of layers
  /// Whether this rank writes its shard to checkpoints; the other ranks with the same shard do not.
  [[nodiscard]] bool is_primary_replica() const { return peer == 0 && (!replicas || replicas->rank() == 0); }
  /// The groups of a flat buffer: those of experts, or of other parameters.
  [[nodiscard]] ShardGroups groups_of(bool is_of_experts) const;
  [[nodiscard]] int num_ranks() const { return gathers.size() * (replicas ? replicas->size() : 1); }
};

struct FlatParameterOptions {
  std::optional<c10::ScalarType> param_dtype = {}, reduce_dtype = {};
  bool frees_parameters = true;  ///< frees full parameters after use; false: keeps them, and gathers after changes
  bool broadcasts_from_first_rank = false;                   ///< broadcasts rank 0's values to all ranks
  c10::Device device = c10::kCPU, shard_device = c10::kCPU;  ///< of full parameters, and of shards
  std::shared_ptr<MemorySource> shard_memory = {};           ///< of shards on the CPU; null: LibTorch's allocator
};

/// Parameters that share one flat buffer: this rank's shard, the full buffer while it is needed, and gradients on their
/// way to shards.
///
/// The module's parameter tensors keep their identity; only their data changes. They show either this rank's parts,
/// which are one-dimensional, possibly empty, and stepped by the optimizer, or the full parameters, with which the
/// module computes. Thread rule: the rank's thread.
class FlatParameter {
 public:
  /// Collective if `broadcasts_from_first_rank`.
  FlatParameter(const FlatParameterPlan& plan, std::vector<at::Tensor> parameters, ShardGroups groups,
                const FlatParameterOptions& options, MemoryAccount& memory);

  [[nodiscard]] const FlatPlan& layout() const { return plan_.layout; }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Whether any parameter required a gradient when the current step began.
  [[nodiscard]] bool requires_grad() const { return num_trained_ > 0; }
  [[nodiscard]] int shard_index() const { return groups_.gathers.rank(); }
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }

  /// Begins a step: notes which parameters require gradients. The program may have frozen or unfrozen some.
  void follow_parameters();
  /// Takes over values that the program has put into parameters by other means than writing in place, such as
  /// Module::to and torch::load. Throws StateError if they have another dtype or shape.
  void adopt_edits();

  /// --- parameters ---
  /// Starts the all-gather of the full buffer unless it is present. Collective, together with the `finish_gather` that
  /// follows.
  void begin_gather();
  /// Waits for the gather; parameters then show full values.
  void finish_gather();
  /// Parameters show full values in the dtype that the optimizer keeps, whatever dtype units compute in. Collective.
  void gather_stored();
  /// Parameters show this rank's parts; the full buffer is freed if the options ask for it.
  void release();
  /// Notes that the shards have changed, so that full values must be gathered again.
  void mark_stale() { is_stale_ = true; }
  /// Copies this rank's part of a full tensor into its shard.
  void write_shard(std::size_t parameter, const at::Tensor& whole);

  /// Whether the device may still copy between itself and an offloaded shard or its gradients.
  [[nodiscard]] bool has_pending_copies() const { return is_copied_ || awaits_gradients_; }
  /// The device has been waited for: the shard may change, and parameters get the gradients that have arrived.
  void finish_copies();

  /// --- gradients ---
  /// Moves gradients of parts away from the parameters, which are about to receive full-size ones.
  void stash_gradients();
  /// Notes that a full gradient has arrived in this backward pass; returns whether all have.
  bool count_gradient(std::size_t parameter);
  /// Starts the reduce-scatter of full gradients. Collective, together with the two calls that follow.
  void begin_reduce();
  /// Waits for the reduce-scatter and starts the all-reduce between replicas. Returns whether there are replicas.
  bool begin_replica_reduce();
  /// Waits for the reductions; parameters then have the mean gradients of their parts, added to the stashed ones.
  /// Gradients of offloaded shards are then still being copied to the host: see `finish_copies`.
  void finish_reduce();
  /// The parts' gradients as one tensor, including the padding between them. Valid while the parts' gradients are.
  [[nodiscard]] const at::Tensor& gradient_shard() const { return gradient_shard_; }
  /// Whether the last reduction gave this parameter no gradient, so that its elements of `gradient_shard` are zeros:
  /// see Note [Parameters without gradients].
  [[nodiscard]] bool lacks_gradient(std::size_t parameter) const {
    return parameter < lacked_gradient_.size() && lacked_gradient_[parameter] &&
           !parameters_[parameter].grad().defined();
  }
  /// Whether parameters have gradients of their parts; a checkpoint inside an accumulation window contains them.
  [[nodiscard]] bool has_part_gradients() const { return has_part_gradients_; }
  /// Sets the parts' gradients, in the order of the parameters; undefined where there is none.
  void load_part_gradients(const std::vector<at::Tensor>& gradients);
  /// Restores stashed gradients after a pass without reduction, unless the parameters have full gradients.
  void restore_gradients();
  /// See GradientMarks.
  [[nodiscard]] std::vector<bool> take_written_gradients() { return marks_.take_written(); }
  /// Discards full gradients after an interrupted backward pass.
  void drop_full_gradients();

 private:
  [[nodiscard]] at::Tensor flattened() const;
  void adopt(std::size_t place, const at::Tensor& shown);
  void make_storage(const at::Tensor& values);
  void pin_shard();
  [[nodiscard]] std::vector<bool> parameters_without_gradient() const;
  void accept_gradients();
  void show(const std::vector<at::Tensor>& views);
  [[nodiscard]] bool has_any_gradient() const;

  FlatParameterPlan plan_;
  std::vector<at::Tensor> parameters_;
  GradientMarks marks_;
  std::vector<bool> is_trained_;
  std::size_t num_trained_ = 0;
  ShardGroups groups_;
  FlatParameterOptions options_;
  MemoryAccount* memory_;
  at::Tensor shard_, whole_, stored_full_;
  std::vector<at::Tensor> parts_, full_views_;  // per parameter: views of shard_ and of whole_
  std::optional<Work> gather_;
  at::Tensor gather_input_;
  bool is_gathered_ = false, is_stale_ = true, has_part_gradients_ = false, awaits_gradients_ = false;
  bool is_pinned_ = false, is_copied_ = false;  // the shard: in pinned host memory; the device may still copy it
  std::vector<at::Tensor> stashed_;
  std::vector<bool> is_counted_;       // full gradients that the memory account contains
  std::vector<bool> lacked_gradient_;  // in the last reduction
  std::int64_t whole_gradient_bytes_ = 0, part_gradient_bytes_ = 0;
  std::size_t num_gradients_ = 0;
  std::optional<Work> reduction_, replica_reduction_;
  at::Tensor bucket_, reduced_, gradient_shard_;
};

}  // namespace accel::sharded
