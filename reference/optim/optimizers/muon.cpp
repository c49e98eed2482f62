#include "reference/optim/optimizers/muon.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// Muon as torch/optim/_muon.py, _single_tensor_muon. One tensor after another, since matrices have different shapes.
namespace accel::optim {
namespace {

constexpr auto kOriginal = "original";
constexpr auto kMatchRmsAdamw = "match_rms_adamw";

// Approximates the orthogonal factor of `update` by a quintic iteration. In place where Python works in place: `update`
// that already is in bfloat16 is not copied but scaled.
at::Tensor orthogonalized(const at::Tensor& update, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients;
  const bool is_tall = update.size(0) > update.size(1);
  auto matrix = update.to(at::kBFloat16);
  // The smaller of the two Gram matrices.
  if (is_tall) matrix = matrix.t();
  // The spectral norm is at most the Frobenius norm, and the iteration needs one of at most 1.
  matrix.div_(at::linalg_vector_norm(matrix, 2).clamp(options.eps));
  for (int step = 0; step < options.ns_steps; ++step) {
    const auto gram = matrix.matmul(matrix.t());
    const auto polynomial = at::addmm(gram, gram, gram, b, c);
    matrix = at::addmm(matrix, polynomial, matrix, a);
  }
  return is_tall ? matrix.t() : matrix;
}

double adjusted_lr(const at::Tensor& param, const MuonOptions& options) {
  const auto rows = static_cast<double>(param.size(0)), columns = static_cast<double>(param.size(1));
  const bool matches_adamw = options.adjust_lr_fn == kMatchRmsAdamw;
  return options.lr *
         (matches_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns)));
}

}  // namespace

std::vector<OptionProblem> MuonOptions::problems_between() const {
  if (!adjust_lr_fn || adjust_lr_fn == kOriginal || adjust_lr_fn == kMatchRmsAdamw) return {};
  return {{"adjust_lr_fn", fmt::format("expected {} or {}, got '{}'", kOriginal, kMatchRmsAdamw, *adjust_lr_fn)}};
}

std::string MuonOptions::problem_of(const at::Tensor& param) {
  if (param.is_complex()) return "complex parameters are unsupported; use accel::optim::Adam with fused = false";
  if (param.dim() == 2) return "";
  return fmt::format(
      "a parameter of shape [{}] has {} dimensions; expected matrices; use a second optimizer such as "
      "accel::optim::AdamW for the others",
      fmt::join(param.sizes(), ", "), param.dim());
}

std::vector<StateEntry> state_entries(const MuonOptions& /*options*/) { return {{.name = "momentum_buffer"}}; }

void update(TensorLists& lists, const MuonOptions& options) {
  for (std::size_t index = 0; index < lists.params.size(); ++index) {
    auto &param = lists.params[index], &buffer = lists["momentum_buffer"][index];
    const auto& grad = lists.grads[index];
    buffer.lerp_(grad, 1 - options.momentum);
    const auto update = orthogonalized(options.nesterov ? grad.lerp(buffer, options.momentum) : buffer, options);
    param.mul_(factor(1 - options.lr * options.weight_decay));
    param.add_(update, -adjusted_lr(param, options));
  }
}

template class MultiTensorOptimizer<MuonOptions>;

}  // namespace accel::optim
