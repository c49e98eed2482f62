// The functions of GroupMember for one kind of tensor, instantiated by host_group_member.cpp and, for at::Tensor, by
// sim/backend/sim_backend.cpp.
//
// All collectives take one way: `start` checks what depends on the rehearsed backend, describes this rank's call, which
// the engine compares across ranks, and joins with the function that computes the result for all ranks. That function
// runs only on the last rank to arrive, so it takes the tensors of all ranks from its argument, not from the call.
#pragma once

#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"
#include "sim/collectives/tensors/tensor_algebra.hpp"
#include "sim/ranks/backend_rules.hpp"
#include "sim/ranks/group_member.hpp"
#include "sim/ranks/joined_call.hpp"
#include "sim/ranks/tensor_inspection.hpp"

namespace accel::sim {

/// One rank's buffers in a collective, with a sample of its inputs that reveals later changes.
template <typename Tensor>
struct JoinedBuffers : JoinedCall {
  using Inspection = TensorInspection<Tensor>;

  JoinedBuffers(std::shared_ptr<BuffersOf<Tensor>> joined, Call call)
      : JoinedCall(std::move(call)), buffers(std::move(joined)), sample(current_sample()) {}

  [[nodiscard]] std::uint64_t current_sample() const {
    std::uint64_t sample = 0;
    for (const auto& tensor : buffers->inputs) sample = sample * 31 + Inspection::sample_of(tensor);
    return sample;
  }

  // After setting an input the sample is taken again, or the corruption would be reported as the program's own write.
  void corrupt(const Corruption& corruption) override {
    const bool is_output = corruption.bit && !buffers->outputs.empty();
    const auto tensor = Inspection::dense_part(is_output ? buffers->outputs.front() : buffers->inputs.front());
    if (tensor.numel() == 0) return;
    if (corruption.value) {
      Inspection::set_first(tensor, *corruption.value);
      sample = current_sample();
    } else {
      Inspection::flip_bit(tensor, *corruption.bit % (static_cast<std::int64_t>(tensor.nbytes()) * 8));
    }
  }

  std::shared_ptr<BuffersOf<Tensor>> buffers;
  std::uint64_t sample = 0;
};

/// The checks of a collective once all ranks have joined: that no rank has changed its tensors since, that the splits
/// of an all-to-all agree, that max and min have lost no NaN.
template <typename Tensor>
class JoinedRanks {
  using Algebra = TensorAlgebra<Tensor>;

 public:
  JoinedRanks(const CallSlot& slot, std::span<const Participant> participants) : slot_(slot) {
    for (const auto& participant : participants) {
      joined_.push_back(static_cast<JoinedBuffers<Tensor>*>(static_cast<JoinedCall*>(participant.get())));
      ranks_.push_back(joined_.back()->buffers.get());
    }
  }

  void compute(const CollectiveOfAll& collective, std::string_view reduction, const ParallelFor& parallel_for) const {
    check_unchanged();
    check_splits(collective.op);
    const bool drops_nan = !reduction.empty() && (collective.kind.reduction == Reduction::kMin ||
                                                  collective.kind.reduction == Reduction::kMax);
    const auto had_nan = drops_nan ? nans_of_inputs() : std::vector<std::vector<bool>>();
    sim::compute<Tensor>(collective, ranks_, parallel_for);
    warn_of_lost_nan(collective, reduction, had_nan);
  }

 private:
  // Catches writes that BufferGuard cannot see, through raw pointers. The sample was taken when the rank joined.
  void check_unchanged() const {
    std::vector<int> changed;
    const Call* call_of_changed = nullptr;
    for (std::size_t member = 0; member < joined_.size(); ++member) {
      if (joined_[member]->current_sample() == joined_[member]->sample) continue;
      changed.push_back(slot_.group.ranks[member]);
      if (call_of_changed == nullptr) call_of_changed = &joined_[member]->call;
    }
    if (changed.empty()) return;
    const auto what = fmt::format(
        "the tensor of {} was changed between the call and wait(), which is a race on real backends; call wait() first",
        describe_ranks(changed));
    if (slot_.world.report(Check::kRaces, diagnosis_of(slot_, *call_of_changed, changed, what)))
      slot_.world.failures().throw_if_failed();
  }

  void check_splits(Collective op) const {
    sim::check_splits(slot_, split_mismatches<Tensor>(op, ranks_), [&](int member) {
      auto call = joined_[member]->call;
      for (const auto& input : ranks_[member]->inputs)
        call.shapes.emplace_back(input.sizes().begin(), input.sizes().end());
      return call;
    });
  }

  // For each input and element, whether it is NaN on a rank. Taken before the computation, which may overwrite them.
  [[nodiscard]] std::vector<std::vector<bool>> nans_of_inputs() const {
    const typename Algebra::Unobserved unobserved;
    std::vector<std::vector<bool>> nans;
    for (std::size_t item = 0; item < ranks_.front()->inputs.size(); ++item) {
      auto& any = nans.emplace_back(Algebra::nans_of(ranks_.front()->inputs[item]));
      for (const auto* rank : ranks_) {
        const auto own = Algebra::nans_of(rank->inputs[item]);
        for (std::size_t element = 0; element < any.size(); ++element) any[element] = any[element] || own[element];
      }
    }
    return nans;
  }

