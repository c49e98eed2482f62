#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

/// The checks of a simulated run: what each finds, and whether that ends the run.
///
///     const auto levels = check_levels("races=finding,replicas=off");   // the others keep their own levels
///     world.report(Check::kRaces, diagnosis);                           // an error, a finding or nothing
///
/// Thread rule: any thread.
namespace accel::sim {

enum class Check {
  kCalls,
  kReplicas,
  kRaces,
  kTorchRaces,
  kPartialSums,
  kLostNan,
  kGenerators,
  kDividedWeights,
  kSamplerEpochs,
  kBackendFaults,
  kUnstruckFaults,
  kUnusedCosts,
};

enum class CheckLevel {
  kError,    ///< ends the run
  kFinding,  ///< is printed at the end of the run
  kOff,
};

struct CheckTraits {
  std::string_view name;
  CheckLevel level{};
  std::string_view finds;
  bool is_fixed = false;  ///< the level cannot be changed
};
/// All checks, in the order of Check.
std::span<const CheckTraits> check_traits();
/// The check of this name. Throws ConfigError, with all names, if there is none.
Check check_named(std::string_view name);
std::string_view name_of(CheckLevel level);

/// The level of each check.
class CheckLevels {
 public:
  CheckLevels();
  [[nodiscard]] CheckLevel operator[](Check check) const { return levels_[static_cast<std::size_t>(check)]; }
  void set(Check check, CheckLevel level) { levels_[static_cast<std::size_t>(check)] = level; }

 private:
  std::array<CheckLevel, static_cast<std::size_t>(Check::kUnusedCosts) + 1> levels_;
};

/// Reads `NAME=error|finding|off`, several separated by commas. Throws ConfigError with all problems.
CheckLevels check_levels(std::string_view text);

/// The text of a finding or an error: what the check has found, and its name in brackets.
std::string with_name(std::string_view text, Check check);

}  // namespace accel::sim
