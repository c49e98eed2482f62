#include "sim/programs/sim_run/schedule_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "sim/report/markup.hpp"

namespace accel::programs {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::ActionTime;
using pipeline::Schedule;
using pipeline::ScheduleTimes;

// Sizes in pixels: a box holds a micro-batch's number of up to three digits.
constexpr double kBox = 24, kRow = 26, kMargin = 64, kGap = 10, kLegend = 24, kWidthMax = 6000;

struct Style {
  ActionKind kind;
  std::string_view name;
  int hue;
};
// In the order of the legend; the four computations.
constexpr std::array<Style, 4> kStyles{{{ActionKind::kForward, "F: forward", 210},
                                        {ActionKind::kBackward, "B: backward", 130},
                                        {ActionKind::kBackwardInput, "I: gradient of the input", 170},
                                        {ActionKind::kBackwardWeight, "W: gradients of weights", 35}}};

const Style& style_of(ActionKind kind) {
  return *std::find_if(kStyles.begin(), kStyles.end(), [&](const Style& style) { return style.kind == kind; });
}

// Later stages of a rank are darker.
std::string fill_of(ActionKind kind, int place, int num_places) {
  const int lightness = num_places < 2 ? 78 : 84 - 30 * place / (num_places - 1);
  return fmt::format("hsl({},55%,{}%)", style_of(kind).hue, lightness);
}

std::string text(double x, double y, std::string_view words, std::string_view more = "") {
  return fmt::format("<text x=\"{:g}\" y=\"{:g}\"{}>{}</text>\n", x, y, more, words);
}

// The stages of a rank in order.
std::vector<int> stages_of(const std::vector<Action>& actions) {
  std::vector<int> stages;
  for (const auto& action : actions) {
    if (is_compute(action.kind)) stages.push_back(action.stage);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

struct Scale {
  double per_time = 1;  // pixels
  [[nodiscard]] double x(double time) const { return kMargin + time * per_time; }
};

// The shortest computation gets a box's width, unless the picture would be too wide.
Scale scale_of(const Schedule& schedule, const ScheduleTimes& times) {
  double shortest = 0, last = 0;
  for (std::size_t rank = 0; rank < times.times.size(); ++rank) {
    for (std::size_t index = 0; index < times.times[rank].size(); ++index) {
      const auto& time = times.times[rank][index];
      const auto length = time.end - time.start;
      if (is_compute(schedule.actions[rank][index].kind) && length > 0)
        shortest = shortest == 0 ? length : std::min(shortest, length);
      last = std::max(last, time.end);
    }
  }
  if (shortest == 0 || last == 0) return {};
  return {std::min(kBox / shortest, kWidthMax / last)};
}

std::string box(const Scale& scale, double y, const Action& action, const ActionTime& time, const std::string& fill) {
  const double x = scale.x(time.start), width = (time.end - time.start) * scale.per_time;
  auto drawn = fmt::format(
      "<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"{}\" stroke=\"#555\"><title>{}, {:g} to "
      "{:g}</title></rect>\n",
      x, y, width, kRow - 4, fill, to_string(action), time.start, time.end);
  if (width >= 8)
    drawn +=
        text(x + width / 2, y + 15, std::to_string(action.micro_batch), " text-anchor=\"middle\" font-size=\"10\"");
  return drawn;
}

struct Legend {
  std::string body;
  double end = kMargin;
};

Legend legend() {
  Legend drawn;
  for (const auto& style : kStyles) {
    drawn.body += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"14\" height=\"14\" fill=\"{}\" stroke=\"#555\"/>\n",
                              drawn.end, kGap, fill_of(style.kind, 0, 1));
    drawn.body += text(drawn.end + 20, kGap + 12, style.name);
    drawn.end += 40 + 7.0 * static_cast<double>(style.name.size());
  }
  return drawn;
}

}  // namespace

std::string schedule_svg(const Schedule& schedule, const ScheduleTimes& times) {
  const auto scale = scale_of(schedule, times);
  double width = 640, y = kGap + kLegend;
  auto [body, x] = legend();
  for (std::size_t rank = 0; rank < times.times.size(); ++rank, y += kRow) {
    body += text(kGap, y + 15, fmt::format("rank {}", rank));
    const auto stages = stages_of(schedule.actions[rank]);
    for (std::size_t index = 0; index < times.times[rank].size(); ++index) {
      const auto& action = schedule.actions[rank][index];
      if (!is_compute(action.kind)) continue;
      const auto place = std::lower_bound(stages.begin(), stages.end(), action.stage) - stages.begin();
      const auto& time = times.times[rank][index];
      body +=
          box(scale, y, action, time, fill_of(action.kind, static_cast<int>(place), static_cast<int>(stages.size())));
      width = std::max(width, scale.x(time.end) + kGap);
    }
  }
  const auto bubble =
      times.waits.empty() ? fmt::format("bubble {:.1f} %", 100 * times.bubble) : "its ranks wait for each other";
  body += text(kMargin, y + 16,
               fmt::format("{}: {}; the number in a box is the micro-batch, and a darker box a later stage of its rank",
                           sim::report::escape(schedule.name), bubble));
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:g}\" height=\"{:g}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
      std::max(width, x), y + kRow, body);
}

}  // namespace accel::programs
