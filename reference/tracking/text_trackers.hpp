#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/value.hpp"
#include "reference/tracking/event_file.hpp"
#include "reference/tracking/general_tracker.hpp"
#include "reference/tracking/growing_file.hpp"

namespace accel::tracking {

/// Tables as RFC 4180 has them. Thread rule: any thread.
std::string csv_row(const std::vector<std::string>& cells);

/// The cells of the first row.
std::vector<std::string> first_csv_row(std::string_view table);

/// The rows that are whole: what lies behind the last line end that no quotation holds is cut.
std::string_view whole_csv_rows(std::string_view table);

/// The table with `further` columns at the right, empty but for their names; a table of nothing becomes their row.
std::string widened_csv(std::string_view table, const std::vector<std::string>& further);

/// Cells by column, a dict's parts as "name/part".
std::map<std::string, std::string> csv_cells(const Value::Dict& values);

}  // namespace accel::tracking

namespace accel {

/// A table, in logging_dir/project_name.csv: a column `step` and one for each name, a row for each call of log; the
/// configuration in project_name.hparams.yml beside it. A later run adds rows to the table.
///
/// A dict's parts are columns of their own, "acc/train". Names that come later become further columns: the file is then
/// replaced by a wider one, in one step, with empty cells in earlier rows. Cells are quoted as RFC 4180 says; nan and
/// inf are these words, lists JSON. A row has left the process when the call returns; one that a crash cut is dropped.
class CsvTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "csv"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start(const Run& run) override;
  void store_init_configuration(const Value::Dict& values) override;
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override;
  void finish() override;

 private:
  void widen(const std::vector<std::string>& further);

  std::shared_ptr<Files> disk_;
  std::string path_;
  std::vector<std::string> columns_;
  std::unique_ptr<tracking::GrowingFile> file_;
};

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
