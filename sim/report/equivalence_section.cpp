// The matrix of the equivalence suite. Its first table has one cell per law and pair of backends; the folded tables
// divide each of these cells by number of ranks and by what the cases contain.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"
#include "sim/report/verification_sections.hpp"

namespace accel::sim::report {
namespace {

constexpr int kLastSingleColumn = 16;

using Sides = std::pair<std::string, std::string>;
// Dimension and value; ordered, so that equal reports give equal pages.
using Row = std::pair<std::string, std::string>;

std::string name_of(const Sides& sides) { return sides.first + " ↔ " + sides.second; }

// The upper end of the column of `ranks`, so that columns sort by number.
int last_of_column(int ranks) {
  int last = ranks <= kLastSingleColumn ? ranks : kLastSingleColumn;
  while (last < ranks) last *= 2;
  return last;
}

std::string column_name(int last) {
  return last <= kLastSingleColumn ? fmt::format("{}", last) : fmt::format("{}-{}", last / 2 + 1, last);
}

using Cell = std::pair<Row, int>;
using Cells = std::map<Cell, std::int64_t>;

Cells cells_of(const LawComparison& one) {
  Cells cells;
  for (const auto& cell : one.cells) cells[{{cell.dimension, cell.value}, last_of_column(cell.ranks)}] += cell.cases;
  return cells;
}

// The cells that any comparison of the law reached, on the numbers of ranks of `one`. Others may be impossible: one
// rank never pads.
std::set<Cell> possible_cells(const VerificationReport& report, const LawComparison& one) {
  int last = 0;
  for (const auto& cell : one.cells) last = std::max(last, last_of_column(cell.ranks));
  std::set<Cell> possible;
  for (const auto& other : report.comparisons) {
    if (other.law != one.law) continue;
    for (const auto& [cell, cases] : cells_of(other)) {
      if (cell.second <= last) possible.insert(cell);
    }
  }
  return possible;
}

std::int64_t count_empty(const std::set<Cell>& possible, const Cells& cells) {
  return std::count_if(possible.begin(), possible.end(), [&](const Cell& cell) { return !cells.contains(cell); });
}

std::string folded_cells(const VerificationReport& report, const LawComparison& one) {
  const auto cells = cells_of(one);
  const auto possible = possible_cells(report, one);
  std::set<Row> rows;
  std::set<int> columns;
  for (const auto& [row, column] : possible) rows.insert(row), columns.insert(column);
  HtmlTable table{.columns = {"dimension and ranks"}};
  for (const int column : columns) table.columns.push_back(column_name(column));
  for (const auto& row : rows) {
    table.rows.push_back({row.first + ": " + row.second});
    for (const int column : columns) {
      const auto found = cells.find({row, column});
      const bool is_possible = possible.contains({row, column});
      table.rows.back().push_back(found != cells.end() ? count_text(found->second) : is_possible ? "0" : "–");
    }
  }
  const auto empty = count_empty(possible, cells);
  return folded_table(fmt::format("{}: {} by ranks and dimension, {}", one.law, name_of({one.left, one.right}),
                                  empty == 0 ? "no empty cell" : plural(empty, "empty cell")),
                      table);
}

std::string text_of_cell(const LawComparison& one) {
  const auto differences = one.differences == 0 ? "✓ 0 differences" : "✕ " + plural(one.differences, "difference");
  return fmt::format("{}, {}, seed {}, {}", plural(one.cases, "case"), differences, one.seed,
                     one.origin.date.substr(0, 10));
}

HtmlTable origins(const VerificationReport& report) {
  HtmlTable table{.columns = {"law", "backends", "cases", "differences", "seed", "date", "commit", "command"}};
  for (const auto& one : report.comparisons) {
    table.rows.push_back({one.law, name_of({one.left, one.right}), count_text(one.cases), count_text(one.differences),
                          fmt::format("{}", one.seed), one.origin.date, one.origin.commit, one.origin.command});
  }
  return table;
}

}  // namespace

std::string rank_column(int ranks) { return column_name(last_of_column(ranks)); }

const LawComparison* comparison_of(const VerificationReport& report, const std::string& law, const std::string& left,
                                   const std::string& right) {
  const LawComparison* best = nullptr;
  for (const auto& one : report.comparisons) {
    if (std::tie(one.law, one.left, one.right) != std::tie(law, left, right)) continue;
    const auto weight = [](const LawComparison& each) { return std::pair(each.differences > 0, each.cases); };
    if (best == nullptr || weight(one) > weight(*best)) best = &one;
  }
  return best;
}

std::size_t num_empty_cells(const VerificationReport& report, const LawComparison& one) {
  return static_cast<std::size_t>(count_empty(possible_cells(report, one), cells_of(one)));
}

std::string equivalence_section(const VerificationReport& report) {
  if (report.comparisons.empty())
    return empty_section("equivalence", "Equivalence of the backends",
                         "No results. ./dev test --label equivalence produces them.");
  std::set<std::string> laws;
  std::set<Sides> pairs;
  for (const auto& one : report.comparisons) laws.insert(one.law), pairs.insert({one.left, one.right});
  HtmlTable matrix{.columns = {"backends"}, .wraps = true};
  matrix.columns.insert(matrix.columns.end(), laws.begin(), laws.end());
  std::string folded;
  std::int64_t cases = 0, differences = 0;
  for (const auto& sides : pairs) {
    matrix.rows.push_back({name_of(sides)});
    for (const auto& law : laws) {
      const auto* one = comparison_of(report, law, sides.first, sides.second);
      matrix.rows.back().push_back(one == nullptr ? "not run" : text_of_cell(*one));
      if (one == nullptr) continue;
      cases += one->cases, differences += one->differences;
      folded += folded_cells(report, *one);
    }
  }
  const auto summary = fmt::format(
      "Generated programs ran on both backends, which must observe the same bits on every rank: {} of {} on {} of "
      "backends, {}.",
      plural(cases, "case"), plural(static_cast<std::int64_t>(laws.size()), "law"),
      plural(static_cast<std::int64_t>(pairs.size()), "pair"),
      differences == 0 ? "no difference" : plural(differences, "difference"));
  return section(
      "equivalence", "Equivalence of the backends",
      paragraph(summary) + open_table(matrix) + folded_table("Commands, commits and seeds", origins(report)) + folded);
}

}  // namespace accel::sim::report
