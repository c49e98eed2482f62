// The engine's view of a rank that is a process. See Note [Ranks as processes] in backends/process/shared_area.cpp.
#include "sim/programs/processes/rank_proxy.hpp"

#include <algorithm>

#include "backends/launch/process.hpp"
#include "backends/process/update_report.hpp"
#include "reference/comm/parameter_state.hpp"
#include "reference/core/error_text.hpp"
#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"
#include "sim/ranks/replica_comparison.hpp"
#include "sim/ranks/step_recorder.hpp"

namespace accel::programs {
namespace {

using process::Request;

constexpr auto kRequestTick = std::chrono::milliseconds(100);
constexpr auto kTurnTick = std::chrono::milliseconds(1);  // how long a rank keeps its turn for a thread that runs

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return accel::text_of(exception);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

// Whether the simulator itself ended the rank: the error then says more than the program's traceback.
bool comes_from_the_run(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const sim::ReleasedError&) {
    return true;
  } catch (const DiagnosedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

ParameterState state_of(const process::ReportedState& reported) {
  return {.hash = reported.hash,
          .dtype = static_cast<c10::ScalarType>(reported.dtype),
          .gradient = static_cast<ParameterState::Gradient>(reported.gradient),
          .gradient_hash = reported.gradient_hash};
}

}  // namespace

RankProxy::RankProxy(const sim::SimulatedRank& simulated, std::shared_ptr<process::SharedArea> area,
                     DividedWeights& weights, double& processor_seconds, std::function<bool()> was_stopped,
                     std::function<std::string()> reason)
    : simulated_(simulated),
      link_(std::move(area), simulated.member.rank),
      weights_(weights),
      writes_(simulated),
      processor_seconds_(processor_seconds),
      was_stopped_(std::move(was_stopped)),
      reason_(std::move(reason)),
      threads_(link_.end()) {}

void RankProxy::run() {
  // The proxy itself lives as long as the run: another thread may still be ending a collective of its.
  struct Release {
    RankProxy& proxy;
    ~Release() {
      proxy.abandon_waits();
      proxy.pending_.clear();
      proxy.groups_.clear();
    }
  } const release{*this};
  while (true) {
    const bool has_ended = link_.end().has_ended != 0;  // read first: the last requests came before the end
    if (!waits_.empty() && !has_ended && !link_.has_request()) {
      rest();
      end_waits();
      continue;
    }
    auto message = link_.next(kRequestTick);
    end_waits();  // first: the thread that has sent the request may have got its answer
    if (message)
      serve(*message);
    else if (has_ended)
      return end_as(link_.end().status);
  }
}

// A program that leaves by an error asks for Request::kFail first, so a status other than 0 here comes unannounced.
void RankProxy::end_as(int status) const {
  const int code = launcher::exit_code_of_status(status);
  if (code == 0) return;
  if (const auto reason = reason_(); !reason.empty()) throw Error(reason);
  if (writes_.death()) std::rethrow_exception(writes_.death());
  const bool was_stopped = was_stopped_();
  if (thrown_ && comes_from_the_run(thrown_) && (was_stopped || code <= 128)) std::rethrow_exception(thrown_);
  const auto last_call = simulated_.member.world->last_call_of(simulated_.member.rank);
  const auto where = last_call.empty() ? " before its first collective" : "; its last call: " + last_call;
  if (was_stopped) {
    throw sim::ReleasedError("was ended: it did not return from its own code after the run had failed" + where);
  }
  throw Error(fmt::format("the process {}{}", launcher::describe_exit_code(code), where));
}

void RankProxy::serve(process::MessageReader& message) {
  const auto head = process::read_head(message);
  threads_.add(link_.sender());
  processor_seconds_ = head.processor_seconds;
  const CallSite site(SourceLine(kept(head.file), head.line));
  switch (head.request) {
    case Request::kCall: return call(message);
    case Request::kForget: pending_.erase(message.get<std::uint64_t>()); return;
    case Request::kPhase:
      simulated_.member.world->clocks().enter_phase(simulated_.member.rank, kept(message.text()));
      return;
    case Request::kDivide: return divide(message);
    case Request::kTouch: return report_touch(message);
    case Request::kWarn: return warn(message);
    case Request::kFail: fail(message.text());
    default: break;
  }
  process::Answer answer;
  try {
    const auto value = answer_of(head, message);
    if (!value) return;
    answer.value = *value;
  } catch (...) {
    answer = failed_answer(std::current_exception());
  }
  link_.answer(answer);
}

// A process that has ended learns nothing from the answer: what ended it is its own.
process::Answer RankProxy::failed_answer(const std::exception_ptr& error) {
  process::Answer answer{.has_failed = true, .text = text_of(error)};
  if (link_.end().has_ended == 0) {
    thrown_ = error;
    thrown_text_ = answer.text;
  }
  return answer;
}

std::optional<std::int64_t> RankProxy::answer_of(const process::RequestHead& head, process::MessageReader& message) {
  auto& world = *simulated_.member.world;
  const int rank = simulated_.member.rank;
  switch (head.request) {
    case Request::kGroup: make_group(message); return 0;
    case Request::kWait: begin_wait(message.get<std::uint64_t>()); return std::nullopt;
    case Request::kSum: give_sum(message); return 0;
    case Request::kPoll: {
      const auto pending = pending_.find(message.get<std::uint64_t>());
      return pending == pending_.end() || pending->second.error || world.poll(rank, *pending->second.started.meeting)
                 ? 1
                 : 0;
    }
    case Request::kBackward: {
      const auto loss = message.get<double>();
      if (simulated_.recorder) simulated_.recorder->add_loss(rank, loss);
      world.reach(rank, sim::StepPoint::kBackward);
      return 0;
    }
    case Request::kWrite: {
      const auto path = message.text();
      const auto offset = message.get<std::uint64_t>();
      return writes_.answer_of(path, offset, message.get<std::uint64_t>());
    }
    case Request::kUpdate: world.reach(rank, sim::StepPoint::kUpdate); return 0;
    case Request::kUpdated:
      world.reach(rank, sim::StepPoint::kUpdated);
      compare_replicas(message);
      return 0;
    case Request::kEndJoin: simulated_.comparison->begin_interval(rank); return 0;
    default: throw InternalError("unknown request of a rank's process");
  }
}

void RankProxy::make_group(process::MessageReader& message) {
  const auto number = message.get<std::uint32_t>();
  const auto name = message.text();
  groups_.erase(number);
  groups_.try_emplace(number, simulated_.member, name, message.list<int>());
}

// The memory belongs to the payload; its owner here tells only how long the call uses it.
sim::HostTensor RankProxy::tensor_of(const process::PlacedTensor& placed) const {
  return {std::make_shared<char>(), link_.at(placed.offset), static_cast<c10::ScalarType>(placed.dtype), placed.sizes,
          placed.strides};
}

std::vector<sim::HostTensor> RankProxy::tensors_of(const std::vector<process::PlacedTensor>& list) const {
  std::vector<sim::HostTensor> tensors;
  for (const auto& placed : list) tensors.push_back(tensor_of(placed));
  return tensors;
}

// The process learns of a wrong call in its wait; a program that never waits has not asked for the result.
void RankProxy::call(process::MessageReader& message) {
  auto& pending = pending_[message.get<std::uint64_t>()];
  try {
    const auto operation = process::read_operation(message);
    pending.is_sparse = operation.is_sparse;
    pending.started = start(operation);
    pending.call = simulated_.member.world->own_last_call_of(simulated_.member.rank);
  } catch (...) {
    pending.error = std::current_exception();
  }
}

sim::StartedCall<sim::HostTensor> RankProxy::start(const process::Operation& operation) {
  auto& group = groups_.at(operation.group);
  const auto& traits = traits_of(operation.collective);
  sim::RankCall<sim::HostTensor> call{.collective = operation.collective,
                                      .inputs = tensors_of(operation.inputs),
                                      .outputs = tensors_of(operation.outputs),
                                      .root = operation.root,
                                      .tag = operation.tag,
                                      .is_in_gloo = operation.is_in_gloo,
                                      .input_splits = operation.input_splits,
                                      .output_splits = operation.output_splits};
  if (traits.reduces) call.reduction = sim::reduction_of(operation.reduce_op);
  if (operation.is_sparse) call.inputs = {sim::HostTensor::sparse(operation.sizes, call.inputs[0], call.inputs[1])};
  return group.start(std::move(call));
}

std::int64_t RankProxy::value_of(const Pending& pending) {
  return pending.is_sparse ? pending.started.buffers->outputs.front().values().size(0)
                           : pending.started.meeting->peer();
}

// Of the thread that ends the collective and this one, the first to see its end answers.
void RankProxy::begin_wait(std::uint64_t number) {
  const auto wait = std::make_shared<Wait>();
  wait->number = number;
  wait->pending = std::move(pending_.at(number));
  wait->sender = link_.sender();
  pending_.erase(number);
  if (wait->pending.error) std::rethrow_exception(wait->pending.error);
  auto& meeting = *wait->pending.started.meeting;
  simulated_.member.guard->release_at_end(meeting);
  waits_.push_back(wait);
  meeting.when_ended([this, wait](const std::exception_ptr& failed) {
    if (failed)
      link_.wake();
    else if (!wait->is_answered.exchange(true))
      link_.answer({.value = value_of(wait->pending)}, wait->sender.reply);
    end_rest();
  });
  wait->begun = simulated_.member.world->begin_wait(simulated_.member.rank, meeting);
}

bool RankProxy::has_wait_ended() const {
  return std::any_of(waits_.begin(), waits_.end(),
                     [](const auto& wait) { return wait->pending.started.meeting->has_ended(); });
}

void RankProxy::end_waits() {
  for (std::size_t i = 0; i < waits_.size();) {
    if (!waits_[i]->pending.started.meeting->has_ended()) {
      ++i;
      continue;
    }
    const auto wait = waits_[i];
    waits_.erase(waits_.begin() + static_cast<std::ptrdiff_t>(i));
    end_wait(*wait);
  }
}

void RankProxy::end_wait(Wait& wait) {
  process::Answer answer;
  try {
    finish(wait);
    answer.value = value_of(wait.pending);
  } catch (...) {
    answer = failed_answer(std::current_exception());
  }
  if (!wait.is_answered.exchange(true)) link_.answer(answer, wait.sender.reply);
}

void RankProxy::finish(Wait& wait) {
  auto& guard = *simulated_.member.guard;
  auto& started = wait.pending.started;
  struct Release {
    sim::BufferGuard& guard;
    const sim::Meeting& meeting;
    ~Release() { guard.release(meeting); }
  } const release{guard, *started.meeting};
  simulated_.member.world->end_wait(simulated_.member.rank, *started.meeting, wait.begun);
  guard.hold_partial(*started.meeting, std::move(started.partial));
  if (wait.pending.is_sparse) sparse_sums_[wait.number] = started.buffers->outputs.front();
}

// Threads of a program that has failed may still wait; nobody else would answer them.
void RankProxy::abandon_waits() {
  for (const auto& wait : waits_) {
    if (!wait->is_answered.exchange(true))
      link_.answer({.has_failed = true, .text = "the program of this rank has ended"}, wait->sender.reply);
  }
  waits_.clear();
}

// Returns when the process has a request, when one of its waits has ended, or after a while.
void RankProxy::rest() {
  auto& world = *simulated_.member.world;
  const int rank = simulated_.member.rank;
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    for (const auto& wait : waits_) waiting_.push_back(wait->sender.thread);
  }
  const auto wakeups = link_.wakeups();
  if (link_.has_request() || has_wait_ended()) return;
  if (threads_.all_wait(waiting_)) return block(/*is_idle=*/false);
  if (threads_.have_been_idle(waiting_)) return block(/*is_idle=*/true);
  link_.sleep(wakeups, world.is_serial() ? kTurnTick : kRequestTick);
  world.poll(rank, *waits_.front()->pending.started.meeting);
}

// A single wait needs no completion of its own. A serial schedule does: it ends a sleep by a completion only.
void RankProxy::block(bool is_idle) {
  auto& world = *simulated_.member.world;
  const int rank = simulated_.member.rank;
  engine_waits_.clear();
  for (const auto& wait : waits_) {
    const auto& call = waits_.size() == 1 ? world.own_last_call_of(rank) : wait->pending.call;
    engine_waits_.push_back({.rank = rank, .meeting = wait->pending.started.meeting.get(), .call = call});
  }
  is_resting_ = true;
  if (waits_.size() == 1 && !is_idle && !world.is_serial()) {
    world.block(rank, *engine_waits_.front().meeting, engine_waits_);
  } else {
    const auto rest = std::make_shared<sim::Completion>();
    {
      const std::lock_guard lock(mutex_);
      rest_ = rest;
      is_idle_ = is_idle;
    }
    if (!has_wait_ended()) world.block(rank, *rest, engine_waits_);
    const std::lock_guard lock(mutex_);
    rest_ = nullptr;
    is_idle_ = false;
  }
  is_resting_ = false;
}

// Returns whether the rank rested, and can continue now.
bool RankProxy::end_rest() {
  std::shared_ptr<sim::Completion> rest;
  {
    const std::lock_guard lock(mutex_);
    rest.swap(rest_);
  }
  if (rest) simulated_.member.world->end(*rest);
  return rest != nullptr;
}

bool RankProxy::continue_if_possible() {
  {
    const std::lock_guard lock(mutex_);
    if (!rest_ || !(link_.has_request() || (is_idle_ && threads_.are_busy(waiting_)))) return false;
  }
  return end_rest();
}

void RankProxy::give_sum(process::MessageReader& message) {
  const auto number = message.get<std::uint64_t>();
  const auto sum = sparse_sums_.at(number);
  sparse_sums_.erase(number);
  using Algebra = sim::TensorAlgebra<sim::HostTensor>;
  Algebra::copy(tensor_of(process::read_placed_tensor(message)), sum.indices());
  Algebra::copy(tensor_of(process::read_placed_tensor(message)), sum.values());
}

void RankProxy::sleep(const sim::Completion& completion) {
  if (!is_resting_) return completion.sleep();
  const auto& end = link_.end();
  for (auto wakeups = link_.wakeups(); !completion.has_ended() && !link_.has_request(); wakeups = link_.wakeups()) {
    if (end.has_ended != 0 && end.status == 0) return;  // the supervisor reports other ends
    if (is_idle_ && !threads_.have_been_idle(waiting_)) return;
    link_.sleep(wakeups, kRequestTick);
  }
}

void RankProxy::report_touch(process::MessageReader& message) {
  const auto pending = pending_.find(message.get<std::uint64_t>());
  if (pending == pending_.end()) return;
  if (pending->second.started.meeting)
    simulated_.member.guard->report_touch(*pending->second.started.meeting, message.text());
}

void RankProxy::divide(process::MessageReader& message) {
  const auto name = message.text();
  const auto hash = message.get<std::uint64_t>();
  const auto file = message.text();
  const auto line = message.get<std::uint32_t>();
  const auto finding = weights_.add(simulated_.member.rank, name, hash, describe(SourceLine(kept(file), line)));
  if (finding) simulated_.member.world->report(sim::Check::kDividedWeights, *finding);
}

void RankProxy::warn(process::MessageReader& message) {
  const auto check = message.text();
  auto& world = *simulated_.member.world;
  check.empty() ? world.failures().warn(message.text())
                : static_cast<void>(world.report(sim::check_named(check), message.text()));
}

void RankProxy::compare_replicas(process::MessageReader& message) {
  const auto report = process::read_update_report(message);
  processor_seconds_ = report.processor_seconds;
  if (report.parameters.empty() && !report.stage_rank)
    return simulated_.member.world->clocks().discard_compute(simulated_.member.rank);
  std::vector<std::string> names;
  std::vector<ParameterState> states;
  std::vector<int> parts;
  for (const auto& parameter : report.parameters) {
    names.push_back(parameter.name);
    states.push_back(state_of(parameter.state));
    parts.push_back(parameter.layout.layer_part());
  }
  if (simulated_.recorder) simulated_.recorder->add_update(simulated_.member.rank, std::move(names), states);
  simulated_.comparison->submit(
      simulated_.member.rank, std::move(states), std::move(parts), report.stage_rank.value_or(0), report.generator,
      [&](std::size_t place) -> sim::ParameterDescription {
        const auto& last = report.parameters.back();
        const auto& parameter = place < report.parameters.size() ? report.parameters[place] : last;
        return {.name = parameter.name,
                .dtype = static_cast<c10::ScalarType>(parameter.state.dtype),
                .sizes = parameter.sizes};
      });
  simulated_.member.world->clocks().discard_compute(simulated_.member.rank);
}

// A traceback that ends in an error of the run is a consequence; any other is the rank's own error.
void RankProxy::fail(const std::string& text) {
  if (thrown_ && comes_from_the_run(thrown_) && text.find(thrown_text_) != std::string::npos)
    std::rethrow_exception(thrown_);
  throw Error(text);
}

}  // namespace accel::programs
