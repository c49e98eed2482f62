#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/call.hpp"
#include "sim/engine/diagnosis.hpp"
#include "sim/engine/event_log.hpp"
#include "sim/engine/executor.hpp"
#include "sim/engine/faults.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/record.hpp"
#include "sim/engine/schedule.hpp"

/// The ranks of one process and how they meet. Includes no torch header, so that the thread sanitizer can judge it.
///
///     World world({.num_ranks = 4});
///     run_ranks(world, [&](int rank) {
///       auto group = world.group("world", {0, 1, 2, 3});
///       auto meeting = world.arrive(*group, rank, {.op = Collective::kBarrier}, nullptr, [](auto) {});
///       world.wait(rank, *meeting);
///     });
///
/// A collective is a Meeting: the n-th call of every member under one group. The last rank to arrive compares the
/// calls and computes; the others are woken once. A rank that blocks is counted, so that the moment when nobody can go
/// on is known exactly, and is diagnosed at once.
///
/// Thread rule: methods that name a rank from that rank's thread, the others from any; user code and `compute` run
/// without a lock held.
namespace accel::sim {

/// Changes the tensors of one member of a collective as a fault says.
using Corrupt = std::function<void(const Participant&, const Corruption&)>;

/// Seconds, by group rank, at which each member has its part of a collective that it could begin at `ready`. Of a
/// message: the group is {sender, receiver}, under a name of this pair.
using FinishTimes = std::function<std::vector<double>(const Group&, const Call&, std::span<const double> ready)>;

/// Told once if ranks do not come back from their own code after the run has failed; they are waited for on and on.
/// From the thread of run_ranks, with the error that it would throw.
using OnStuck = std::function<void(const RunError&)>;

struct WorldOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // Gloo's default; a running rank may take that long
  RankSchedule schedule = {};
  FinishTimes finish_times = nullptr;        // set: time is virtual
  std::vector<RankTimes> times_before = {};  // of a run that is started again, by rank: clocks go on where they stood
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  double cpu_factor = 0;       // virtual seconds of compute per second of a rank's processor time
  bool records_times = false;  // of ranks, and volumes; with virtual time, spans or faults always
  bool records_spans = false;
  bool logs_events = false;
  std::shared_ptr<FaultModel> faults = nullptr;
  Corrupt corrupt = nullptr;
  OnStuck on_stuck = nullptr;  // null: the error goes to standard error
};

class World {
 public:
  /// The most ranks that one process may hold; 4,096 blocking threads were tried.
  static constexpr int kMaxRanks = 4096;

  /// Throws ConfigError if the number of ranks is not in 1..kMaxRanks.
  explicit World(WorldOptions options);
  ~World();

  [[nodiscard]] int num_ranks() const { return options_.num_ranks; }
  [[nodiscard]] Executor& executor() { return *executor_; }
  [[nodiscard]] bool is_virtual() const { return options_.finish_times != nullptr; }
  [[nodiscard]] bool is_serial() const { return baton_ != nullptr; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return options_.timeout; }

  /// The group of this name; made at its first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<Group> group(const std::string& name, const std::vector<int>& ranks);

  /// The calling rank joins the next collective of `group`; returns at once. Throws ReleasedError after a failure.
  std::shared_ptr<Meeting> arrive(Group& group, int group_rank, Call call, Participant participant, Compute compute);

  /// Messages. A send ends at once, its participant is handed to the receive that matches source, destination and tag,
  /// in order; `source` -1 receives from any rank, the lowest first.
  std::shared_ptr<Meeting> send(Group& group, int source, int destination, int tag, Call call, Participant participant);
  std::shared_ptr<Meeting> receive(Group& group, int source, int destination, int tag, Call call,
                                   Participant participant, Deliver deliver);

  /// Blocks the calling rank until the meeting has ended. Rethrows its error; DiagnosedError if nobody can go on.
  void wait(int rank, Meeting& meeting);
  /// Whether it has ended. A rank that asks again and again lets others run.
  bool poll(int rank, const Meeting& meeting);

