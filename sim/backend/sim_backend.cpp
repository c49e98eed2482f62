// All collectives take one way: `start` checks what depends on the rehearsed backend, describes this rank's call, which
// the engine compares across ranks, and joins with the function that computes the result for all ranks. That function
// runs only on the last rank to arrive, so it takes the tensors of all ranks from its argument, not from the call.
#include "sim/backend/sim_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"
#include "sim/backend/backend_rules.hpp"

namespace accel::sim {
namespace {

// The tensors that this rank brings. A sparse tensor is exchanged as its entries; of a flat output, the parts are
// written.
Buffers buffers_of(const CollectiveArgs& args, int size) {
  Buffers buffers{.inputs = args.inputs,
                  .outputs = args.outputs,
                  .input_splits = args.input_splits,
                  .output_splits = args.output_splits};
  if (is_sparse(args)) {
    const at::DisableRecordFunctionGuard unwatched;
    buffers.outputs = args.inputs;
    buffers.inputs = {args.inputs.front().detach().coalesce()};
  } else if (args.collective == Collective::kAllGatherIntoTensorCoalesced) {
    const auto count = args.inputs.size();
    buffers.outputs.assign(count * static_cast<std::size_t>(size), {});
    for (std::size_t item = 0; item < count; ++item) {
      const auto parts = parts_of(args.collective, args.outputs[item], args.inputs[item], size);
      for (std::size_t rank = 0; rank < parts.size(); ++rank) buffers.outputs[rank * count + item] = parts[rank];
    }
  }
  return buffers;
}

}  // namespace

SimBackend::SimBackend(Member member, std::shared_ptr<EngineGroup> group, int group_rank)
    : CollectiveBackend(group_rank, static_cast<int>(group->ranks.size())),
      member_(std::move(member)),
      world_(member_.world),
      group_(std::move(group)) {
  setGroupUid(group_->name);
}

ParallelFor SimBackend::parallel_for() const {
  return [world = world_](std::int64_t count, const std::function<void(std::int64_t)>& body) {
    world->executor().parallel_for(count, body);
  };
}

void SimBackend::check_accepted(const CollectiveArgs& args) const {
  sim::check_accepted(member_.library, args.collective, args.inputs);
  for (const auto& output : args.outputs) check_accepted_output(member_.library, args.collective, output);
  if (const auto name = reduction_name_of(args); !name.empty())
    check_accepted_reduction(member_.library, args.collective, name, args.inputs.front().scalar_type());
}

TensorCompute SimBackend::compute_of(const CollectiveArgs& args) const {
  const auto slot = next_slot();
  const auto reduction = traits_of(args.collective).reduces ? reduction_of(args.reduce_op) : NamedReduction();
  const CollectiveOfAll collective{.op = args.collective, .kind = reduction.kind, .root = args.root};
  return warn_on_lost_nan(
      slot, args.collective, reduction,
      [collective](AllBuffers ranks, std::size_t item) { return reduced(collective, ranks, item); },
      [slot, collective, parallel = parallel_for()](AllBuffers ranks) {
        sim::check_splits(slot, split_mismatches(collective.op, ranks), ranks);
        compute(collective, ranks, parallel);
      });
}

// `sequence_` is this rank's own count; it equals the engine's number because every collective of the group passes
// through here. The guard watches the buffers from here until `wait()`.
c10::intrusive_ptr<SimWork> SimBackend::join(const CollectiveArgs& args, Call call, Buffers buffers) {
  const auto slot = next_slot();
  auto compute = compute_of(args);
  ++sequence_;
  call.where = CallSite::current();
  const auto joined = std::make_shared<JoinedBuffers>(std::move(buffers), call);
  auto memory = used_memory(joined->inputs, /*are_written=*/writes_inputs(args, getRank()));
  for (auto& used : used_memory(joined->outputs, /*are_written=*/true)) memory.push_back(std::move(used));
  auto meeting =
      world_->arrive(*group_, getRank(), call, joined,
                     [slot, compute = std::move(compute)](std::span<const Participant> participants) {
                       const at::DisableRecordFunctionGuard unwatched;  // the computation may touch all watched buffers
                       compute(unchanged_buffers(slot, participants));
                     });
  member_.guard->issue(meeting, call, std::move(memory));
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, op_type_of(args),
                                      results_of(args));
}

SimBackend::WorkPtr SimBackend::start(CollectiveArgs args) {
  check_accepted(args);
  if (args.collective == Collective::kSend) return send_message(args);
  if (args.collective == Collective::kRecv) return receive_message(args);
  auto buffers = buffers_of(args, getSize());
  auto call = call_of(args, buffers.inputs);
  auto work = join(args, std::move(call), std::move(buffers));
  // Gloo leaves partial sums in the tensors of the other ranks. The program may ignore them but must not use them.
  if (args.collective == Collective::kReduce && getRank() != args.root) work->mark_partial();
  return work;
}

SimBackend::WorkPtr SimBackend::send_message(const CollectiveArgs& args) {
  // A copy, so that the send completes at once, whether or not its receive has been posted. The guard still
  // watches the original until `wait()`: real Gloo reads it until then. The operator clock does not charge the copy.
  const auto copy_of = [](const at::Tensor& tensor) {
    const at::DisableRecordFunctionGuard unwatched;
    return tensor.detach().clone();
  };
  auto copy = std::make_shared<Buffers>(Buffers{.inputs = {copy_of(args.inputs.front())}});
  const auto call = call_of(args, args.inputs);
  auto meeting = world_->send(*group_, getRank(), args.root, args.tag, call, std::move(copy));
  member_.guard->issue(meeting, call, used_memory(args.inputs, /*are_written=*/false));
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, op_type_of(args),
                                      results_of(args));
}

SimBackend::WorkPtr SimBackend::receive_message(const CollectiveArgs& args) {
  auto buffers = std::make_shared<Buffers>(Buffers{.outputs = args.outputs});
  const auto call = call_of(args, args.inputs);
  const auto deliver = [this, call](const Participant& sent, const Participant& received, std::uint64_t sequence) {
    const c10::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unwatched;
    const auto& from = static_cast<const Buffers*>(sent.get())->inputs[0];
    auto& to = static_cast<Buffers*>(received.get())->outputs[0];
    // Checked here because Gloo transfers bytes and does not compare dtypes.
    if (from.scalar_type() != to.scalar_type() || from.numel() != to.numel()) {
      const auto what = fmt::format(
          "{} elements of {} were sent, but the tensor of rank {} has {} of {}; expected equal sizes and dtypes",
          from.numel(), c10::toString(from.scalar_type()), member_.rank, to.numel(), c10::toString(to.scalar_type()));
      fail_call({*world_, *group_, sequence}, call, {member_.rank}, what);
    }
    in_memory_order(to).copy_(in_memory_order(from));
  };
  auto meeting = world_->receive(*group_, args.root, getRank(), args.tag, call, std::move(buffers), deliver);
  member_.guard->issue(meeting, call, used_memory(args.outputs, /*are_written=*/true));
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, op_type_of(args),
                                      results_of(args));
}

}  // namespace accel::sim
