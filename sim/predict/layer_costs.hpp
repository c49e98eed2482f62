#pragma once

#include "sim/predict/collective_times.hpp"
#include "sim/predict/framework.hpp"
#include "sim/predict/kernel_times.hpp"

/// Seconds of one layer, of the embedding and of the head, for one micro-batch on one GPU.
///
/// Thread rule: pure functions.
namespace accel::predict {

inline constexpr double kBytesPerHalf = 2;  ///< of an element in 16 bits

/// Everything that the parts of a prediction read.
struct RunContext {
  const TrainingRun& run;
  const Framework& framework;
  const Gpu& gpu;
  KernelTimes kernels;
  KernelTimes head_kernels;  ///< in 16 bits
  CollectiveTimes collectives;
  Efficiency efficiency;
  Latencies latencies;

  RunContext(const TrainingRun& run, const Hardware& hardware, const Gpu& gpu);

  /// Tokens of a micro-batch on this rank, and those that it holds between tensor parallel regions.
  [[nodiscard]] double tokens() const { return run.mbs * run.seq / run.cp; }
  [[nodiscard]] double resident_tokens() const { return run.sp ? tokens() / run.tp : tokens(); }
  [[nodiscard]] double product_rate() const { return gpu.rate_of(run.precision); }
  /// In 8 bits or less.
  [[nodiscard]] bool has_small_products() const { return product_rate() > gpu.rate_of(Precision::kBf16); }
  /// Tokens of the fullest rank of experts over the mean.
  [[nodiscard]] double imbalance() const { return run.ep > 1 ? efficiency.expert_imbalance : 1; }
};

/// Of communication: what the computation does not cover.
struct CommunicationSeconds {
  double tensor_parallel = 0, context_parallel = 0, expert_parallel = 0;

  [[nodiscard]] double sum() const { return tensor_parallel + context_parallel + expert_parallel; }
};

struct PassSeconds {
  double products = 0, attention = 0, elementwise = 0, activation = 0;
  CommunicationSeconds communication;

  [[nodiscard]] double compute() const { return products + attention + elementwise + activation; }
  [[nodiscard]] double sum() const { return compute() + communication.sum(); }
};

struct LayerSeconds {
  PassSeconds forward, backward;
  double recompute = 0;                  ///< computation that the backward pass repeats
  CommunicationSeconds recommunication;  ///< and its communication

  [[nodiscard]] double forward_sum() const { return forward.sum(); }
  [[nodiscard]] double backward_sum() const { return backward.sum() + recompute + recommunication.sum(); }
  /// Of all passes.
  [[nodiscard]] CommunicationSeconds communication() const;
  /// The mean of layers of two kinds.
  static LayerSeconds mean(const LayerSeconds& a, double weight_a, const LayerSeconds& b, double weight_b);
};

/// The mean layer of the model.
[[nodiscard]] LayerSeconds layer_seconds(const RunContext& context);
[[nodiscard]] ForwardAndBackward embedding_seconds(const RunContext& context);
/// The product with the vocabulary, and the loss.
[[nodiscard]] ForwardAndBackward head_seconds(const RunContext& context);

}  // namespace accel::predict
