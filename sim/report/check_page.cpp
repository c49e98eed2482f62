// The page of `sim-run check`: a table of verdicts, and for each failure its cause and the figure that shows it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/report/check_report.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/scale.hpp"
#include "sim/report/sections.hpp"

namespace accel::sim {
namespace {

constexpr double kRankHeight = 18;  // of a rank's row of samples
constexpr double kAxisHeight = 64;  // above and below the rows

const char* word_of(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::kPass: return "pass";
    case CheckVerdict::kFail: return "fail";
    case CheckVerdict::kFinding: return "finding";
    case CheckVerdict::kNotApplicable: return "not applicable";
  }
  return "";
}

std::int64_t count(const CheckReport& report, CheckVerdict verdict) {
  return std::count_if(report.checks.begin(), report.checks.end(),
                       [&](const auto& check) { return check.verdict == verdict; });
}

std::string head_of(const CheckReport& report) {
  const auto failed = count(report, CheckVerdict::kFail), findings = count(report, CheckVerdict::kFinding);
  const auto words =
      fmt::format("{} failed, {} passed, {}, {} not applicable", failed, count(report, CheckVerdict::kPass),
                  report::plural(findings, "finding"), count(report, CheckVerdict::kNotApplicable));
  return report::verdict_line(failed > 0     ? report::Verdict::kBad
                              : findings > 0 ? report::Verdict::kWarning
                                             : report::Verdict::kGood,
                              words) +
         report::fact_list(report.facts);
}

std::string table_section(const CheckReport& report) {
  report::HtmlTable table{.columns = {"check", "verdict", "time", "what was seen"}, .wraps = true};
  for (const auto& check : report.checks)
    table.rows.push_back({check.name, word_of(check.verdict), report::seconds_text(check.seconds), check.text});
  return report::section("checks", "Checks", report::open_table(table));
}

// How often each part of the dataset was read by all ranks together, and which ranks read it. A part is one sample, or
// several neighbouring ones of a large dataset.
struct SampleParts {
  std::vector<std::vector<int>> reads;  // by rank and part: of the sample that the rank reads most often
  std::vector<int> total;               // by part: of the sample that all ranks read most often
  std::vector<bool> misses;             // by part: a sample that nobody reads
};

SampleParts parts_of(const ReadSamples& samples, std::size_t num_parts) {
  const auto part_of = [&](std::int64_t sample) {
    return static_cast<std::size_t>(sample) * num_parts / static_cast<std::size_t>(samples.size);
  };
  SampleParts parts{std::vector(samples.by_rank.size(), std::vector<int>(num_parts)), std::vector<int>(num_parts),
                    std::vector<bool>(num_parts)};
  std::vector<int> all(static_cast<std::size_t>(samples.size));
  for (std::size_t rank = 0; rank < samples.by_rank.size(); ++rank) {
    std::vector<int> own(all.size());
    for (const auto sample : samples.by_rank[rank]) {
      if (sample < 0 || sample >= samples.size) continue;
      const auto place = static_cast<std::size_t>(sample);
      auto& reads = parts.reads[rank][part_of(sample)];
      reads = std::max(reads, ++own[place]);
      ++all[place];
    }
  }
  for (std::int64_t sample = 0; sample < samples.size; ++sample) {
    const auto part = part_of(sample);
    const auto reads = all[static_cast<std::size_t>(sample)];
    parts.total[part] = std::max(parts.total[part], reads);
    if (reads == 0) parts.misses[part] = true;
  }
  return parts;
}

std::string samples_chart(const ReadSamples& samples, const report::Canvas& canvas) {
  const auto rows = samples.by_rank.size() + 1;
  const auto height = kRankHeight * static_cast<double>(rows) + kAxisHeight;
  report::Svg svg(
      {canvas.id, "Samples by rank",
       fmt::format("Which of {} samples each of {} ranks reads in one pass", samples.size, samples.by_rank.size()),
       canvas.width, height});
  const auto plot = report::plot_of(canvas, height);
  const auto width = plot.right - plot.left;
  const auto num_parts = static_cast<std::size_t>(std::min<double>(static_cast<double>(samples.size), width / 2));
  const auto parts = parts_of(samples, num_parts);
  const report::Scale x({0, static_cast<double>(num_parts)}, {plot.left, plot.right});
  const auto row_height = (plot.bottom - plot.top) / static_cast<double>(rows);
  const auto draw = [&](std::size_t row, std::size_t part, const char* style, const std::string& tooltip) {
    const auto top = plot.top + row_height * static_cast<double>(row);
    svg.box({x(static_cast<double>(part)), top, x(static_cast<double>(part) + 1), top + row_height - 2}, style,
            tooltip);
  };
  const auto first_of = [&](std::size_t part) { return part * static_cast<std::size_t>(samples.size) / num_parts; };
  const auto stride = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(14 / row_height)));
  for (std::size_t rank = 0; rank < samples.by_rank.size(); ++rank) {
    if (rank % stride == 0)
      svg.text({plot.left - 8, plot.top + row_height * (static_cast<double>(rank) + 0.75)}, "end",
               fmt::format("{}", rank));
    for (std::size_t part = 0; part < num_parts; ++part) {
      if (parts.reads[rank][part] == 0) continue;
      draw(rank, part, parts.total[part] > 1 ? "exposed" : "compute",
           fmt::format("rank {}, sample {}: all ranks read it {}", rank, first_of(part),
                       report::plural(parts.total[part], "time")));
    }
  }
  svg.text({plot.left - 8, plot.top + row_height * (static_cast<double>(rows) - 0.25)}, "end", "none");
  for (std::size_t part = 0; part < num_parts; ++part) {
    if (parts.misses[part]) draw(rows - 1, part, "waiting", fmt::format("sample {}: no rank reads it", first_of(part)));
  }
  const report::Scale index({0, static_cast<double>(samples.size)}, x.range());
  for (const auto tick : index.ticks(canvas.is_narrow() ? 4 : 8))
    report::draw_label(svg, plot, index(tick), fmt::format("{:.0f}", tick));
  report::draw_base(svg, plot, "index of the sample");
  return svg.finish();
}

