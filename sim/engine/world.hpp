#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/engine/event_log.hpp"
#include "sim/engine/executor.hpp"
#include "sim/engine/failure_record.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/rank_clocks.hpp"
#include "sim/engine/world_options.hpp"

/// The ranks of one process and how they meet. Includes no torch header, so that the thread sanitizer can judge it.
///
///     World world({.num_ranks = 4});
///     run_ranks(world, [&](int rank) {
///       auto group = world.group("world", {0, 1, 2, 3});
///       auto meeting = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
///       world.wait(rank, *meeting);
///     });
///
/// A collective is a Meeting: the n-th call of every member under one group. The last rank to arrive compares the calls
/// and computes; the others are woken once. A rank that blocks is counted, so that the moment when no rank can continue
/// is known exactly, and is diagnosed at once.
///
/// World passes each call to the part that carries it out: Rendezvous (collectives), Messages, RankCalls (waits),
/// FailureHandler; their state is in GroupState, RankStates, RankScheduler, RankClocks and FailureRecord, each with its
/// own mutex. None of these is held while user code runs or a rank waits.
///
/// Thread rule: methods that name a rank from that rank's thread, the others from any.
namespace accel::sim {

class World {
 public:
  /// The most ranks that one process may hold; 4,096 blocking threads were tried.
  static constexpr int kMaxRanks = 4096;

  /// Throws ConfigError if the number of ranks is not in 1..kMaxRanks.
  explicit World(WorldOptions options);
  ~World();

  [[nodiscard]] int num_ranks() const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  [[nodiscard]] Executor& executor();

  /// The group of this name; made at its first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<Group> group(const std::string& name, const std::vector<int>& ranks);

  /// The calling rank joins the next collective of `group`; returns at once. Throws ReleasedError after a failure.
  std::shared_ptr<Meeting> arrive(Group& group, int group_rank, Call call, Participant participant,
                                  const Compute& compute);
  /// A send ends at once, its participant is handed to the receive that matches source, destination and tag, in order;
  /// `source` -1 receives from any rank, the lowest first.
  std::shared_ptr<Meeting> send(Group& group, int source, int destination, int tag, Call call, Participant participant);
  std::shared_ptr<Meeting> receive(Group& group, int source, int destination, int tag, Call call,
                                   Participant participant, Deliver deliver);

  /// Blocks the calling rank until the meeting has ended. Rethrows its error; DiagnosedError if no rank can continue.
  void wait(int rank, Meeting& meeting);
  /// Whether it has ended. A rank that polls in a loop lets others run.
  bool poll(int rank, const Meeting& meeting);

  // --- the life of a rank (run_ranks calls these) ---
  void begin(int rank);
  /// A rank has returned from its program, or thrown: all others are released.
  void leave(int rank, const std::exception_ptr& error);
  /// Fails the run if the deadline of a meeting, or of a rank's turn in a serial schedule, has passed.
  void check_deadlines();
  /// Reports ranks that have been away for too long after a failure.
  void report_stuck(const RunError& error) const;

  /// The rank is at a place of a training step: micro-batches are counted by their backward passes.
  void reach(int rank, StepPoint point);
  [[nodiscard]] RankClocks& clocks();
  /// What was moved, by operation.
  [[nodiscard]] std::map<std::string, Volume> volumes();

  // --- failures ---
  /// Ends the run on every rank.
  void fail(const std::exception_ptr& error);
  /// The rank never continues, until the run fails.
  [[noreturn]] void hang(int rank);
  /// Ranks that `hang` holds.
  [[nodiscard]] std::vector<int> hanging();
  /// The connections of these ranks are gone: their groups' collectives fail from now on with these errors.
  void disconnect(const std::vector<int>& ranks, const RankErrors& errors);
  /// Every rank that is blocked gets its error, and all groups are disconnected. `seconds` pass on the virtual clock.
  void time_out(double seconds, const RankErrors& errors);
  /// Where a rank is, by its last call: "waits in all_reduce #17 of group world (train.cpp:42)".
  [[nodiscard]] std::string whereabouts(int rank) const;
  [[nodiscard]] FailureRecord& failures();

  [[nodiscard]] EventLog& log();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Runs `body(rank)` on a thread per rank, all started before any runs. Returns when all have ended.
/// Throws RunError with the errors of all ranks if one failed, ConfigError if the machine has not that many threads.
/// A rank that stays in its own code keeps it from returning: `on_stuck` is called then.
void run_ranks(World& world, const std::function<void(int rank)>& body);

}  // namespace accel::sim
