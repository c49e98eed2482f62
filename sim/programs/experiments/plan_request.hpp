#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/plugins/data_loader_configuration.hpp"

namespace accel::programs {

/// A request to `sim-run plan`: which samples each rank reads, step by step, with loaders configured like this. Sample
/// i of the dataset is the number i.
struct PlanRequest : DataLoaderConfiguration {
  std::int64_t length = 0;
  std::int64_t batch_size = 1;
  int ranks = 1;
  bool iterable = false;  ///< a stream of unknown length
  bool drop_last = false, shuffle = false;
  std::int64_t seed = 0;  ///< passed to set_seed before the loader is created
  int epochs = 1;
  std::int64_t skip_batches = 0;  ///< skip_first_batches, in the first epoch only

  [[nodiscard]] DataLoaderConfiguration& configuration() { return *this; }
  [[nodiscard]] const DataLoaderConfiguration& configuration() const { return *this; }
  [[nodiscard]] bool dispatches() const { return dispatch_batches.value_or(iterable); }
  /// Whether metrics are gathered. If not, ranks may have different numbers of steps, and a gather would hang.
  [[nodiscard]] bool gathers() const { return even_batches || ranks == 1 || dispatch_batches.value_or(false); }
};

/// Visits the fields that describe a loader.
template <FieldsOf<PlanRequest> Request, typename Visit>
void for_each_loader_field(Request& request, Visit&& visit) {
  visit(Field{.name = "length",
              .rule = at_least_zero,
              .is_required = true,
              .flag = "--length",
              .help = "Number of samples; sample i is the number i"},
        request.length);
  visit(Field{.name = "batch_size", .is_required = true, .flag = "--batch-size", .help = "Samples per batch"},
        request.batch_size);
  visit(Field{.name = "iterable", .flag = "--iterable", .help = "Read a stream of unknown length"}, request.iterable);
  visit(Field{.name = "drop_last", .flag = "--drop-last", .help = "Drop the last batch if it is short"},
        request.drop_last);
  visit(Field{.name = "shuffle", .flag = "--shuffle", .help = "Shuffle every epoch"}, request.shuffle);
  visit(Field{.name = "seed", .flag = "--seed", .help = "Seed passed to set_seed"}, request.seed);
  for_each_field(request.configuration(), [&](const Field& field, auto& value) {
    if (field.flag != nullptr) visit(field, value);
  });
}

/// Visits all fields of a request, those that describe a loader first.
template <FieldsOf<PlanRequest> Request, typename Visit>
void for_each_field(Request& request, Visit&& visit) {
  for_each_loader_field(request, visit);
  visit(Field{.name = "ranks", .rule = at_least_one, .is_required = true, .flag = "--ranks", .help = "Number of ranks"},
        request.ranks);
  visit(Field{.name = "epochs", .rule = at_least_zero, .flag = "--epochs", .help = "Number of epochs"}, request.epochs);
  visit(Field{.name = "skip_batches",
              .rule = at_least_zero,
              .flag = "--skip-batches",
              .help = "Batches that skip_first_batches skips, in the first epoch"},
        request.skip_batches);
}

/// Batches of sample numbers: [step][place].
using PlanBatches = std::vector<std::vector<std::int64_t>>;

struct PlanEpoch {
  std::vector<PlanBatches> ranks;       ///< [rank][step][place]
  std::vector<bool> end_of_dataloader;  ///< per step of rank 0
  std::optional<PlanBatches>
      gathered_for_metrics;              ///< per step of rank 0; empty if ranks may have different numbers of steps
  std::vector<std::int64_t> duplicated;  ///< every repeated read, in order of issue
  std::vector<std::int64_t> dropped;     ///< samples that no rank reads; skipped batches do not count
};

/// Parses a request. Throws ConfigError with all problems: not a JSON object, unknown or missing keys, wrong types,
/// impossible numbers.
PlanRequest read_plan_request(const std::string& json);
/// Returns one line per impossible number of a request that was not parsed from JSON.
std::vector<std::string> problems_of(const PlanRequest& request);

nlohmann::ordered_json to_json(const std::vector<PlanEpoch>& epochs);

}  // namespace accel::programs
