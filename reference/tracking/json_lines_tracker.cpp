#include "reference/tracking/json_lines_tracker.hpp"

#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel {

void JsonLinesTracker::start(const Run& run) {
  disk_ = run.context.files;
  const std::filesystem::path path = run.logging_dir + "/" + run.project_name + ".jsonl";
  disk_->make_folder(path.parent_path().string());
  file_ = std::make_unique<tracking::GrowingFile>(*disk_, path.string());
}

void JsonLinesTracker::write(Value::Dict line) {
  check_state(file_ != nullptr,
              "jsonl: the tracker is not started; call init_trackers first, and nothing after end_training");
  line["time"] = clock_();
  file_->append(tracking::json_text(line) + "\n");
}

void JsonLinesTracker::store_init_configuration(const Value::Dict& values) { write({{"config", values}}); }

void JsonLinesTracker::log(const Value::Dict& values, std::optional<std::int64_t> step) {
  write({{"step", step ? Value(*step) : Value()}, {"values", values}});
}

void JsonLinesTracker::finish() {
  if (file_) file_->close();
  file_.reset();
}

}  // namespace accel