  /// Calls `on_end` once the meeting has ended, on whatever thread ends it; at once if it has.
  void when_ended(Meeting& meeting, OnEnd on_end);

  // --- the life of a rank (run_ranks calls these) --------------------------------------------------------------------
  void begin(int rank);
  /// A rank has returned from its program, or thrown: all others are released.
  void leave(int rank, std::exception_ptr error);
  /// Fails the run if the deadline of a meeting, or of a rank's turn in a serial schedule, has passed.
  void check_deadlines();

  // --- time ----------------------------------------------------------------------------------------------------------
  /// What the rank does from here on: "forward", "backward", ...; static storage.
  std::string_view enter_phase(int rank, std::string_view phase);
  /// What the rank has computed since its last call is not the program's.
  void leave_out(int rank);
  /// The rank has computed for so many virtual seconds.
  void advance(int rank, double seconds);
  /// The rank does nothing for a while: on the virtual clock, or on the wall's; in a serial schedule others go first.
  void delay(int rank, double seconds, std::string_view name);
  /// What the rank does, as it has said; from its own thread.
  [[nodiscard]] std::string_view phase(int rank) const { return ranks_[rank].phase; }
  /// Virtual seconds of the rank.
  [[nodiscard]] double now(int rank) const { return ranks_[rank].times.now; }
  /// The rank's micro-batch, by its backward passes; -1 before the first.
  [[nodiscard]] std::int64_t step(int rank) const { return ranks_[rank].step; }
  /// Of a run that has ended.
  [[nodiscard]] const RankTimes& times(int rank) const { return ranks_[rank].times; }
  [[nodiscard]] std::map<std::string, Volume> volumes();

  /// The rank is at a place of a training step: micro-batches are counted by their backward passes.
  void reach(int rank, StepPoint point);

  // --- what goes wrong -----------------------------------------------------------------------------------------------
  /// Ends the run on every rank.
  void fail(std::exception_ptr error);
  /// What ended the run; null if nothing has.
  [[nodiscard]] std::exception_ptr failure();
  /// A fault has taken effect.
  void note(FaultStrike strike);
  /// A strike of this text that seemed harmless is the reason why the run will fail.
  void blame(const std::string& text);
  [[nodiscard]] std::vector<FaultStrike> strikes();
  /// Something that real backends pass over in silence, and that does not stop the run.
  void warn(std::string finding);
  [[nodiscard]] std::vector<std::string> findings();
  /// The rank never goes on, until the run fails.
  [[noreturn]] void hang(int rank);
  /// The connections of these ranks are gone: their groups' collectives fail from now on, with what `error` gives each
  /// rank.
  void disconnect(const std::vector<int>& ranks, const std::function<std::exception_ptr(int rank)>& error);
  /// Every rank that is blocked gets its error, and all groups are disconnected. `seconds` pass on the virtual clock.
  void time_out(double seconds, const std::function<std::exception_ptr(int rank)>& error);
  /// Ranks that `hang` holds.
  [[nodiscard]] std::vector<int> hanging();
  /// What was diagnosed; none as long as all goes well.
  [[nodiscard]] std::optional<Diagnosis> diagnosis();
  /// Where a rank is, as its last call tells: "waits in all_reduce #17 of group world (train.cpp:42)".
  std::string whereabouts(int rank);
  /// Ranks have been away for too long after a failure.
  void tell_stuck(const RunError& error) const;

  [[nodiscard]] EventLog& log() { return log_; }

 private:
  // What is known of a rank from outside. Each on cache lines of its own.
  struct alignas(64) Rank {
    Mutex mutex;
    Whereabouts last ACCEL_GUARDED_BY(mutex);
    Meeting* blocked_on ACCEL_GUARDED_BY(mutex) = nullptr;
    bool left ACCEL_GUARDED_BY(mutex) = false;
    // The rank's own thread only, and others after the run.
    RankTimes times;
    std::string_view phase = "start";
    double cpu_mark = 0, wall_mark = 0;
    std::atomic<std::int64_t> step{-1};  // micro-batch
    double advanced = 0;                 // virtual seconds since the last call
  };

