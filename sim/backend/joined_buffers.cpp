// Checks that need the tensors of all ranks at once. They run on the thread that completes the collective,
// between the comparison of the calls (engine) and the computation (collectives/tensors), and end the run on a mistake.
#include "sim/backend/joined_buffers.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "sim/backend/buffer_guard.hpp"

namespace accel::sim {
namespace {

// Returns the members that occur in the most mismatches. A member with wrong splits mismatches with several
// peers and stands out; with a single mismatch both sides are named.
std::vector<int> most_frequent_members(const std::vector<SplitMismatch>& mismatches, std::size_t num_members) {
  std::vector<int> counts(num_members);
  for (const auto& one : mismatches) {
    ++counts[one.from];
    if (one.to != one.from) ++counts[one.to];
  }
  std::vector<int> members;
  const int most = *std::max_element(counts.begin(), counts.end());
  for (std::size_t member = 0; member < num_members; ++member) {
    if (counts[member] == most) members.push_back(static_cast<int>(member));
  }
  return members;
}

// Returns for each input where at least one rank's tensor has a NaN. Must run before the computation, which may
// overwrite the inputs.
std::vector<at::Tensor> nan_positions(AllBuffers ranks) {
  std::vector<at::Tensor> any;
  for (const auto& input : ranks[0]->inputs) any.push_back(input.isnan());
  for (const auto* rank : ranks.subspan(1)) {
    for (std::size_t item = 0; item < any.size(); ++item) any[item].logical_or_(rank->inputs[item].isnan());
  }
  return any;
}

}  // namespace

JoinedBuffers::JoinedBuffers(Buffers buffers, Call call)
    : Buffers(std::move(buffers)), call(std::move(call)), sample(sample_bytes(inputs)) {}

// Catches writes that BufferGuard cannot see, through raw pointers. The sample was taken when the rank joined.
std::vector<Buffers*> unchanged_buffers(const CallSlot& slot, std::span<const Participant> participants) {
  std::vector<Buffers*> ranks;
  std::vector<int> changed;
  const Call* call_of_changed = nullptr;
  for (std::size_t member = 0; member < participants.size(); ++member) {
    auto* joined = static_cast<JoinedBuffers*>(participants[member].get());
    ranks.push_back(joined);
    if (sample_bytes(joined->inputs) == joined->sample) continue;
    changed.push_back(slot.group.ranks[member]);
    if (call_of_changed == nullptr) call_of_changed = &joined->call;
  }
  if (!changed.empty()) {
    const auto what = fmt::format(
        "the tensor of {} was changed between the call and wait(), which is a race on real backends; call wait() first",
        describe_ranks(changed));
    fail_call(slot, *call_of_changed, changed, what);
  }
  return ranks;
}

// Fails the run before it throws: the exception reaches only the thread that computes, the failure all ranks.
void fail_call(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what) {
  const auto& [world, group, sequence] = slot;
  const auto where = describe(call.where);
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync, .ranks = std::move(ranks)};
  name_call(diagnosis, call, group.name, sequence);
  diagnosis.text = fmt::format("{} #{} of group {}{}: {}", name_of(call.op), sequence, group.name,
                               where.empty() ? "" : " at " + where, what);
  auto error = std::make_exception_ptr(DiagnosedError(std::move(diagnosis)));
  world.fail(error);
  std::rethrow_exception(error);
}

void check_splits(const CallSlot& slot, const std::vector<SplitMismatch>& mismatches, AllBuffers ranks) {
  if (mismatches.empty()) return;
  const auto& members = slot.group.ranks;
  const auto wrong = most_frequent_members(mismatches, ranks.size());
  std::vector<int> culprits;
  for (const int member : wrong) culprits.push_back(members[member]);
  std::sort(culprits.begin(), culprits.end());
  // Lists every mismatch: the pattern usually shows which rank's splits are wrong.
  std::string what = "input and output splits differ; expected equal splits on both sides:";
  for (const auto& [from, to, sent, expected] : mismatches) {
    what +=
        fmt::format("\n  rank {} sends {} to rank {}, which expects {}", members[from], sent, members[to], expected);
  }
  const auto& first = *static_cast<const JoinedBuffers*>(ranks[wrong.front()]);
  auto call = first.call;
  for (const auto& input : first.inputs) call.shapes.push_back(input.sizes().vec());
  fail_call(slot, call, culprits, what);
}

// Gloo's comparisons return the other operand if one is NaN (see ring_kernel.cpp). Python users expect
// torch.max, which propagates NaN, so this is a finding; one warning per collective is enough.
TensorCompute warn_on_lost_nan(const CallSlot& slot, Collective op, const NamedReduction& named, ResultOf result_of,
                               TensorCompute compute) {
  if (named.kind.reduction != Reduction::kMin && named.kind.reduction != Reduction::kMax) return compute;
  return
      [slot, op, name = named.name, result_of = std::move(result_of), compute = std::move(compute)](AllBuffers ranks) {
        const auto had_nan = nan_positions(ranks);
        compute(ranks);
        for (std::size_t item = 0; item < had_nan.size(); ++item) {
          if (!had_nan[item].logical_and(result_of(ranks, item).isnan().logical_not()).any().item<bool>()) continue;
          slot.world.failures().warn(fmt::format(
              "{} #{} of group {}: a NaN is lost in {}; as in Gloo, the result is the other operand; check for "
              "NaN before reducing",
              name_of(op), slot.sequence, slot.group.name, name));
          return;
        }
      };
}

// After setting an input the sample is taken again, or the corruption would be reported as the program's own write.
void corrupt_buffers(const Participant& participant, const Corruption& corruption) {
  const c10::NoGradGuard no_grad;
  auto& joined = *static_cast<JoinedBuffers*>(participant.get());
  const auto& passed = corruption.bit && !joined.outputs.empty() ? joined.outputs.front() : joined.inputs.front();
  const auto tensor = passed.layout() == at::kSparse ? passed._values() : passed;
  if (tensor.numel() == 0) return;
  if (corruption.value) {
    in_memory_order(tensor)[0].fill_(*corruption.value);
    joined.sample = sample_bytes(joined.inputs);
  } else {
    const auto bit = *corruption.bit % (static_cast<std::int64_t>(tensor.nbytes()) * 8);
    auto bytes = tensor.is_cpu() ? tensor : tensor.to(at::kCPU);
    static_cast<unsigned char*>(bytes.data_ptr())[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    if (!tensor.is_cpu()) tensor.copy_(bytes);
  }
}

}  // namespace accel::sim
