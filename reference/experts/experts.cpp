#include "reference/experts/experts.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::parallel {
namespace {

using Tensors = std::vector<at::Tensor>;

// One tensor per expert. unbind, because its gradient is defined for experts without rows too. See Note [Gradients of
// experts] for the division.
Tensors of_each_expert(const at::Tensor& parameter, int num_ranks) {
  if (!parameter.defined()) return {};
  if (num_ranks == 1) return parameter.unbind(0);
  const auto scaled = with_gradient(
      parameter, [](const at::Tensor& values) { return values.view_as(values); },
      [num_ranks](const at::Tensor& gradient) { return gradient / num_ranks; });
  return scaled.unbind(0);
}

struct ExpertLayers {
  Tensors weights, biases;
  at::Tensor operator()(const at::Tensor& rows, std::size_t expert) const {
    return biases.empty() ? at::mm(rows, weights[expert]) : at::addmm(biases[expert], rows, weights[expert]);
  }
};

}  // namespace

ExpertsImpl::ExpertsImpl(const ExpertsOptions& options, Group group)
    : options_(options),
      cut_{.axis = std::string(name_of(kExpertAxis)),
           .group = std::move(group),
           .dim = 0,
           .sections = {options.num_experts}} {
  check_config(options.num_experts % cut_.group.size() == 0,
               "Experts: {} experts do not divide over {} ranks; expected a multiple of ep_size", options.num_experts,
               cut_.group.size());
  up_ = register_layer("up_proj", options.width, options.inner);
  if (options.activation == ExpertActivation::kSwiGLU)
    gate_ = register_layer("gate_proj", options.width, options.inner);
  down_ = register_layer("down_proj", options.inner, options.width);
}

ExpertsImpl::Layer ExpertsImpl::register_layer(const std::string& name, std::int64_t in, std::int64_t out) {
  Layer layer{.weight = register_part(name, {options_.num_experts, in, out}, in)};
  if (options_.bias) layer.bias = register_part(name + "_bias", {options_.num_experts, out}, in);
  return layer;
}

// Initialized like torch.nn.Linear with `in` input features.
at::Tensor ExpertsImpl::register_part(const std::string& name, const std::vector<std::int64_t>& sizes,
                                      std::int64_t in) {
  const c10::NoGradGuard no_grad;
  const auto bound = in > 0 ? 1 / std::sqrt(static_cast<double>(in)) : 0;
  const auto complete = at::empty(sizes).uniform_(-bound, bound);
  return register_parameter(name, cut_.group.size() == 1 ? complete : cut_.part_of(complete));
}

at::Tensor ExpertsImpl::forward(const at::Tensor& rows, const std::vector<std::int64_t>& rows_per_expert) {
  const auto layers_of = [size = cut_.group.size()](const Layer& layer) {
    return ExpertLayers{.weights = of_each_expert(layer.weight, size), .biases = of_each_expert(layer.bias, size)};
  };
  const auto up = layers_of(up_), gate = layers_of(gate_), down = layers_of(down_);
  const auto hidden = [&](const at::Tensor& own, std::size_t expert) {
    const auto values = up(own, expert);
    switch (options_.activation) {
      case ExpertActivation::kSwiGLU: return at::silu(gate(own, expert)) * values;
      case ExpertActivation::kGelu: return at::gelu(values, "tanh");
      case ExpertActivation::kRelu: return at::relu(values);
    }
    throw InternalError("an unknown activation");
  };
  // Experts without rows run too: their parameters get gradients of zeros, for which DDP waits.
  Tensors results;
  const auto per_expert = rows.split_with_sizes(rows_per_expert);
  for (std::size_t expert = 0; expert < per_expert.size(); ++expert)
    results.push_back(down(hidden(per_expert[expert], expert), expert));
  return at::cat(results);
}

std::map<std::string, ParameterCut> ExpertsImpl::cuts() const {
  std::map<std::string, ParameterCut> cuts;
  if (cut_.group.size() == 1) return cuts;
  for (const auto& item : named_parameters(/*recurse=*/false)) cuts.emplace(item.key(), cut_);
  return cuts;
}

void ExpertsImpl::save(torch::serialize::OutputArchive& archive) const {
  check_is_complete("torch::save");
  Module::save(archive);
}

void ExpertsImpl::load(torch::serialize::InputArchive& archive) {
  check_is_complete("torch::load");
  Module::load(archive);
}

}  // namespace accel::parallel
