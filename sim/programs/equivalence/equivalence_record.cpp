#include "sim/programs/equivalence/equivalence_record.hpp"

#include <fmt/ranges.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/config/environment.hpp"
#include "sim/programs/runtime/output_files.hpp"

namespace accel::programs {
namespace {

// "Gloo processes over TCP" as a part of a file name: gloo_processes_over_tcp.
std::string in_file_name(const std::string& text) {
  std::string name;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (std::isalnum(code) != 0) name += static_cast<char>(std::tolower(code));
    if (letter == ' ' || letter == '_') name += '_';
  }
  return name;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> dimensions_of(const EquivalenceCase& one) {
  std::vector<std::pair<std::string, std::string>> dimensions{
      {"source", one.iterable && one.source == "plain" ? "stream" : one.source},
      {"split_batches", fmt::format("{}", one.split_batches)},
      {"even_batches", fmt::format("{}", one.even_batches)},
      {"dispatch_batches", fmt::format("{}", one.dispatches())},
      {"shuffle", fmt::format("{}", one.shuffle)},
      {"drop_last", fmt::format("{}", one.drop_last)},
      {"padding", fmt::format("{}", one.pads())},
      {"num_workers", fmt::format("{}", one.num_workers)},
      {"skip_batches", fmt::format("{}", one.skip_batches)},
      {"interruption", one.interruption},
      {"draws_in_samples", fmt::format("{}", one.draws_in_samples)},
      {"device_specific", fmt::format("{}", one.device_specific)},
      {"rng_types", fmt::format("{}", fmt::join(one.rng_types, "+"))}};
  if (one.law == "training") dimensions.emplace_back("accumulation_steps", std::to_string(one.accumulation_steps));
  for (const auto& operation : std::set<std::string>(one.operations.begin(), one.operations.end()))
    dimensions.emplace_back("operation", operation);
  return dimensions;
}

void EquivalenceRecord::count(const EquivalenceCase& one) {
  ++cases;
  for (const auto& [dimension, value] : dimensions_of(one)) ++of_cells[{one.ranks, dimension, value}];
}

std::string file_name(const EquivalenceRecord& record) {
  return fmt::format("{}--{}--{}.json", record.law, in_file_name(record.left), in_file_name(record.right));
}

void write_record(const std::string& path, const EquivalenceRecord& record) {
  using Json = nlohmann::ordered_json;
  const Json head{{"law", record.law},
                  {"sides", {record.left, record.right}},
                  {"cases", record.cases},
                  {"differences", record.differences},
                  {"seed", record.seed},
                  {"date", utc_timestamp()},
                  {"commit", environment("ACCEL_COMMIT").value_or("unknown")},
                  {"command", record.command}};
  std::vector<std::string> cells;
  for (const auto& [cell, cases] : record.of_cells) {
    const auto& [ranks, dimension, value] = cell;
    cells.push_back(Json{{"ranks", ranks}, {"dimension", dimension}, {"value", value}, {"cases", cases}}.dump());
  }
  // One cell per line: the file stays small, and a diff shows what changed.
  auto text = head.dump(1);
  text.resize(text.rfind('\n'));
  text += fmt::format(",\n \"cells\": [\n  {}\n ]\n}}\n", fmt::join(cells, ",\n  "));
  write_text(path, text);
}

}  // namespace accel::programs
