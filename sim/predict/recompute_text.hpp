#pragma once

#include <string>

#include "sim/predict/training_run.hpp"

namespace accel::predict {

/// Reads what a source says about recomputation: none, selective (attention), selective_op (every second product and
/// what lies between, as torchtitan does), full, "full 20 of 80 layers", or names of parts joined by + or commas:
/// layernorm, moe_act, mlp, moe, core_attn. Returns false if the text names nothing that is known.
[[nodiscard]] bool read_recompute(const std::string& text, int num_layers, Recomputation& recompute);

}  // namespace accel::predict
