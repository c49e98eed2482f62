#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "reference/context_parallel/attention_inputs.hpp"
#include "reference/context_parallel/shard_sequence.hpp"

namespace accel::parallel {
namespace {

// Note [Rows and bits]
// The bits of a row of a matrix product depend on the number of rows and on the row's index among them, because the
// library chooses its kernels by shape: of 60 random attentions in float64, only 33 had equal rows when ranks computed
// their own queries in one call. In tiles of kTileLength rows, in which a query's row depends on its position alone,
// 3,660 of 3,660 had. Tiles take 1.5 (512 positions) to 2.6 times (2,048) the time of one causal call. The kernel
// visits keys in blocks of kKeyBlock; blocks that a causal mask hides completely change no bit and are left out.
constexpr std::int64_t kTileLength = 32, kKeyBlock = 512;

/// All keys, and which of them may be seen.
struct CompleteKeys {
  at::Tensor keys = {}, values = {}, mask = {};
};

at::Tensor attended(const at::Tensor& queries, const at::Tensor& positions, const CompleteKeys& all,
                    const ContextAttentionOptions& options) {
  std::optional<at::Tensor> mask;
  if (options.is_causal) mask = positions.unsqueeze(1).ge(at::arange(all.keys.size(2), positions.options()));
  if (all.mask.defined()) {
    const auto visible = all.mask.unsqueeze(1).unsqueeze(1);  // (batch, head, query, key)
    mask = mask ? mask->logical_and(visible) : visible;
  }
  return at::scaled_dot_product_attention(queries, all.keys, all.values, mask, /*dropout_p=*/0.0, /*is_causal=*/false,
                                          options.scale, options.enable_gqa);
}

CompleteKeys first_keys(const CompleteKeys& all, std::int64_t count) {
  return {.keys = all.keys.narrow(2, 0, count),
          .values = all.values.narrow(2, 0, count),
          .mask = all.mask.defined() ? all.mask.narrow(1, 0, count) : all.mask};
}

at::Tensor attended_in_tiles(const at::Tensor& queries, const std::vector<std::int64_t>& positions,
                             const CompleteKeys& all, const ContextAttentionOptions& options) {
  const auto tiles = plan_query_tiles(positions, kTileLength);
  const auto rows = at::tensor(tiles.rows, at::kLong);
  auto sizes = queries.sizes().vec();
  sizes[2] = std::ssize(tiles.begins) * kTileLength;
  const auto padded = queries.new_zeros(sizes).index_copy(2, rows, queries);
  std::vector<at::Tensor> outputs;
  for (std::int64_t tile = 0; tile < std::ssize(tiles.begins); ++tile) {
    const auto begin = tiles.begins[static_cast<std::size_t>(tile)], end = begin + kTileLength;
    const auto blocks = (end + kKeyBlock - 1) / kKeyBlock;
    const auto length = all.keys.size(2), seen = options.is_causal ? std::min(length, blocks * kKeyBlock) : length;
    outputs.push_back(attended(padded.narrow(2, tile * kTileLength, kTileLength), at::arange(begin, end, at::kLong),
                               first_keys(all, seen), options));
  }
  return at::cat(outputs, 2).index_select(2, rows);
}

}  // namespace

at::Tensor all_gather_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                const SequencePlan& plan, const Group& group, const ContextAttentionOptions& options) {
  check_attention("all_gather_attention", {queries, keys, values}, plan, group, options);
  if (queries.numel() == 0) return queries.clone();
  const auto complete = unshard_sequence(at::stack({keys, values}), 3, plan, group);
  CompleteKeys all{.keys = complete[0], .values = complete[1], .mask = complete_key_mask(options, plan, group)};
  if (!queries.is_cpu()) return attended(queries, position_ids(plan, group.rank(), queries.device()), all, options);
  // In float32 the gradients of keys, which are sums over tiles, are rounded once; autocast would round each tile.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto type = at::toOpMathType(queries.scalar_type());
  all.keys = all.keys.to(type);
  all.values = all.values.to(type);
  return attended_in_tiles(queries.to(type), plan.positions(group.rank()), all, options).to(queries.scalar_type());
}

}  // namespace accel::parallel
