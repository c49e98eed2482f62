#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "reference/context_parallel/sequence_plan.hpp"
#include "reference/state/device_mesh.hpp"

/// The positions of a sequence that a rank of a gpt holds: all of them, or its part under context parallelism.
///
///     const SequenceParts parts(mesh);
///     const auto seen = parts.attended(queries, keys, values, {.scale = scale, .enable_gqa = true});
///
/// Ranks of "cp" hold parts in zigzag order, as maybe_context_parallel divides them, and attention gathers keys and
/// values or, with cp_comm_strategy "alltoall", passes them around a ring. Ranks of "sp" hold contiguous parts, and
/// attention exchanges heads (Ulysses). Thread rule: the rank's thread.
namespace accel::models {

class SequenceParts {
 public:
  explicit SequenceParts(const DeviceMesh& mesh);

  /// The number of ranks that hold parts of one sequence.
  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] const Group& group() const { return group_; }
  /// Which positions each rank holds if each holds `local_length`. Throws ArgumentError if they are not two equal
  /// chunks in zigzag order.
  [[nodiscard]] parallel::SequencePlan plan(std::int64_t local_length) const;
  /// This rank's positions in the complete sequence: (local_length) int64.
  [[nodiscard]] at::Tensor positions(std::int64_t local_length, c10::Device device) const;

  struct AttentionOptions {
    double dropout = 0;
    std::optional<double> scale = {};
    bool enable_gqa = false;
  };
  /// Causal attention. (B, heads, local length, head_width) -> the same shape.
  [[nodiscard]] at::Tensor attended(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                    const AttentionOptions& options) const;

 private:
  enum class Kind { kComplete, kAllGather, kRing, kUlysses };
  Kind kind_ = Kind::kComplete;
  Group group_;
};

}  // namespace accel::models
