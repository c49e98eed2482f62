#include "bench/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace accel::bench {
namespace {

Verdict verdict_of(double ratio, double p) {
  if (p >= kLevel) return Verdict::kEqual;
  if (ratio > 1 + kNoise) return Verdict::kSlower;
  return ratio < 1 / (1 + kNoise) ? Verdict::kFaster : Verdict::kEqual;
}

RowComparison compare_row(const RowSamples& row) {
  std::vector<double> before, after, ratios;
  for (const auto& block : row.blocks) {
    before.insert(before.end(), block.before.begin(), block.before.end());
    after.insert(after.end(), block.after.begin(), block.after.end());
    ratios.push_back(median(block.after) / median(block.before));
  }
  return {
      .name = row.name, .unit = row.unit, .before = median(before), .after = median(after), .ratio = median(ratios)};
}

}  // namespace

std::vector<RowComparison> compare(const std::vector<RowSamples>& rows) {
  std::vector<RowComparison> compared;
  std::vector<double> p;
  for (const auto& row : rows) {
    p.push_back(mann_whitney(row.blocks).p);
    compared.push_back(compare_row(row));
  }
  const auto corrected = holm(p);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    compared[row].p = corrected[row];
    compared[row].verdict = verdict_of(compared[row].ratio, corrected[row]);
  }
  return compared;
}

bool has_regression(const std::vector<RowComparison>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.verdict == Verdict::kSlower; });
}

std::string to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSlower: return "slower";
    case Verdict::kFaster: return "faster";
    case Verdict::kEqual: break;
  }
  return "no difference";
}

std::string with_unit(double value, const std::string& unit) {
  struct Scale {
    double factor;
    const char* name;
  };
  static constexpr std::array<Scale, 4> kSeconds = {{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}};
  static constexpr std::array<Scale, 4> kBytes = {{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}}};
  for (const auto& scale : unit == "s" ? kSeconds : kBytes) {
    if (std::abs(value) >= scale.factor) return fmt::format("{:.4g} {}", value / scale.factor, scale.name);
  }
  return fmt::format("{:.4g} {}", value, unit);
}

std::string table(const std::vector<RowComparison>& rows) {
  std::size_t width = 3;
  for (const auto& row : rows) width = std::max(width, row.name.size());
  auto text =
      fmt::format("{:{}} {:>12} {:>12} {:>7} {:>9}  {}\n", "row", width, "before", "after", "ratio", "p", "verdict");
  for (const auto& row : rows) {
    text += fmt::format("{:{}} {:>12} {:>12} {:>7.3f} {:>9.2g}  {}\n", row.name, width, with_unit(row.before, row.unit),
                        with_unit(row.after, row.unit), row.ratio, row.p, to_string(row.verdict));
  }
  return text;
}

}  // namespace accel::bench
