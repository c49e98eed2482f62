#pragma once

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "sim/faults/fault_parameters.hpp"
#include "tests/support/property.hpp"

/// Generates faults that a file can hold: of every kind, with each parameter given or left out.
namespace accel::testing {

/// Sets a parameter to any value that a file can hold.
struct AnyValue {
  sim::Fault& fault;

  void operator()(const sim::NumberForm& form) const {
    const auto bounded = form.least + (form.most - form.least) * static_cast<double>(pick(0, 1001)) / 1000;
    const auto unbounded = form.least + static_cast<double>(pick<std::int64_t>(1, 1LL << 40)) /
                                            static_cast<double>(pick<std::int64_t>(1, 1000));
    fault.*form.member = std::isfinite(form.most) ? bounded : unbounded;
  }
  void operator()(const sim::CountForm& form) const { fault.*form.member = pick<std::int64_t>(0, 1LL << 40); }
  void operator()(const sim::TextForm& form) const {
    fault.*form.member = *rc::gen::container<std::string>(rc::gen::inRange<char>(' ', 127));
  }
  template <typename Enum>
  void operator()(const sim::ChoiceForm<Enum>& form) const {
    fault.*form.member = static_cast<Enum>(pick(0, static_cast<int>(form.names.size())));
  }
  void operator()(const sim::FlagForm& form) const { fault.*form.member = true; }
};

inline std::vector<int> any_side(int num_ranks) {
  std::set<int> side;
  for (auto size = pick(1, num_ranks); std::ssize(side) < size;) side.insert(pick(0, num_ranks));
  return {side.begin(), side.end()};
}

inline sim::Fault any_fault(int num_ranks) {
  using namespace sim;
  using enum sim::FaultRule::Parameter;
  const auto perhaps = [] { return *rc::gen::arbitrary<bool>(); };
  Fault fault{.kind = static_cast<FaultKind>(pick(0, static_cast<int>(kFaultRules.size())))};
  const auto& rule = rule_of(fault.kind);
  if (rule.has(kRank) && perhaps()) fault.rank = pick(kAnyRank, num_ranks);
  if (rule.has(kLink) && perhaps()) {
    const auto from = pick(0, num_ranks);
    fault.link = NetworkLink{from, (from + pick(1, num_ranks)) % num_ranks};
  }
  if (rule.has(kRanks) && perhaps()) fault.ranks = any_side(num_ranks);
  if (rule.has(kStep) && perhaps()) {
    const bool is_collective = rule.has(kCollective) && perhaps();
    fault.when = When{is_collective ? When::Unit::kCollective : When::Unit::kStep, pick<std::int64_t>(0, 1LL << 40)};
  }
  for (const auto& parameter : kFaultParameters) {
    if (rule.has(parameter.parameter) && perhaps()) std::visit(AnyValue{fault}, parameter.form);
  }
  if (fault.away) fault.seconds.reset();
  return fault;
}

/// Returns faults with one seed. Their streams are their places or other numbers, but all different.
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
