#pragma once

#include "sim/predict/hardware.hpp"
#include "sim/predict/training_run.hpp"

/// Times of kernels on one GPU.
///
///     const KernelTimes times(hardware.gpus.at("h100_sxm5_80"), hardware, Precision::kBf16);
///     times.matmul({.m = 4096, .n = 4096, .k = 4096});   // seconds
///
/// No time rises with a faster constant. Thread rule: values.
namespace accel::predict {

/// [m, k] times [k, n]; `count` independent products in one kernel.
struct Matmul {
  double m = 0, n = 0, k = 0;
  double count = 1;

  [[nodiscard]] Matmul input_gradient() const { return {m, k, n, count}; }
  [[nodiscard]] Matmul weight_gradient() const { return {n, k, m, count}; }
};

struct CausalAttention {
  double sequences = 1, heads = 0, head_dim = 0, value_dim = 0;
  double queries = 0, keys = 0;  ///< per sequence
  double block = 0;              ///< keys that one kernel sees: the part of a sequence on one rank
};

struct ForwardAndBackward {
  double forward = 0, backward = 0;

  [[nodiscard]] double sum() const { return forward + backward; }
};

class KernelTimes {
 public:
  KernelTimes(const Gpu& gpu, const Hardware& hardware, Precision precision)
      : gpu_(gpu), efficiency_(hardware.efficiency), latencies_(hardware.latencies), precision_(precision) {}

  /// The best of several tile sizes, with the last wave of tiles as long as a full one.
  [[nodiscard]] double matmul(const Matmul& product) const;
  /// What the sum of float32 gradients of `parameters` adds to the product that computes them.
  [[nodiscard]] double weight_update(double parameters, double bytes_per_parameter) const;
  /// Bound by memory: `bytes` read and written by so many kernels.
  [[nodiscard]] double memory_bound(double bytes, int kernels = 1) const;
  [[nodiscard]] ForwardAndBackward fused_attention(const CausalAttention& attention, AttentionKernel kernel) const;
  /// Two products, a masked softmax and, if asked for, dropout, each with its own pass over the scores.
  [[nodiscard]] ForwardAndBackward unfused_attention(const CausalAttention& attention, bool has_dropout) const;

 private:
  [[nodiscard]] double batched_matmul(double products, const Matmul& product) const;
  [[nodiscard]] double memory_rate() const { return gpu_.memory_bytes_per_second * efficiency_.memory; }

  Gpu gpu_;
  Efficiency efficiency_;
  Latencies latencies_;
  Precision precision_;
};

}  // namespace accel::predict
