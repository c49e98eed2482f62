#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "sim/faults/fault_rule.hpp"

/// The kinds of faults in one table, which the reader of fault files, the plan, the injector and the tables of
/// README.md use.
///
///     for (const auto& rule : kFaultRules) fmt::print("{}: {}\n", rule.name, rule.sees);
///
/// To add one, see "Where do I add" in reference/guide/architecture.md. Thread rule: constants.
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
  kRankLeave,
  kRankJoin,
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
               "collective and from every later one of the group."},
      {.kind = FaultKind::kRankCrashDuringCollective,
       .name = "rank_crash_during_collective",
       .target = FaultTarget::kCollective,
       .takes = kRank | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "The rank makes the call and ends before the result arrives. All others get `Connection closed "
               "by peer` from that collective and may find part of the result in their tensors."},
      {.kind = FaultKind::kRankCrashBeforeOptimizerStep,
       .name = "rank_crash_before_optimizer_step",
       .target = FaultTarget::kRank,
       .takes = kRank | kStep,
       .drawn = When::Unit::kStep,
       .sees = "The rank has the summed gradients and ends before its optimizer uses them. All others step, so "
               "they are one step ahead of it, and get `Connection closed by peer` from their next collective."},
      {.kind = FaultKind::kRankHang,
       .name = "rank_hang",
       .target = FaultTarget::kRank,
       .takes = kRank | kWhen,
       .drawn = When::Unit::kStep,
       .sees = "The rank blocks forever. All others wait for it in their next collective, where they get `Timed "
               "out` immediately instead of after the timeout; the diagnosis names the rank, and which ranks "
               "wait for it in which collective."},
      {.kind = FaultKind::kRankPause,
       .name = "rank_pause",
       .target = FaultTarget::kRank,
       .takes = kRank | kWhen | kSeconds,
       .drawn = When::Unit::kStep,
       .defaults = {{{kSeconds, 0.5}}},
       .sees = "The rank pauses once for `seconds`. All others wait for it in their next collective; the "
               "results equal those of a run without the fault. A pause longer than the group's timeout ends "
               "the run: `Timed out` on the waiting ranks, `Connection closed by peer` on the late one."},
      {.kind = FaultKind::kSlowRank,
       .name = "slow_rank",
       .target = FaultTarget::kRank,
       .takes = kRank | kFactor,
       .defaults = {{{kFactor, 4}}},
       .sees = "All computation of the rank takes `factor` times as long. All others wait for it in every "
               "collective; the results equal those of a run without the fault."},
      {.kind = FaultKind::kJitter,
       .name = "jitter",
       .target = FaultTarget::kRank,
       .takes = kRank | kSeconds,
       .defaults = {{{kSeconds, 0.002}}},
       .every_rank = true,
       .sees = "Every step takes longer by a time drawn uniformly between 0 and twice `seconds`. All ranks wait "
               "for the slowest one in each step; the results equal those of a run without the fault. A delay "
               "beyond the timeout acts like `rank_pause`."},
      {.kind = FaultKind::kRankRestart,
       .name = "rank_restart",
       .target = FaultTarget::kRank,
       .takes = kRank | kStep,
       .drawn = When::Unit::kStep,
       .sees = "The rank ends before its optimizer's step, and all others get `Connection closed by peer` from "
               "their next collective. Then all ranks are restarted, as a launcher does: every program runs "
               "from the beginning with only what it has saved, and the fault does not strike again; an "
               "experiment resumes from its newest checkpoint."},
      {.kind = FaultKind::kHookException,
       .name = "hook_exception",
       .target = FaultTarget::kCollective,
       .takes = kRank | kStep,
       .drawn = When::Unit::kStep,
       .sees = "A gradient hook of the rank throws, and so does its `backward`. If that ends the rank, all "
               "others get `Connection closed by peer` from the collective of that gradient."},
      {.kind = FaultKind::kMessageDelay,
       .name = "message_delay",
       .target = FaultTarget::kMessages,
       .takes = kLink | kSeconds | kProbability,
       .defaults = {{{kSeconds, 0.05}, {kProbability, 0.1}}},
       .sees = "Each message on the link is late by `seconds` with this probability; later messages wait for "
               "it. All ranks are slowed down; the results equal those of a run without the fault. A delay "
               "beyond the timeout acts like `message_loss`."},
      {.kind = FaultKind::kMessageLoss,
       .name = "message_loss",
       .target = FaultTarget::kMessages,
       .takes = kLink | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "One message on the link never arrives. Its receiver gets `Timed out` from that collective; all "
               "others then find the receiver gone and get `Connection closed by peer`."},
      {.kind = FaultKind::kConnectionReset,
       .name = "connection_reset",
       .target = FaultTarget::kMessages,
       .takes = kLink | kWhen,
       .drawn = When::Unit::kCollective,
       .sees = "The connection between the link's two ranks is reset. Both get `Connection reset by peer`, and "
               "all others `Connection closed by peer`, from the first collective in which a message crosses "
               "the link."},
      {.kind = FaultKind::kPartition,
       .name = "partition",
       .target = FaultTarget::kMessages,
       .takes = kRanks | kOneWay | kWhen,
       .drawn = When::Unit::kStep,
       .sees = "No message passes between `ranks` and the others; with `one_way: true`, none from `ranks` to "
               "the others. In the first collective with a message across the cut, its receivers get `Timed "
               "out`; all others then find them gone and get `Connection closed by peer`."},
      {.kind = FaultKind::kSlowLink,
       .name = "slow_link",
       .target = FaultTarget::kMessages,
       .takes = kLink | kFactor,
       .defaults = {{{kFactor, 10}}},
       .sees = "Messages on the link take `factor` times as long. All ranks are slowed down; the results equal "
               "those of a run without the fault. If no network is described, a message that takes longer than "
               "the timeout acts like `message_loss`."},
      {.kind = FaultKind::kBitFlip,
       .name = "bit_flip",
       .target = FaultTarget::kCollective,
       .takes = kRank | kWhen | kBit,
       .drawn = When::Unit::kStep,
       .sees = "One bit of the summed gradients arrives flipped at the rank. No call throws; after the step "
               "that rank's replica differs from the others, and every rank gets the diagnosis of a desync, "
               "which names the rank and the first parameter that differs. A bit so low that the step rounds it "
               "away changes nothing; on a sharded model, which has no replicas, the fault is not detected."},
      {.kind = FaultKind::kStoreSlow,
       .name = "store_slow",
       .target = FaultTarget::kStorage,
       .takes = kSeconds | kAway,
       .defaults = {{{kSeconds, 0.05}}},
       .sees = "The store, through which ranks find each other, takes `seconds` longer to answer; groups are "
               "created later, and the results equal those of a run without the fault. With `away: true`, or "
               "with a delay beyond the timeout, no rank reaches the store, and every rank gets an error that "
               "says so when it creates its first group."},
      {.kind = FaultKind::kTornWrite,
       .name = "torn_write",
       .target = FaultTarget::kStorage,
       .takes = kRank | kBytes | kFile,
       .sees = "The rank's process dies in its first write to a file whose path contains `file` (absent: any "
               "file); only the first `bytes` (absent: a drawn number) reach the disk. All others get "
               "`Connection closed by peer` from their next collective; the previous checkpoint stays complete, "
               "and the torn one is never read. A run that saves nothing is not affected."},
      {.kind = FaultKind::kDiskFull,
       .name = "disk_full",
       .target = FaultTarget::kStorage,
       .takes = kRank | kAfterBytes,
       .sees = "The rank's disk accepts `after_bytes` more bytes. The save that needs more throws `No space "
               "left on device` on this rank, naming the file; existing files stay complete, and no temporary "
               "file is left. If that ends the rank, all others get `Connection closed by peer` from their next "
               "collective. A run that saves nothing is not affected."},
      {.kind = FaultKind::kWrongCall,
       .name = "wrong_call",
       .target = FaultTarget::kCollective,
       .takes = kRank | kWhen | kWhat,
       .drawn = When::Unit::kStep,
       .sees = "The rank's call differs from those of the others: another operation, more elements, another "
               "dtype, an extra barrier before it, another reduce operation, or as many elements in another "
               "shape. Every rank gets the diagnosis of a desync, which names the rank and the first "
               "difference; nothing is summed."},
      {.kind = FaultKind::kNanGradient,
       .name = "nan_gradient",
       .target = FaultTarget::kCollective,
       .takes = kRank | kStep | kValue,
       .drawn = When::Unit::kStep,
       .sees = "One value of the rank's gradients is not finite before they are summed. No rank sees an error: "
               "that gradient is equal and not finite on all ranks, and so are the parameters after the step "
               "and soon the loss."},
      {.kind = FaultKind::kRankLeave,
       .name = "rank_leave",
       .target = FaultTarget::kRank,
       .takes = kRank | kWhen | kSeconds,
       .drawn = When::Unit::kStep,
       .defaults = {{{kSeconds, 0.1}}},
       .sees = "The rank's process ends, and all others have noticed it after `seconds` of virtual time. An elastic "
               "training with `min_ranks` continues without the rank, as after every end of a process in this table, "
               "and its results equal those of a run without the fault. Other programs end as with "
               "`rank_crash_before_collective`."},
      {.kind = FaultKind::kRankJoin,
       .name = "rank_join",
       .target = FaultTarget::kRank,
       .takes = kRank | kStep | kSeconds,
       .drawn = When::Unit::kStep,
       .defaults = {{{kSeconds, 0.1}}},
       .sees = "The rank's process, which another fault of the plan has ended, is started anew. It takes part in the "
               "elastic training after this many of its steps and repeatable bodies, or as soon as it has ended, with "
               "the state of another rank; all others know it after `seconds` of virtual time. Results equal those of "
               "a run without faults."},
  });
}();

constexpr const FaultRule& rule_of(FaultKind kind) { return kFaultRules[static_cast<std::size_t>(kind)]; }

static_assert(kFaultRules.size() == static_cast<std::size_t>(FaultKind::kCount) &&
                  std::all_of(kFaultRules.begin(), kFaultRules.end(),
                              [](const FaultRule& rule) { return &rule == &rule_of(rule.kind); }),
              "every FaultKind has its row in kFaultRules, in the order of the enumeration");

}  // namespace accel::sim
