#include "sim/engine/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::sim {
namespace {

using enum CheckLevel;

constexpr CheckTraits kTraits[] = {
    {"calls", kError, "calls that differ between ranks, and hangs", /*is_fixed=*/true},
    {"replicas", kError, "parameters that differ between replicas after an optimizer step"},
    {"races", kError, "a tensor read or changed between a call and its wait(); calls that overlap in memory"},
    {"torch_races", kFinding, "the same, by code of torch.distributed itself (Python)"},
    {"partial_sums", kFinding, "a tensor that is read after reduce on a rank that is not the root"},
    {"lost_nan", kFinding, "a NaN that a max or min of all ranks loses"},
    {"generators", kFinding, "default generators that were equal on all ranks and differ after an optimizer step"},
    {"divided_weights", kFinding, "ranks that keep parts of models with different weights (FSDP2 in Python)"},
    {"sampler_epochs", kFinding, "a DistributedSampler that starts again without set_epoch (Python)"},
    {"backend_faults", kFinding, "a call whose result is wrong on the real backend of the installed torch (Python)"},
    {"unstruck_faults", kFinding, "an injected fault whose event the run never reached"},
    {"unused_costs", kFinding, "an operator's cost in the network file that no call has used"},
};
static_assert(std::size(kTraits) == static_cast<std::size_t>(Check::kUnusedCosts) + 1);

constexpr std::string_view kLevelNames[] = {"error", "finding", "off"};

const CheckTraits& traits_of(Check check) { return kTraits[static_cast<std::size_t>(check)]; }

void set_level(CheckLevels& levels, std::string_view text) {
  const auto sign = text.find('=');
  const auto level = sign == std::string_view::npos ? "" : text.substr(sign + 1);
  const auto found = std::ranges::find(kLevelNames, level);
  check_config(found != std::end(kLevelNames), "expected NAME=error, NAME=finding or NAME=off, got '{}'", text);
  const auto check = check_named(text.substr(0, sign));
  const auto& traits = traits_of(check);
  check_config(!traits.is_fixed || level == name_of(traits.level), "{}: is always an {}; leave it out", traits.name,
               name_of(traits.level));
  levels.set(check, static_cast<CheckLevel>(found - kLevelNames));
}

}  // namespace

std::span<const CheckTraits> check_traits() { return kTraits; }

Check check_named(std::string_view name) {
  const auto found = std::ranges::find(kTraits, name, &CheckTraits::name);
  if (found != std::end(kTraits)) return static_cast<Check>(found - kTraits);
  std::vector<std::string_view> names;
  for (const auto& traits : kTraits) names.push_back(traits.name);
  throw ConfigError(fmt::format("unknown check '{}'; expected one of: {}", name, fmt::join(names, ", ")));
}

std::string_view name_of(CheckLevel level) { return kLevelNames[static_cast<std::size_t>(level)]; }

CheckLevels::CheckLevels() { std::ranges::transform(kTraits, levels_.begin(), &CheckTraits::level); }

CheckLevels check_levels(std::string_view text) {
  CheckLevels levels;
  std::vector<std::string> problems;
  for (const auto one : std::views::split(text, ',')) {
    try {
      set_level(levels, std::string_view(one.begin(), one.end()));
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
    }
  }
  check_config(problems.empty(), "{}", listed(problems, "; "));
  return levels;
}

std::string with_name(std::string_view text, Check check) {
  return fmt::format("{} [{}]", text, traits_of(check).name);
}

}  // namespace accel::sim
