#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A fault as data: what goes wrong, where and when. What every rank sees of each kind says sim/faults/README.md.
///
///     for (const auto& fault : plan_faults(read_faults("faults.yaml", 8), 8)) spdlog::info("{}", describe(fault));
///
/// Thread rule: values.
namespace accel::sim {

enum class FaultKind {
  kRankCrashBeforeCollective,
  kRankCrashDuringCollective,
  kRankCrashBeforeOptimizerStep,
  kRankHang,
  kRankPause,
  kSlowRank,
  kJitter,
  kRankRestart,
  kHookException,
  kMessageDelay,
  kMessageLoss,
  kConnectionReset,
  kPartition,
  kSlowLink,
  kBitFlip,
  kStoreSlow,
  kTornWrite,
  kDiskFull,
  kWrongCall,
  kNanGradient,
};

enum class WrongCall { kOp, kSize, kDtype, kOrder, kReduceOp, kShape };
enum class BadValue { kNan, kInf };

/// From one rank to another; messages the other way are another link's.
struct Link {
  int from = 0, to = 0;
  bool operator==(const Link&) const = default;
};

/// The first occasion in this micro-batch or a later one; or at this collective of the world, counted from 0, or a
/// later one.
struct When {
  enum class Unit { kStep, kCollective };
  Unit unit = Unit::kStep;
  std::int64_t number = 0;
  bool operator==(const When&) const = default;
};

inline constexpr int kAnyRank = -1;

/// What a kind does not take is absent; of the rest, plan_faults fills in what is absent or any.
struct Fault {
  FaultKind kind{};
  std::optional<int> rank;
  std::optional<Link> link;
  std::optional<std::vector<int>> ranks;  // one side of a partition, ascending
  std::optional<When> when;
  std::optional<double> seconds, factor, probability;
  std::optional<std::int64_t> bit;          // of the payload, modulo its size; bit b is bit b % 8 of byte b / 8
  std::optional<std::int64_t> bytes;        // that a torn write keeps; absent: drawn_bytes()
  std::optional<std::int64_t> after_bytes;  // that fit on the disk
  std::optional<std::string> file;          // part of the path of a torn write; absent: any
  std::optional<WrongCall> what;
  std::optional<BadValue> value;
  bool one_way = false;  // of a partition: only what `ranks` send is lost
  bool away = false;     // of the store: nobody reaches it

  // All that is random about the fault comes from Philox(seed, stream), and from no other fault's.
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;

  bool operator==(const Fault&) const = default;
};

/// One kind: its name, what it takes, and what is meant where the file says nothing.
struct FaultRule {
  enum Parameter : unsigned {  // of a fault file; kStep and kCollective: of its `when`
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
  };

  std::string_view name;
  unsigned takes = 0;               // a set of parameters
  std::optional<When::Unit> drawn;  // the unit of a `when` that is not given
  std::optional<double> seconds, factor, probability;
  bool every_rank = false;  // an absent rank means all of them; elsewhere, any
  [[nodiscard]] bool has(Parameter parameter) const { return (takes & parameter) != 0; }
  [[nodiscard]] bool needs_two_ranks() const { return has(kLink) || has(kRanks); }
};

/// In the order of FaultKind.
std::span<const FaultRule> fault_rules();
const FaultRule& rule_of(FaultKind kind);

/// As the file spells them, in the order of the enumerations.
inline constexpr std::array<std::string_view, 6> kWrongCalls{"op", "size", "dtype", "order", "reduce_op", "shape"};
inline constexpr std::array<std::string_view, 2> kBadValues{"nan", "inf"};

/// Every parameter that is set and is neither place nor time, as the file spells it: {"seconds", "0.2"}.
std::vector<std::pair<std::string, std::string>> amounts(const Fault& fault);

/// E.g. "rank_crash_before_optimizer_step on rank 3 at step 5", "message_delay on link 0 -> 1, seconds 0.2, probability
/// 0.01".
std::string describe(const Fault& fault);

}  // namespace accel::sim
