#include "sim/programs/experiments/described_experiment.hpp"

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

predict::ModelShape shape_of(const models::GptOptions& gpt) {
  predict::ModelShape shape{.layers = static_cast<int>(gpt.layers),
                            .hidden = static_cast<double>(gpt.width),
                            .heads = static_cast<double>(gpt.heads),
                            .kv_heads = static_cast<double>(gpt.key_value_heads.value_or(gpt.heads)),
                            .head_dim = static_cast<double>(gpt.head_width.value_or(gpt.width / gpt.heads)),
                            .ffn = static_cast<double>(gpt.feed_forward_width.value_or(4 * gpt.width)),
                            .is_gated = gpt.feed_forward == "swiglu",
                            .vocab = static_cast<double>(gpt.vocab_size),
                            .is_tied = gpt.tied_output,
                            .learned_positions = gpt.positions == "learned" ? static_cast<double>(gpt.block_size) : 0};
  shape.experts = static_cast<int>(gpt.num_local_experts.value_or(0));
  if (shape.experts > 0) {
    shape.top_k = static_cast<double>(gpt.num_experts_per_tok);
    shape.moe_ffn = shape.ffn;
  }
  return shape;
}

}  // namespace

predict::TrainingRun described(const Experiment& experiment, int num_gpus, const std::string& gpu) {
  check_config(experiment.model.name == "gpt",
               "--gpu: the model '{}' has no description; expected gpt. Without --gpu, --network prices any model",
               experiment.model.name);
  const auto& accelerator = experiment.accelerator;
  predict::TrainingRun run{.id = experiment.task, .model = shape_of(experiment.model.gpt), .framework = "fsdp"};
  run.system.gpu = gpu;
  run.gpus = num_gpus;
  run.seq = static_cast<double>(experiment.model.gpt.block_size);
  const auto batches = static_cast<double>(experiment.batch_size * micro_batches_of(accelerator));
  run.gbs = accelerator.splits() ? batches : batches * num_gpus;
  const auto precision = accelerator.mixed_precision.value_or("no");
  run.precision = precision == "fp16"  ? predict::Precision::kFp16
                  : precision == "fp8" ? predict::Precision::kFp8
                                       : predict::Precision::kBf16;
  if (precision == "no") run.assumptions.emplace_back("precision bf16: the experiment has no mixed precision");
  return run;
}

}  // namespace accel::programs
