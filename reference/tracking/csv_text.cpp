#include "reference/tracking/csv_text.hpp"

#include "reference/tracking/value_text.hpp"

namespace accel::tracking {
namespace {

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
}

// Calls `each(begin, end)` for each row that ends, with the place of its line end.
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

std::string_view whole_csv_rows(std::string_view table) {
  std::size_t end = 0;
  for_each_row(table, [&](std::size_t, std::size_t line_end) { end = line_end + 1; });
  return table.substr(0, end);
}

std::string widened_csv(std::string_view table, const std::vector<std::string>& further) {
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
