#include "sim/backend/sim_work.hpp"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/engine.h>

#include "reference/core/errors.hpp"

namespace accel::sim {

SimWork::SimWork(std::shared_ptr<World> world, std::shared_ptr<BufferGuard> guard, std::shared_ptr<Meeting> meeting, int world_rank,
                 c10d::OpType type, std::vector<std::vector<at::Tensor>> results)
    : c10d::Work(world_rank, type), world_(std::move(world)), guard_(std::move(guard)), meeting_(std::move(meeting)), world_rank_(world_rank),
      results_(std::move(results)) {}

bool SimWork::wait(std::chrono::milliseconds /*timeout*/) {
  world_->wait(world_rank_, *meeting_);
  if (is_partial_) guard_->hold_partial(*meeting_, results_.front().front());
  guard_->release(*meeting_);
  return true;
}

std::vector<at::Tensor> SimWork::result() {
  check_state(results_.size() <= 1, "Work.result: this collective has {} lists of results; use its output lists", results_.size());
  return results_.empty() ? std::vector<at::Tensor>{} : results_.front();
}

c10::intrusive_ptr<c10::ivalue::Future> SimWork::getFuture() {
  if (future_) return future_;
  guard_->release_at_end(*meeting_);
  const auto list_of_tensors = c10::ListType::create(c10::TensorType::get());
  const bool nested = results_.size() > 1;
  future_ = c10::make_intrusive<c10::ivalue::Future>(nested ? c10::ListType::create(list_of_tensors) : list_of_tensors);
  world_->when_ended(*meeting_, [future = future_, results = results_, nested](std::exception_ptr error) {
    if (error) {
      future->setError(error);
    } else if (nested) {
      future->markCompleted(c10::IValue(results));
    } else {
      future->markCompleted(c10::IValue(results.empty() ? std::vector<at::Tensor>{} : results.front()));
    }
  });
  // Also of one that has ended: the rank's virtual clock takes its finish where the pass waits for it.
  if (torch::autograd::get_current_graph_task_id() != -1) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [world = world_, meeting = meeting_, rank = world_rank_] { world->wait(rank, *meeting); });
  }
  return future_;
}

}  // namespace accel::sim
