// Text table and SVG of a plan. The SVG is written by hand: a plan needs rectangles and labels only, and no library.
#include "sim/programs/experiments/plan_rendering.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace accel::programs {
namespace {

struct Place {
  std::int64_t sample = 0;
  bool is_duplicate = false;
};
using Cell = std::vector<Place>;  // one rank's batch in one step

// Returns [step][rank]. Cells are visited in the order of issue, so that the first read of a sample is never marked as
// a duplicate. Ranks without a batch in a step get an empty cell, which keeps columns aligned.
std::vector<std::vector<Cell>> cells_of(const PlanEpoch& epoch) {
  std::size_t num_steps = 0;
  for (const auto& batches : epoch.ranks) num_steps = std::max(num_steps, batches.size());
  std::vector<std::vector<Cell>> cells(num_steps, std::vector<Cell>(epoch.ranks.size()));
  std::set<std::int64_t> seen;
  for (std::size_t step = 0; step < num_steps; ++step) {
    for (std::size_t rank = 0; rank < epoch.ranks.size(); ++rank) {
      if (step >= epoch.ranks[rank].size()) continue;
      for (const auto sample : epoch.ranks[rank][step])
        cells[step][rank].push_back({sample, !seen.insert(sample).second});
    }
  }
  return cells;
}

std::string text_of(const Cell& cell) {
  std::vector<std::string> words;
  for (const auto& place : cell) words.push_back(fmt::format("{}{}", place.sample, place.is_duplicate ? "*" : ""));
  return fmt::format("{}", fmt::join(words, " "));
}

// Counts what ranks read, duplicates included: without skipped batches, issued = length - dropped + duplicates.
std::string summary_of(const PlanEpoch& epoch, std::size_t index, std::size_t num_steps) {
  std::size_t num_issued = 0;
  for (const auto& batches : epoch.ranks) {
    for (const auto& batch : batches) num_issued += batch.size();
  }
  return fmt::format("epoch {}: {} ranks, {} steps, {} samples issued, {} of them duplicates, {} dropped", index,
                     epoch.ranks.size(), num_steps, num_issued, epoch.duplicated.size(), epoch.dropped.size());
}

// Columns are as wide as their widest cell. Trailing blanks are removed, because tests and documents compare the text.
std::string table_of(const PlanEpoch& epoch, std::size_t index) {
  const auto cells = cells_of(epoch);
  std::vector<std::size_t> widths;
  for (std::size_t rank = 0; rank < epoch.ranks.size(); ++rank) {
    auto width = fmt::formatted_size("rank {}", rank);
    for (const auto& step : cells) width = std::max(width, text_of(step[rank]).size());
    widths.push_back(width);
  }
  auto table = summary_of(epoch, index, cells.size()) + "\n step";
  for (std::size_t rank = 0; rank < widths.size(); ++rank)
    table += fmt::format("  {:<{}}", fmt::format("rank {}", rank), widths[rank]);
  table += "\n";
  for (std::size_t step = 0; step < cells.size(); ++step) {
    table += fmt::format("{:5}", step);
    for (std::size_t rank = 0; rank < widths.size(); ++rank)
      table += fmt::format("  {:<{}}", text_of(cells[step][rank]), widths[rank]);
    table.erase(table.find_last_not_of(' ') + 1);
    table += "\n";
  }
  return table;
}

// Sizes in pixels: a box holds a sample number of up to four digits.
constexpr int kBox = 22, kGap = 8, kMargin = 60, kLine = 26;

// The body grows while the size becomes known; the <svg> element that needs the size is written last.
struct Drawing {
  std::string body;
  std::int64_t width = 0, height = kGap;
};

void text(Drawing& drawing, std::int64_t x, std::int64_t y, const std::string& words) {
  drawing.body += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", x, y, words);
}

// A duplicate differs by its frame, and not only by color, so that it shows in gray print, too.
void box(Drawing& drawing, std::int64_t x, std::int64_t y, const Place& place, std::int64_t hue) {
  drawing.body += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"hsl({},60%,80%)\" stroke=\"{}\" "
      "stroke-width=\"{}\"/>\n",
      x, y, kBox - 2, kBox - 2, hue, place.is_duplicate ? "red" : "#666", place.is_duplicate ? 2 : 1);
  drawing.body += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"9\">{}</text>\n",
                              x + kBox / 2 - 1, y + kBox / 2 + 2, place.sample);
}

// Steps of all ranks start at the same x, so the widest batch of a step decides its width. Hues stop at 300 degrees:
// the first and the last sample would otherwise both be red.
void draw(Drawing& drawing, const PlanEpoch& epoch, std::size_t index, std::int64_t largest) {
  const auto cells = cells_of(epoch);
  drawing.height += kLine;
  text(drawing, kGap, drawing.height - kGap, summary_of(epoch, index, cells.size()));
  for (std::size_t rank = 0; rank < epoch.ranks.size(); ++rank) {
    text(drawing, kGap, drawing.height + kBox - kGap, fmt::format("rank {}", rank));
    std::int64_t x = kMargin;
    for (const auto& step : cells) {
      std::size_t widest = 0;
      for (const auto& cell : step) widest = std::max(widest, cell.size());
      for (std::size_t place = 0; place < step[rank].size(); ++place) {
        box(drawing, x + static_cast<std::int64_t>(place) * kBox, drawing.height, step[rank][place],
            300 * step[rank][place].sample / (largest + 1));
      }
      x += static_cast<std::int64_t>(widest) * kBox + kGap;
    }
    drawing.width = std::max(drawing.width, x);
    drawing.height += kLine;
  }
}

// One scale of colors for all epochs, so that a sample has the same color in each.
std::int64_t largest_sample(const std::vector<PlanEpoch>& epochs) {
  std::int64_t largest = 0;
  for (const auto& epoch : epochs) {
    for (const auto& batches : epoch.ranks) {
      for (const auto& batch : batches) {
        for (const auto sample : batch) largest = std::max(largest, sample);
      }
    }
  }
  return largest;
}

}  // namespace

std::string plan_table(const std::vector<PlanEpoch>& epochs) {
  std::string table;
  for (std::size_t index = 0; index < epochs.size(); ++index) table += table_of(epochs[index], index);
  return table;
}

std::string plan_svg(const std::vector<PlanEpoch>& epochs) {
  Drawing drawing;
  for (std::size_t index = 0; index < epochs.size(); ++index)
    draw(drawing, epochs[index], index, largest_sample(epochs));
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n{}</svg>\n",
      std::max<std::int64_t>(drawing.width, 600) + kGap, drawing.height + kGap, drawing.body);
}

}  // namespace accel::programs
