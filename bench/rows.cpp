#include "bench/rows.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/median.hpp"
#include "bench/with_unit.hpp"
#include "reference/core/errors.hpp"

namespace accel::bench {
namespace {

// The samples are taken by the benchmark functions and printed as a table, so nothing remains to report.
class NoReport : public benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

const MeasuredRow* find(const std::vector<MeasuredRow>& rows, const std::string& name) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

double quantile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
}

double algorithm_bandwidth(const MeasuredRow& measured) {
  return measured.row.traffic->bytes / median(measured.samples) / 1e9;
}

// Relative to the row beside it; none if that was not measured.
std::optional<double> ratio_of(const std::vector<MeasuredRow>& rows, const MeasuredRow& measured) {
  const auto* beside = find(rows, measured.row.beside);
  if (beside == nullptr) return std::nullopt;
  return median(measured.samples) / median(beside->samples);
}

}  // namespace

bool read_benchmark_options(const std::string& program, int repetitions, const std::vector<std::string>& options) {
  std::vector<std::string> kept{program, fmt::format("--benchmark_repetitions={}", repetitions),
                                "--benchmark_enable_random_interleaving=true"};
  kept.insert(kept.end(), options.begin(), options.end());
  std::vector<char*> arguments;
  for (auto& option : kept) arguments.push_back(option.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  return !benchmark::ReportUnrecognizedArguments(count, arguments.data());
}

std::vector<MeasuredRow> measure_rows(const Rows& rows) {
  std::map<std::string, std::vector<double>> samples;
  std::string failure;
  for (const auto& row : rows) {
    // The row measures the time itself, since Google Benchmark's loop cannot run on every rank at once.
    const auto run = [&samples, &failure, &row](benchmark::State& state) {
      for (auto unused : state) {
        (void)unused;
        try {
          samples[row.name].push_back(row.measure());
          state.SetIterationTime(samples[row.name].back());
        } catch (const std::exception& error) {
          failure = fmt::format("{}: {}", row.name, error.what());
          state.SkipWithError(failure.c_str());
          break;
        }
      }
    };
    benchmark::RegisterBenchmark(row.name.c_str(), run)->UseManualTime()->Iterations(1);
  }
  NoReport report;
  benchmark::RunSpecifiedBenchmarks(&report);
  if (!failure.empty()) throw Error(failure);
  std::vector<MeasuredRow> measured;
  for (const auto& row : rows) {
    if (samples.contains(row.name)) measured.push_back({row, samples[row.name]});
  }
  return measured;
}

std::string table(const std::vector<MeasuredRow>& rows) {
  std::size_t width = 3;
  for (const auto& each : rows) width = std::max(width, each.row.name.size());
  std::string text;
  for (const auto& each : rows) {
    const auto& unit = each.row.unit;
    text += fmt::format("{:{}} {:>11}  ({} to {})", each.row.name, width, with_unit(median(each.samples), unit),
                        with_unit(quantile(each.samples, 0.25), unit), with_unit(quantile(each.samples, 0.75), unit));
    if (each.row.traffic) {
      const double bandwidth = algorithm_bandwidth(each);
      text += fmt::format(", {:.3g} GB/s, bus {:.3g} GB/s", bandwidth, bandwidth * each.row.traffic->bus_factor);
    }
    if (const auto ratio = ratio_of(rows, each)) text += fmt::format(", {:.3g} times {}", *ratio, each.row.beside);
    text += '\n';
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<MeasuredRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& each : rows) {
    nlohmann::ordered_json json = {
        {"name", each.row.name}, {"unit", each.row.unit}, {"median", median(each.samples)}, {"samples", each.samples}};
    if (each.row.traffic) {
      json["algorithm_bandwidth_gb_per_s"] = algorithm_bandwidth(each);
      json["bus_bandwidth_gb_per_s"] = algorithm_bandwidth(each) * each.row.traffic->bus_factor;
    }
    if (const auto ratio = ratio_of(rows, each)) {
      json["beside"] = each.row.beside;
      json["ratio"] = *ratio;
    }
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace accel::bench
