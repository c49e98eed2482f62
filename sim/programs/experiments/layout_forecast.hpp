#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "sim/network/network.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/experiments/task.hpp"
#include "sim/programs/layouts/rank_costs.hpp"

namespace accel::programs {

/// What an experiment costs under a mesh of ranks.
struct LayoutForecast {
  ParallelismConfig layout = {};
  std::string problem = {};  ///< why the layout does not fit; "" if it does
  std::string command = {};  ///< for a shell: runs the layout on all ranks
  RankCosts costs = {};
  /// The peaks of the kinds of the memory account, which need not come at one time; none for a user program.
  std::vector<std::pair<std::string, std::int64_t>> memory = {};
};

/// Predicts step time and memory per rank of an experiment under meshes, without running all ranks.
///
///     LayoutForecaster forecast("char_gpt.yaml", {}, /*num_ranks=*/64, "infiniband_400g.yaml");
///     const auto costs = forecast({.dp_replicate_size = 16, .tp_size = 4});
///
/// See rank_costs. All layouts compute the same samples per step: the experiment's batch size is per rank, and batches
/// of all ranks are split. Thread rule: one thread at a time.
class LayoutForecaster {
 public:
  /// Throws ConfigError with all problems of the files.
  LayoutForecaster(std::string experiment, std::vector<std::string> overrides, int num_ranks,
                   const std::string& network);

  LayoutForecast operator()(const ParallelismConfig& layout);
  /// The overrides `key.path=value` with which sim-run trains the experiment under this layout.
  [[nodiscard]] std::vector<std::string> overrides_of(const ParallelismConfig& layout) const;

 private:
  [[nodiscard]] Experiment shortened(const ParallelismConfig& layout) const;

  std::string file_;
  std::vector<std::string> overrides_;
  int num_ranks_;
  sim::Network network_;
  Experiment experiment_;
  Task task_;
};

}  // namespace accel::programs
