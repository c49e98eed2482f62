#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/tracking/general_tracker.hpp"

namespace accel {

/// The trackers of a run: what Accelerator's init_trackers, log, get_tracker and end_training do.
///
///     Trackers trackers(context, {"tensorboard", "csv"}, "runs");
///     trackers.init_trackers("mnist", Value::Dict{{"lr", 0.1}});
///     trackers.log({{"loss", 0.5}, {"acc", Value::Dict{{"train", 0.8}, {"test", 0.7}}}}, /*step=*/10);
///     trackers.end_training();
///
/// Every rank has one and makes the same calls; a tracker acts where it is active, rank 0 by default, and what it
/// cannot write is thrown there. Thread rule: the rank's thread. Source: accelerate/tracking.py, filter_trackers;
/// accelerate/accelerator.py.
class Trackers {
 public:
  /// Throws ConfigError, on every rank, with all that is wrong: names that are unknown, with those nearest to them, and
  /// a tracker that needs a logging directory where there is none. A name given twice counts once.
  Trackers(RankContext& context, const std::vector<LogWith>& log_with, std::optional<std::string> logging_dir);
  ~Trackers();
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// Begins a run, and stores its configuration if there is one. `init_kwargs` are options by tracker: of "tensorboard"
  /// `filename_suffix` and `purge_step`; `max_queue` and `flush_secs` are accepted, since every call flushes.
  /// Throws ConfigError for other options, ArgumentError for a configuration that a tracker cannot store; on every
  /// rank.
  void init_trackers(const std::string& project_name, const std::optional<Value::Dict>& config = std::nullopt,
                     const Value::Dict& init_kwargs = {});
  void log(const Value::Dict& values, std::optional<std::int64_t> step = std::nullopt);
  void log_images(const std::map<std::string, at::Tensor>& values, std::optional<std::int64_t> step = std::nullopt);
  /// The tracker of that name, of this run: the next one has another. Where it is not active, one that does nothing.
  /// Throws ArgumentError for a name that none has.
  [[nodiscard]] GeneralTracker& get_tracker(const std::string& name);
  /// Finishes all, also those behind one that throws; the first error is thrown in the end.
  void end_training();

 private:
  struct Entry {
    std::string name = {};
    std::shared_ptr<GeneralTracker> tracker = {};  // null for a built-in one until its first run; another for each
    bool is_built_in = false;
  };
  [[nodiscard]] bool is_active(const GeneralTracker& tracker) const;
  template <typename F>
  void for_each_active(F&& call);

  RankContext& context_;
  std::string logging_dir_;
  std::vector<Entry> entries_;
  std::shared_ptr<GeneralTracker> blank_;
  bool is_started_ = false;
};

/// Names that `log_with` may hold, those nearest to `name` first.
std::vector<std::string> nearest_trackers(const std::string& name);

}  // namespace accel
