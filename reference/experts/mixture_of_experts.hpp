#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "reference/experts/experts.hpp"
#include "reference/experts/router.hpp"
#include "reference/modules/linear.hpp"
#include "reference/state/device_mesh.hpp"
#include "reference/tensor_parallel/placement.hpp"
#include "reference/tree/tree.hpp"

/// A feed-forward layer of which each token uses a few of many networks, the experts, which the ranks of "ep" divide.
///
///     const MixtureOfExpertsOptions options{.width = 64, .inner = 256, .num_experts = 8, .top_k = 2};
///     mixture_ = register_module("mixture", MixtureOfExperts(options, accelerator.mesh()));
///     ...
///     const auto [values, auxiliary_loss] = call(mixture_, hidden);
///     ...
///     accelerator.backward(loss + auxiliary_loss);
///
/// forward and backward are collectives of "ep", and in training of "dp_cp" if there is an auxiliary loss. A rank
/// without tokens runs them too: its loss includes `values`, which are then empty. Every rank adds the auxiliary loss,
/// which is equal on all of them, to its own loss. DDP averages the gradients; see Note [Gradients of experts].
///
/// Ranks of "tp" hold complete experts and compute the same. There the type of the values must show how ranks hold
/// them:
///
///     const auto [values, auxiliary_loss] = call(mixture_, Replicated{hidden});  // every rank has all tokens
///     const auto [parts, auxiliary_loss] = call(mixture_, Sharded<1>{hidden});   // sequence parallelism
///
/// Thread rule: modules belong to their rank.
namespace accel::parallel {

struct MixtureOfExpertsOptions {
  std::int64_t width = 0;  ///< features of a token
  std::int64_t inner = 0;  ///< features between the linear layers of an expert
  std::int64_t num_experts = 0;
  std::int64_t top_k = 2;  ///< experts per token
  ExpertActivation activation = ExpertActivation::kSwiGLU;
  bool bias = false;                              ///< of the experts; the router has none
  std::optional<double> capacity_factor = {};     ///< nullopt: dropless; otherwise see plan_dispatch for dropped tokens
  bool normalize_gates = false;                   ///< divides the gates of a token by their sum
  double aux_loss_weight = 0, z_loss_weight = 0;  ///< of the losses in router.hpp
};

/// `Values`: the type of the input.
template <typename Values>
struct MixtureOutputOf {
  Values values = {};              ///< of the sizes of the input
  at::Tensor auxiliary_loss = {};  ///< the weighted losses of the router, shape []; 0 in evaluation
};
using MixtureOutput = MixtureOutputOf<at::Tensor>;

class MixtureOfExpertsImpl : public torch::nn::Module {
 public:
  /// Throws ConfigError, which lists all problems of the options.
  MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options, const DeviceMesh& mesh);
  /// (..., width), equal on all ranks of "tp".
  MixtureOutputOf<Replicated> forward(const Replicated& values);
  /// Sequence parallelism: (batch, length / size, width). Gathers the tokens of the ranks of "tp".
  MixtureOutputOf<Sharded<1>> forward(const Sharded<1>& values);
  /// For one rank of "tp". Throws ArgumentError if there are several.
  MixtureOutput forward(const at::Tensor& values);

 private:
  MixtureOutput mixed(const at::Tensor& values);
  [[nodiscard]] at::Tensor weighted_losses(const at::Tensor& logits, const Routing& routing) const;

  MixtureOfExpertsOptions options_;
  Group experts_group_, data_group_, tensor_group_;
  models::Linear router_{nullptr};
  Experts experts_{nullptr};
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace accel::parallel

template <typename Values>
inline constexpr auto accel::tree_members<accel::parallel::MixtureOutputOf<Values>> = std::tuple(
    &accel::parallel::MixtureOutputOf<Values>::values, &accel::parallel::MixtureOutputOf<Values>::auxiliary_loss);
