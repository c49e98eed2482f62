#pragma once

#include <map>
#include <memory>

#include "reference/tracking/event_file.hpp"
#include "reference/tracking/general_tracker.hpp"
#include "reference/tracking/logging.hpp"

namespace accel {

/// Event files for TensorBoard, in logging_dir/project_name; no Python and no TensorBoard is needed to write them.
///
/// Numbers and tensors of shape [] become scalars, strings become text, a dict of numbers a chart with one curve for
/// each (a folder each, as SummaryWriter.add_scalars has it). Other values are left out, as in Accelerate; here a
/// warning says so. The configuration becomes hparams, and a file hparams.yml beside them. What is logged has left the
/// process when the call returns. Of equal values the bytes of events are those of Python's tracker but for the order
/// of names, here alphabetical, and for those of a PNG. Source: accelerate/tracking.py, TensorBoardTracker;
/// torch/utils/tensorboard/writer.py.
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
  void log_images(const std::map<std::string, at::Tensor>& values, std::optional<std::int64_t> step) override;
  void finish() override;

 private:
  tracking::EventFile& file_of(const std::string& subfolder);
  void log_value(const std::string& key, const Value& value, std::optional<std::int64_t> step);
  void flush();

  Options options_;
  std::string folder_;
  std::optional<logging::Logger> logger_;
  std::shared_ptr<Files> disk_;
  std::map<std::string, std::unique_ptr<tracking::EventFile>> files_;  // by folder below folder_; "" is the run's own
};

}  // namespace accel
