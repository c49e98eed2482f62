#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/faults/fault_kinds.hpp"

/// A fault as data: what goes wrong, where and when. The kinds are in fault_kinds.hpp.
///
///     for (const auto& fault : plan_faults(read_faults("faults.yaml", 8), 8)) spdlog::info("{}", describe(fault));
///
/// Thread rule: values.
namespace accel::sim {

enum class WrongCall { kOp, kSize, kDtype, kOrder, kReduceOp, kShape };
enum class BadValue { kNan, kInf };

/// From one rank to another; messages the other way are another link's.
struct Link {
  int from = 0, to = 0;
  bool operator==(const Link&) const = default;
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

/// Every parameter that is set and is neither place nor time, as the file spells it: {"seconds", "0.2"}.
std::vector<std::pair<std::string, std::string>> amounts(const Fault& fault);

/// E.g. "rank_crash_before_optimizer_step on rank 3 at step 5", "message_delay on link 0 -> 1, seconds 0.2, probability
/// 0.01".
std::string describe(const Fault& fault);

}  // namespace accel::sim
