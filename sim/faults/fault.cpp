#include "sim/faults/fault.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "reference/config/field.hpp"
#include "sim/faults/fault_parameters.hpp"

namespace accel::sim {
namespace {

// Returns the text of a parameter's value as a file spells it; null if it is not set. Doubles are printed in
// the shortest form that reads back as the same value, so `to_yaml` loses nothing.
struct TextOfValue {
  const Fault& fault;

  template <typename Form>
  std::optional<std::string> operator()(const Form& form) const {
    const auto& value = fault.*form.member;
    return value ? std::optional(fmt::format("{}", *value)) : std::nullopt;
  }
  template <typename Enum>
  std::optional<std::string> operator()(const ChoiceForm<Enum>& form) const {
    const auto& value = fault.*form.member;
    return value ? std::optional(std::string(form.names[static_cast<std::size_t>(*value)])) : std::nullopt;
  }
  std::optional<std::string> operator()(const FlagForm& form) const {
    return fault.*form.member ? std::optional<std::string>("true") : std::nullopt;
  }
};

// Used in error messages and in README.md, so both describe the same ranges.
struct AllowedValues {
  std::string operator()(const NumberForm& form) const {
    return std::isfinite(form.most) ? fmt::format("a number in [{}, {}]", form.least, form.most)
                                    : fmt::format("a number of {} or more", form.least);
  }
  std::string operator()(const CountForm&) const { return at_least_zero.expected; }
  std::string operator()(const TextForm&) const { return "text"; }
  template <typename Enum>
  std::string operator()(const ChoiceForm<Enum>& form) const {
    return fmt::format("one of {}", fmt::join(form.names, ", "));
  }
  std::string operator()(const FlagForm&) const { return "true or false"; }
};

}  // namespace

std::string allowed_values(const ParameterForm& form) { return std::visit(AllowedValues{}, form); }

// The order is that of the table, so files and texts list parameters alike.
std::vector<std::pair<std::string, std::string>> amounts(const Fault& fault) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& parameter : kFaultParameters) {
    if (auto text = std::visit(TextOfValue{fault}, parameter.form))
      texts.emplace_back(parameter.name, std::move(*text));
  }
  return texts;
}

// The text identifies a strike in FailureRecord (`blame`), so equal faults must give equal texts.
std::string describe(const Fault& fault) {
  const auto& rule = rule_of(fault.kind);
  std::string text(rule.name);
  if (rule.every_rank && !fault.rank) text += " on every rank";
  if (fault.rank) text += *fault.rank == kAnyRank ? " on any rank" : fmt::format(" on rank {}", *fault.rank);
  if (fault.link) text += fmt::format(" on link {} -> {}", fault.link->from, fault.link->to);
  if (fault.ranks) text += fmt::format(" of ranks {} from the others", fmt::join(*fault.ranks, ", "));
  if (fault.when)
    text += fmt::format(" at {} {}", fault.when->unit == When::Unit::kStep ? "step" : "collective", fault.when->number);
  for (const auto& [key, value] : amounts(fault)) text += fmt::format(", {} {}", key, value);
  return text;
}

}  // namespace accel::sim
