#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/faults/fault_kinds.hpp"

/// A fault as data: what goes wrong, where and when. The kinds are in fault_kinds.hpp.
///
///     for (const auto& fault : plan_faults(read_faults("faults.yaml", 8), 8)) fmt::print("{}\n", describe(fault));
///
/// Thread rule: values.
namespace accel::sim {

enum class WrongCall { kOp, kSize, kDtype, kOrder, kReduceOp, kShape };
enum class BadValue { kNan, kInf };

/// Messages from one rank to another; the opposite direction is a separate link.
struct NetworkLink {
  int from = 0, to = 0;
  bool operator==(const NetworkLink&) const = default;
};

inline constexpr int kAnyRank = -1;

/// Parameters that a kind does not have are absent. plan_faults fills in the others where they are absent or `any`.
struct Fault {
  FaultKind kind{};
  std::optional<int> rank;
  std::optional<NetworkLink> link;
  std::optional<std::vector<int>> ranks;  // one side of a partition, ascending
  std::optional<When> when;
  std::optional<double> seconds, factor, probability;
  std::optional<std::int64_t> bit;          // bit of the payload, modulo its size; bit b is bit b % 8 of byte b / 8
  std::optional<std::int64_t> bytes;        // bytes kept by a torn write; absent: drawn_bytes()
  std::optional<std::int64_t> after_bytes;  // bytes that fit on the disk
  std::optional<std::string> file;          // part of the path of the file to tear; absent: any
  std::optional<WrongCall> what;
  std::optional<BadValue> value;
  bool one_way = false;  // partition: only messages from `ranks` are lost
  bool away = false;     // store_slow: no rank reaches the store

  // All random choices of the fault come from Philox(seed, stream), independent of other faults.
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;

  bool operator==(const Fault&) const = default;
};

/// Returns every parameter that is set, except place and time, as spelled in a file: {"seconds", "0.2"}.
std::vector<std::pair<std::string, std::string>> amounts(const Fault& fault);

/// E.g. "rank_crash_before_optimizer_step on rank 3 at step 5", "message_delay on link 0 -> 1, seconds 0.2, probability
/// 0.01".
std::string describe(const Fault& fault);

}  // namespace accel::sim
