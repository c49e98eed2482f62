#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/data_loader_configuration.hpp"

namespace accel::programs {

/// One question of `sim-run plan`: which sample every rank reads, step by step, where loaders are configured like this.
/// The dataset's sample i is the number i.
struct PlanRequest : DataLoaderConfiguration {
  std::int64_t length = 0;
  std::int64_t batch_size = 1;
  int ranks = 1;
  bool iterable = false;  ///< a stream of no known length
  bool drop_last = false, shuffle = false;
  std::int64_t seed = 0;  ///< given to set_seed before the loader is made
  int epochs = 1;
  std::int64_t skip_batches = 0;  ///< skip_first_batches, in the first epoch only

  [[nodiscard]] DataLoaderConfiguration& configuration() { return *this; }
  [[nodiscard]] const DataLoaderConfiguration& configuration() const { return *this; }
  [[nodiscard]] bool dispatches() const { return dispatch_batches.value_or(iterable); }
  /// Whether metrics are gathered: else ranks may differ in their number of steps.
  [[nodiscard]] bool gathers() const { return even_batches || ranks == 1 || dispatch_batches.value_or(false); }
};

/// The fields that describe a loader.
template <FieldsOf<PlanRequest> Request, typename Visit>
void for_each_loader_field(Request& request, Visit&& visit) {
  visit(Field{.name = "length",
              .rule = at_least_zero,
              .is_required = true,
              .flag = "--length",
              .help = "Number of samples; sample i is the number i"},
        request.length);
  visit(Field{.name = "batch_size", .is_required = true, .flag = "--batch-size", .help = "Samples of a batch"},
        request.batch_size);
  visit(Field{.name = "iterable", .flag = "--iterable", .help = "A stream of no known length"}, request.iterable);
  visit(Field{.name = "drop_last", .flag = "--drop-last", .help = "Drop the last batch if it is short"},
        request.drop_last);
  visit(Field{.name = "shuffle", .flag = "--shuffle", .help = "Shuffle every epoch"}, request.shuffle);
  visit(Field{.name = "seed", .flag = "--seed", .help = "Given to set_seed"}, request.seed);
  for_each_field(request.configuration(), [&](const Field& field, auto& value) {
    if (field.flag != nullptr) visit(field, value);
  });
}

/// The fields of a request, of which those that describe a loader are the first.
template <FieldsOf<PlanRequest> Request, typename Visit>
void for_each_field(Request& request, Visit&& visit) {
  for_each_loader_field(request, visit);
  visit(Field{.name = "ranks", .rule = at_least_one, .is_required = true, .flag = "--ranks", .help = "Number of ranks"},
        request.ranks);
  visit(Field{.name = "epochs", .rule = at_least_zero, .flag = "--epochs", .help = "Number of epochs"}, request.epochs);
  visit(Field{.name = "skip_batches",
              .rule = at_least_zero,
              .flag = "--skip-batches",
              .help = "skip_first_batches, in the first epoch"},
        request.skip_batches);
}

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
