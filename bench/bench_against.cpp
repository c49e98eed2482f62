// Compares the rows of two builds of the benchmark programs: takes samples of both alternately and tests for a
// difference. `./dev bench --against COMMIT` builds both and starts it.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "bench/comparison.hpp"
#include "bench/program.hpp"
#include "bench/record.hpp"
#include "bench/serving.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::bench {
namespace {

// Rows of these programs are compared if both builds have them.
constexpr std::array kPrograms = {"step_bench", "collectives_bench", "loader_bench", "checkpoint_bench",
                                  "launch_bench"};

using Json = nlohmann::ordered_json;

struct Options {
  std::string before, after, rows = ".*";
  int blocks = 8;
};

std::unique_ptr<Server> start(const std::string& folder, const std::string& program) {
  return std::make_unique<Server>(std::vector<std::string>{folder + "/" + program, "--serve"});
}

// The rows that both builds have and `pattern` selects. It is matched with "step_bench:step/mlp" for the row "step/mlp"
// of step_bench.
std::vector<RowSamples> common_rows(const Options& options, const std::string& program, const std::regex& pattern) {
  const auto before = start(options.before, program)->rows();
  std::vector<RowSamples> common;
  for (const auto& row : start(options.after, program)->rows()) {
    const bool is_common = std::any_of(before.begin(), before.end(), [&](auto& each) { return each.name == row.name; });
    if (is_common && std::regex_search(program + (":" + row.name), pattern))
      common.push_back({.name = row.name, .unit = row.unit});
  }
  return common;
}

// Adds one block to every row (Note [Blocks] in comparison.hpp). Each of the four processes gives one sample. For short
// rows that is the mean of two, taken in the order A B B A A B B A. Half of the blocks begin with B.
void add_block(const Options& options, const std::string& program, int number, std::vector<RowSamples>& rows) {
  const bool begins_with_after = number % 2 == 1;
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<bool> is_after;
  for (const bool second : {false, true, true, false}) {
    is_after.push_back(second != begins_with_after);
    servers.push_back(start(is_after.back() ? options.after : options.before, program));
  }
  for (auto& row : rows) {
    std::vector<double> samples(servers.size());
    const double seconds = seconds_of([&] {
      for (std::size_t server = 0; server < servers.size(); ++server)
        samples[server] = servers[server]->sample(row.name);
    });
    for (std::size_t server = servers.size(); seconds < 2 && server-- > 0;)
      samples[server] = (samples[server] + servers[server]->sample(row.name)) / 2;
    auto& block = row.blocks.emplace_back();
    for (std::size_t server = 0; server < servers.size(); ++server)
      (is_after[server] ? block.after : block.before).push_back(samples[server]);
  }
}

Json json_of(const std::vector<RowSamples>& samples, const std::vector<RowComparison>& compared) {
  auto list = Json::array();
  for (std::size_t row = 0; row < samples.size(); ++row) {
    auto blocks = Json::array();
    for (const auto& block : samples[row].blocks) blocks.push_back({{"before", block.before}, {"after", block.after}});
    const auto& result = compared[row];
    list.push_back({{"name", result.name},
                    {"unit", result.unit},
                    {"before", result.before},
                    {"after", result.after},
                    {"ratio", result.ratio},
                    {"p", result.p},
                    {"verdict", to_string(result.verdict)},
                    {"blocks", blocks}});
  }
  return list;
}

std::vector<RowSamples> measure(const Options& options, const std::regex& pattern) {
  std::vector<RowSamples> all;
  for (const std::string program : kPrograms) {
    auto rows = common_rows(options, program, pattern);
    for (int block = 0; block < options.blocks && !rows.empty(); ++block) {
      std::cerr << fmt::format("{}: {} rows, block {} of {}\n", program, rows.size(), block + 1, options.blocks);
      add_block(options, program, block, rows);
    }
    for (auto& row : rows) {
      row.name = program + ":" + row.name;
      all.push_back(std::move(row));
    }
  }
  return all;
}

}  // namespace
}  // namespace accel::bench

int main(int argc, char** argv) {
  using namespace accel::bench;
  namespace programs = accel::programs;
  signal(SIGPIPE, SIG_IGN);  // a server that ends is reported by its missing answer
  Program program("bench_against",
                  "Compares the benchmarks of two builds. Exits with 1 if a row is slower in the second build.");
  Options options;
  std::string before_name = "before", after_name = "after";
  program.add("--before", options.before, "Folder of the programs of the first build");
  program.add("--after", options.after, "Folder of the programs of the second build");
  program.add("--before-commit", before_name, "The commit of the first build, for the output");
  program.add("--after-commit", after_name, "The commit of the second build, for the output");
  program.add("--rows", options.rows, "Regular expression that selects rows by PROGRAM:ROW");
  program.add("--blocks", options.blocks, "Number of blocks, each with two samples of either build");
  program.add_out();
  if (const auto code = program.parse(argc, argv)) return *code;
  std::regex pattern;
  try {
    pattern = options.rows;
  } catch (const std::regex_error& error) {
    std::cerr << "bench_against: --rows: '" << options.rows << "' is not a regular expression: " << error.what()
              << '\n';
    return programs::kUsage;
  }
  return program.guard([&]() -> int {
    const auto samples = measure(options, pattern);
    if (samples.empty()) {
      std::cerr << "bench_against: no row of both builds matches '" << options.rows
                << "'; expected a part of a name such as step_bench:step/mlp/accelerator\n";
      return programs::kUsage;
    }
    const auto compared = compare(samples);
    std::cout << table(compared);
    fmt::print("before: {}; after: {}; slower or faster: p < {} and a ratio beyond {}, {} blocks\n", before_name,
               after_name, kLevel, 1 + kNoise, options.blocks);
    auto record = record_of_run({argv, argv + argc}, after_name);
    record["before"] = before_name;
    record["rows"] = json_of(samples, compared);
    if (!program.out().empty()) programs::write_text(program.out(), record.dump(1) + '\n');
    return has_regression(compared) ? programs::kFailure : programs::kSuccess;
  });
}
