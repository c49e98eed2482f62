#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/comparison/recording.hpp"

namespace accel::programs {

/// One pass of a rank over one of its loaders.
struct LoaderPass {
  std::string loader;                     ///< the line that makes it, "train.py:31"
  int number = 1;                         ///< of the pass, from 1
  std::optional<std::int64_t> size = {};  ///< samples of the dataset; none: unknown
  std::optional<std::int64_t> batch_size = {};
  bool drops_last = false, shuffles = false, is_divided = false;
  bool begins_inside = false;  ///< of an epoch: it continues a saved one, or skips batches
  std::vector<std::vector<std::string>> batches =
      {};                    ///< the samples: their indices, or "#" and a hash of their content
  bool is_complete = false;  ///< the loader had no more batches
  bool trains = false;       ///< a backward pass followed a batch

  [[nodiscard]] std::vector<std::string> samples() const;
};

/// The state of the default generator after an update.
struct GeneratorState {
  std::string value;
  bool is_drawn = false;  ///< training has drawn numbers since the update before, which belongs to the same pass
};
std::vector<GeneratorState> generator_states_of(const RankRecording& rank);

/// The passes of a rank, in the order of their begins.
std::vector<LoaderPass> passes_of(const RankRecording& rank);

}  // namespace accel::programs
