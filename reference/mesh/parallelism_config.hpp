#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// The sizes of the mesh of ranks, and the options of its axes. axes.hpp describes the axes.
///
///     accel::ParallelismConfig mesh{.dp_replicate_size = 2, .cp_size = 2};
///     mesh.cp_handler = accel::TorchContextParallelConfig{.cp_comm_strategy = "alltoall"};
///     accel::Accelerator accelerator({.parallelism_config = mesh});
///
/// Thread rule: values. Source: accelerate/parallelism_config.py; accelerate/utils/dataclasses.py.
namespace accel {

struct TorchTensorParallelConfig {
  bool enable_async_tp = false;  ///< ignored with a warning, as in Accelerate

  friend bool operator==(const TorchTensorParallelConfig&, const TorchTensorParallelConfig&) = default;
};

struct TorchContextParallelConfig {
  /// "allgather": every rank gathers the keys and values of all parts. "alltoall": they rotate from rank to rank, as in
  /// torch, where it is ring attention. Default: PARALLELISM_CONFIG_CP_COMM_STRATEGY or "allgather".
  std::optional<std::string> cp_comm_strategy = {};

  friend bool operator==(const TorchContextParallelConfig&, const TorchContextParallelConfig&) = default;
};

/// For the program, which divides sequences by these lengths. sp_size must divide sp_seq_length.
struct DeepSpeedSequenceParallelConfig {
  std::optional<std::int64_t> sp_seq_length = {};  ///< of a complete sequence; PARALLELISM_CONFIG_SP_SEQ_LENGTH
  /// Sequences have different lengths. False requires sp_seq_length. Default:
  /// PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE or true.
  std::optional<bool> sp_seq_length_is_variable = {};
  /// "sdpa", the only implementation in LibTorch. Default: PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION or "sdpa".
  std::optional<std::string> sp_attn_implementation = {};

  friend bool operator==(const DeepSpeedSequenceParallelConfig&, const DeepSpeedSequenceParallelConfig&) = default;
};

/// A mesh of ranks in row-major order: dp_replicate, dp_shard, cp, sp, tp, pp, ep. The product of the sizes is the
/// number of ranks. Ranks that differ only in tp, cp, sp or pp share a batch: their loaders yield the same batch.
/// Without any size above 1, all ranks are data parallel. dp_shard_size above 1 requires a plugin that shards:
/// `prepare` of a model that DDP would train throws ConfigError.
///
/// The Accelerator creates the handlers of axes with a size above 1 and fills in their defaults. It ignores handlers of
/// other axes with a warning.
struct ParallelismConfig {
  int dp_replicate_size = 1, dp_shard_size = 1, cp_size = 1, sp_size = 1, tp_size = 1;
  int pp_size = 1;                       ///< ranks that share out the layers of a model; an addition, as is ep_size
  int ep_size = 1;                       ///< ranks that divide the experts of a layer; each reads its own samples
  std::string cp_backend = "torch";      ///< the only one
  std::string sp_backend = "deepspeed";  ///< the only one: heads are exchanged for parts of the sequence (Ulysses)
  std::optional<TorchTensorParallelConfig> tp_handler = {};
  std::optional<TorchContextParallelConfig> cp_handler = {};
  std::optional<DeepSpeedSequenceParallelConfig> sp_handler = {};

  /// Products of the sizes of the axes whose ranks read different samples, and of the others. With 64 bits: sizes from
  /// a file could overflow an int and match a number of ranks by accident.
  [[nodiscard]] std::int64_t data_parallel_size() const;
  [[nodiscard]] std::int64_t non_data_parallel_size() const;
  [[nodiscard]] std::int64_t total_size() const { return data_parallel_size() * non_data_parallel_size(); }
  [[nodiscard]] bool dp_replicate_enabled() const { return dp_replicate_size > 1; }
  [[nodiscard]] bool dp_shard_enabled() const { return dp_shard_size > 1; }
  [[nodiscard]] bool cp_enabled() const { return cp_size > 1; }
  [[nodiscard]] bool sp_enabled() const { return sp_size > 1; }
  [[nodiscard]] bool tp_enabled() const { return tp_size > 1; }
  [[nodiscard]] bool ep_enabled() const { return ep_size > 1; }
  friend bool operator==(const ParallelismConfig&, const ParallelismConfig&) = default;
};

}  // namespace accel
