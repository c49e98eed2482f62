#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace accel::programs {

/// One question of `sim-run plan`: which sample every rank reads, step by step. The dataset's sample i is the number i.
struct PlanRequest {
  std::int64_t length = 0;
  std::int64_t batch_size = 1;
  int ranks = 1;
  bool iterable = false;  ///< a stream of no known length
  bool drop_last = false, shuffle = false;
  std::int64_t seed = 0;  ///< given to set_seed before the loader is made
  std::optional<std::int64_t> data_seed;
  int epochs = 1;
  bool split_batches = false, even_batches = true;
  std::optional<bool> dispatch_batches;
  bool use_seedable_sampler = false;
  std::int64_t skip_batches = 0;  ///< skip_first_batches, in the first epoch only
  bool elastic = false;  ///< order: elastic, of an experiment: every step is a full one; only its counts are answered

  [[nodiscard]] bool dispatches() const { return dispatch_batches.value_or(iterable); }
  /// Whether a short last step is filled up, where every rank reads: a stream's always is.
  [[nodiscard]] bool fills_up() const { return even_batches || iterable; }
  /// Whether metrics are gathered: else ranks may differ in their number of steps.
  [[nodiscard]] bool gathers() const { return even_batches || ranks == 1 || dispatch_batches.value_or(false); }
};

/// Batches of sample numbers: [step][place].
using PlanBatches = std::vector<std::vector<std::int64_t>>;

struct PlanEpoch {
  std::vector<PlanBatches> ranks;       ///< [rank][step][place]
  std::vector<bool> end_of_dataloader;  ///< per step of rank 0
  std::optional<PlanBatches>
      gathered_for_metrics;              ///< per step of rank 0; nothing where ranks may differ in their steps
  std::vector<std::int64_t> duplicated;  ///< each further occurrence, in order of issue
  std::vector<std::int64_t> dropped;     ///< what no rank read; skipped batches do not count
};

/// Throws ConfigError with all problems: no JSON, no object, unknown or missing keys, wrong types, impossible numbers.
PlanRequest read_plan_request(const std::string& json);
/// What is impossible about the numbers of a request made by hand, one line each.
std::vector<std::string> problems_of(const PlanRequest& request);

nlohmann::ordered_json to_json(const std::vector<PlanEpoch>& epochs);

}  // namespace accel::programs
