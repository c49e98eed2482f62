// How cases are drawn and written. The probabilities keep the floors that EquivalenceCaseTest checks: padding in at
// least 40 % of the cases, each number of ranks in 5 %, each operation of a law in 3 %.
#include "sim/programs/equivalence/equivalence_case.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/config/field_checks.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/integers.hpp"
#include "sim/programs/equivalence/case_operations.hpp"
#include "sim/programs/rehearsal/json_reader.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxLength = 300;

// A length of some complete steps and a tail, because the tail is where ranks differ. Rarely no sample, one, or fewer
// than a batch has.
std::int64_t draw_length(const EquivalenceCase& one, Choices& choices) {
  const auto step = one.step_size();
  if (choices.chance(1)) return 0;
  if (!one.drop_last && choices.chance(4)) return choices.chance(50) ? 1 : choices.between(1, one.batch_size);
  const auto smallest = one.drop_last ? 1 : 0;  // fewer steps would leave an epoch without batches
  const auto full =
      choices.between(smallest, std::max<std::int64_t>(smallest, std::min<std::int64_t>(3, kMaxLength / step - 1)));
  return std::max<std::int64_t>(full * step + choices.below(step), 1);
}

void draw_source(EquivalenceCase& one, Choices& choices) {
  one.iterable = choices.chance(25);
  if (one.iterable) {
    one.source = choices.among({"plain", "plain", "parts", "parts", "drawing_stream"});
  } else {
    one.source = choices.among({"plain", "plain", "plain", "subset_sampler", "weighted_sampler", "batch_sampler",
                                "varying_batches", "replacement_sampler", "repeated_sampler"});
  }
  const bool varies = one.source == "varying_batches", cuts_itself = varies || one.source == "batch_sampler";
  if (one.source == "plain" && !one.iterable) one.shuffle = choices.chance(60);
  one.split_batches = !varies && choices.chance(20);
  const bool is_elastic = !cuts_itself && !one.split_batches && choices.chance(8);
  if (is_elastic) one.order = "elastic";
  one.batch_size = choices.between(1, 6) * (one.splits() ? one.ranks : 1);
  one.even_batches = varies ? false : is_elastic || !choices.chance(20);
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
    one.rng_types = choices.among<std::vector<std::string>>({{"torch", "generator"}, {"torch"}, {}});
  // "generator" synchronizes the loader's generator, which an order without random numbers lacks.
}

void draw_reading(EquivalenceCase& one, Choices& choices) {
  one.epochs = choices.chance(10) ? 3 : static_cast<int>(choices.between(1, 2));
  one.num_workers = choices.chance(40) ? static_cast<int>(choices.between(1, 3)) : 0;
  one.prefetch_factor = static_cast<int>(choices.between(1, 3));
  if (one.num_workers > 0) {
    one.persistent_workers = choices.chance(30);
    one.worker_init = choices.chance(20);
  }
  one.epoch_in_samples = choices.chance(15);
  if (choices.chance(15)) one.skip_batches = choices.between(1, 2);
  one.before_epochs = choices.chance(25) ? choices.among({"set_epoch", "jump_epoch", "set_seed"}) : "none";
}

// Parts of a stream that belong to ranks need the same number of ranks.
void draw_resumed_ranks(EquivalenceCase& one, Choices& choices, RankLimits limits) {
  if (!one.resumes() || !choices.chance(25)) return;
  one.resumed_ranks = static_cast<int>(choices.between(limits.smallest, limits.largest));
  if ((one.source == "parts" && !one.dispatches()) || choices.chance(20)) one.resumed_ranks = one.ranks;
  if (one.splits() && one.batch_size % one.resumed_ranks != 0) one.resumed_ranks = one.ranks;
}

void draw_interruption(EquivalenceCase& one, Choices& choices, RankLimits limits) {
  if (!choices.chance(45)) return;
  one.interruption = choices.among({"iterate_again", "exception", "resume", "resume", "resume_inside"});
  // Ranks that have ended their loop inside join_uneven_inputs would wait for those that failed.
  if (one.interruption == "exception" && one.law == "training" && !one.in_step()) one.interruption = "iterate_again";
  // In the first batches, or around the last one.
  const auto steps = one.num_steps();
  one.interrupted_after =
      choices.chance(50) ? choices.below(3) : std::max<std::int64_t>(0, steps - 1 + choices.below(3));
  one.interruptions = choices.chance(25) ? 2 : 1;
  if (choices.chance(25)) one.interrupted_epoch = one.epochs - 1;
  if (one.resumes() && choices.chance(15)) one.resumed_skip_batches = 1;
  draw_resumed_ranks(one, choices, limits);
  // Ranks must load states of one moment, and the last step is inside the loops of some ranks only.
  const bool last_step_differs = !one.always_in_step() && one.source != "parts";
  if (one.interruption == "resume_inside" && last_step_differs &&
      (one.interruptions > 1 || one.skip_batches + one.interrupted_after >= steps))
    one.interruption = "resume";
}

// Ranks that are not in step cannot read another loader inside the loop: its pass may begin with a collective.
void draw_second_loader(EquivalenceCase& one, Choices& choices) {
  if (!choices.chance(20)) return;
  one.second_loader = one.always_in_step() ? choices.among({"in_turn", "inside"}) : "in_turn";
  one.leaves_second = choices.chance(50);
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
  if (ranks == 1 || pass_is_even() || dispatches()) return true;
  if (iterable) return source != "parts";
  return drop_last;
}

bool EquivalenceCase::always_in_step() const {
  auto resumed = *this;
  resumed.ranks = ranks_of(num_stages() - 1);
  return in_step() && resumed.in_step();
}

std::int64_t EquivalenceCase::num_ordered() const {
  if (source == "subset_sampler") return (length + 2) / 3;
  if (source == "repeated_sampler") return length == 0 ? 0 : 2 * length + 1;
  return length;
}

std::int64_t EquivalenceCase::num_steps() const {
  // Batches of 1, 2, 1, 2, ... samples.
  if (source == "varying_batches") return divide_up(2 * (length / 3) + length % 3, ranks);
  return drop_last ? num_ordered() / step_size() : divide_up(num_ordered(), step_size());
}

bool EquivalenceCase::pads() const {
  return even_batches && !drop_last && ranks > 1 && num_ordered() % step_size() != 0;
}

EquivalenceCase draw_case(const std::string& law, Choices choices, RankLimits limits) {
  EquivalenceCase one;
  one.law = law;
  one.ranks = static_cast<int>(choices.between(limits.smallest, limits.largest));
  draw_source(one, choices);
  if (law == "training" && choices.chance(10) && !one.dispatches() && one.source != "varying_batches")
    one.join_even_batches = choices.chance(50);
  draw_streams(one, choices, law == "rng_synchronization" ? 50 : 20);
  draw_reading(one, choices);
  draw_interruption(one, choices, limits);
  draw_second_loader(one, choices);
  draw_operations(one, choices);
  // After uneven inputs ranks are at different places of their accumulation windows, so that the next epoch would hang,
  // and their momenta differ, so that the replicas would differ in the next epoch, which only the simulator reports.
  if (law == "training" && one.always_in_step()) {
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
  check_config(problems.empty(), "{}", listed(problems, "; "));
  return one;
}

}  // namespace accel::programs
