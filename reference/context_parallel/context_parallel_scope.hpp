#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reference/context_parallel/sequence_plan.hpp"
#include "reference/state/device_mesh.hpp"

/// Divides the tensors of a batch along their sequences while a scope lives.
///
///     const ContextParallelOptions options{.buffers = {batch.tokens, batch.labels}, .buffer_seq_dims = {1, 1}};
///     const auto scope = maybe_context_parallel(mesh, options);
///     const auto logits = model(batch.tokens, scope.position_ids());    // batch.tokens is this rank's part
///
/// Shift labels before, with shift_labels. Thread rule: the rank's thread. Source: accelerate/accelerator.py,
/// maybe_context_parallel; torch/distributed/tensor/experimental, context_parallel.
namespace accel::parallel {

/// Arguments of Accelerate's maybe_context_parallel.
struct ContextParallelOptions {
  /// Complete tensors, equal on all ranks of mesh["cp"]. They are replaced in place, so that every handle of a tensor
  /// sees the part, but not its views.
  std::vector<at::Tensor> buffers = {};
  std::vector<std::int64_t> buffer_seq_dims = {};  ///< per buffer, the dimension of its sequence; negative from the end
  std::vector<at::Tensor> no_restore_buffers = {};  ///< buffers that stay divided after the scope
};

class ContextParallelScope {
 public:
  /// Divides nothing in a mesh without "cp". Throws ArgumentError if there is not one dimension per buffer, sequences
  /// have different lengths or do not divide into 2 * cp parts, a buffer requires gradients, or a buffer of
  /// no_restore_buffers is not one of `buffers`.
  ContextParallelScope(const DeviceMesh& mesh, const ContextParallelOptions& options);
  /// Restores the buffers. What the program wrote into them meanwhile is lost.
  ~ContextParallelScope();
  ContextParallelScope(const ContextParallelScope&) = delete;
  ContextParallelScope& operator=(const ContextParallelScope&) = delete;

  /// In zigzag order, which balances causal attention.
  [[nodiscard]] const SequencePlan& plan() const { return plan_; }
  /// This rank's positions in the complete sequence: (local length) int64, on the device of the first buffer.
  [[nodiscard]] at::Tensor position_ids() const { return position_ids_; }

 private:
  struct Restored {
    at::Tensor buffer = {}, complete = {};
  };
  SequencePlan plan_;
  at::Tensor position_ids_;
  std::vector<Restored> restored_;
};

/// Warns once if the mesh has no "cp", in which case the scope has no effect.
[[nodiscard]] ContextParallelScope maybe_context_parallel(const DeviceMesh& mesh,
                                                          const ContextParallelOptions& options);

}  // namespace accel::parallel
