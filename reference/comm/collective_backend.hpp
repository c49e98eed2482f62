#pragma once

#include <exception>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "reference/comm/collective_args.hpp"

namespace accel {

/// A c10d backend that implements all collectives in one function. Its methods check this rank's arguments, before any
/// rank waits, and pass them to `start`.
///
///     class LoggingBackend : public CollectiveBackend {
///       WorkPtr start(CollectiveArgs args) override { log(name_of(args.collective)); return start_on(*inner_, args); }
///     };
///
/// Thread rule: like that of c10d::Backend: the rank's thread and its autograd threads.
class CollectiveBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// Starts one collective. The arguments have passed the checks that do not depend on the backend: numbers of tensors,
  /// equal shapes and dtypes, roots, splits.
  virtual WorkPtr start(CollectiveArgs args) = 0;
  /// This rank's arguments of a collective are wrong. Throws the problem.
  virtual WorkPtr refuse(Collective collective, std::exception_ptr problem);

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

 protected:
  CollectiveBackend(int rank, int size) : c10d::Backend(rank, size) {}

 private:
  template <typename Check>
  WorkPtr checked(CollectiveArgs& args, Check&& check);
  void check_sums(const CollectiveArgs& args) const;
  void check_list(Collective op, std::string_view what, const std::vector<Tensors>& lists, const at::Tensor& like,
                  int root) const;
  void check_all_parts(Collective op, const Tensors& complete, const Tensors& parts) const;
  void check_splits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, std::string_view side) const;
  void check_peer(Collective op, int peer) const;
};

}  // namespace accel
