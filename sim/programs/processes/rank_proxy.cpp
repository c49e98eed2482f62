// The engine's view of a rank that is a process. See Note [Ranks as processes] in backends/process/shared_area.cpp.
#include "sim/programs/processes/rank_proxy.hpp"

#include <atomic>
#include <set>

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

// A line's file must live as long as the run's reports.
const char* kept(const std::string& file) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> files;
  const std::lock_guard lock(mutex);
  return files.insert(file).first->c_str();
}

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
  } catch (const sim::DiagnosedError&) {
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
      reason_(std::move(reason)) {}

void RankProxy::run() {
  // The proxy itself lives as long as the run: another thread may still be ending a collective of its.
  struct Release {
    RankProxy& proxy;
    ~Release() {
      proxy.pending_.clear();
      proxy.groups_.clear();
    }
  } const release{*this};
  while (true) {
    const bool has_ended = link_.end().has_ended != 0;  // read first: the last requests came before the end
    if (auto message = link_.next(kRequestTick)) {
      serve(*message);
    } else if (has_ended) {
      return end_as(link_.end().status);
    }
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
    answer = {.has_failed = true, .text = text_of(std::current_exception())};
    // A process that has ended learns nothing from this: what ended it is its own.
    if (link_.end().has_ended == 0) {
      thrown_ = std::current_exception();
      thrown_text_ = answer.text;
    }
  }
  link_.answer(answer);
}

std::optional<std::int64_t> RankProxy::answer_of(const process::RequestHead& head, process::MessageReader& message) {
  auto& world = *simulated_.member.world;
  const int rank = simulated_.member.rank;
  switch (head.request) {
    case Request::kGroup: make_group(message); return 0;
    case Request::kWait: return wait(message.get<std::uint64_t>());
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
                                      .input_splits = operation.input_splits,
                                      .output_splits = operation.output_splits};
  if (traits.reduces) call.reduction = sim::reduction_of(operation.reduce_op);
  if (operation.is_sparse) call.inputs = {sim::HostTensor::sparse(operation.sizes, call.inputs[0], call.inputs[1])};
  return group.start(std::move(call));
}

std::int64_t RankProxy::value_of(const Pending& pending) {
  return pending.is_sparse ? pending.started.buffers->outputs.front().values().size(0)
                           : pending.started.meeting->source();
}

// Of the thread that ends the collective and this one, the first to see its end answers.
std::optional<std::int64_t> RankProxy::wait(std::uint64_t number) {
  const auto pending = std::make_shared<Pending>(std::move(pending_.at(number)));
  pending_.erase(number);
  if (pending->error) std::rethrow_exception(pending->error);
  auto& meeting = *pending->started.meeting;
  auto& guard = *simulated_.member.guard;
  guard.release_at_end(meeting);
  const auto is_answered = std::make_shared<std::atomic<bool>>(false);
  meeting.when_ended([this, is_answered, pending](const std::exception_ptr& failed) {
    if (failed) return link_.wake();
    if (!is_answered->exchange(true)) link_.answer({.value = value_of(*pending)});
  });
  struct Release {
    sim::BufferGuard& guard;
    const sim::Meeting& meeting;
    bool& is_answered_by_others;
    ~Release() {
      is_answered_by_others = false;
      guard.release(meeting);
    }
  };
  {
    const Release release{guard, meeting, is_answered_by_others_};
    is_answered_by_others_ = true;
    simulated_.member.world->wait(simulated_.member.rank, meeting);
    guard.hold_partial(meeting, std::move(pending->started.partial));
  }
  if (pending->is_sparse) sparse_sums_[number] = pending->started.buffers->outputs.front();
  if (is_answered->exchange(true)) return std::nullopt;
  return value_of(*pending);
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
  if (!is_answered_by_others_) return completion.sleep();
  for (auto wakeups = link_.wakeups(); !completion.has_ended(); wakeups = link_.wakeups())
    link_.sleep(wakeups, kRequestTick);
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
  const auto finding = weights_.add(simulated_.member.rank, name, hash, sim::describe(SourceLine(kept(file), line)));
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
  if (report.parameters.empty()) return simulated_.member.world->clocks().discard_compute(simulated_.member.rank);
  std::vector<std::string> names;
  std::vector<ParameterState> states;
  std::vector<int> parts;
  for (const auto& parameter : report.parameters) {
    names.push_back(parameter.name);
    states.push_back(state_of(parameter.state));
    parts.push_back(parameter.layout.layer_part());
  }
  if (simulated_.recorder) simulated_.recorder->add_update(simulated_.member.rank, std::move(names), states);
  simulated_.comparison->submit(simulated_.member.rank, std::move(states), std::move(parts), report.generator,
                                [&](std::size_t place) -> sim::ParameterDescription {
                                  const auto& last = report.parameters.back();
                                  const auto& parameter =
                                      place < report.parameters.size() ? report.parameters[place] : last;
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
