#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

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

class SimBackend : public c10d::Backend {
 public:
  SimBackend(Member member, std::shared_ptr<Group> group, int group_rank);

  const std::string getBackendName() const override { return "sim"; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions&) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override;
  WorkPtr send(Tensors&, int destination, int tag) override;
  WorkPtr recv(Tensors&, int source, int tag) override;
  WorkPtr recvAnysource(Tensors&, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

 private:
  /// Identifies the next collective.
  [[nodiscard]] CallSlot next_slot() const { return {*world_, *group_, sequence_}; }
  c10::intrusive_ptr<SimWork> join(c10d::OpType type, Call call, Buffers buffers, std::vector<Tensors> results,
                                   TensorCompute compute);
  WorkPtr reduce_flat(Collective op, Tensors& tensors, const c10d::ReduceOp& reduce_op, c10d::OpType type);
  WorkPtr receive(Tensors& tensors, int source, int tag);
  [[nodiscard]] ParallelFor parallel_for() const;
  /// Checks this rank's tensors and describes its call.
  [[nodiscard]] Call described(Collective op, const Tensors& tensors, std::string_view reduce_op = {},
                               int root = -1) const;
  void check_output(Collective op, const at::Tensor& output, const at::Tensor& like) const;

  Member member_;
  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;
  std::uint64_t sequence_ = 0;
};

/// A process group whose only backend is a SimBackend. `ranks` are world ranks in order; the member's is one of them.
/// Thread rule: the member's thread.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks);

}  // namespace accel::sim
