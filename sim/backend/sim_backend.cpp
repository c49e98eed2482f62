#include "sim/backend/sim_backend.hpp"

namespace accel::sim {

SimBackend::SimBackend(Member member, GroupMember<at::Tensor> end)
    : CollectiveBackend(end.group_rank(), end.size()), member_(std::move(member)), end_(std::move(end)) {
  setGroupUid(end_.name());
}

SimBackend::WorkPtr SimBackend::start(CollectiveArgs args) {
  auto started = end_.start(rank_call_of(args));
  return c10::make_intrusive<SimWork>(member_, std::move(started), op_type_of(args), results_of(args));
}

}  // namespace accel::sim