  // Gloo's comparisons return the other operand if one is NaN (see ring_kernel.cpp). Python users expect
  // torch.max, which propagates NaN, so this is a finding; one warning per collective is enough.
  void warn_of_lost_nan(const CollectiveOfAll& collective, std::string_view reduction,
                        const std::vector<std::vector<bool>>& had_nan) const {
    for (std::size_t item = 0; item < had_nan.size(); ++item) {
      if (std::ranges::find(had_nan[item], true) == had_nan[item].end()) continue;
      const auto has_nan = nans_of_result<Tensor>(collective, ranks_, item);
      bool is_lost = false;
      for (std::size_t element = 0; element < has_nan.size(); ++element)
        is_lost = is_lost || (had_nan[item][element] && !has_nan[element]);
      if (!is_lost) continue;
      slot_.world.report(
          Check::kLostNan,
          fmt::format("{} #{} of group {}: a NaN is lost in {}; as in Gloo, the result is the other operand; check for "
                      "NaN before reducing",
                      name_of(collective.op), slot_.sequence, slot_.group.name, reduction));
      return;
    }
  }

  const CallSlot& slot_;
  std::vector<JoinedBuffers<Tensor>*> joined_;
  std::vector<BuffersOf<Tensor>*> ranks_;
};

template <typename Tensor>
std::vector<TensorDescription> descriptions_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorDescription> descriptions;
  for (const auto& tensor : tensors) descriptions.push_back(TensorInspection<Tensor>::description_of(tensor));
  return descriptions;
}

/// Describes one rank's call by the descriptions of its tensors, a sparse input coalesced.
template <typename Tensor>
Call call_of(const RankCall<Tensor>& call, const std::vector<TensorDescription>& inputs,
             const std::vector<TensorDescription>& outputs) {
  // The input list of a scatter is on the root only.
  const bool shows_outputs = call.collective == Collective::kScatter || call.collective == Collective::kRecv;
  const auto root = traits_of(call.collective).has_root ? call.root : -1;
  return call_of(call.collective, shows_outputs ? outputs : inputs, call.reduction.name, root);
}

template <typename Tensor>
std::vector<PendingMemory> memory_of(const std::vector<Tensor>& tensors, bool are_written) {
  std::vector<PendingMemory> memory;
  for (const auto& tensor : tensors) TensorInspection<Tensor>::add_memory(tensor, are_written, memory);
  return memory;
}

template <typename Tensor>
GroupMember<Tensor>::GroupMember(Member member, const std::string& name, const std::vector<int>& ranks)
    : member_(std::move(member)),
      group_(member_.world->group(name, ranks)),
      group_rank_(group_->group_rank_of(member_.rank)) {
  check_argument(group_rank_ >= 0, "group {}: rank {} is not a member of {}", name, member_.rank,
                 describe_ranks(ranks));
}

template <typename Tensor>
void GroupMember<Tensor>::check_accepted(const RankCall<Tensor>& call, const std::vector<TensorDescription>& inputs,
                                         const std::vector<TensorDescription>& outputs) const {
  check_supported(member_.library, call.collective, call.is_in_gloo);
  check_accepted_peer(member_.library, call.collective, call.root, group_rank_);
  check_accepted_parts(member_.library, call.collective, inputs, outputs);
  sim::check_accepted(member_.library, call.collective, inputs);
  for (const auto& output : outputs) check_accepted_output(member_.library, call.collective, output);
  if (!call.reduction.name.empty()) {
    check_accepted_reduction(member_.library, call.collective, call.reduction.name, call.inputs.front().scalar_type());
  }
}

// The tensors that this rank brings. A sparse tensor is exchanged as its entries; of a flat output, the parts are
// written.
template <typename Tensor>
BuffersOf<Tensor> GroupMember<Tensor>::buffers_of(const RankCall<Tensor>& call) const {
  using Algebra = TensorAlgebra<Tensor>;
  using Inspection = TensorInspection<Tensor>;
  BuffersOf<Tensor> buffers{.inputs = call.inputs,
                            .outputs = call.outputs,
                            .input_splits = call.input_splits,
                            .output_splits = call.output_splits};
  if (call.collective == Collective::kAllReduce && Algebra::is_sparse(call.inputs.front())) {
    buffers.outputs = call.inputs;
    buffers.inputs = {Algebra::coalesced(call.inputs.front())};
  } else if (call.collective == Collective::kAllGatherIntoTensorCoalesced) {
    const auto count = call.inputs.size();
    buffers.outputs.assign(count * static_cast<std::size_t>(size()), {});
    for (std::size_t item = 0; item < count; ++item) {
      if (!call.outputs[item].is_contiguous()) {
        check_rows(call.collective, Inspection::description_of(call.outputs[item]).sizes,
                   Inspection::description_of(call.inputs[item]).sizes, size());
      }
      const auto parts = Algebra::parts_of(call.outputs[item], call.inputs[item], size());
      for (std::size_t rank = 0; rank < parts.size(); ++rank) buffers.outputs[rank * count + item] = parts[rank];
    }
  }
  return buffers;
}

