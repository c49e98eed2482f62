#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/value.hpp"

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
