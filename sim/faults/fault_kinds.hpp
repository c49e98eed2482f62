#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "sim/faults/fault_rule.hpp"

/// The kinds of faults: one table, from which the reader of fault files, the plan, the injector and the tables of
/// README.md follow.
///
///     for (const auto& rule : kFaultRules) fmt::print("{}: {}\n", rule.name, rule.sees);
///
/// A new kind needs an enumerator and its row here, its effect in the file of its target (e.g. rank_effects.cpp), and a
/// file in configs/sim/faults. Thread rule: constants.
namespace accel::sim {

enum class FaultKind : std::uint8_t {
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
  kCount,  ///< the number of kinds, not a kind
};

/// In the order of FaultKind.
inline constexpr auto kFaultRules = [] {
  using enum FaultRule::Parameter;
  return std::to_array<FaultRule>({
      {.kind = FaultKind::kRankCrashBeforeCollective,
       .name = "rank_crash_before_collective",
       .target = FaultTarget::kRank,
       .takes = kRank | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "The rank ends before it makes the call. All others get `Connection closed by peer` from that "
               "collective, and from every later one of the group."},
      {.kind = FaultKind::kRankCrashDuringCollective,
       .name = "rank_crash_during_collective",
       .target = FaultTarget::kCollective,
       .takes = kRank | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "The rank makes the call and ends before the result. All others get `Connection closed by peer` "
               "from that very collective, and may find part of the result in their tensors."},
      {.kind = FaultKind::kRankCrashBeforeOptimizerStep,
       .name = "rank_crash_before_optimizer_step",
       .target = FaultTarget::kRank,
       .takes = kRank | kStep,
       .drawn = When::Unit::kStep,
       .sees = "The rank has the summed gradients and ends before its optimizer takes them. All others step, so "
               "they are one step ahead of it, and get `Connection closed by peer` from their next collective."},
      {.kind = FaultKind::kRankHang,
       .name = "rank_hang",
       .target = FaultTarget::kRank,
       .takes = kRank | kWhen,
       .drawn = When::Unit::kStep,
       .sees = "The rank stands still for ever. All others wait for it in their next collective, where they get "
               "`Timed out` at once, not after the timeout; the diagnosis names the rank, and who waits for it in "
               "which collective."},
      {.kind = FaultKind::kRankPause,
       .name = "rank_pause",
       .target = FaultTarget::kRank,
       .takes = kRank | kWhen | kSeconds,
       .drawn = When::Unit::kStep,
       .defaults = {{{kSeconds, 0.5}}},
       .sees = "The rank stands still for `seconds`, once. All others wait for it in their next collective; "
               "results are those of a run without the fault. A pause beyond the group's timeout ends the run: "
               "`Timed out` on those that wait, `Connection closed by peer` on the late one."},
      {.kind = FaultKind::kSlowRank,
       .name = "slow_rank",
       .target = FaultTarget::kRank,
       .takes = kRank | kFactor,
       .defaults = {{{kFactor, 4}}},
       .sees = "All that the rank computes takes `factor` times as long. All others wait for it in every "
               "collective; results are those of a run without the fault."},
      {.kind = FaultKind::kJitter,
       .name = "jitter",
       .target = FaultTarget::kRank,
       .takes = kRank | kSeconds,
       .defaults = {{{kSeconds, 0.002}}},
       .every_rank = true,
       .sees = "Every step takes longer by a time drawn evenly between 0 and twice `seconds`. All ranks wait for "
               "the slowest of each step; results are those of a run without the fault. Beyond the timeout: as "
               "`rank_pause`."},
      {.kind = FaultKind::kRankRestart,
       .name = "rank_restart",
       .target = FaultTarget::kRank,
       .takes = kRank | kStep,
       .drawn = When::Unit::kStep,
       .sees = "The rank ends before its optimizer's step, and all others get `Connection closed by peer` from "
               "their next collective. Then all are started again, as a launcher does: every program runs from the "
               "top, with no more than what it has saved, and the fault does not strike again; an experiment goes "
               "on from its newest checkpoint."},
      {.kind = FaultKind::kHookException,
       .name = "hook_exception",
       .target = FaultTarget::kCollective,
       .takes = kRank | kStep,
       .drawn = When::Unit::kStep,
       .sees = "A gradient hook of the rank throws, and so does its `backward`. If the rank ends by that, all "
               "others get `Connection closed by peer` from the collective of that gradient."},
      {.kind = FaultKind::kMessageDelay,
       .name = "message_delay",
       .target = FaultTarget::kMessages,
       .takes = kLink | kSeconds | kProbability,
       .defaults = {{{kSeconds, 0.05}, {kProbability, 0.1}}},
       .sees = "Each message on the link is late by `seconds` with this probability; later ones wait behind it. "
               "All ranks are held up by it; results are those of a run without the fault. Beyond the timeout: as "
               "`message_loss`."},
      {.kind = FaultKind::kMessageLoss,
       .name = "message_loss",
       .target = FaultTarget::kMessages,
       .takes = kLink | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "One message on the link never arrives. Its receiver gets `Timed out` from that collective; all "
               "others, who then find the receiver gone, `Connection closed by peer`."},
      {.kind = FaultKind::kConnectionReset,
       .name = "connection_reset",
       .target = FaultTarget::kMessages,
       .takes = kLink | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "The connection of the link's two ranks is reset. Both get `Connection reset by peer`, all others "
               "`Connection closed by peer`, from the first collective in which one of the two sends to the other "
               "along the link."},
      {.kind = FaultKind::kPartition,
       .name = "partition",
       .target = FaultTarget::kMessages,
       .takes = kRanks | kOneWay | kWhen,
       .drawn = When::Unit::kStep,
       .sees = "No message passes between `ranks` and the others; with `one_way: true`, none from `ranks` to the "
               "others. In the first collective with a message across the cut, its receivers get `Timed out`; all "
               "others, who then find them gone, `Connection closed by peer`."},
      {.kind = FaultKind::kSlowLink,
       .name = "slow_link",
       .target = FaultTarget::kMessages,
       .takes = kLink | kFactor,
       .defaults = {{{kFactor, 10}}},
       .sees = "Messages on the link take `factor` times as long. All ranks are held up by it; results are those "
               "of a run without the fault. Where no network is described, one that takes longer than the timeout "
               "is as `message_loss`."},
      {.kind = FaultKind::kBitFlip,
       .name = "bit_flip",
       .target = FaultTarget::kCollective,
       .takes = kRank | kWhen | kBit,
       .drawn = When::Unit::kStep,
       .sees = "One bit of the summed gradients arrives at the rank as its opposite. No call throws; after the "
               "step that rank's replica differs from the others', and every rank gets the diagnosis of a desync, "
               "which names the rank and the first parameter that differs. A bit so low that the step rounds it "
               "away changes nothing; on a sharded model, which has no replicas, nobody notices."},
      {.kind = FaultKind::kStoreSlow,
       .name = "store_slow",
       .target = FaultTarget::kStorage,
       .takes = kSeconds | kAway,
       .defaults = {{{kSeconds, 0.05}}},
       .sees = "The store, through which ranks find each other, takes `seconds` longer to answer; groups are made "
               "later, and results are those of a run without the fault. With `away: true`, or later than the "
               "timeout, nobody reaches it, and every rank gets an error that says so where it makes its first "
               "group."},
      {.kind = FaultKind::kTornWrite,
       .name = "torn_write",
       .target = FaultTarget::kStorage,
       .takes = kRank | kBytes | kFile,
       .sees = "The rank's process dies in its first write of a file whose path contains `file` (absent: of any); "
               "only the first `bytes` (absent: a drawn number) reach the disk. All others get `Connection closed "
               "by peer` from their next collective; the checkpoint before stays whole, the torn one is never "
               "read. A run that saves nothing sees nothing."},
      {.kind = FaultKind::kDiskFull,
       .name = "disk_full",
       .target = FaultTarget::kStorage,
       .takes = kRank | kAfterBytes,
       .sees = "The rank's disk takes `after_bytes` more bytes. The save that needs more throws `No space left on "
               "device` on this rank, naming the file; what was there before stays whole, and no temporary file is "
               "left. If the rank ends by that, all others get `Connection closed by peer` from their next "
               "collective. A run that saves nothing sees nothing."},
      {.kind = FaultKind::kWrongCall,
       .name = "wrong_call",
       .target = FaultTarget::kCollective,
       .takes = kRank | kWhen | kWhat,
       .drawn = When::Unit::kStep,
       .sees = "The rank's call is not that of the others: another operation, more elements, another dtype, one "
               "barrier too many before it, another reduce operation, or as many elements in another shape. Every "
               "rank gets the diagnosis of a desync, which names the rank and the first difference; nothing is "
               "summed."},
      {.kind = FaultKind::kNanGradient,
       .name = "nan_gradient",
       .target = FaultTarget::kCollective,
       .takes = kRank | kStep | kValue,
       .drawn = When::Unit::kStep,
       .sees = "One value of the rank's gradients is not finite before they are summed. No rank sees an error: "
               "that gradient is the same on all ranks and not finite, and so are the parameters after the step, "
               "and soon the loss."},
  });
}();

constexpr const FaultRule& rule_of(FaultKind kind) { return kFaultRules[static_cast<std::size_t>(kind)]; }

static_assert(kFaultRules.size() == static_cast<std::size_t>(FaultKind::kCount) &&
                  std::all_of(kFaultRules.begin(), kFaultRules.end(),
                              [](const FaultRule& rule) { return &rule == &rule_of(rule.kind); }),
              "every FaultKind has its row in kFaultRules, in the order of the enumeration");

}  // namespace accel::sim
