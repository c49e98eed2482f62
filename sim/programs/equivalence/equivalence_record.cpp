#include "sim/programs/equivalence/equivalence_record.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "reference/config/environment.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

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

// Where a length lies: ranks and batches differ at the end, so that short lengths matter.
std::string length_class(const EquivalenceCase& one) {
  if (one.length <= 1) return fmt::format("{}", one.length);
  if (one.length < one.batch_size) return "less than a batch";
  if (one.num_ordered() < one.step_size()) return "less than a step";
  return one.num_ordered() % one.step_size() == 0 ? "complete steps" : "with a tail";
}

std::string resumed_class(const EquivalenceCase& one) {
  if (one.num_stages() == 1) return "same job";
  if (one.resumed_ranks == one.ranks) return "as many";
  return one.resumed_ranks < one.ranks ? "fewer" : "more";
}

// Where a pass is interrupted, relative to its last step.
std::string place_class(const EquivalenceCase& one) {
  if (one.interruption == "none") return "never";
  const auto steps = one.num_steps();
  if (one.interrupted_after == 0) return "before the first step";
  if (one.interrupted_after > steps) return "at the end";
  if (one.interrupted_after == steps) return "in the last step";
  return one.interrupted_after + 1 == steps ? "in the step before the last" : "earlier";
}

}  // namespace

Dimensions dimensions_of(const EquivalenceCase& one) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  Dimensions dimensions{{"source", one.iterable && one.source == "plain" ? "stream" : one.source},
                        {"order", one.order},
                        {"length", length_class(one)},
                        {"split_batches", text(one.split_batches)},
                        {"even_batches", text(one.even_batches)},
                        {"dispatch_batches", text(one.dispatches())},
                        {"use_seedable_sampler", text(one.use_seedable_sampler)},
                        {"shuffle", text(one.shuffle)},
                        {"drop_last", text(one.drop_last)},
                        {"padding", text(one.pads())},
                        {"num_workers", text(one.num_workers)},
                        {"prefetch_factor", text(one.prefetch_factor)},
                        {"persistent_workers", text(one.persistent_workers)},
                        {"worker_init", text(one.worker_init)},
                        {"epochs", text(one.epochs)},
                        {"skip_batches", text(one.skip_batches)},
                        {"interruption", one.interruption},
                        {"interrupted_after", place_class(one)},
                        {"interruptions", one.interruption == "none" ? "0" : text(one.interruptions)},
                        {"interrupted_epoch", text(one.interrupted_epoch)},
                        {"resumed_ranks", resumed_class(one)},
                        {"resumed_skip_batches", text(one.resumed_skip_batches)},
                        {"second_loader", one.second_loader + (one.leaves_second ? ", left" : "")},
                        {"before_epochs", one.before_epochs},
                        {"epoch_in_samples", text(one.epoch_in_samples)},
                        {"draws_in_samples", text(one.draws_in_samples)},
                        {"own_generator", text(one.own_generator)},
                        {"device_specific", text(one.device_specific)},
                        {"rng_types", fmt::format("{}", fmt::join(one.rng_types, "+"))}};
  if (one.law == "training") {
    dimensions.emplace_back("accumulation_steps", text(one.accumulation_steps));
    dimensions.emplace_back("join_even_batches", one.join_even_batches ? text(*one.join_even_batches) : "unset");
  }
  for (const auto& operation : std::set<std::string>(one.operations.begin(), one.operations.end()))
    dimensions.emplace_back("operation", operation);
  return dimensions;
}

bool PairCoverage::has(const std::string& one, const std::string& other) const {
  const auto first = ids_.find(one), second = ids_.find(other);
  return first != ids_.end() && second != ids_.end() &&
         pairs_.contains(std::minmax<int>(first->second, second->second));
}

void PairCoverage::count(const Dimensions& dimensions) {
  std::vector<int> ids;
  for (const auto& [dimension, value] : dimensions) {
    const auto [entry, is_new] = ids_.emplace(dimension + " " + value, static_cast<int>(values_.size()));
    if (is_new) values_.push_back(entry->first);
    ids.push_back(entry->second);
  }
  for (std::size_t first = 0; first < ids.size(); ++first)
    for (std::size_t second = 0; second < first; ++second) pairs_.insert(std::minmax(ids[first], ids[second]));
}

std::vector<std::string> PairCoverage::missing_in(const PairCoverage& other) const {
  std::vector<std::string> missing;
  for (const auto& [first, second] : pairs_) {
    if (!other.has(values_[first], values_[second])) missing.push_back(values_[first] + ", " + values_[second]);
  }
  return missing;
}

PairCoverage possible_pairs(const std::string& law, RankLimits limits) {
  constexpr int kCases = 2000;
  PairCoverage possible;
  std::mt19937 generator(1);
  for (int number = 0; number < kCases; ++number) {
    std::vector<std::uint32_t> numbers(Choices::kCount);
    for (auto& drawn : numbers) drawn = generator() % Choices::kEnd;
    possible.count(dimensions_of(draw_case(law, Choices(std::move(numbers)), limits)));
  }
  return possible;
}

void EquivalenceRecord::count(const EquivalenceCase& one) {
  ++cases;
  const auto dimensions = dimensions_of(one);
  for (const auto& [dimension, value] : dimensions) ++of_cells[{one.ranks, dimension, value}];
  pairs.count(dimensions);
}

std::string EquivalenceRecord::coverage() const {
  const auto possible = possible_pairs(law, limits);
  const auto num_missing = static_cast<std::int64_t>(possible.missing_in(pairs).size());
  return fmt::format("{} of {} pairs of values of two dimensions", possible.num_pairs() - num_missing,
                     possible.num_pairs());
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
                  {"command", record.command},
                  {"pairs", record.coverage()},
                  {"pairs_missing", possible_pairs(record.law, record.limits).missing_in(record.pairs)}};
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
