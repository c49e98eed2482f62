#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/tracking/general_tracker.hpp"
#include "reference/tracking/logging.hpp"
#include "reference/tracking/mlflow_run.hpp"

namespace accel {

/// Writes MLflow's file store without Python or MLflow. `mlflow ui --backend-store-uri FOLDER` shows it while it grows;
/// MLflow 3 also requires the variable MLFLOW_ALLOW_FILE_STORE=true.
///
/// The folder is that of the variable MLFLOW_TRACKING_URI (a path or a file: URI), else mlruns in the working folder.
/// The project is the experiment. The configuration becomes parameters; one of more than 6000 characters is omitted
/// with a warning. Numbers and tensors of shape [] become metrics; other values are omitted with a warning. Accelerate
/// omits tensors too. The option `timestamp` of log, in milliseconds since 1970, replaces the time of its values.
///
/// Source: accelerate/tracking.py, MLflowTracker.
class MLflowTracker final : public GeneralTracker {
 public:
  using Options = tracking::MlflowRun::Options;

  explicit MLflowTracker(Options options) : options_(std::move(options)) {}
  [[nodiscard]] std::string name() const override { return "mlflow"; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
  void check_init_configuration(const Value::Dict& values) const override;
  void check_start(const Run& run, const Value::Dict& config) const override;
  void start(const Run& run) override;
  void store_init_configuration(const Value::Dict& values) override;
  void check_log(const Value::Dict& values) const override;
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override;
  void check_log_kwargs(const Value::Dict& kwargs) const override;
  void log_with_kwargs(const Value::Dict& values, std::optional<std::int64_t> step, const Value::Dict& kwargs) override;
  /// `artifact_file` must end in ".png".
  void log_figure(const at::Tensor& figure, const std::string& artifact_file) override;
  void log_artifact(const std::string& local_path, const std::string& artifact_path) override;
  void log_artifacts(const std::string& local_dir, const std::string& artifact_path) override;
  void finish() override;

 private:
  tracking::MlflowRun& run();
  void copy_folder(const std::string& from, const std::string& to);

  Options options_;
  std::optional<logging::Logger> logger_;
  std::shared_ptr<Files> disk_;
  std::unique_ptr<tracking::MlflowRun> run_;
};

/// Reads the options of init_trackers (logging_dir, run_id, tags, nested_run, run_name, description) and the variables
/// that override them (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS). Adds what is wrong to
/// `problems`. nested_run has no effect, because a tracker never starts within another run.
MLflowTracker::Options mlflow_options(const Value::Dict& kwargs, std::vector<std::string>& problems);

}  // namespace accel
