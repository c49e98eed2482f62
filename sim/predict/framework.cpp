#include "sim/predict/framework.hpp"

#include <algorithm>

#include "sim/predict/input_rules.hpp"

namespace accel::predict {

const std::vector<Framework>& frameworks() {
  static const std::vector<Framework> kFrameworks = [] {
    const Framework megatron{.name = "megatron",
                             .summary = "Megatron-LM of 2021 and its descendants: collectives are not overlapped",
                             .titles = {"Megatron-LM", "Reducing Activation Recomputation", "Zero Bubble", "vTrain"},
                             .has_dropout = true};
    auto megatron_deepspeed = megatron;
    megatron_deepspeed.name = "megatron_deepspeed";
    megatron_deepspeed.summary = "Megatron-DeepSpeed: gradients in bf16 are added to float32 by separate kernels";
    megatron_deepspeed.gradient_bytes = 6;
    megatron_deepspeed.titles = {"bigscience", "BLOOM", "Megatron-DeepSpeed"};
    auto megatron_llama = megatron;
    megatron_llama.name = "megatron_llama";
    megatron_llama.summary = "pipelines in Megatron's manner without dropout and with unfused activations";
    megatron_llama.titles = {"Efficient Parallelization Layouts"};
    megatron_llama.has_dropout = false;
    megatron_llama.fuses_activation = false;
    megatron_llama.gradient_bytes = 2;
    const Framework megatron_core{
        .name = "megatron_core",
        .summary = "Megatron-Core, NeMo: gradients, parameters, tensor parallelism and messages are overlapped",
        .titles = {"Megatron-Bridge", "MLPerf", "dgxc", "performance recipes", "NeMo"},
        .attention = AttentionKernel::kCudnn,
        .tensor_visible = 0.35,
        .message_visible = 0.3,
        .gradient_visible = 0.1,
        .gradient_cover = 0.8,
        .parameter_visible = 0.1,
        .parameter_cover = 0.8,
        .sends_tokens_once_per_node = true,
        .loss_bytes = 10};
    auto deepseek = megatron_core;
    deepseek.name = "deepseek";
    deepseek.summary = "DeepSeek's own: tokens travel in fp8 to at most 4 nodes, while DualPipe computes";
    deepseek.titles = {"DeepSeek-V3"};
    deepseek.expert_visible = 0.15;
    deepseek.most_expert_nodes = 4;
    deepseek.dispatch_bytes = 1;
    const Framework fsdp{.name = "fsdp",
                         .summary = "PyTorch FSDP without compilation",
                         .titles = {"FSDP"},
                         .attention = AttentionKernel::kFlash2,
                         .norm_passes = 1.3,
                         .fuses_activation = false,
                         .gradient_visible = 0.06,
                         .gradient_cover = 1,
                         .parameter_visible = 0.06,
                         .parameter_cover = 1,
                         .gradient_bytes = 4,
                         .gradient_message_bytes = 2,
                         .parameter_bytes = 4,
                         .master_bytes = 0};
    auto llm_foundry = fsdp;
    llm_foundry.name = "llm_foundry";
    llm_foundry.summary = "PyTorch FSDP with Triton's version of the first FlashAttention";
    llm_foundry.titles = {"llm-foundry", "MPT"};
    llm_foundry.attention = AttentionKernel::kFlash1;
    auto torchtitan = fsdp;
    torchtitan.name = "torchtitan";
    torchtitan.summary = "PyTorch FSDP2 with torch.compile; gradients are reduced in float32";
    torchtitan.titles = {"torchtitan"};
    torchtitan.norm_passes = 1;
    torchtitan.fuses_activation = true;
    torchtitan.compiles = true;
    torchtitan.gradient_message_bytes = 4;
    const Framework internevo{.name = "internevo",
                              .summary = "InternEvo: a sharded optimizer with overlapped gradients",
                              .titles = {"InternEvo", "InternLM"},
                              .attention = AttentionKernel::kFlash2,
                              .fuses_activation = false,
                              .gradient_visible = 0.1,
                              .gradient_cover = 0.7,
                              .parameter_visible = 0.2,
                              .parameter_cover = 0.5,
                              .gradient_bytes = 2,
                              .gradient_message_bytes = 2};
    const Framework nanotron{.name = "nanotron",
                             .summary = "nanotron: gradients overlap the backward pass, nothing else does",
                             .titles = {"nanotron", "Ultra-Scale Playbook"},
                             .attention = AttentionKernel::kFlash2,
                             .fuses_activation = false,
                             .gradient_visible = 0.1,
                             .gradient_cover = 0.7};
    const Framework deepspeed{
        .name = "deepspeed",
        .summary = "DeepSpeed ZeRO 3 of 2021: each tensor is gathered alone, through one card of a node",
        .titles = {"DeepSpeed"},
        .has_dropout = true,
        .gradient_visible = 0.06,
        .gradient_cover = 1,
        .parameter_visible = 0.06,
        .parameter_cover = 1,
        .gradient_bytes = 2,
        .gradient_message_bytes = 2,
        .shard_gathers_per_layer = 12,
        .shards_through_one_card = true};
    return std::vector<Framework>{megatron,   megatron_deepspeed, megatron_llama, megatron_core, fsdp,    llm_foundry,
                                  torchtitan, internevo,          nanotron,       deepspeed,     deepseek};
  }();
  return kFrameworks;
}

const Framework* find_framework(std::string_view name) {
  const auto& all = frameworks();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const Framework* framework_of_title(std::string_view given) {
  const auto title = lowercase(std::string(given));
  const Framework* best = nullptr;
  std::size_t longest = 0;  // the longest words are the most specific ones
  for (const auto& framework : frameworks()) {
    for (const auto& words : framework.titles) {
      if (words.size() > longest && contains(title, lowercase(std::string(words))))
        best = &framework, longest = words.size();
    }
  }
  return best;
}

}  // namespace accel::predict
