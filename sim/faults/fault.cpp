#include "sim/faults/fault.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace accel::sim {
namespace {

using enum FaultRule::Parameter;

constexpr unsigned kWhen = kStep | kCollective;
constexpr auto kAtStep = When::Unit::kStep;
constexpr auto kAtCollective = When::Unit::kCollective;

constexpr std::array<FaultRule, 20> kRules{{
    {.name = "rank_crash_before_collective", .takes = kRank | kWhen, .drawn = kAtCollective},
    {.name = "rank_crash_during_collective", .takes = kRank | kWhen, .drawn = kAtCollective},
    {.name = "rank_crash_before_optimizer_step", .takes = kRank | kStep, .drawn = kAtStep},
    {.name = "rank_hang", .takes = kRank | kWhen, .drawn = kAtStep},
    {.name = "rank_pause", .takes = kRank | kWhen | kSeconds, .drawn = kAtStep, .seconds = 0.5},
    {.name = "slow_rank", .takes = kRank | kFactor, .factor = 4},
    {.name = "jitter", .takes = kRank | kSeconds, .seconds = 0.002, .every_rank = true},
    {.name = "rank_restart", .takes = kRank | kStep, .drawn = kAtStep},
    {.name = "hook_exception", .takes = kRank | kStep, .drawn = kAtStep},
    {.name = "message_delay", .takes = kLink | kSeconds | kProbability, .seconds = 0.05, .probability = 0.1},
    {.name = "message_loss", .takes = kLink | kWhen, .drawn = kAtCollective},
    {.name = "connection_reset", .takes = kLink | kWhen, .drawn = kAtCollective},
    {.name = "partition", .takes = kRanks | kOneWay | kWhen, .drawn = kAtStep},
    {.name = "slow_link", .takes = kLink | kFactor, .factor = 10},
    {.name = "bit_flip", .takes = kRank | kWhen | kBit, .drawn = kAtStep},
    {.name = "store_slow", .takes = kSeconds | kAway, .seconds = 0.05},
    {.name = "torn_write", .takes = kRank | kBytes | kFile},
    {.name = "disk_full", .takes = kRank | kAfterBytes},
    {.name = "wrong_call", .takes = kRank | kWhen | kWhat, .drawn = kAtStep},
    {.name = "nan_gradient", .takes = kRank | kStep | kValue, .drawn = kAtStep},
}};
static_assert(kRules.size() == static_cast<std::size_t>(FaultKind::kNanGradient) + 1);

}  // namespace

std::span<const FaultRule> fault_rules() { return kRules; }
const FaultRule& rule_of(FaultKind kind) { return kRules.at(static_cast<std::size_t>(kind)); }

std::vector<std::pair<std::string, std::string>> amounts(const Fault& fault) {
  std::vector<std::pair<std::string, std::string>> texts;
  const auto add = [&](const char* key, const auto& value) {
    if (value) texts.emplace_back(key, fmt::format("{}", *value));
  };
  add("seconds", fault.seconds);
  add("factor", fault.factor);
  add("probability", fault.probability);
  add("bit", fault.bit);
  add("bytes", fault.bytes);
  add("after_bytes", fault.after_bytes);
  add("file", fault.file);
  if (fault.what) texts.emplace_back("what", kWrongCalls.at(static_cast<std::size_t>(*fault.what)));
  if (fault.value) texts.emplace_back("value", kBadValues.at(static_cast<std::size_t>(*fault.value)));
  if (fault.one_way) texts.emplace_back("one_way", "true");
  if (fault.away) texts.emplace_back("away", "true");
  return texts;
}

std::string describe(const Fault& fault) {
  std::string text(rule_of(fault.kind).name);
  if (rule_of(fault.kind).every_rank && !fault.rank) text += " on every rank";
  if (fault.rank) text += *fault.rank == kAnyRank ? " on any rank" : fmt::format(" on rank {}", *fault.rank);
  if (fault.link) text += fmt::format(" on link {} -> {}", fault.link->from, fault.link->to);
  if (fault.ranks) text += fmt::format(" of ranks {} from the others", fmt::join(*fault.ranks, ", "));
  if (fault.when)
    text += fmt::format(" at {} {}", fault.when->unit == kAtStep ? "step" : "collective", fault.when->number);
  for (const auto& [key, value] : amounts(fault)) text += fmt::format(", {} {}", key, value);
  return text;
}

}  // namespace accel::sim
