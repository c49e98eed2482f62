#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/predict/attention_kernel.hpp"

/// What a training framework overlaps, fuses and stores. Predictions differ by these traits, never by run.
///
/// Thread rule: constants.
namespace accel::predict {

struct Framework {
  std::string_view name;
  std::string_view summary;
  std::vector<std::string_view> titles;  ///< words in the title of a source that stand for it
  // Kernels.
  AttentionKernel attention = AttentionKernel::kUnfused;  ///< if a run does not name another one
  bool has_dropout = false;      ///< masks of dropout after attention and MLP, as Megatron's default
  double norm_passes = 1;        ///< memory traffic of norms and residuals, relative to fused kernels
  bool fuses_activation = true;  ///< the activation is one kernel
  bool compiles = false;         ///< norms and residuals join their neighbours (torch.compile)
  // Overlap: the part of a communication that stays visible, and the part of the computation that can cover it.
  double tensor_visible = 1;   ///< of a tensor parallel collective
  double message_visible = 1;  ///< of a message between stages
  double gradient_visible = 1, gradient_cover = 0;
  double parameter_visible = 1, parameter_cover = 0;
  // Experts.
  double expert_visible = 1;                ///< of the exchange of tokens
  bool sends_tokens_once_per_node = false;  ///< a token crosses the network once per node, as DeepEP sends it
  int most_expert_nodes = 0;                ///< nodes that one token's experts are on; 0: no limit
  double dispatch_bytes = 2;                ///< per element that is sent to experts
  // Storage, bytes per parameter.
  double gradient_bytes = 4, gradient_message_bytes = 4;
  double parameter_bytes = 2;  ///< of what ranks hold permanently
  double master_bytes = 4;     ///< of the optimizer's own copy
  double loss_bytes = 14;      ///< that the loss reads and writes per logit, before the backward pass
  // Fully sharded data parallelism.
  double shard_gathers_per_layer = 1;    ///< collectives that gather a layer's parameters
  bool shards_through_one_card = false;  ///< one ring, so that one card of a node carries it
};

[[nodiscard]] const std::vector<Framework>& frameworks();
/// nullptr if there is none.
[[nodiscard]] const Framework* find_framework(std::string_view name);
/// The framework of a publication's title; nullptr if the title names none.
[[nodiscard]] const Framework* framework_of_title(std::string_view title);

}  // namespace accel::predict
