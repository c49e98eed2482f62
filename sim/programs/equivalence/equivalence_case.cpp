// How cases are drawn and written. The probabilities keep the floors that EquivalenceCaseTest checks: padding in at
// least 40 % of the cases, each number of ranks in 5 %, each operation of a law in 3 %.
#include "sim/programs/equivalence/equivalence_case.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "reference/config/field_checks.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/equivalence/case_operations.hpp"
#include "sim/programs/runtime/json_reader.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxLength = 300;

// A length of some complete steps and a tail, because the tail is where ranks differ.
std::int64_t draw_length(const EquivalenceCase& one, Choices& choices) {
  const auto step = one.step_size();
  if (choices.chance(1)) return 0;
  const auto smallest = one.drop_last ? 1 : 0;  // fewer steps would leave an epoch without batches
  const auto full =
      choices.between(smallest, std::max<std::int64_t>(smallest, std::min<std::int64_t>(3, kMaxLength / step - 1)));
  return std::max<std::int64_t>(full * step + choices.below(step), 1);
}

void draw_source(EquivalenceCase& one, Choices& choices) {
  one.iterable = choices.chance(25);
  if (one.iterable) {
    one.source = choices.chance(40) ? "parts" : "plain";
  } else {
    one.source = choices.among(
        {"plain", "plain", "plain", "subset_sampler", "weighted_sampler", "batch_sampler", "varying_batches"});
  }
  const bool varies = one.source == "varying_batches";
  if (one.source == "plain" && !one.iterable) one.shuffle = choices.chance(60);
  one.split_batches = !varies && choices.chance(20);
  one.batch_size = choices.between(1, 6) * (one.split_batches ? one.ranks : 1);
  one.even_batches = varies ? false : !choices.chance(20);
  one.drop_last = !varies && choices.chance(12);
  if (choices.chance(30)) one.dispatch_batches = varies ? false : choices.chance(70);
  one.length = draw_length(one, choices);
}

void draw_streams(EquivalenceCase& one, Choices& choices, int percent) {
  one.seed = choices.below(1000);
  one.use_seedable_sampler = choices.chance(30);
  if (choices.chance(20)) one.data_seed = choices.below(100);
  one.draws_in_samples = choices.chance(percent);
  one.own_generator = choices.chance(percent);
  one.device_specific = choices.chance(percent);
  if (choices.chance(percent))
    one.rng_types =
        choices.chance(50) ? std::vector<std::string>{"torch", "generator"} : std::vector<std::string>{"torch"};
  // "generator" synchronizes the loader's generator, which an order without random numbers lacks.
}

void draw_reading(EquivalenceCase& one, Choices& choices) {
  one.epochs = static_cast<int>(choices.between(1, 2));
  one.num_workers = choices.chance(40) ? static_cast<int>(choices.between(1, 3)) : 0;
  one.prefetch_factor = static_cast<int>(choices.between(1, 3));
  if (choices.chance(15)) one.skip_batches = choices.between(1, 2);
  if (choices.chance(30)) {
    one.interruption = choices.among({"iterate_again", "resume"});
    one.interrupted_after = choices.below(3);
  }
}

void draw_operations(EquivalenceCase& one, Choices& choices) {
  const auto names = operations_of(one.law);
  if (names.empty()) return;
  for (auto left = choices.between(1, 4); left > 0; --left)
    one.operations.emplace_back(
        names[static_cast<std::size_t>(choices.below(static_cast<std::int64_t>(names.size())))]);
}

}  // namespace

// A rank that reads only its own parts can run out of samples before the others, whatever drop_last says.
bool EquivalenceCase::in_step() const {
  if (ranks == 1 || even_batches || dispatches()) return true;
  if (iterable) return source != "parts";
  return drop_last;
}

std::int64_t EquivalenceCase::num_ordered() const { return source == "subset_sampler" ? (length + 2) / 3 : length; }

std::int64_t EquivalenceCase::batches_of_all_ranks() const {
  if (in_step()) return std::numeric_limits<std::int64_t>::max();
  return source == "varying_batches" || source == "parts" ? 0 : num_ordered() / step_size();
}

bool EquivalenceCase::pads() const {
  return even_batches && !drop_last && ranks > 1 && num_ordered() % step_size() != 0;
}

EquivalenceCase draw_case(const std::string& law, Choices choices, RankLimits limits) {
  EquivalenceCase one;
  one.law = law;
  one.ranks = static_cast<int>(choices.between(limits.smallest, limits.largest));
  draw_source(one, choices);
  draw_streams(one, choices, law == "rng_synchronization" ? 50 : 20);
  draw_reading(one, choices);
  draw_operations(one, choices);
  // A rank that has ended its pass starts the next epoch after a load, but a rank that left the pass continues it, so
  // that they would wait for each other, as in Accelerate.
  if (one.interruption == "resume") one.interrupted_after = std::min(one.interrupted_after, one.batches_of_all_ranks());
  // After uneven inputs ranks are at different places of their accumulation windows, so that the next epoch would hang,
  // and their momenta differ, so that the replicas would differ in the next epoch, which only the simulator reports.
  if (law == "training" && one.in_step()) {
    one.accumulation_steps = static_cast<int>(choices.between(1, 3));
    one.momentum = choices.chance(50) ? 0.5 : 0;
  }
  return one;
}

std::string to_json(const EquivalenceCase& one) {
  const EquivalenceCase plain;
  Json all, defaults;
  const auto write = [](Json& json) {
    return [&json](const Field& field, const auto& value) {
      if constexpr (requires { value.has_value(); }) {
        if (value.has_value()) json[field.name] = *value;
      } else {
        json[field.name] = value;
      }
    };
  };
  for_each_field(one, write(all));
  for_each_field(plain, write(defaults));
  Json json;
  for (const auto& [name, value] : all.items()) {
    const bool is_required = name == "length" || name == "batch_size" || name == "ranks" || name == "law";
    if (is_required || !defaults.contains(name) || defaults[name] != value) json[name] = value;
  }
  return json.dump();
}

EquivalenceCase read_case(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_object(), "invalid case; expected a JSON object as the suite prints it, got '{}'", text);
  EquivalenceCase one;
  JsonReader reader(json);
  reader.read(one);
  auto problems = reader.problems();
  for (const auto& name : one.operations) {
    if (find_operation(name) == nullptr)
      problems.push_back(fmt::format("operations: unknown operation '{}'; expected some of {}", name,
                                     fmt::join(operations_of(""), ", ")));
  }
  check_config(problems.empty(), "{}", fmt::join(problems, "; "));
  return one;
}

}  // namespace accel::programs
