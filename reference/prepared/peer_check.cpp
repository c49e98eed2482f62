#include "reference/prepared/peer_check.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/objects.hpp"

namespace accel {
namespace {

// The problems of all ranks, each once; empty if there is none. One small all-reduce in that case. `awaits` becomes
// whether all ranks await more: the ranks of a pipeline have gradients of other layers, and compare together.
// Collective.
std::vector<std::string> shared_problems(const std::string& own, bool& awaits) {
  auto& context = current_rank();
  auto found = at::tensor(std::vector<std::int64_t>{own.empty() ? 0 : 1, awaits ? 0 : 1}).to(context.device);
  context.world.all_reduce(found, ReduceOp::kMax).wait();
  found = found.cpu();
  awaits = found[1].item<std::int64_t>() == 0;
  if (found[0].item<std::int64_t>() == 0) return {};
  auto problems = gather_object(context, std::vector<std::string>{own});
  std::erase(problems, "");
  std::sort(problems.begin(), problems.end());
  problems.erase(std::unique(problems.begin(), problems.end()), problems.end());
  return problems;
}

// The ranks of the group in the world, in order. Collective.
std::vector<std::int64_t> ranks_of(const Group& group) {
  const auto& context = current_rank();
  const auto ranks =
      group.all_gather(at::full({1}, context.rank, at::TensorOptions(at::kLong).device(context.device))).cpu();
  return {ranks.data_ptr<std::int64_t>(), ranks.data_ptr<std::int64_t>() + ranks.numel()};
}

bool is_complete(const TensorPlacement& placement) { return placement.name.empty() || placement.name == "replicated"; }

// Two numbers per gradient: its norm, and its product with a fixed vector, which differs for gradients of equal norms.
// -1 without a gradient. Gradients that are not finite are left to the checks of the optimizer's step.
at::Tensor summary_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return at::full({2}, -1.0, at::kDouble);
  const auto values = (gradient.is_sparse() ? gradient.coalesce().to_dense() : gradient).detach();
  const auto flat = values.reshape({-1}).to(at::kDouble);
  const auto pattern = at::arange(flat.numel(), flat.options()).mul_(0.7).cos_();
  return at::nan_to_num(at::stack({flat.norm(), flat.dot(pattern)}), 0, 0, 0).cpu();
}

}  // namespace

PeerCheck::PeerCheck(Group peers)
    : peers_(std::move(peers)), awaits_inputs_(peers_.size() > 1), awaits_gradients_(peers_.size() > 1) {}

void PeerCheck::compare_inputs(const std::vector<at::Tensor>& inputs, const std::vector<TensorPlacement>& placements) {
  awaits_inputs_ = false;
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a, of what follows
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].requires_grad() || (i < placements.size() && !is_complete(placements[i])))
      continue;
    for (const auto size : inputs[i].sizes()) add(static_cast<std::uint64_t>(size));
    add(fingerprint(inputs[i].is_sparse() ? inputs[i].to_dense() : inputs[i]));
  }
  const bool differs = !detail::is_equal_on_all(peers_, hash);
  const auto problems = shared_problems(
      differs ? fmt::format("ranks {}", fmt::join(ranks_of(peers_), ", ")) : std::string(), awaits_inputs_);
  check_argument(
      problems.empty(),
      "model(...): the tensor-parallel ranks of one group got different inputs: {}. They divide the layers of one "
      "model, "
      "so they must read the same samples; use a prepared loader, or choose samples by data_parallel_rank() of "
      "data_parallel_size() and not by process_index()",
      listed(problems, "; "));
}

void PeerCheck::compare_gradients(const NamedTensors& complete_parameters) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const auto& [name, parameter] : complete_parameters) own.push_back(summary_of(parameter.grad()));
  // A rank without parameters takes part too.
  own.push_back(at::zeros({2}, at::kDouble));
  const auto all = peers_.all_gather(at::stack(own).unsqueeze(0).to(current_rank().device)).cpu();
  const auto norms = all.select(2, 0), products = all.select(2, 1);
  awaits_gradients_ = norms.narrow(1, 0, norms.size(1) - 1).lt(0).all().item<bool>();
  const auto total = std::get<0>(norms.clamp_min(0).square().sum(1).sqrt().max(0)).item<double>();
  // Kernels of a GPU may add in another order on each rank; a gradient that is only rounding differs completely.
  const auto largest = std::get<0>(norms.max(0)), least = std::get<0>(norms.min(0));
  const auto spread = at::maximum(largest - least, std::get<0>(products.max(0)) - std::get<0>(products.min(0)));
  const auto is_different =
      spread.gt(largest.clamp_min(0) * 1e-2 + total * 1e-4).logical_or(largest.ge(0).logical_and(least.lt(0)));
  std::string problem;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(complete_parameters.size()) && problem.empty(); ++i) {
    if (!is_different[i].item<bool>()) continue;
    std::vector<std::string> of_ranks;
    for (std::int64_t peer = 0; peer < norms.size(0); ++peer) {
      const auto norm = norms[peer][i].item<double>();
      of_ranks.push_back(norm < 0 ? "none" : fmt::format("{:.4g}", norm));
    }
    problem = fmt::format("'{}' has gradients of norm {}", complete_parameters[static_cast<std::size_t>(i)].first,
                          fmt::join(of_ranks, ", "));
  }
  const auto problems = shared_problems(problem, awaits_gradients_);
  check_state(
      problems.empty(),
      "optimizer.step: the tensor-parallel ranks of one group have different gradients of a parameter that each of "
      "them "
      "holds completely: {}. If each rank has a part of it, derive the layer from parallel::CutModule and return the "
      "cut; if the layer computes on a part of the values, use parallel::shared_parameter or copy; and read the same "
      "samples and targets on all ranks of the group",
      listed(problems, "; "));
}

}  // namespace accel
