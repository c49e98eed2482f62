#include "reference/models/sequence_parts.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "reference/context_parallel/context_attention.hpp"
#include "reference/context_parallel/shard_sequence.hpp"

namespace accel::models {

using parallel::SequenceOrder, parallel::SequencePlan;

SequenceParts::SequenceParts(const DeviceMesh& mesh) : group_(mesh["cp"].size() > 1 ? mesh["cp"] : mesh["sp"]) {
  const auto& config = mesh.config();
  const bool is_ring = config.cp_handler && config.cp_handler->cp_comm_strategy == "alltoall";
  if (config.cp_enabled())
    kind_ = is_ring ? Kind::kRing : Kind::kAllGather;
  else if (config.sp_enabled())
    kind_ = Kind::kUlysses;
}

SequencePlan SequenceParts::plan(std::int64_t local_length) const {
  return SequencePlan({.length = local_length * size(),
                       .num_ranks = size(),
                       .order = kind_ == Kind::kUlysses ? SequenceOrder::kContiguous : SequenceOrder::kZigzag});
}

at::Tensor SequenceParts::positions(std::int64_t local_length, c10::Device device) const {
  if (kind_ == Kind::kComplete) return at::arange(local_length, at::TensorOptions(device).dtype(at::kLong));
  return parallel::position_ids(plan(local_length), group_.rank(), device);
}

at::Tensor SequenceParts::attended(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                   const AttentionOptions& options) const {
  const parallel::ContextAttentionOptions of_parts{
      .is_causal = true, .scale = options.scale, .enable_gqa = options.enable_gqa};
  switch (kind_) {
    case Kind::kComplete: break;
    case Kind::kAllGather:
      return parallel::all_gather_attention(queries, keys, values, plan(queries.size(2)), group_, of_parts);
    case Kind::kRing: return parallel::ring_attention(queries, keys, values, plan(queries.size(2)), group_, of_parts);
    case Kind::kUlysses:
      return parallel::ulysses_attention(queries, keys, values, plan(queries.size(2)), group_, of_parts);
  }
  return at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{}, options.dropout,
                                          /*is_causal=*/queries.size(2) > 1, options.scale, options.enable_gqa);
}

}  // namespace accel::models
