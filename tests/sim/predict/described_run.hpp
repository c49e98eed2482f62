#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "sim/predict/step_prediction.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {

/// A run of 8 GPUs that has every kind of parallelism off.
inline predict::TrainingRun small_run() {
  return {.id = "small",
          .model = {.layers = 16,
                    .hidden = 2048,
                    .heads = 16,
                    .kv_heads = 16,
                    .head_dim = 128,
                    .ffn = 8192,
                    .vocab = 32768,
                    .is_tied = true},
          .system = {.gpu = "a100_sxm4_80", .network_bytes_per_second_per_node = 200e9},
          .framework = "megatron",
          .gpus = 8,
          .seq = 2048,
          .gbs = 64,
          .mbs = 1,
          .micro_batches = 8,
          .dp = 8};
}

inline std::vector<predict::DescribedRun> read_text(const std::string& text) {
  const TemporaryFolder folder;
  return predict::read_runs(folder.write("runs.yaml", text));
}

inline std::vector<predict::DescribedRun> published_runs() {
  return predict::read_runs(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/published_runs.yaml");
}

}  // namespace accel::testing
