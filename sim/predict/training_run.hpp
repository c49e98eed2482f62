#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/predict/attention_kernel.hpp"
#include "sim/predict/hardware.hpp"

/// Descriptions of training runs of language models: the input of `sim-run predict`.
///
///     for (const auto& described : read_runs("runs.yaml"))
///       if (described.problem.empty()) predict(described.run, hardware);
///
/// A file has the sections `systems`, `models` and `runs`; reference/guide/predictions.md lists their keys. Thread
/// rule: values and pure functions.
namespace accel::predict {

/// A decoder of transformer layers.
struct ModelShape {
  int layers = 0;
  double hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double ffn = 0;         ///< width of a dense layer's MLP
  bool is_gated = false;  ///< swiglu, geglu: two products of the input
  double vocab = 0;
  bool is_tied = false;  ///< the head shares the embedding's weight
  double learned_positions = 0;
  std::optional<double> parameters;  ///< of the description, to compare with
  // Mixtures of experts.
  int experts = 0;
  double top_k = 0, moe_ffn = 0, shared_ffn = 0;
  int dense_layers = 0;  ///< leading layers without experts
  // Multi-head latent attention; 0: none.
  double q_lora = 0, kv_lora = 0, rope_dim = 0, value_head_dim = 0;
  // Sliding windows: every `window_every`-th layer sees `window` tokens.
  double window = 0;
  int window_every = 1;
  std::vector<std::string> unused_keys;  ///< of the description

  [[nodiscard]] double query_width() const { return heads * head_dim; }
  [[nodiscard]] double value_width() const { return heads * (value_head_dim > 0 ? value_head_dim : head_dim); }
  [[nodiscard]] double key_value_width() const { return 2 * kv_heads * head_dim; }
  [[nodiscard]] double attention_parameters() const;
  [[nodiscard]] double mlp_parameters(double width) const { return hidden * width * (is_gated ? 3 : 2); }
  [[nodiscard]] double total_parameters() const;
};

/// The machines.
struct SystemShape {
  std::string gpu;
  double gpus_per_node = 8;
  double gpus_per_nvlink_domain = 0;  ///< 0: that of the GPU, or a node
  std::optional<double> network_bytes_per_second_per_node;
  double nodes_per_switch = 0, oversubscription = 1;  ///< above a switch of so many nodes; 0: a full fat tree
};

/// What is computed again in the backward pass.
struct Recomputation {
  double layers = 0;       ///< share of the layers that are recomputed completely
  double products = 0;     ///< share of the products of a layer, with everything between them
  bool attention = false;  ///< softmax(QK)V
  bool norms = false, activation = false;
  bool mlp = false;      ///< of dense layers
  bool experts = false;  ///< with the exchange of their tokens
  bool shared_experts = false;
  bool latent_projections = false;  ///< of multi-head latent attention, from the latent to the heads

  [[nodiscard]] bool is_full() const { return layers > 0; }
  [[nodiscard]] bool is_by_operator() const { return products > 0; }
};

struct TrainingRun {
  std::string id;
  ModelShape model;
  SystemShape system;
  std::string framework;  ///< a name of frameworks()
  double gpus = 0, seq = 0, gbs = 0, mbs = 1, micro_batches = 1;
  double dp = 1, tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, etp = 1;
  int zero = 0;
  double zero_group = 0;  ///< ranks that share a state; 0: all of dp x cp
  bool sp = false;
  std::string schedule = "1f1b";
  Precision precision = Precision::kBf16;
  AttentionKernel attention = AttentionKernel::kFlash2;
  Recomputation recompute;
  // Exceptions from what the framework does.
  std::optional<bool> overlaps_tensor_parallel, overlaps_gradients;
  bool embedding_counts_as_layer = false;
  bool has_separate_gradient_sums = false;  ///< a separate kernel adds gradients to their float32 sum
  bool gathers_fp8 = false;
  bool has_half_precision_state = false;  ///< gradients and optimizer state in 16 bits
  std::optional<double> step_seconds;
  std::vector<std::string> assumptions;

  [[nodiscard]] double data_ranks() const { return dp * cp; }
};

struct DescribedRun {
  TrainingRun run;
  std::string problem;         ///< what is wrong with its model, system, batch or precision
  std::string layout_problem;  ///< why its layout does not fit them

  /// Why the run cannot be predicted; "" if it can.
  [[nodiscard]] std::string problems() const {
    return problem.empty() || layout_problem.empty() ? problem + layout_problem : problem + "\n" + layout_problem;
  }
};

/// A wrong model or system is a problem of the runs that name it. Throws ConfigError for a file that cannot be read or
/// lacks a section.
std::vector<DescribedRun> read_runs(const std::string& file);

}  // namespace accel::predict
