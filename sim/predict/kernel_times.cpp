#include "sim/predict/kernel_times.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace accel::predict {
namespace {

// Rows and columns of the output that one multiprocessor computes at a time, and the rate of such tiles over that of
// the largest: small ones load more of their operands per operation.
struct Tile {
  double rows, columns, rate;
};
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.93}, {64, 128, 0.8}, {64, 64, 0.6}};

// The inner dimension at which filling and emptying the pipeline of a tile doubles its time.
constexpr double kPipelineDepth = 160, kPipelineDepthFp8 = 320;

// Shares of forward and backward in the time of fused attention: 2 and 5 products, the backward at a lower rate.
constexpr double kForwardShare = 0.27;
constexpr double kBatchedMatmulShare = 0.55;  // of the peak: products with an inner dimension of one head

}  // namespace

double KernelTimes::matmul(const Matmul& product) const {
  const auto& [m, n, k, count] = product;
  if (m <= 0 || n <= 0 || k <= 0 || count <= 0) return 0;
  const double rate = gpu_.rate_of(precision_);
  const bool is_small = rate > gpu_.rate_of(Precision::kBf16);
  double best = std::numeric_limits<double>::infinity();
  for (const auto& tile : kTiles) {
    const double tiles = std::ceil(m / tile.rows) * std::ceil(n / tile.columns) * count;
    const double waves = std::ceil(tiles / gpu_.multiprocessors);
    const double operations = 2 * waves * gpu_.multiprocessors * tile.rows * tile.columns * k;
    best = std::min(best, operations / (rate * tile.rate));
  }
  best *= 1 + (is_small ? kPipelineDepthFp8 : kPipelineDepth) / k;
  const double bytes = ((m * k + k * n) * (is_small ? 1 : 2) + m * n * 2) * count;
  return std::max({best, bytes / memory_rate(), latencies_.kernel}) + latencies_.kernel_gap;
}

double KernelTimes::weight_update(double parameters, double bytes_per_parameter) const {
  return efficiency_.weight_gradient_update * parameters * bytes_per_parameter / memory_rate();
}

double KernelTimes::memory_bound(double bytes, int kernels) const {
  return std::max(bytes / memory_rate(), latencies_.kernel * kernels) + latencies_.kernel_gap * kernels;
}

ForwardAndBackward KernelTimes::fused_attention(const CausalAttention& attention, AttentionKernel kernel) const {
  const auto& curve = kernel == AttentionKernel::kFlash1 ? gpu_.flash1
                      : attention.head_dim > 64          ? gpu_.flash2
                                                         : gpu_.flash2_small_heads;
  double rate = curve.at(attention.block);
  if (kernel == AttentionKernel::kCudnn && gpu_.generation != "ampere") rate *= efficiency_.cudnn_attention;
  // 3.5 times the forward pass's two products; half of them are masked.
  const double operations = 3.5 * 2 * attention.sequences * attention.heads * attention.queries * attention.keys *
                            (attention.head_dim + attention.value_dim) / 2;
  const double seconds = operations / rate;
  const double overhead = 2 * (latencies_.kernel + latencies_.kernel_gap);
  return {kForwardShare * seconds + overhead, (1 - kForwardShare) * seconds + overhead};
}

double KernelTimes::batched_matmul(double products, const Matmul& product) const {
  const auto& [m, n, k, count] = product;
  const double operations = 2 * m * n * k * products / (gpu_.flops_bf16 * kBatchedMatmulShare);
  return std::max(operations, 2 * (m * k + k * n + m * n) * products / memory_rate());
}

ForwardAndBackward KernelTimes::unfused_attention(const CausalAttention& attention, bool has_dropout) const {
  const double products = attention.sequences * attention.heads;
  const double scores = products * attention.queries * attention.keys;
  const double query_key =
      batched_matmul(products, {.m = attention.queries, .n = attention.keys, .k = attention.head_dim});
  const double score_value =
      batched_matmul(products, {.m = attention.queries, .n = attention.value_dim, .k = attention.keys});
  // Two bytes a score: the softmax reads the lower half, writes all; dropout reads and writes, with a mask of one byte.
  const double dropout = has_dropout ? 5 : 0;
  return {query_key + score_value + memory_bound(scores * (3 + dropout), 2),
          2 * (query_key + score_value) + memory_bound(scores * (5 + dropout), 2)};
}

}  // namespace accel::predict
