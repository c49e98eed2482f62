#include "reference/tracking/general_tracker.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

[[noreturn]] void throw_missing(const GeneralTracker& tracker, const std::string& method,
                                const std::string& who_has_it) {
  throw ArgumentError(fmt::format("{}: the tracker {} lacks it; {}, or override it in a tracker of your own", method,
                                  tracker.name(), who_has_it));
}

}  // namespace

void GeneralTracker::check_log_kwargs(const Value::Dict& kwargs) const {
  std::vector<std::string> names;
  for (const auto& [key, value] : kwargs) names.push_back(key);
  check_argument(names.empty(), "log_kwargs: {}: unexpected option {}; the tracker has no options of log", name(),
                 fmt::join(names, ", "));
}

// Source: accelerate/tracking.py. Only WandBTracker and ClearMLTracker have log_table, which need a server, and only
// MLflowTracker has the other methods.
void GeneralTracker::log_table(const std::string& /*table_name*/, const Table& /*table*/,
                               std::optional<std::int64_t> /*step*/) {
  throw_missing(*this, "log_table", "log the cells as single values");
}
void GeneralTracker::log_figure(const at::Tensor& /*figure*/, const std::string& /*artifact_file*/) {
  throw_missing(*this, "log_figure", "use log_images, or the tracker mlflow");
}
void GeneralTracker::log_artifact(const std::string& /*local_path*/, const std::string& /*artifact_path*/) {
  throw_missing(*this, "log_artifact", "use the tracker mlflow");
}
void GeneralTracker::log_artifacts(const std::string& /*local_dir*/, const std::string& /*artifact_path*/) {
  throw_missing(*this, "log_artifacts", "use the tracker mlflow");
}

}  // namespace accel
