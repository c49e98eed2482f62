#pragma once

#include <memory>

#include "reference/tracking/event_file.hpp"
#include "reference/tracking/general_tracker.hpp"
#include "reference/tracking/growing_file.hpp"

namespace accel {

/// One JSON object a line, in logging_dir/project_name.jsonl: {"step": 7, "time": 1760000000.25, "values": {"loss":
/// 0.5}}, or {"time": ..., "config": {...}} where a run begins. A later run adds to the file.
///
/// All values are taken; NaN and infinities are strings, tensors lists. A line has left the process when the call
/// returns; a line that a crash cut is dropped when the file is next opened.
class JsonLinesTracker final : public GeneralTracker {
 public:
  explicit JsonLinesTracker(tracking::Clock clock = tracking::system_seconds) : clock_(std::move(clock)) {}
  [[nodiscard]] std::string name() const override { return "jsonl"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start(const Run& run) override;
  void store_init_configuration(const Value::Dict& values) override;
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override;
  void finish() override;

 private:
  void write(Value::Dict line);

  tracking::Clock clock_;
  std::shared_ptr<Files> disk_;
  std::unique_ptr<tracking::GrowingFile> file_;
};

}  // namespace accel
