#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/tracking/appendable_file.hpp"
#include "reference/tracking/event_file.hpp"
#include "reference/tracking/general_tracker.hpp"
#include "reference/tree/value.hpp"

namespace accel::tracking {

/// CSV as in RFC 4180. Formats one row. Thread rule: any thread.
std::string csv_row(const std::vector<std::string>& cells);

/// Returns the cells of the first row.
std::vector<std::string> first_csv_row(std::string_view table);

/// Returns the complete rows, without the text after the last line end that is outside quotes.
std::string_view complete_csv_rows(std::string_view table);

/// Returns the table with `further` columns on the right, whose cells are empty except for the names in the first row.
/// An empty table becomes a row of the names.
std::string add_csv_columns(std::string_view table, const std::vector<std::string>& further);

/// Returns cells by column name; entries of a dict have the name "name/entry".
std::map<std::string, std::string> csv_cells(const Value::Dict& values);

}  // namespace accel::tracking

namespace accel {

/// Writes a table to logging_dir/project_name.csv with a column `step`, one column per name, and one row per call of
/// log, and the configuration to project_name.hparams.yml. A later run appends rows to the table.
///
/// Entries of a dict are separate columns, such as "acc/train". Names that appear later become further columns: the
/// file is then atomically replaced by a wider one with empty cells in earlier rows. Cells are quoted as in RFC 4180.
/// nan and inf are written as these words, lists as JSON. When a call returns, the operating system has the row. An
/// incomplete row after a crash is dropped.
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
  std::unique_ptr<tracking::AppendableFile> file_;
};

/// Writes one JSON object per line to logging_dir/project_name.jsonl: {"step": 7, "time": 1760000000.25, "values":
/// {"loss": 0.5}}, or {"time": ..., "config": {...}} at the start of a run. A later run appends to the file.
///
/// Accepts all values; NaN and infinities are written as strings, tensors as lists. When a call returns, the operating
/// system has the line. An incomplete line after a crash is dropped when the file is opened again.
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
  std::unique_ptr<tracking::AppendableFile> file_;
};

}  // namespace accel
