#pragma once

#include <set>
#include <string>
#include <vector>

#include "sim/faults/fault.hpp"
#include "tests/support/property.hpp"

/// Any faults that a file can hold: of every kind, each parameter given or left open.
namespace accel::testing {

namespace detail {

template <typename T, typename Draw>
void perhaps(bool is_taken, std::optional<T>& value, Draw&& draw) {
  if (is_taken && *rc::gen::arbitrary<bool>()) value = draw();
}

inline std::vector<int> any_side(int num_ranks) {
  std::set<int> side;
  for (auto size = pick(1, num_ranks); std::ssize(side) < size;) side.insert(pick(0, num_ranks));
  return {side.begin(), side.end()};
}

}  // namespace detail

inline sim::Fault any_fault(int num_ranks) {
  using namespace sim;
  using enum sim::FaultRule::Parameter;
  const auto any_number = [] { return pick<std::int64_t>(0, 1LL << 40); };
  const auto any_real = [] {
    return static_cast<double>(pick<std::int64_t>(1, 1LL << 40)) / static_cast<double>(pick<std::int64_t>(1, 1000));
  };
  Fault fault{.kind = static_cast<FaultKind>(pick(0, static_cast<int>(fault_rules().size())))};
  const auto& rule = rule_of(fault.kind);
  detail::perhaps(rule.has(kRank), fault.rank, [&] { return pick(kAnyRank, num_ranks); });
  detail::perhaps(rule.has(kLink), fault.link, [&] {
    const auto from = pick(0, num_ranks);
    return Link{from, (from + pick(1, num_ranks)) % num_ranks};
  });
  detail::perhaps(rule.has(kRanks), fault.ranks, [&] { return detail::any_side(num_ranks); });
  detail::perhaps(rule.has(kStep), fault.when, [&] {
    const bool is_collective = rule.has(kCollective) && *rc::gen::arbitrary<bool>();
    return When{is_collective ? When::Unit::kCollective : When::Unit::kStep, any_number()};
  });
  if (rule.has(kAway)) fault.away = *rc::gen::arbitrary<bool>();
  if (rule.has(kOneWay)) fault.one_way = *rc::gen::arbitrary<bool>();
  detail::perhaps(rule.has(kSeconds) && !fault.away, fault.seconds, any_real);
  detail::perhaps(rule.has(kFactor), fault.factor, [&] { return 1 + any_real(); });
  detail::perhaps(rule.has(kProbability), fault.probability, [] { return static_cast<double>(pick(0, 1001)) / 1000; });
  detail::perhaps(rule.has(kBit), fault.bit, any_number);
  detail::perhaps(rule.has(kBytes), fault.bytes, any_number);
  detail::perhaps(rule.has(kAfterBytes), fault.after_bytes, any_number);
  detail::perhaps(rule.has(kFile), fault.file,
                  [] { return *rc::gen::container<std::string>(rc::gen::inRange<char>(' ', 127)); });
  detail::perhaps(rule.has(kWhat), fault.what, [] { return static_cast<WrongCall>(pick(0, 6)); });
  detail::perhaps(rule.has(kValue), fault.value, [] { return static_cast<BadValue>(pick(0, 2)); });
  return fault;
}

/// With one seed, and streams that are their places or others, no two alike.
inline std::vector<sim::Fault> any_faults(int num_ranks) {
  std::vector<sim::Fault> faults(static_cast<std::size_t>(pick(0, 6)));
  const auto seed = pick<std::uint64_t>(0, 1ULL << 63);
  const bool are_moved = *rc::gen::arbitrary<bool>();
  for (std::size_t place = 0; place < faults.size(); ++place) {
    faults[place] = any_fault(num_ranks);
    faults[place].seed = seed;
    faults[place].stream = static_cast<std::uint32_t>(are_moved ? (1u << 31) - place : place);
  }
  return faults;
}

}  // namespace accel::testing
