#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "sim/backend/buffer_guard.hpp"
#include "sim/backend/sim_work.hpp"
#include "sim/collectives/collectives.hpp"
#include "sim/engine/world.hpp"

/// c10d's backend over a World: every collective of ProcessGroupGloo, with Gloo's bits, among the threads of a process.
///
///     auto group = accel::sim::make_process_group(member, "world", {0, 1, 2, 3});
///     group->allreduce(tensors)->wait();
///
/// The ranks' calls meet in order, n-th with n-th, and must be equal in op, reduce op, dtype, shape and root; else
/// every rank gets a DiagnosedError that names them. Calls return at once; outputs are valid after `wait()`. Thread
/// rule: one backend per rank, used by that rank's thread and its autograd threads.
namespace accel::sim {

/// One rank of a world, as its backends see it.
struct Member {
  std::shared_ptr<World> world;
  std::shared_ptr<BufferGuard> guard;
  int rank = 0;
};

struct NamedReduction {
  std::string_view name;
  ReduceKind kind;
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
  using TensorCompute = std::function<void(AllBuffers)>;
  c10::intrusive_ptr<SimWork> join(c10d::OpType type, Call call, Buffers buffers, std::vector<Tensors> results,
                                   TensorCompute compute);
  void run(const TensorCompute& compute, std::uint64_t sequence, std::span<const Participant> participants) const;
  void check_splits(const std::vector<SplitMismatch>& mismatches, AllBuffers ranks, std::uint64_t sequence) const;
  using ResultOf =
      std::function<at::Tensor(AllBuffers, std::size_t item)>;  // of what the ranks' inputs of that place became
  /// Gloo's max and min lose NaN: `compute`, which then says so.
  [[nodiscard]] TensorCompute telling_of_lost_nan(std::string_view op, const NamedReduction& reduction,
                                                  ResultOf result_of, TensorCompute compute) const;
  WorkPtr reduce_flat(Tensors& tensors, const c10d::ReduceOp& op, c10d::OpType type, std::string_view name);
  WorkPtr receive(Tensors& tensors, int source, int tag);
  [[nodiscard]] ParallelFor parallel_for() const;

  Member member_;
  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;
  std::uint64_t sequence_ = 0;
};

/// What an injected fault does to the tensors that a rank has brought to a collective.
void corrupt_buffers(const Participant& participant, const Corruption& corruption);

/// A process group whose only backend is a SimBackend. `ranks` are world ranks in order; the member's is one of them.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks);

}  // namespace accel::sim