std::string samples_figure(const CheckedQuestion& check) {
  const auto& samples = *check.samples;
  return report::paragraph(fmt::format("Samples that each rank reads in pass {} of the loader at {}.", samples.pass,
                                       samples.loader)) +
         report::legend({{"compute", "read once"}, {"exposed", "read several times"}, {"waiting", "read by no rank"}}) +
         report::chart("samples-of-" + check.name,
                       [&](const report::Canvas& canvas) { return samples_chart(samples, canvas); });
}

std::string quantities_figure(const CheckedQuestion& check) {
  report::HtmlTable table{.columns = {"quantity", "micro-batch", "update", "on all ranks", "on one rank"}};
  for (const auto& [micro_batch, update, what, ours, one] : check.quantities)
    table.rows.push_back({what, fmt::format("{}", micro_batch), fmt::format("{}", update), ours, one});
  return report::paragraph("Up to the first quantity that differs:") + report::open_table(table);
}

std::string section_of(const CheckedQuestion& check) {
  std::string cause = check.text;
  if (!check.where.empty()) cause += "\nat " + check.where;
  if (!check.replay.empty()) cause += "\n\n" + check.replay;
  auto body = report::paragraph(check.question) + fmt::format("<pre tabindex=\"0\">{}</pre>\n", report::escape(cause));
  if (check.samples && check.samples->size > 0) body += samples_figure(check);
  if (!check.quantities.empty()) body += quantities_figure(check);
  const auto link = [&](const std::string& file, const char* words) {
    if (!file.empty()) body += fmt::format("<p><a href=\"{}\">{}</a></p>\n", report::escape(file), words);
  };
  link(check.run_page, "Page of the run that shows it");
  link(check.timeline, "Timeline of this run, for Perfetto");
  return report::section(check.name, fmt::format("{}: {}", check.name, word_of(check.verdict)), body);
}

}  // namespace

std::string check_page(const CheckReport& report) {
  auto sections = table_section(report);
  for (const auto verdict : {CheckVerdict::kFail, CheckVerdict::kFinding}) {
    for (const auto& check : report.checks) {
      if (check.verdict == verdict) sections += section_of(check);
    }
  }
  return report::whole_page(report.title, head_of(report), sections);
}

}  // namespace accel::sim
