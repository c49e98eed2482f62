#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reference/files/files.hpp"
#include "reference/tracking/appendable_file.hpp"
#include "reference/tracking/event_file.hpp"
#include "reference/tree/value.hpp"

namespace accel::tracking {

/// Returns why MLflow rejects the name of a metric, parameter or tag; empty if it accepts it.
/// Source: mlflow/utils/validation.py.
std::string mlflow_name_problem(const std::string& name);

/// Returns the path of a tracking URI that is a path or has the scheme file; nullopt for other schemes.
std::optional<std::string> path_of_uri(const std::string& uri);
/// Returns the URI of an absolute path, with scheme file.
std::string file_uri(const std::string& path);

/// Formats a value like Python's str, as MLflow stores parameters: None, True, 0.1, [1, 'a'].
std::string python_str(const Value& value);

/// The fields of a run's meta.yaml that do not change.
struct MlflowMeta {
  std::string run_id = {}, run_name = {}, experiment_id = {}, artifact_uri = {}, user_id = {};
  std::int64_t start_time = 0;
};

/// A run in MLflow's file store, which MLflow shows while it grows:
///
///     FOLDER/EXPERIMENT_ID/meta.yaml
///     FOLDER/EXPERIMENT_ID/RUN_ID/meta.yaml, metrics/NAME, params/NAME, tags/NAME
///
/// A metric's file has one line per value: milliseconds since 1970, value, step. Artifacts are in the folder of the
/// experiment's artifact_location, by default RUN_ID/artifacts.
///
/// Failures throw FileError. Thread rule: one thread. Source: mlflow/store/tracking/file_store.py of MLflow 3.17.
class MlflowRun {
 public:
  struct Options {
    std::string folder = "mlruns";
    std::string experiment_name = {};
    std::string artifact_location = {};  ///< of a new experiment; empty: the experiment's folder
    std::string run_id = {};             ///< of the run to continue; empty: a new run
    std::string run_name = {};           ///< of a new run; empty: one made of its id
    std::string description = {};
    std::map<std::string, std::string> tags = {};
    Clock clock = system_seconds;
  };

  /// Creates the experiment if there is none of this name, and creates or continues the run. Throws ArgumentError for a
  /// run_id that does not exist.
  MlflowRun(Files& files, Options options);
  void log_metric(const std::string& name, double value, std::int64_t time_ms, std::int64_t step);
  /// Throws ArgumentError if the run has another value under this name.
  void log_param(const std::string& name, const std::string& value);
  void set_tag(const std::string& name, const std::string& value);
  /// Writes a file of the artifacts; `name` may contain folders.
  void log_artifact(const std::string& name, std::string_view bytes);
  /// Marks the run as finished.
  void finish();

 private:
  struct Metric {
    std::unique_ptr<AppendableFile> file = {};
    std::int64_t last_use = 0;
  };
  [[nodiscard]] std::int64_t now_ms() const;
  std::string find_experiment();
  void create_experiment(const std::string& id);
  void create_run(const std::string& experiment_id);
  void write_meta(int status, const Value& end_time);
  void write(const std::string& path, std::string_view text);
  Metric& opened(const std::string& name);

  Files& files_;
  Options options_;
  MlflowMeta meta_;
  std::string folder_;                     // of the run
  std::map<std::string, Metric> metrics_;  // the open ones
  std::int64_t num_logged_ = 0;
};

/// Throws ArgumentError where MlflowRun would for a run to continue, and `log_param` for its `params`. Reads only.
/// Accepts everything if the folder does not exist on this machine.
void check_continued_run(Files& files, const MlflowRun::Options& options,
                         const std::map<std::string, std::string>& params);

}  // namespace accel::tracking
