#include "sim/engine/world.hpp"

#include <iostream>

#include "sim/engine/messages.hpp"
#include "sim/engine/rendezvous.hpp"

namespace accel::sim {

// Each part refers to those above it.
struct World::Parts {
  Parts(World& world, WorldOptions given)
      : options(std::move(given)),
        executor(make_executor()),
        log(options.logs_events),
        failure_record(log),
        states(options.num_ranks),
        scheduler(
            make_rank_scheduler(options.schedule, options.num_ranks, [this] { failure_handler.resolve_quiescence(); })),
        clocks(options, *scheduler),
        faults(world, options.faults.get()),
        groups(failure_record),
        transfers(options, clocks, scheduler->is_serial()),
        calls(options, log, failure_record, states, *scheduler, clocks),
        failure_handler(options, failure_record, groups, states, *scheduler, clocks, calls, faults),
        rendezvous(options, log, faults, clocks, calls, transfers, failure_handler),
        messages(faults, clocks, calls, transfers, failure_handler) {}

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
};

World::World(WorldOptions options) {
  check_config(options.num_ranks >= 1 && options.num_ranks <= kMaxRanks,
               "ranks: {} ranks cannot be simulated in one process; expected 1 to {}", options.num_ranks, kMaxRanks);
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

std::shared_ptr<Group> World::group(const std::string& name, const std::vector<int>& ranks) {
  return parts_->groups.group(name, ranks);
}

std::shared_ptr<Meeting> World::arrive(Group& group, int group_rank, Call call, Participant participant,
                                       const Compute& compute) {
  return parts_->rendezvous.arrive(group, group_rank, std::move(call), std::move(participant), compute);
}

std::shared_ptr<Meeting> World::send(Group& group, int source, int destination, int tag, Call call,
                                     Participant participant) {
  return parts_->messages.send(group, source, destination, tag, std::move(call), std::move(participant));
}

std::shared_ptr<Meeting> World::receive(Group& group, int source, int destination, int tag, Call call,
                                        Participant participant, Deliver deliver) {
  return parts_->messages.receive(group, source, destination, tag, std::move(call), std::move(participant),
                                  std::move(deliver));
}

void World::wait(int rank, Meeting& meeting) { parts_->calls.wait(rank, meeting); }
bool World::poll(int rank, const Meeting& meeting) { return parts_->calls.poll(rank, meeting); }

void World::begin(int rank) {
  parts_->scheduler->begin(rank);
  parts_->log.append("begin", rank);
  parts_->clocks.begin_compute(rank);
}

void World::leave(int rank, const std::exception_ptr& error) {
  parts_->clocks.end_compute(rank);
  parts_->log.append("leave", rank);
  parts_->states.set_left(rank);
  if (error) parts_->failure_handler.fail_by_rank(rank, error);
  parts_->scheduler->leave(rank);
}

void World::check_deadlines() { parts_->failure_handler.check_deadlines(); }

void World::report_stuck(const RunError& error) const {
  if (const auto& on_stuck = parts_->options.on_stuck) return on_stuck(error);
  std::cerr << "the simulation waits for ranks that do not come back:\n" << error.what() << std::endl;
}

void World::reach(int rank, StepPoint point) {
  auto& clocks = parts_->clocks;
  if (point == StepPoint::kBackward) clocks.begin_backward(rank);
  clocks.end_compute(rank);
  parts_->failure_record.throw_if_failed();
  if (point == StepPoint::kUpdated) return clocks.end_update(rank);
  parts_->faults.at_point(rank, point, clocks.step(rank));
}

void World::fail(const std::exception_ptr& error) { parts_->failure_handler.fail(error); }
void World::hang(int rank) { parts_->failure_handler.hang(rank); }
std::vector<int> World::hanging() { return parts_->failure_handler.hanging(); }

void World::disconnect(const std::vector<int>& ranks, const RankErrors& errors) {
  parts_->failure_handler.disconnect(ranks, errors);
}

void World::time_out(double seconds, const RankErrors& errors) { parts_->failure_handler.time_out(seconds, errors); }
std::string World::whereabouts(int rank) const { return parts_->failure_handler.diagnostics().whereabouts(rank); }

}  // namespace accel::sim