  std::shared_ptr<Meeting> next_meeting(Group& group, int group_rank);
  static std::shared_ptr<Meeting> lone_meeting(Group& group, Call call);
  std::shared_ptr<Meeting> failed_meeting(Group& group, Call call);
  std::shared_ptr<Meeting> begin_message(Group& group, bool sends, int source, int destination, const Call& call);
  void complete(Group& group, const std::shared_ptr<Meeting>& meeting, int rank, const Compute& compute);
  void deliver_message(const Group::Posted& receive, int source, const Participant& sent, double sent_at);
  void set_finish_times(const Group& group, Meeting& meeting, const MeetingFaults& faults);
  void count_volume(const Meeting& meeting);
  bool may_be_faults_work();
  void end(Meeting& meeting, std::exception_ptr error, std::function<std::exception_ptr(int)> rank_errors = nullptr);
  void block(int rank, Meeting& meeting);
  void on_quiescence();
  void throw_if_failed();
  std::vector<std::shared_ptr<Meeting>> open_meetings();
  std::vector<std::shared_ptr<Group>> all_groups();

  // Time: the stretch of compute before a call ends, and the next begins.
  void end_compute(int rank);
  void begin_compute(int rank);
  void record_wait(int rank, const Meeting& meeting, const Span::Interval& virtual_time, double wall_begin);
  [[nodiscard]] double wall_now() const;
  [[nodiscard]] bool keeps_time() const {
    return is_virtual() || options_.records_times || options_.records_spans || options_.faults != nullptr;
  }

  void set_whereabouts(int rank, Whereabouts whereabouts);
  void log_event(std::string_view what, int rank, std::optional<Collective> op = std::nullopt,
                 const Group* group = nullptr, std::int64_t sequence = -1);

  Diagnosis diagnose_difference(const Meeting& meeting);
  Diagnosis diagnose_hang();
  Diagnosis diagnose_timeout(const Meeting& meeting);
  Diagnosis diagnose_endless_turn(int rank);
  int rank_of_endless_turn();
  void describe_absence(const Meeting& meeting, Diagnosis& diagnosis);
  void add_waiting(int rank, const Meeting& meeting, Diagnosis& diagnosis);
  static std::optional<Difference> first_apart(Group& group);
  std::vector<std::pair<int, Meeting*>> blocked_ranks();

  const WorldOptions options_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Baton> baton_;  // null in the parallel schedule
  std::atomic<int> num_active_;   // ranks that can go on; parallel schedule
  std::atomic<bool> has_failed_{false};
  EventLog log_;
  std::vector<Rank> ranks_;
  Mutex mutex_;  // of what follows; never taken on the way of a collective that goes well
  std::map<std::string, std::shared_ptr<Group>> groups_ ACCEL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Meeting>> hangs_ ACCEL_GUARDED_BY(mutex_);
  std::vector<int> hanging_ ACCEL_GUARDED_BY(mutex_);
  std::exception_ptr failure_ ACCEL_GUARDED_BY(mutex_);
  std::optional<Diagnosis> diagnosis_ ACCEL_GUARDED_BY(mutex_);
  std::vector<FaultStrike> strikes_ ACCEL_GUARDED_BY(mutex_);
  std::vector<std::string> findings_ ACCEL_GUARDED_BY(mutex_);
  std::map<std::string, Volume> volumes_ ACCEL_GUARDED_BY(mutex_);
};

/// Runs `body(rank)` on a thread per rank, all started before any runs. Returns when all have ended.
/// Throws RunError with the errors of all ranks if one failed, ConfigError if the machine has not that many threads.
/// A rank that runs on in its own code keeps it from returning: `on_stuck` is told of it.
void run_ranks(World& world, const std::function<void(int rank)>& body);

}  // namespace accel::sim
