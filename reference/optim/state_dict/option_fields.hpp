#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "reference/config/field.hpp"

/// Lists of the options of an optimizer or schedule: name, member, allowed values. Experiment files, DeepSpeed files,
/// state dicts and error messages use this single list. The member's initializer is the default.
///
///     struct RMSpropOptions {
///       double lr = 1e-2;
///       bool centered = false;
///       static constexpr auto fields() {
///         return std::tuple{OptionField{"lr", &RMSpropOptions::lr, kAtLeastZero},
///                           OptionField{"centered", &RMSpropOptions::centered}};
///       }
///     };
///     for_each_option(options, [](const char* name, auto& value) { ... });
///     throw_problems("RMSprop", problems_of(options));
///
/// Thread rule: pure functions.
namespace accel::optim {

/// Python's `betas`, `etas` and `step_sizes`.
using NumberPair = std::tuple<double, double>;
/// Muon's `ns_coefficients`.
using NumberTriple = std::tuple<double, double, double>;
/// Adafactor's `eps`, whose first number may be None.
using OptionalNumberPair = std::tuple<std::optional<double>, double>;

/// The allowed values of an option; all if `holds` is null. Messages read "expected `expected`, got ...".
template <typename T>
struct Allowed {
  bool (*holds)(const T& value) = nullptr;
  const char* expected = "";
};

inline constexpr Allowed<double> kAtLeastZero{[](const double& value) { return value >= 0; }, "a number of 0 or more"};
inline constexpr Allowed<double> kAboveZero{[](const double& value) { return value > 0; }, "a number above 0"};
inline constexpr Allowed<double> kZeroToOne{[](const double& value) { return zero_to_one(value); },
                                            "a number in [0, 1]"};
inline constexpr Allowed<NumberPair> kBetas{[](const NumberPair& betas) {
                                              const auto [beta1, beta2] = betas;
                                              return beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1;
                                            },
                                            "two numbers in [0, 1)"};

/// The values that a rule for fields of files allows.
template <typename T, const FieldRule& kRule>
inline constexpr Allowed<T> kAllowedBy{[](const T& value) { return kRule(static_cast<double>(value)); },
                                       kRule.expected};
// Files can contain infinite numbers, which no schedule can use.
inline constexpr auto kFiniteAtLeastZero = kAllowedBy<double, finite_at_least_zero>;
inline constexpr auto kFiniteAboveZero = kAllowedBy<double, finite_above_zero>;
inline constexpr auto kFromZeroToOne = kAllowedBy<double, zero_to_one>;
inline constexpr auto kAboveZeroToOne = kAllowedBy<double, above_zero_to_one>;
inline constexpr auto kBetweenZeroAndOne = kAllowedBy<double, between_zero_and_one>;
inline constexpr auto kCount = kAllowedBy<int, at_least_zero>;
inline constexpr auto kCountAboveZero = kAllowedBy<int, at_least_one>;

/// Whether a file must contain the option.
enum class Presence { kOptional, kRequired };

/// `Checked` is the type of one value in a file: `int` where `T` is `std::optional<int>`.
template <typename Options, typename T, typename Checked>
struct OptionField {
  constexpr OptionField(const char* name, T Options::*member, Allowed<Checked> allowed = {},
                        Presence presence = Presence::kOptional)
      : name(name), member(member), allowed(allowed), presence(presence) {}
  constexpr OptionField(const char* name, T Options::*member, Presence presence)
      : OptionField(name, member, {}, presence) {}

  const char* name;
  T Options::*member;
  Allowed<Checked> allowed;
  Presence presence;
};
template <typename Options, typename T>
OptionField(const char*, T Options::*) -> OptionField<Options, T, T>;
template <typename Options, typename T>
OptionField(const char*, T Options::*, Presence) -> OptionField<Options, T, T>;
template <typename Options, typename T, typename Checked>
OptionField(const char*, T Options::*, Allowed<Checked>) -> OptionField<Options, T, Checked>;
template <typename Options, typename T, typename Checked>
OptionField(const char*, T Options::*, Allowed<Checked>, Presence) -> OptionField<Options, T, Checked>;

/// Calls `visit(field)` for every option in `Options::fields()`.
template <typename Options, typename Visit>
void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, std::remove_const_t<Options>::fields());
}
/// Calls `visit(name, value)`.
template <typename Options, typename Visit>
void for_each_option(Options& options, Visit&& visit) {
  for_each_field<Options>([&](const auto& field) { visit(field.name, options.*field.member); });
}

/// An option value for which Python raises ValueError.
struct OptionProblem {
  std::string name = {}, text = {};
};

/// Returns, for example, "expected a number of 0 or more, got -1".
std::string unexpected(const char* expected, double value);
std::string unexpected(const char* expected, const std::string& value);
std::string unexpected(const char* expected, const NumberPair& value);
std::string unexpected(const char* expected, const OptionalNumberPair& value);

/// The options that are out of range, in the order of the fields. `Options::problems_between()` checks rules that
/// involve several options.
template <typename Options>
std::vector<OptionProblem> problems_of(const Options& options) {
  std::vector<OptionProblem> problems;
  for_each_field<Options>([&](const auto& field) {
    const auto& value = options.*field.member;
    // Other values (optional ones, lists) are checked where they are read.
    if constexpr (requires { unexpected(field.allowed.expected, value); }) {
      if (field.allowed.holds != nullptr && !field.allowed.holds(value))
        problems.push_back({field.name, unexpected(field.allowed.expected, value)});
    }
  });
  if constexpr (requires { options.problems_between(); }) {
    for (auto& problem : options.problems_between()) problems.push_back(std::move(problem));
  }
  return problems;
}

/// Throws one ArgumentError with all problems; does nothing if there are none.
void throw_problems(const std::string& optimizer, const std::vector<OptionProblem>& problems);

}  // namespace accel::optim
