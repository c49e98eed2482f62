// Note [Life of a collective]
// 1. SimBackend describes the rank's tensors as a Call and calls World::arrive on the rank's thread.
// 2. RankCalls::begin lets another rank run (serial schedules), stops the rank's compute clock and throws if the
//    run has failed. The fault model may then change the call, delay the rank, hang it or throw.
// 3. CollectiveChain::next finds or creates the Meeting, and Meeting::join writes the rank's slots into it.
// 4. Rendezvous::complete runs on the thread of the last rank to join: it compares the calls, applies faults,
//    computes the finish times, runs the Compute function over all ranks' tensors and ends the meeting.
// 5. RankScheduler::end wakes the waiting ranks. Each of them leaves RankCalls::wait with its own error, or with
//    its clock advanced to the time at which its result is available.
// Messages follow the same steps with Messages in place of Rendezvous and Mailbox in place of CollectiveChain.
#include "sim/engine/world.hpp"

#include <iostream>

#include "sim/engine/messages.hpp"
#include "sim/engine/rendezvous.hpp"

namespace accel::sim {

// A part holds references to the parts above it only, so the order of the members is the order of construction.
// The exception is the scheduler's callback, which reaches down to failure_handler: it runs only after ranks
// have begun, when all parts exist.
struct World::Parts {
  Parts(World& world, WorldOptions given)
      : options(std::move(given)),
        executor(make_executor()),
        log(options.logs_events),
        failure_record(log),
        states(options.num_ranks),
        scheduler(make_rank_scheduler(
            options.schedule, options.num_ranks, [this] { failure_handler.resolve_quiescence(); }, options.sleep)),
        clocks(options, *scheduler),
        faults(world, options.faults.get()),
        groups(failure_record),
        transfers(options, clocks, scheduler->is_serial()),
        calls(options, log, failure_record, states, *scheduler, clocks),
        failure_handler(options, failure_record, groups, states, *scheduler, clocks, calls, faults),
        rendezvous(options, log, faults, clocks, calls, transfers, failure_handler),
        messages(faults, clocks, calls, transfers, failure_handler, options.send_capacity) {}

