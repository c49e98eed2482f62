#include "reference/context_parallel/shard_sequence.hpp"

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include <ATen/ATen.h>

namespace accel::parallel {
namespace {

at::Tensor selected(const at::Tensor& values, std::int64_t dim, const std::vector<std::int64_t>& indices) {
  return values.index_select(dim, at::tensor(indices, at::kLong).to(values.device()));
}

}  // namespace

at::Tensor position_ids(const SequencePlan& plan, int rank, at::Device device) {
  return at::tensor(plan.positions(rank), at::kLong).to(device);
}

at::Tensor shard_sequence(const at::Tensor& values, std::int64_t dim, const SequencePlan& plan, int rank) {
  check_argument(values.size(dim) == plan.length(),
                 "shard_sequence: dimension {} has {} elements; expected {}, the length of the plan's sequence", dim,
                 values.size(dim), plan.length());
  return selected(values, dim, plan.positions(rank));
}

at::Tensor unshard_sequence(const at::Tensor& part, std::int64_t dim, const SequencePlan& plan, const Group& group) {
  const auto problems = problems_of_part(part.size(dim), plan, group);
  check_argument(problems.empty(), "unshard_sequence: {}", listed(problems, "; "));
  return with_gradient(
      part,
      [&](const at::Tensor& own) {
        return selected(all_gathered_parts(own, dim, group), dim, plan.gathered_indices());
      },
      [dim, plan, group](const at::Tensor& gradient) {
        return sum_scattered(selected(gradient, dim, plan.gathered_positions()), dim, group);
      });
}

at::Tensor shift_labels(const at::Tensor& tokens, std::int64_t ignore_index) {
  check_argument(tokens.dim() > 0 && tokens.size(-1) > 0, "shift_labels: no tokens; expected (..., length)");
  return at::constant_pad_nd(tokens.narrow(-1, 1, tokens.size(-1) - 1), {0, 1}, ignore_index);
}

std::vector<std::string> problems_of_part(std::int64_t length, const SequencePlan& plan, const Group& group) {
  std::vector<std::string> problems;
  if (plan.num_ranks() != group.size())
    problems.push_back(
        fmt::format("the plan is for {} ranks, group {} has {}; expected the group that divides the "
                    "sequence",
                    plan.num_ranks(), group.name(), group.size()));
  if (length != plan.local_length())
    problems.push_back(fmt::format("this rank's part has {} positions; expected {}, the plan's {} over {} ranks",
                                   length, plan.local_length(), plan.length(), plan.num_ranks()));
  return problems;
}

}  // namespace accel::parallel