// `sequence_` is this rank's own count; it equals the engine's number because every collective of the group passes
// through here. The guard watches the buffers from here until `wait()`.
template <typename Tensor>
StartedCall<Tensor> GroupMember<Tensor>::join(RankCall<Tensor> call, Call described) {
  const auto buffers = std::make_shared<BuffersOf<Tensor>>(buffers_of(call));
  if (described.sparse_dim > 0) described = call_of(call, descriptions_of(buffers->inputs), {});
  described.where = CallSite::current();
  auto memory = memory_of(buffers->inputs, writes_inputs(call.collective, call.root, group_rank_));
  for (auto& written : memory_of(buffers->outputs, /*are_written=*/true)) memory.push_back(std::move(written));
  const CallSlot slot{*member_.world, *group_, sequence_++};
  const std::shared_ptr<JoinedCall> joined = std::make_shared<JoinedBuffers<Tensor>>(buffers, described);
  auto meeting = member_.world->arrive(
      *group_, group_rank_, described, joined,
      [slot, collective = CollectiveOfAll{.op = call.collective, .kind = call.reduction.kind, .root = call.root},
       reduction = call.reduction.name](std::span<const Participant> participants) {
        const typename TensorAlgebra<Tensor>::Unobserved unobserved;  // it may touch all watched buffers
        const ParallelFor parallel_for = [&](std::int64_t count, const std::function<void(std::int64_t)>& body) {
          slot.world.executor().parallel_for(count, body);
        };
        JoinedRanks<Tensor>(slot, participants).compute(collective, reduction, parallel_for);
      });
  member_.guard->issue(meeting, described, std::move(memory));
  StartedCall<Tensor> started{.meeting = std::move(meeting), .buffers = buffers};
  // Gloo leaves partial sums in the tensors of the other ranks. The program may ignore them but must not use them.
  if (call.collective == Collective::kReduce && group_rank_ != call.root)
    started.partial = memory_of(call.inputs, /*are_written=*/true);
  return started;
}

template <typename Tensor>
StartedCall<Tensor> GroupMember<Tensor>::send(RankCall<Tensor> call, Call described) {
  // A copy, so that the send completes at once, whether or not its receive has been posted. The guard still
  // watches the original until `wait()`: real Gloo reads it until then. The operator clock does not charge the copy.
  auto copy = std::make_shared<Tensor>(TensorAlgebra<Tensor>::copy_of(call.inputs.front()));
  auto meeting = member_.world->send(*group_, group_rank_, call.root, call.tag, described, std::move(copy));
  member_.guard->issue(meeting, described, memory_of(call.inputs, /*are_written=*/false));
  return {.meeting = std::move(meeting), .buffers = nullptr};
}

template <typename Tensor>
StartedCall<Tensor> GroupMember<Tensor>::receive(RankCall<Tensor> call, Call described) {
  using Algebra = TensorAlgebra<Tensor>;
  const auto deliver = [this, described](const Participant& sent, const Participant& received, std::uint64_t sequence) {
    const typename Algebra::Unobserved unobserved;
    const auto& from = *static_cast<const Tensor*>(sent.get());
    const auto& to = *static_cast<const Tensor*>(received.get());
    // Checked here because Gloo transfers bytes and does not compare dtypes.
    if (from.scalar_type() != to.scalar_type() || from.numel() != to.numel()) {
      const auto end_of = [](const Tensor& tensor) {
        return MessageEnd{tensor.numel(), c10::toString(tensor.scalar_type())};
      };
      fail_call({*member_.world, *group_, sequence},
                diagnose_message(described, group_->name, sequence, member_.rank, end_of(from), end_of(to)));
    }
    Algebra::copy(Algebra::in_memory_order(to), Algebra::in_memory_order(from));
  };
  auto target = std::make_shared<Tensor>(call.outputs.front());
  auto meeting =
      member_.world->receive(*group_, call.root, group_rank_, call.tag, described, std::move(target), deliver);
  member_.guard->issue(meeting, described, memory_of(call.outputs, /*are_written=*/true));
  return {.meeting = std::move(meeting), .buffers = nullptr};
}

template <typename Tensor>
StartedCall<Tensor> GroupMember<Tensor>::start(RankCall<Tensor> call) {
  const auto inputs = descriptions_of(call.inputs), outputs = descriptions_of(call.outputs);
  check_accepted(call, inputs, outputs);
  auto described = call_of(call, inputs, outputs);
  if (call.collective == Collective::kSend) return send(std::move(call), std::move(described));
  if (call.collective == Collective::kRecv) return receive(std::move(call), std::move(described));
  return join(std::move(call), std::move(described));
}

}  // namespace accel::sim
