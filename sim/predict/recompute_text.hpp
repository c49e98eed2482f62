#pragma once

#include <string>

#include "sim/predict/training_run.hpp"

namespace accel::predict {

/// Reads the words of a source about recomputation: none, selective (attention), selective_op (every second product and
/// what lies between, as torchtitan does), full, "full 20 of 80 layers", "block 20", or parts joined by + or commas:
/// core_attn, layernorm, moe_act, mlp, moe, shared_experts, mla_up_proj. Returns false if a word is unknown.
[[nodiscard]] bool read_recompute(const std::string& text, int num_layers, Recomputation& recompute);

}  // namespace accel::predict
