#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "backends/process/process_work.hpp"

/// A c10d backend whose rank is a process of a simulated run: every collective of ProcessGroupGloo, carried to the
/// rank's proxy in the simulator. CPU tensors.
///
/// A call returns at once; outputs are valid after `wait()`, which throws CommError with what the simulator says, also
/// of wrong arguments. Thread rule: like RankLink.
namespace accel::process {

class ProcessBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// `rank` and `size` are those of the group; its name and ranks may be set later, before the first call.
  ProcessBackend(std::shared_ptr<RankLink> link, std::shared_ptr<const ProgramHooks> hooks, int rank, int size);

  /// The world ranks of the group, in order.
  void set_group(std::string name, std::vector<int> ranks);

  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }

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
  using Lists = std::vector<Tensors>;
  /// Of the tensors, which the collective writes.
  enum class Writes { kInputs, kOutputs };
  WorkPtr run(c10d::OpType type, bool is_async, Operation operation, const Lists& inputs, const Lists& outputs,
              Writes writes, Lists results);
  PlacedTensor place(const at::Tensor& tensor, bool is_read, bool is_written, bool is_async,
                     std::vector<Buffer>& buffers) const;
  std::uint32_t group();

  const std::shared_ptr<RankLink> link_;
  const std::shared_ptr<const ProgramHooks> hooks_;
  c10::intrusive_ptr<Options> options_ = c10::make_intrusive<Options>("gloo");
  std::string name_;
  std::vector<int> ranks_;
  std::uint32_t group_ = 0;  // 0: unknown to the proxy
  std::uint64_t sequence_ = 0;
};

}  // namespace accel::process
