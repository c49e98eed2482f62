#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/engine/event_log.hpp"
#include "sim/engine/executor.hpp"
#include "sim/engine/failure_record.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/rank_clocks.hpp"
#include "sim/engine/world_options.hpp"

/// The simulated ranks of one process and the collectives and messages between them. Includes no torch header,
/// so that ThreadSanitizer can check it.
///
///     World world({.num_ranks = 4});
///     run_ranks(world, [&](int rank) {
///       auto group = world.group("world", {0, 1, 2, 3});
///       auto meeting = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
///       world.wait(rank, *meeting);
///     });
///
/// A collective is a Meeting: the n-th call of every member of one group. The last rank to arrive compares the
/// calls and computes the result for all; the others are then woken. The engine counts blocked ranks, so it
/// detects the moment when no rank can continue and reports the hang at once, without waiting for the time-out.
///
/// World forwards each call to the part that carries it out: Rendezvous (collectives), Messages, RankCalls
/// (waits) and FailureHandler. Their state is in GroupState, RankStates, RankScheduler, RankClocks and
/// FailureRecord, each with its own mutex. No mutex is held while user code runs or a rank waits.
///
/// Thread rule: call methods that accept a rank from that rank's thread, the others from any thread.
namespace accel::sim {

struct LastCall;
struct OpenWait;
struct RankWait;

class World {
 public:
  /// The maximum number of ranks in one process; tested with 4,096 blocking threads.
  static constexpr int kMaxRanks = 4096;

  /// Throws ConfigError if the number of ranks is not in 1..kMaxRanks.
  explicit World(WorldOptions options);
  ~World();

  [[nodiscard]] int num_ranks() const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  [[nodiscard]] Executor& executor();

  /// Returns the group of this name and creates it on first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<EngineGroup> group(const std::string& name, const std::vector<int>& ranks);

  /// Joins the next collective of `group` on behalf of the calling rank; does not block. Throws ReleasedError
  /// after a failure.
  std::shared_ptr<Meeting> arrive(EngineGroup& group, int group_rank, Call call, Participant participant,
                                  const Compute& compute);
  /// Posts one end of a message. A send completes at once unless WorldOptions::send_capacity lets it wait; its
  /// participant is handed to the receive that matches source, destination and tag, in order. `source` -1 receives from
  /// any rank and prefers the lowest.
  std::shared_ptr<Meeting> send(EngineGroup& group, int source, int destination, int tag, Call call,
                                Participant participant);
  std::shared_ptr<Meeting> receive(EngineGroup& group, int source, int destination, int tag, Call call,
                                   Participant participant, Deliver deliver);

  /// Blocks the calling rank until the meeting has ended. Rethrows its error; throws DiagnosedError if no rank
  /// can continue.
  void wait(int rank, Meeting& meeting);
  /// Returns whether the meeting has ended. In a serial schedule it also lets other ranks run.
  bool poll(int rank, const Meeting& meeting);

  // --- the parts of `wait`, for a rank whose threads wait for several meetings at a time ---
  OpenWait begin_wait(int rank, Meeting& meeting);
  /// Blocks the rank until `completion` has ended, or WorldOptions::sleep returns. `waits`: of its threads.
  void block(int rank, Completion& completion, std::span<const RankWait> waits);
  /// Ends a completion that is no meeting. Any thread.
  void end(Completion& completion);
  /// After the meeting has ended: rethrows its error.
  void end_wait(int rank, const Meeting& meeting, const OpenWait& wait);
  /// Whether one rank runs at a time.
  [[nodiscard]] bool is_serial() const;

  // --- the life of a rank (run_ranks calls these) ---
  void begin(int rank);
  /// Records that a rank has returned from its program or thrown. An error releases all other ranks.
  void leave(int rank, const std::exception_ptr& error);
  /// Fails the run if the deadline of a meeting, or of a rank's turn in a serial schedule, has passed.
  void check_deadlines();
  /// Reports ranks that have not returned from their own code long after a failure.
  void report_stuck(const RunError& error) const;

  /// Marks a point of a training step. Micro-batches are counted by their backward passes.
  void reach(int rank, StepPoint point);
  [[nodiscard]] RankClocks& clocks();
  /// Returns the number of calls and bytes moved, by operation.
  [[nodiscard]] std::map<std::string, Volume> volumes();

  // --- failures ---
  /// Handles a rank whose program has ended in the middle of a call: like a rank that leaves with this error, from any
  /// thread.
  void lose(int rank, const std::exception_ptr& error);
  /// Ends the run on every rank.
  void fail(const std::exception_ptr& error);
  /// Reports what a check has found: ends the run, adds a finding, or does nothing, as the check's level says. Returns
  /// whether it has ended the run.
  bool report(Check check, Diagnosis found);
  bool report(Check check, std::string text) { return report(check, Diagnosis{.text = std::move(text)}); }
  /// Blocks the rank until the run fails.
  [[noreturn]] void hang(int rank);
  /// Returns the ranks that are blocked in `hang`.
  [[nodiscard]] std::vector<int> hanging();
  /// The process of the rank ends, of which its peers see `errors`; after `notice_seconds` of virtual time all know. It
  /// ends the run, unless the run is elastic and a rank ends well.
  void end_process(int rank, const RankErrors& errors, double notice_seconds = 0);
  /// Starts the process of a rank anew, which has ended. Returns false, and does
  /// nothing, unless there have been so many changes of processes.
  bool start_process(int rank, double notice_seconds, std::size_t num_changes);
  /// Ends and new starts, in their order.
  [[nodiscard]] std::vector<ProcessChange> process_changes();
  /// Blocks the rank until a thread ends the meeting, which is nobody's collective, or the run fails.
  void sleep(int rank, const std::shared_ptr<Meeting>& meeting);
  [[nodiscard]] std::atomic<bool>& is_elastic();
  /// Breaks the connections of these ranks: all later collectives of their groups fail with these errors.
  void disconnect(const std::vector<int>& ranks, const RankErrors& errors);
  /// Ends the wait of every blocked rank with its error and breaks all groups. Advances the virtual clocks by
  /// `seconds`.
  void time_out(double seconds, const RankErrors& errors);
  /// Describes what a rank is doing, by its last call: "waits in all_reduce #17 of group world (train.cpp:42)".
  [[nodiscard]] std::string describe_rank(int rank) const;
  /// The rank's last call, as in "all_reduce #17 of group world (train.cpp:42)"; "" before the first.
  [[nodiscard]] std::string last_call_of(int rank) const;
  /// The rank's last call, for its own thread. Allocates nothing and takes no lock.
  [[nodiscard]] const LastCall& own_last_call_of(int rank) const;
  /// Returns the rank's calls since the last time, as in "all_reduce #17 of group world (train.cpp:42)", in order.
  /// Calls are kept from the first time on.
  [[nodiscard]] std::vector<std::string> take_calls_of(int rank);
  [[nodiscard]] FailureRecord& failures();

  [[nodiscard]] EventLog& log();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Runs `body(rank)` on one thread per rank; no body starts before all threads exist. Returns when all have
/// ended. Throws RunError with the errors of all ranks if one failed, ConfigError if the machine cannot provide
/// that many threads. A rank that never returns from its own code blocks this function: `on_stuck` is called then.
void run_ranks(World& world, const std::function<void(int rank)>& body);

}  // namespace accel::sim
