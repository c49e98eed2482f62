#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/tracking/general_tracker.hpp"

namespace accel {

struct BuiltInTracker;

struct GetTrackerOptions {
  bool unwrap = false;  ///< return the tracker that the named one wraps: see GeneralTracker::tracker
};

/// The trackers of a run. Implements Accelerator's init_trackers, log, get_tracker and end_training.
///
///     Trackers trackers(context, {"tensorboard", "csv"}, "runs");
///     trackers.init_trackers("mnist", Value::Dict{{"lr", 0.1}});
///     trackers.log({{"loss", 0.5}, {"acc", Value::Dict{{"train", 0.8}, {"test", 0.7}}}}, /*step=*/10);
///     trackers.end_training();
///
/// Every rank has an instance and makes the same calls. A tracker acts where it is active, by default on rank 0, and
/// errors of writing are thrown there. Thread rule: the rank's thread.
/// Source: accelerate/tracking.py, filter_trackers; accelerate/accelerator.py.
class Trackers {
 public:
  /// Throws ConfigError on every rank, which lists all problems: unknown names with the most similar known names,
  /// trackers of Accelerate that this library lacks, and trackers that require a logging directory if there is none. A
  /// repeated name counts once. "all" adds the trackers that write to the logging directory.
  Trackers(RankContext& context, const std::vector<LogWith>& log_with, std::optional<std::string> logging_dir);
  ~Trackers();
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// Starts a run and stores its configuration, if any. `init_kwargs` are options by tracker, such as those that
  /// tensorboard_options describes.
  /// Throws on every rank: ConfigError for other options, ArgumentError for a configuration that a tracker cannot
  /// store.
  void init_trackers(const std::string& project_name, const std::optional<Value::Dict>& config = std::nullopt,
                     const Value::Dict& init_kwargs = {});
  /// `log_kwargs` are options of this call by tracker, such as {"tensorboard", {{"walltime", 1000.5}}}. Throws
  /// ArgumentError on every rank for other options: see GeneralTracker::check_log_kwargs.
  void log(const Value::Dict& values, std::optional<std::int64_t> step = std::nullopt,
           const Value::Dict& log_kwargs = {});
  void log_images(const std::map<std::string, at::Tensor>& values, std::optional<std::int64_t> step = std::nullopt);
  /// Returns the tracker of a name in this run; the next run has a new object. On ranks where the tracker is inactive,
  /// returns one that does nothing. Throws ArgumentError for an unknown name.
  [[nodiscard]] GeneralTracker& get_tracker(const std::string& name, const GetTrackerOptions& options = {});
  /// Finishes all trackers, even if one of them throws. The first error is thrown at the end.
  void end_training();

 private:
  struct Entry {
    std::string name = {};
    std::shared_ptr<GeneralTracker> tracker = {};  // null for a built-in one before its first run; new for each run
    const BuiltInTracker* built_in = nullptr;
  };
  [[nodiscard]] std::vector<std::string> problems_of_kwargs(const Value::Dict& kwargs) const;
  [[nodiscard]] bool is_active(const GeneralTracker& tracker) const;
  template <typename F>
  void for_each_active(F&& call);

  RankContext& context_;
  std::string logging_dir_;
  std::vector<Entry> entries_;
  std::shared_ptr<GeneralTracker> blank_;
  bool is_started_ = false;
};

/// Returns the names that `log_with` accepts, those most similar to `name` first.
std::vector<std::string> nearest_trackers(const std::string& name);

}  // namespace accel
