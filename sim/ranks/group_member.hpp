#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/collectives/collective_plan.hpp"
#include "sim/ranks/buffer_guard.hpp"
#include "sim/ranks/tensor_call.hpp"

namespace accel::sim {

/// One rank of a world, shared by its members of all groups.
struct Member {
  std::shared_ptr<World> world;
  std::shared_ptr<BufferGuard> guard;
  int rank = 0;
  Library library = Library::kGloo;  ///< whose rules for tensors hold
};

/// One rank's arguments of a collective or a message, see CollectiveArgs.
template <typename Tensor>
struct RankCall {
  Collective collective{};
  std::vector<Tensor> inputs = {}, outputs = {};
  NamedReduction reduction = {};  ///< no name: the collective does not reduce
  int root = -1;                  ///< group rank: the root, or the peer of a message; -1: none, or any source
  int tag = 0;
  bool is_in_gloo = true;  ///< whether the Gloo that the rank's program would use has the collective
  std::vector<std::int64_t> input_splits = {}, output_splits = {};
};

/// A collective that has been started. Valid results are in the tensors after World::wait.
template <typename Tensor>
struct StartedCall {
  std::shared_ptr<Meeting> meeting;
  std::shared_ptr<BuffersOf<Tensor>> buffers;  ///< sparse: the sum is in outputs[0]
  std::vector<PendingMemory> partial = {};     ///< what holds partial sums afterwards, see BufferGuard::hold_partial
};

/// One rank's end of a group, with tensors that are at::Tensor or HostTensor: every collective of ProcessGroupGloo,
/// with Gloo's bits, over a World.
///
///     GroupMember<HostTensor> member(rank, "world", {0, 1, 2, 3});
///     const auto started = member.start({.collective = Collective::kBroadcast, .inputs = {tensor}, .root = 0});
///     world.wait(rank, *started.meeting);
///
/// The ranks' calls are matched in order, the n-th with the n-th, and must agree in operation, reduce operation, dtype,
/// shape and root; otherwise every rank gets a DiagnosedError that names the call.
/// Thread rule: that rank's thread and its autograd threads.
template <typename Tensor>
class GroupMember {
 public:
  /// `ranks` are world ranks in order. Throws ArgumentError if the member is none of them.
  GroupMember(Member member, const std::string& name, const std::vector<int>& ranks);

  /// Throws ArgumentError for tensors that the rehearsed library refuses.
  StartedCall<Tensor> start(RankCall<Tensor> call);

  [[nodiscard]] const std::string& name() const { return group_->name; }
  [[nodiscard]] int group_rank() const { return group_rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(group_->ranks.size()); }
  [[nodiscard]] std::uint64_t num_started() const { return sequence_; }

 private:
  void check_accepted(const RankCall<Tensor>& call, const std::vector<TensorDescription>& inputs,
                      const std::vector<TensorDescription>& outputs) const;
  [[nodiscard]] BuffersOf<Tensor> buffers_of(const RankCall<Tensor>& call) const;
  [[nodiscard]] StartedCall<Tensor> join(RankCall<Tensor> call, Call described);
  [[nodiscard]] StartedCall<Tensor> send(RankCall<Tensor> call, Call described);
  [[nodiscard]] StartedCall<Tensor> receive(RankCall<Tensor> call, Call described);

  Member member_;
  std::shared_ptr<EngineGroup> group_;
  int group_rank_;
  std::uint64_t sequence_ = 0;
};

}  // namespace accel::sim
