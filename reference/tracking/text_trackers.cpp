// Trackers without dependencies: a table (CSV) and a line per event (JSON Lines). Both survive a crash: an
// incomplete last row or line is dropped when the file is opened again.
#include "reference/tracking/text_trackers.hpp"

#include <algorithm>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel::tracking {
namespace {

// Source: RFC 4180, rules 5 to 7.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
}

// Calls `each(begin, end)` for each complete row, where `end` is the position of its line end. A line end inside quotes
// belongs to a cell. A doubled quote toggles twice and so needs no special case.
template <typename Each>
void for_each_row(std::string_view table, const Each& each) {
  bool is_quoted = false;
  for (std::size_t place = 0, begin = 0; place < table.size(); ++place) {
    if (table[place] == '"') is_quoted = !is_quoted;
    if (table[place] != '\n' || is_quoted) continue;
    each(begin, place);
    begin = place + 1;
  }
}

// A null is an empty cell, so a row reads the same whether a value was null or not logged.
std::string cell_text(const Value& value) {
  if (value.is_null()) return "";
  if (value.is<std::string>()) return value.as<std::string>();
  if (value.is<double>()) return number_text(value.as<double>());
  if (value.is<at::Tensor>()) return cell_text(without_tensors(value));
  return json_text(value);
}

void add_cells(const std::string& prefix, const Value::Dict& values, std::map<std::string, std::string>& cells) {
  for (const auto& [name, value] : values) {
    if (value.is<Value::Dict>()) {
      add_cells(prefix + name + "/", value.as<Value::Dict>(), cells);
    } else {
      cells[prefix + name] = cell_text(value);
    }
  }
}

}  // namespace

std::string csv_row(const std::vector<std::string>& cells) {
  std::string row;
  for (const auto& cell : cells) row += (&cell == cells.data() ? "" : ",") + csv_cell(cell);
  return row + "\n";
}

// The inverse of csv_row for one row, also for cells that contain line ends.
std::vector<std::string> first_csv_row(std::string_view table) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (std::size_t place = 0; place < table.size(); ++place) {
    const char letter = table[place];
    if (letter == '"') {
      const bool is_quote = is_quoted && place + 1 < table.size() && table[place + 1] == '"';
      if (is_quote)
        cells.back() += table[++place];
      else
        is_quoted = !is_quoted;
    } else if (!is_quoted && letter == ',') {
      cells.emplace_back();
    } else if (!is_quoted && letter == '\n') {
      break;
    } else {
      cells.back() += letter;
    }
  }
  return cells;
}

std::string_view complete_csv_rows(std::string_view table) {
  std::size_t end = 0;
  for_each_row(table, [&](std::size_t, std::size_t line_end) { end = line_end + 1; });
  return table.substr(0, end);
}

// The first row contains the names; other rows get empty cells.
std::string add_csv_columns(std::string_view table, const std::vector<std::string>& further) {
  if (table.empty()) return csv_row(further);
  std::string wide;
  for_each_row(table, [&](std::size_t begin, std::size_t end) {
    wide += table.substr(begin, end - begin);
    wide += begin == 0 ? "," + csv_row(further) : std::string(further.size(), ',') + "\n";
  });
  return wide;
}

std::map<std::string, std::string> csv_cells(const Value::Dict& values) {
  std::map<std::string, std::string> cells;
  add_cells("", values, cells);
  return cells;
}

}  // namespace accel::tracking

namespace accel {

// An existing table is continued, with its columns. AppendableFile has dropped an incomplete line; a row with a
// quoted line end can still be incomplete, so it is checked here.
void CsvTracker::start(const Run& run) {
  disk_ = run.context.files;
  path_ = run.logging_dir + "/" + run.project_name;
  disk_->make_folder(std::filesystem::path(path_).parent_path().string());
  file_ = std::make_unique<tracking::AppendableFile>(*disk_, path_ + ".csv");
  const auto lines = file_->content();
  const auto table = tracking::complete_csv_rows(lines);
  columns_ = table.empty() ? std::vector<std::string>() : tracking::first_csv_row(table);
  if (table.size() < lines.size()) file_->replace(table);
  if (std::find(columns_.begin(), columns_.end(), "step") == columns_.end()) widen({"step"});
}

// Rewrites the file. That is acceptable because new columns appear only in the first calls of a run.
void CsvTracker::widen(const std::vector<std::string>& further) {
  if (further.empty()) return;
  file_->replace(tracking::add_csv_columns(file_->content(), further));
  columns_.insert(columns_.end(), further.begin(), further.end());
}

void CsvTracker::store_init_configuration(const Value::Dict& values) {
  write_atomically(*disk_, path_ + ".hparams.yml", tracking::yaml_text(values));
}

// All new columns of a call are added together, so that a call rewrites the file at most once.
void CsvTracker::log(const Value::Dict& values, std::optional<std::int64_t> step) {
  check_state(file_ != nullptr,
              "csv: the tracker is not running; call init_trackers first, and do not log after end_training");
  auto cells = tracking::csv_cells(values);
  check_argument(
      !cells.contains("step") || !step,
      "log: a value has the name 'step', which csv uses for its step column; rename the value or omit the step");
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

void JsonLinesTracker::start(const Run& run) {
  disk_ = run.context.files;
  const std::filesystem::path path = run.logging_dir + "/" + run.project_name + ".jsonl";
  disk_->make_folder(path.parent_path().string());
  file_ = std::make_unique<tracking::AppendableFile>(*disk_, path.string());
}

// One append per line, so that a crash cuts at most the last line.
void JsonLinesTracker::write(Value::Dict line) {
  check_state(file_ != nullptr,
              "jsonl: the tracker is not running; call init_trackers first, and do not log after end_training");
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
