#include "sim/programs/verification_report/result_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/files/files.hpp"

namespace accel::programs {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<fs::path> files_in(const fs::path& folder, const std::string& ending) {
  std::vector<fs::path> files;
  if (!fs::is_directory(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with(ending)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::optional<std::string> read_file(const fs::path& path, Problems& problems) {
  try {
    PosixFiles files;
    return files.read(path.string());
  } catch (const FileError& error) {
    problems.emplace_back(error.what());
    return std::nullopt;
  }
}

void read_json_file(const fs::path& path, const std::string& writer, Problems& problems,
                    const std::function<void(const Json&)>& read) {
  const auto text = read_file(path, problems);
  if (!text) return;
  try {
    read(Json::parse(*text));
  } catch (const std::exception& error) {
    problems.push_back(fmt::format("{}: {}; expected a file that {} wrote, run it again or remove the file",
                                   path.string(), error.what(), writer));
  }
}

std::vector<sim::LawComparison> read_comparisons(const fs::path& folder, Problems& problems) {
  std::vector<sim::LawComparison> comparisons;
  for (const auto& path : files_in(folder, ".json")) {
    read_json_file(path, "./dev test --label equivalence", problems, [&](const Json& json) {
      sim::LawComparison one{.law = json.at("law"),
                             .left = json.at("sides").at(0),
                             .right = json.at("sides").at(1),
                             .cases = json.at("cases"),
                             .differences = json.at("differences"),
                             .seed = json.at("seed"),
                             .origin = {json.at("command"), json.at("commit"), json.at("date")}};
      for (const auto& cell : json.at("cells"))
        one.cells.push_back({cell.at("ranks"), cell.at("dimension"), cell.at("value"), cell.at("cases")});
      comparisons.push_back(std::move(one));
    });
  }
  return comparisons;
}

std::vector<sim::GeneratorDistribution> read_generators(const fs::path& folder, Problems& problems) {
  std::vector<sim::GeneratorDistribution> generators;
  for (const auto& path : files_in(folder, ".json")) {
    read_json_file(path, "./dev test distribution_laws", problems, [&](const Json& json) {
      sim::GeneratorDistribution one{.generator = json.at("generator"), .cases = json.at("cases")};
      for (const auto& [feature, counts] : json.at("counts").items()) {
        one.features.push_back({.name = feature, .values = {}});
        for (const auto& [value, cases] : counts.items())
          one.features.back().values.emplace_back(value, cases.get<std::int64_t>());
      }
      generators.push_back(std::move(one));
    });
  }
  return generators;
}

std::vector<sim::MutantResult> read_mutants(const fs::path& file, Problems& problems) {
  std::vector<sim::MutantResult> mutants;
  if (!fs::exists(file)) return mutants;
  read_json_file(file, "./dev mutants", problems, [&](const Json& json) {
    for (const auto* list : {"patches", "generated"}) {
      for (const auto& entry : json.at(list)) {
        mutants.push_back({.area = entry.at("area"),
                           .name = entry.at("name"),
                           .what = entry.at("what"),
                           .result = entry.at("result"),
                           .test = entry.at("test"),
                           .survives = entry.at("survives"),
                           .commit = entry.at("commit"),
                           .date = entry.at("date")});
      }
    }
  });
  return mutants;
}

namespace {

// The newest earlier file is the current one if that was committed.
void add_rows(const Json& json, std::vector<sim::BenchmarkResult>& results) {
  const auto& machine = json.at("machine");
  const auto name_of_machine =
      fmt::format("{}, {} cores", machine.at("cpu").get<std::string>(), machine.at("cores").get<int>());
  for (const auto& row : json.at("rows")) {
    sim::BenchmarkResult one{.name = row.at("name"),
                             .median = row.at("median"),
                             .unit = row.at("unit"),
                             .machine = name_of_machine,
                             .origin = {json.at("command"), json.at("commit"), json.at("date")}};
    if (row.contains("ratio")) one.ratio = row.at("ratio").get<double>(), one.beside = row.at("beside");
    const bool is_known = std::any_of(results.begin(), results.end(), [&](const auto& other) {
      return other.name == one.name && other.origin.date == one.origin.date;
    });
    if (!is_known) results.push_back(std::move(one));
  }
}

}  // namespace

BenchmarkFiles read_benchmarks(const fs::path& current, const fs::path& history, Problems& problems) {
  BenchmarkFiles files;
  for (const auto& path : files_in(current, "_bench.json"))
    read_json_file(path, "./dev bench", problems, [&](const Json& json) { add_rows(json, files.results); });
  // Files of the first versions of the benchmarks have no rows and no origin.
  for (const auto& path : files_in(history, "_bench.json")) {
    read_json_file(path, "git", problems, [&](const Json& json) {
      if (json.contains("rows"))
        add_rows(json, files.results);
      else
        ++files.num_without_rows;
    });
  }
  return files;
}

}  // namespace accel::programs
