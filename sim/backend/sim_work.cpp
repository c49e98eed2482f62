// Bridges an engine's Meeting to c10d's Work and to autograd. A wait must reach the engine on the rank's own
// thread: only then is the rank counted as blocked, and its clock advanced. A bare c10d future would hide both.
#include "sim/backend/sim_work.hpp"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/engine.h>

#include "reference/core/errors.hpp"

namespace accel::sim {

SimWork::SimWork(const Member& member, StartedCall<at::Tensor> started, c10d::OpType type,
                 std::vector<std::vector<at::Tensor>> results)
    : c10d::Work(member.rank, type),
      world_(member.world),
      guard_(member.guard),
      meeting_(std::move(started.meeting)),
      partial_(std::move(started.partial)),
      world_rank_(member.rank),
      results_(std::move(results)) {}

// The guard is released on every path, or a tensor would stay watched for the rest of the run.
bool SimWork::wait(std::chrono::milliseconds /*timeout*/) {
  try {
    world_->wait(world_rank_, *meeting_);
  } catch (...) {
    guard_->release(*meeting_);  // a program that catches the error may use its tensors
    throw;
  }
  guard_->hold_partial(*meeting_, std::exchange(partial_, {}));
  guard_->release(*meeting_);
  return true;
}

// c10d's result() is one flat list, so collectives with a list per tensor cannot be represented.
std::vector<at::Tensor> SimWork::result() {
  check_state(
      results_.size() <= 1,
      "Work.result: this collective has {} lists of results; expected at most one; read its output lists instead",
      results_.size());
  return results_.empty() ? std::vector<at::Tensor>{} : results_.front();
}

c10::intrusive_ptr<c10::ivalue::Future> SimWork::getFuture() {
  if (future_) return future_;
  guard_->release_at_end(*meeting_);
  const auto list_of_tensors = c10::ListType::create(c10::TensorType::get());
  const bool nested = results_.size() > 1;
  future_ = c10::make_intrusive<c10::ivalue::Future>(nested ? c10::ListType::create(list_of_tensors) : list_of_tensors);
  // The reference is safe: a meeting stays alive while it calls these functions.
  meeting_->when_ended([future = future_, results = results_, nested, &meeting = *meeting_,
                        rank = world_rank_](std::exception_ptr failed) {
    if (failed) {
      future->setError(meeting.error(rank));
    } else if (nested) {
      future->markCompleted(c10::IValue(results));
    } else {
      future->markCompleted(c10::IValue(results.empty() ? std::vector<at::Tensor>{} : results.front()));
    }
  });
  // Queued even if the meeting has ended: the wait advances this rank's clock and rethrows this rank's own error.
  if (torch::autograd::get_current_graph_task_id() != -1) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [world = world_, meeting = meeting_, rank = world_rank_] { world->wait(rank, *meeting); });
  }
  return future_;
}

}  // namespace accel::sim
