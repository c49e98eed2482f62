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

struct ReadRun {
  predict::TrainingRun run;
  std::string problem;  ///< all of them
};

inline std::vector<ReadRun> read_file(const std::string& file) {
  std::vector<ReadRun> runs;
  for (const auto& described : predict::read_runs(file)) runs.push_back({described.run, described.problems()});
  return runs;
}

inline std::vector<ReadRun> read_text(const std::string& text) {
  const TemporaryFolder folder;
  return read_file(folder.write("runs.yaml", text));
}

inline std::vector<ReadRun> published_runs() {
  return read_file(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/published_runs.yaml");
}

}  // namespace accel::testing
