#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

/// The description of a kind of fault. fault_kinds.hpp has the kinds. Thread rule: constants.
namespace accel::sim {

enum class FaultKind : std::uint8_t;

/// The first opportunity in this micro-batch or a later one; or at this call of a group, counted from 0, or a later
/// one.
struct When {
  enum class Unit { kStep, kCollective };
  Unit unit = Unit::kStep;
  std::int64_t number = 0;
  bool operator==(const When&) const = default;
};

/// What a fault strikes. The effects are in rank_effects.cpp, collective_effects.cpp, message_effects.cpp and
/// storage_effects.cpp. A kind that needs the tensors or the call of a collective has the target kCollective, whatever
/// its name.
enum class FaultTarget { kRank, kCollective, kMessages, kStorage };

/// One kind of fault.
struct FaultRule {
  enum Parameter : unsigned {  // keys of a fault; kStep and kCollective are keys inside `when`
    kRank = 1u << 0,
    kLink = 1u << 1,
    kRanks = 1u << 2,
    kStep = 1u << 3,
    kCollective = 1u << 4,
    kSeconds = 1u << 5,
    kFactor = 1u << 6,
    kProbability = 1u << 7,
    kBit = 1u << 8,
    kBytes = 1u << 9,
    kAfterBytes = 1u << 10,
    kFile = 1u << 11,
    kWhat = 1u << 12,
    kValue = 1u << 13,
    kOneWay = 1u << 14,
    kAway = 1u << 15,
    kWhen = kStep | kCollective,
  };
  struct Default {
    unsigned parameter = 0;
    double value = 0;
  };

  FaultKind kind{};
  std::string_view name;
  FaultTarget target{};
  unsigned takes = 0;                    // a set of parameters
  std::optional<When::Unit> drawn = {};  // of `when`, if the file has none; absent: the kind has no `when`
  std::array<Default, 2> defaults = {};  // of numbers that the file leaves out
  bool every_rank = false;               // an absent rank means every rank; otherwise any rank
  std::string_view sees;                 // what every rank sees, for README.md and the file of the kind

  [[nodiscard]] constexpr bool has(unsigned parameter) const { return (takes & parameter) != 0; }
  [[nodiscard]] constexpr bool needs_two_ranks() const { return has(kLink | kRanks); }
  [[nodiscard]] constexpr std::optional<double> default_of(unsigned parameter) const {
    for (const auto& one : defaults) {
      if (one.parameter == parameter) return one.value;
    }
    return std::nullopt;
  }
};

}  // namespace accel::sim
