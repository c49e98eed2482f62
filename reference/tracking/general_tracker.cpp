#include "reference/tracking/general_tracker.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"
#include "reference/tracking/built_in_trackers.hpp"

namespace accel {
namespace {

[[noreturn]] void throw_missing(const GeneralTracker& tracker, const std::string& method, const std::string& way_out) {
  throw ArgumentError(fmt::format("{}: the tracker {} lacks it; {}override it in a tracker of your own", method,
                                  tracker.name(), way_out));
}

// "use the tracker NAME, or "; "" if no tracker has artifacts.
std::string use_one_of(std::vector<std::string> ways = {}) {
  for (const auto& tracker : kBuiltInTrackers) {
    if (tracker.has_artifacts) ways.push_back(fmt::format("the tracker {}", tracker.name));
  }
  return ways.empty() ? "" : fmt::format("use {}, or ", fmt::join(ways, ", or "));
}

}  // namespace

void GeneralTracker::check_log_kwargs(const Value::Dict& kwargs) const {
  std::vector<std::string> names;
  for (const auto& [key, value] : kwargs) names.push_back(key);
  check_argument(names.empty(), "log_kwargs: {}: unexpected option {}; the tracker has no options of log", name(),
                 fmt::join(names, ", "));
}

// Source: accelerate/tracking.py. Only WandBTracker and ClearMLTracker have log_table, which need a server, and only
// its MLflowTracker has the other methods.
void GeneralTracker::log_table(const std::string& /*table_name*/, const Table& /*table*/,
                               std::optional<std::int64_t> /*step*/) {
  throw_missing(*this, "log_table", "log the cells as single values, or ");
}
void GeneralTracker::log_figure(const at::Tensor& /*figure*/, const std::string& /*artifact_file*/) {
  throw_missing(*this, "log_figure", use_one_of({"log_images"}));
}
void GeneralTracker::log_artifact(const std::string& /*local_path*/, const std::string& /*artifact_path*/) {
  throw_missing(*this, "log_artifact", use_one_of());
}
void GeneralTracker::log_artifacts(const std::string& /*local_dir*/, const std::string& /*artifact_path*/) {
  throw_missing(*this, "log_artifacts", use_one_of());
}

}  // namespace accel
