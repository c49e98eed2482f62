#include "reference/tracking/csv_tracker.hpp"

#include <algorithm>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/csv_text.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel {

void CsvTracker::start(const Run& run) {
  disk_ = run.context.files;
  path_ = run.logging_dir + "/" + run.project_name;
  disk_->make_folder(std::filesystem::path(path_).parent_path().string());
  file_ = std::make_unique<tracking::GrowingFile>(*disk_, path_ + ".csv");
  const auto lines = file_->content();
  const auto table = tracking::whole_csv_rows(lines);
  columns_ = table.empty() ? std::vector<std::string>() : tracking::first_csv_row(table);
  if (table.size() < lines.size()) file_->replace(table);
  if (std::find(columns_.begin(), columns_.end(), "step") == columns_.end()) widen({"step"});
}

void CsvTracker::widen(const std::vector<std::string>& further) {
  if (further.empty()) return;
  file_->replace(tracking::widened_csv(file_->content(), further));
  columns_.insert(columns_.end(), further.begin(), further.end());
}

void CsvTracker::store_init_configuration(const Value::Dict& values) {
  write_atomically(*disk_, path_ + ".hparams.yml", tracking::yaml_text(values));
}

void CsvTracker::log(const Value::Dict& values, std::optional<std::int64_t> step) {
  check_state(file_ != nullptr,
              "csv: the tracker is not started; call init_trackers first, and nothing after end_training");
  auto cells = tracking::csv_cells(values);
  check_argument(!cells.contains("step") || !step,
                 "log: a value is named 'step', and so is csv's column of steps; rename it, or leave out the step");
  if (step) cells["step"] = std::to_string(*step);
  std::vector<std::string> further, row;
  for (const auto& [name, cell] : cells) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) further.push_back(name);
  }
  widen(further);
  for (const auto& column : columns_) row.push_back(cells.contains(column) ? cells.at(column) : "");
  file_->append(tracking::csv_row(row));
}

void CsvTracker::finish() {
  if (file_) file_->close();
  file_.reset();
}

}  // namespace accel