  const WorldOptions options;
  std::unique_ptr<Executor> executor;
  EventLog log;
  FailureRecord failure_record;
  RankStates states;
  std::unique_ptr<RankScheduler> scheduler;
  RankClocks clocks;
  FaultHooks faults;
  GroupRegistry groups;
  TransferTimes transfers;
  RankCalls calls;
  FailureHandler failure_handler;
  Rendezvous rendezvous;
  Messages messages;
  std::atomic<bool> is_elastic{false};
};

World::World(WorldOptions options) {
  check_config(options.num_ranks >= 1 && options.num_ranks <= kMaxRanks,
               "ranks: cannot simulate {} ranks in one process; expected 1 to {}", options.num_ranks, kMaxRanks);
  // Checked before Parts is built: its vectors are sized by the number of ranks, and a negative number would
  // throw std::length_error in place of a ConfigError.
  parts_ = std::make_unique<Parts>(*this, std::move(options));
}

World::~World() = default;

int World::num_ranks() const { return parts_->options.num_ranks; }
std::chrono::milliseconds World::timeout() const { return parts_->options.timeout; }
Executor& World::executor() { return *parts_->executor; }
RankClocks& World::clocks() { return parts_->clocks; }
FailureRecord& World::failures() { return parts_->failure_record; }
EventLog& World::log() { return parts_->log; }
std::map<std::string, Volume> World::volumes() { return parts_->transfers.volumes(); }

// The functions below only forward. With the accessors above they are the complete interface of the engine, for the
// backend as well as for fault models.
std::shared_ptr<EngineGroup> World::group(const std::string& name, const std::vector<int>& ranks) {
  return parts_->groups.group(name, ranks);
}

std::shared_ptr<Meeting> World::arrive(EngineGroup& group, int group_rank, Call call, Participant participant,
                                       const Compute& compute) {
  return parts_->rendezvous.arrive(group, group_rank, std::move(call), std::move(participant), compute);
}

std::shared_ptr<Meeting> World::send(EngineGroup& group, int source, int destination, int tag, Call call,
                                     Participant participant) {
  return parts_->messages.send(group, source, destination, tag, std::move(call), std::move(participant));
}

std::shared_ptr<Meeting> World::receive(EngineGroup& group, int source, int destination, int tag, Call call,
                                        Participant participant, Deliver deliver) {
  return parts_->messages.receive(group, source, destination, tag, std::move(call), std::move(participant),
                                  std::move(deliver));
}

void World::wait(int rank, Meeting& meeting) { parts_->calls.wait(rank, meeting); }
OpenWait World::begin_wait(int rank, Meeting& meeting) { return parts_->calls.begin_wait(rank, meeting); }
void World::block(int rank, Completion& completion, std::span<const RankWait> waits) {
  parts_->calls.block(rank, completion, waits);
}
void World::end(Completion& completion) {
  if (completion.claim(nullptr)) parts_->scheduler->end(completion);
}
void World::end_wait(int rank, const Meeting& meeting, const OpenWait& wait) {
  parts_->calls.end_wait(rank, meeting, wait);
}
bool World::is_serial() const { return parts_->scheduler->is_serial(); }
bool World::poll(int rank, const Meeting& meeting) { return parts_->calls.poll(rank, meeting); }

void World::begin(int rank) {
  parts_->scheduler->begin(rank);
  parts_->log.append("begin", rank);
  parts_->clocks.begin_compute(rank);
}

// The order matters: the state must be "left" before the failure is handled and before the scheduler may find
// that no rank can run, because both report where every rank is.
void World::leave(int rank, const std::exception_ptr& error) {
  parts_->clocks.end_compute(rank);
  parts_->log.append("leave", rank);
  parts_->states.set_left(rank);
  if (error) parts_->failure_handler.fail_by_rank(rank, error);
  parts_->scheduler->leave(rank);
}

void World::check_deadlines() { parts_->failure_handler.check_deadlines(); }

// Without a handler (unit tests) the reason goes to standard error, or a test would hang without explanation.
void World::report_stuck(const RunError& error) const {
  if (const auto& on_stuck = parts_->options.on_stuck) return on_stuck(error);
  std::cerr << "the simulation is waiting for ranks that do not return from their own code:\n"
            << error.what() << std::endl;
}

// kUpdated is only a mark for the clocks. Faults strike at the other two points, after the backward pass has
// been counted, so that `step: N` in a fault file means the micro-batch whose backward pass has begun.
void World::reach(int rank, StepPoint point) {
  auto& clocks = parts_->clocks;
  if (point == StepPoint::kBackward) clocks.begin_backward(rank);
  clocks.end_compute(rank);
  parts_->failure_record.throw_if_failed();
  if (point == StepPoint::kUpdated) return clocks.end_update(rank);
  parts_->faults.at_point(rank, point, clocks.step(rank));
}

void World::lose(int rank, const std::exception_ptr& error) { parts_->failure_handler.fail_by_rank(rank, error); }
void World::fail(const std::exception_ptr& error) { parts_->failure_handler.fail(error); }
bool World::report(Check check, Diagnosis found) {
  const auto level = parts_->options.checks[check];
  if (level == CheckLevel::kOff) return false;
  found.text = with_name(found.text, check);
  if (level == CheckLevel::kFinding) {
    failures().warn(std::move(found.text));
    return false;
  }
  found.kind = Diagnosis::Kind::kDesync;
  fail(std::make_exception_ptr(DiagnosedError(std::move(found))));
  return true;
}
void World::hang(int rank) { parts_->failure_handler.hang(rank); }
std::vector<int> World::hanging() { return parts_->failure_handler.hanging(); }

void World::end_process(int rank, const RankErrors& errors, double notice_seconds) {
  parts_->failure_handler.end_process(rank, errors, notice_seconds);
}
bool World::start_process(int rank, double notice_seconds, std::size_t num_changes) {
  return parts_->failure_handler.start_process(rank, notice_seconds, num_changes);
}
std::vector<ProcessChange> World::process_changes() { return parts_->failure_handler.process_changes(); }
void World::sleep(int rank, const std::shared_ptr<Meeting>& meeting) { parts_->failure_handler.sleep(rank, meeting); }
std::atomic<bool>& World::is_elastic() { return parts_->is_elastic; }

void World::disconnect(const std::vector<int>& ranks, const RankErrors& errors) {
  parts_->failure_handler.disconnect(ranks, errors);
}

void World::time_out(double seconds, const RankErrors& errors) { parts_->failure_handler.time_out(seconds, errors); }
std::vector<std::string> World::take_calls_of(int rank) {
  std::vector<std::string> calls;
  for (const auto& call : parts_->states.take_calls(rank)) calls.push_back(describe(place_of(call).value()));
  return calls;
}
std::string World::last_call_of(int rank) const {
  const auto call = parts_->states.state(rank).last_call;
  return call ? describe(*call) : "";
}
const LastCall& World::own_last_call_of(int rank) const { return parts_->states.own_last_call(rank); }
std::string World::describe_rank(int rank) const { return parts_->failure_handler.diagnostics().describe_rank(rank); }

}  // namespace accel::sim
