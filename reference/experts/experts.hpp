#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/modules/parameter_cut.hpp"
#include "reference/tensor_parallel/placement.hpp"

/// Feed-forward networks of which each rank of a group holds some: the experts of a mixture.
///
///     const ExpertsOptions options{.width = 64, .inner = 256, .num_experts = 8};
///     experts_ = register_module("experts", Experts(options, mesh["ep"]));
///     ...
///     const auto results = call(experts_, rows, dispatcher.rows_per_expert());
///
/// Parameters stack the experts along dimension 0, which is cut. The constructor draws the complete weights and keeps
/// the rank's part, so a model has the same initial numbers in every layout, and checkpoints contain complete tensors.
/// Thread rule: modules belong to their rank.
///
/// Note [Gradients of experts]
/// Ranks of the group read different samples, so all other parameters' gradients are averaged over "dp_cp", which
/// contains the group. An expert's gradient is averaged over "expert_dp" only: the ranks that hold the same expert, a
/// number that is smaller by the factor of the group's size. It already contains the rows of all ranks of the group, so
/// for the same mean it must be divided by the group's size. `Experts` divides it in backward; no other code does.
///
/// Ranks of one tensor-parallel group hold the same experts and pass the same tokens, so their gradients are equal.
namespace accel::parallel {

/// What an expert computes. Biases are up_proj_bias, gate_proj_bias and down_proj_bias.
enum class ExpertActivation {
  kSwiGLU,  ///< down_proj(silu(gate_proj(x)) * up_proj(x))
  kGelu,    ///< down_proj(gelu(up_proj(x))), with the tanh approximation
  kRelu     ///< down_proj(relu(up_proj(x)))
};

struct ExpertsOptions {
  std::int64_t width = 0;  ///< features of a token
  std::int64_t inner = 0;  ///< features between the linear layers of an expert
  std::int64_t num_experts = 0;
  ExpertActivation activation = ExpertActivation::kSwiGLU;
  bool bias = false;
};

class ExpertsImpl : public torch::nn::Module, public CutModule {
 public:
  /// Throws ConfigError if the number of experts is not a multiple of the group's size.
  ExpertsImpl(const ExpertsOptions& options, Group group);
  /// (rows, width) -> (rows, width). `rows` consists of the rows of each expert of this rank. An expert without rows
  /// gets a gradient of zeros.
  at::Tensor forward(const at::Tensor& rows, const std::vector<std::int64_t>& rows_per_expert);
  Routed forward(const Routed& rows, const std::vector<std::int64_t>& rows_per_expert) {
    return {forward(rows.local, rows_per_expert)};
  }
  [[nodiscard]] std::map<std::string, ParameterCut> cuts() const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  // A linear layer of all experts: (experts, in, out) and (experts, out).
  struct Layer {
    at::Tensor weight = {}, bias = {};
  };
  Layer register_layer(const std::string& name, std::int64_t in, std::int64_t out);
  at::Tensor register_part(const std::string& name, const std::vector<std::int64_t>& sizes, std::int64_t in);

  ExpertsOptions options_;
  ParameterCut cut_;
  Layer up_, gate_, down_;
};
TORCH_MODULE(Experts);

}  // namespace accel::parallel
