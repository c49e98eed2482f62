#pragma once

#include <map>
#include <string>
#include <vector>

/// Constants of GPUs, links and kernels: the numbers of `sim-run predict`, each with its source in
/// configs/sim/hardware.yaml.
///
///     const auto hardware = read_hardware("mine.yaml");   // the shipped constants, with those of the file
///
/// Units: operations, bytes, seconds. Thread rule: values and pure functions.
namespace accel::predict {

/// Values at some sizes; between them linear in the logarithm of the size.
struct Curve {
  std::vector<double> sizes, values;

  [[nodiscard]] double at(double size) const;
};

/// Of the operands of products.
enum class Precision { kFp16, kBf16, kFp8, kFp4 };

struct Gpu {
  std::string name, generation;
  double flops_bf16 = 0;
  double flops_fp8 = 0, flops_fp4 = 0;  ///< 0: has none
  double memory_bytes = 0, memory_bytes_per_second = 0;
  double multiprocessors = 0;
  double nvlink_bytes_per_second = 0;      ///< of the data sheet, in one direction
  double nvlink_share = 0.8;               ///< that collectives reach; by default what most generations do
  double nvlink_bus_bytes_per_second = 0;  ///< their product, as nccl-tests measures it
  double gpus_per_nvlink_domain = 0;       ///< 0: those of a node
  double matmul_share = 0, matmul_share_fp8 = 0, matmul_share_fp4 = 0;  ///< of the peaks, in large products
  Curve flash2, flash2_small_heads, flash1;                             ///< operations per second by sequence length

  /// Operations per second of large products; of the next larger precision that the GPU has.
  [[nodiscard]] double rate_of(Precision precision) const;
};

struct Efficiency {
  double memory = 1, network = 1, cudnn_attention = 1, all_to_all_nvlink = 1, weight_gradient_update = 0,
         expert_imbalance = 1;
};

struct Latencies {
  double kernel = 0, kernel_gap = 0, ring_base = 0, ring_hop_nvlink = 0, ring_hop_network = 0, tree_base = 0,
         tree_hop_nvlink = 0, tree_network = 0, tree_doubling_of_nodes = 0, message_nvlink = 0, message_network = 0,
         expert_synchronization = 0, step = 0;
};

struct Hardware {
  std::map<std::string, Gpu> gpus;
  Efficiency efficiency;
  Latencies latencies;

  /// Throws ArgumentError for a name that it lacks.
  [[nodiscard]] const Gpu& gpu(const std::string& name) const;
};

/// The shipped constants.
[[nodiscard]] Hardware default_hardware();
/// The shipped constants, replaced by those of a file; "": none. Throws ConfigError with all problems.
[[nodiscard]] Hardware read_hardware(const std::string& file);

}  // namespace accel::predict
