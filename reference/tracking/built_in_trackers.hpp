#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/tracking/mlflow_tracker.hpp"
#include "reference/tracking/tensorboard_tracker.hpp"
#include "reference/tracking/text_trackers.hpp"

/// The trackers that `log_with` accepts by name, in one table.
///
///     for (const auto& tracker : kBuiltInTrackers) names.push_back(tracker.name);
///
/// To add a tracker, write its header and source, and list them here and in reference/CMakeLists.txt. `log_with`,
/// "all", init_trackers, messages and <accel/tracking.hpp> follow from the row. Thread rule: constants.
namespace accel::tracking {

/// Adds every option to `problems`.
void refuse_options(const std::string& tracker, const Value::Dict& kwargs, std::vector<std::string>& problems);

/// `read_options`: reads the argument of the tracker's constructor; null: there are no options.
template <typename Tracker, auto read_options = nullptr>
std::shared_ptr<GeneralTracker> make_tracker(const Value::Dict& kwargs, std::vector<std::string>& problems) {
  if constexpr (std::is_null_pointer_v<decltype(read_options)>) {
    auto tracker = std::make_shared<Tracker>();
    refuse_options(tracker->name(), kwargs, problems);
    return tracker;
  } else {
    return std::make_shared<Tracker>(read_options(kwargs, problems));
  }
}

}  // namespace accel::tracking

namespace accel {

struct BuiltInTracker {
  const char* name;
  /// Creates a tracker with its options of init_trackers. Adds what is wrong with them to `problems`.
  std::shared_ptr<GeneralTracker> (*make)(const Value::Dict& kwargs, std::vector<std::string>& problems);
  bool is_in_logging_dir = false;  ///< requires that folder, and "all" includes it
  bool has_artifacts = false;      ///< has log_figure, log_artifact and log_artifacts
};

inline constexpr BuiltInTracker kBuiltInTrackers[] = {
    {"tensorboard", tracking::make_tracker<TensorBoardTracker, tensorboard_options>, /*is_in_logging_dir=*/true},
    {"jsonl", tracking::make_tracker<JsonLinesTracker>, /*is_in_logging_dir=*/true},
    {"csv", tracking::make_tracker<CsvTracker>, /*is_in_logging_dir=*/true},
    // MLflow's folder is elsewhere, so the tracker must be named.
    {"mlflow", tracking::make_tracker<MLflowTracker, mlflow_options>, /*is_in_logging_dir=*/false,
     /*has_artifacts=*/true},
};

}  // namespace accel
