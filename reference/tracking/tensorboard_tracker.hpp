#pragma once

#include <map>
#include <memory>

#include "reference/tracking/event_file.hpp"
#include "reference/tracking/general_tracker.hpp"
#include "reference/tracking/logging.hpp"

namespace accel {

/// Writes event files for TensorBoard to logging_dir/project_name, without Python or TensorBoard.
///
/// Numbers and tensors of shape [] become scalars, strings become text, and a dict of numbers becomes a chart with one
/// curve per entry (in separate folders, like SummaryWriter.add_scalars). Other values are omitted with a warning;
/// Accelerate omits them silently. The configuration becomes hparams and a file hparams.yml. When a call returns, the
/// operating system has the data. For equal values, the bytes of events equal those of Python's tracker, except for the
/// order of names, which is alphabetical here, and for PNG data.
/// The option `walltime` of log, in seconds since 1970, replaces the time of its events.
/// Source: accelerate/tracking.py, TensorBoardTracker; torch/utils/tensorboard/writer.py.
class TensorBoardTracker final : public GeneralTracker {
 public:
  using Options = tracking::EventFile::Options;

  explicit TensorBoardTracker(Options options = {{}, std::nullopt, tracking::system_seconds});
  ~TensorBoardTracker() override;
  [[nodiscard]] std::string name() const override { return "tensorboard"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void check_init_configuration(const Value::Dict& values) const override;
  void start(const Run& run) override;
  void store_init_configuration(const Value::Dict& values) override;
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override;
  void check_log_kwargs(const Value::Dict& kwargs) const override;
  void log_with_kwargs(const Value::Dict& values, std::optional<std::int64_t> step, const Value::Dict& kwargs) override;
  void log_images(const std::map<std::string, at::Tensor>& values, std::optional<std::int64_t> step) override;
  void finish() override;

 private:
  tracking::EventFile& file_of(const std::string& subfolder);
  void log_value(const std::string& key, const Value& value, const tracking::EventTime& time);
  void flush();

  Options options_;
  std::string folder_;
  std::optional<logging::Logger> logger_;
  std::shared_ptr<Files> disk_;
  std::map<std::string, std::unique_ptr<tracking::EventFile>>
      files_;  // by subfolder of folder_; "" is the run's main file
};

/// Reads the options of init_trackers: `filename_suffix` and `purge_step`; `max_queue` and `flush_secs` have no effect,
/// because every call flushes. Adds what is wrong to `problems`.
TensorBoardTracker::Options tensorboard_options(const Value::Dict& kwargs, std::vector<std::string>& problems);

}  // namespace accel
