#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "reference/comm/collective_backend.hpp"
#include "sim/backend/buffer_guard.hpp"
#include "sim/backend/joined_buffers.hpp"
#include "sim/backend/sim_work.hpp"
#include "sim/collectives/collective_plan.hpp"
#include "sim/engine/world.hpp"

/// A c10d backend over a World: every collective of ProcessGroupGloo, with Gloo's bits, among the threads of a process.
///
///     auto group = accel::sim::make_process_group(member, "world", {0, 1, 2, 3});
///     group->allreduce(tensors)->wait();
///
/// The ranks' calls are matched in order, the n-th with the n-th, and must agree in operation, reduce operation, dtype,
/// shape and root; otherwise every rank gets a DiagnosedError that names the call. Calls return immediately; outputs
/// are valid after `wait()`. Thread rule: one backend per rank, used by that rank's thread and its autograd threads.
namespace accel::sim {

/// One rank of a world, shared by the backends of all its groups.
struct Member {
  std::shared_ptr<World> world;
  std::shared_ptr<BufferGuard> guard;
  int rank = 0;
  Library library = Library::kGloo;  ///< whose rules for tensors hold
};

class SimBackend : public CollectiveBackend {
 public:
  SimBackend(Member member, std::shared_ptr<EngineGroup> group, int group_rank);

  const std::string getBackendName() const override { return "sim"; }
  WorkPtr start(CollectiveArgs args) override;
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

 private:
  /// Identifies the next collective.
  [[nodiscard]] CallSlot next_slot() const { return {*world_, *group_, sequence_}; }
  [[nodiscard]] ParallelFor parallel_for() const;
  void check_accepted(const CollectiveArgs& args) const;
  /// Returns the function that computes the result for all ranks, whose buffers are in the order of group ranks.
  [[nodiscard]] TensorCompute compute_of(const CollectiveArgs& args) const;
  c10::intrusive_ptr<SimWork> join(const CollectiveArgs& args, Call call, Buffers buffers);
  WorkPtr send_message(const CollectiveArgs& args);
  WorkPtr receive_message(const CollectiveArgs& args);

  Member member_;
  std::shared_ptr<World> world_;
  std::shared_ptr<EngineGroup> group_;
  std::uint64_t sequence_ = 0;
};

/// `ranks` are world ranks in order; the member's is one of them. Thread rule: the member's thread.
c10::intrusive_ptr<SimBackend> make_backend(Member member, const std::string& name, const std::vector<int>& ranks);
/// A process group whose only backend is a SimBackend.
/// Thread rule: the member's thread.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks);

}  // namespace accel::sim
