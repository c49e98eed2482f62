// Norms of gradients of which ranks hold parts: shards, and parts of layers that are divided over ranks.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "reference/modules/divided_parameter.hpp"
#include "reference/optim/optimizers/clip.hpp"
#include "reference/prepared/gradient_pipeline.hpp"
#include "reference/prepared/parameter_layouts.hpp"

namespace accel {

bool GradientPipeline::has_divided_layers() const {
  return std::any_of(models_.begin(), models_.end(),
                     [](const auto& model) { return model->layouts().has_divided_layers(); });
}

bool GradientPipeline::is_sharded(const at::Tensor& parameter) const {
  const auto* divided = division_of(parameter);
  return divided != nullptr && divided->layout.is_sharded();
}

const DividedParameter* GradientPipeline::division_of(const at::Tensor& parameter) const {
  for (const auto& model : models_) {
    if (const auto* divided = model->layouts().find(parameter)) return divided;
  }
  return nullptr;
}

// A parameter that every tensor-parallel rank holds counts once; the parts of one that a layer divides are summed over
// the ranks that hold them.
at::Tensor GradientPipeline::norm(const std::vector<at::Tensor>& parameters, double norm_type) const {
  if (!has_divided_layers()) return norm_of_own_parts(parameters, norm_type);
  struct Axis {
    Group group;
    std::vector<at::Tensor> parameters = {};
  };
  std::map<std::string_view, Axis> axes;  // "" for parameters that no layer divides
  for (const auto& parameter : parameters) {
    const auto* divided = division_of(parameter);
    const auto* by_layer = divided == nullptr ? nullptr : divided->layout.layer_division();
    axes.try_emplace(by_layer == nullptr ? "" : name_of(by_layer->axis),
                     Axis{by_layer == nullptr ? Group() : divided->groups.front()})
        .first->second.parameters.push_back(parameter);
  }
  std::vector<at::Tensor> norms;
  auto dtype = at::kFloat;
  for (const auto& [name, axis] : axes) {
    auto own = norm_of_own_parts(axis.parameters, norm_type);
    // In one dtype and on one device, also if no parameter of an axis has a gradient.
    dtype = at::promote_types(dtype, own.scalar_type());
    own = own.to(context_->device, at::kDouble);
    if (std::isinf(norm_type)) {
      axis.group.all_reduce(own, ReduceOp::kMax).wait();
    } else if (axis.group.size() > 1) {
      own = own.pow(norm_type);
      axis.group.all_reduce(own).wait();
      own = own.pow(1.0 / norm_type);
    }
    norms.push_back(std::move(own));
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type).to(dtype);
}

// Sharded gradients contribute their shards, summed over the shard group; complete gradients contribute once, after the
// reduction. Source: torch/distributed/fsdp/fully_sharded_data_parallel.py, clip_grad_norm_.
at::Tensor GradientPipeline::norm_of_own_parts(const std::vector<at::Tensor>& parameters, double norm_type) const {
  std::vector<at::Tensor> whole;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(whole),
               [&](const auto& parameter) { return !is_sharded(parameter); });
  const auto sharded =
      std::find_if(models_.begin(), models_.end(), [](const auto& model) { return model->is_sharded(); });
  const auto& group = sharded == models_.end() ? context_->world : *(*sharded)->shard_group();
  if (whole.size() == parameters.size() || group.size() == 1)
    return optim::grad_norm(parameters, norm_type, norm_dtype_);
  const c10::NoGradGuard no_grad;
  // In float32 as in PyTorch, except that float64 is kept. Decided by all parameters, so that the ranks agree.
  auto dtype = at::kFloat;
  for (const auto& parameter : parameters) dtype = at::promote_types(dtype, parameter.scalar_type());
  std::vector<at::Tensor> norms;
  for (const auto& model : models_) {
    for (const auto& gradient : model->sharded_gradients(parameters))
      norms.push_back(
          at::linalg_vector_norm(gradient, norm_type, /*dim=*/{}, /*keepdim=*/false, dtype).to(context_->device));
  }
  auto total = norms.empty() ? at::zeros({}, at::TensorOptions(context_->device).dtype(dtype))
                             : at::linalg_vector_norm(at::stack(norms), norm_type);
  const auto of_whole = [&] { return optim::grad_norm(whole, norm_type, norm_dtype_).to(total.options()); };
  if (std::isinf(norm_type)) {
    group.all_reduce(total, ReduceOp::kMax).wait();
    return whole.empty() ? total : at::maximum(total, of_whole());
  }
  total = total.pow(norm_type);
  group.all_reduce(total).wait();
  if (!whole.empty()) total += of_whole().pow(norm_type);
  return total.pow(1.0 / norm_type);
}

// The unsharded path uses the clipping of optim/, whose bits are those of torch.nn.utils.clip_grad_norm_.
at::Tensor GradientPipeline::clip_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (!has_sharded_models() && !has_divided_layers())
    return optim::clip_grad_norm(parameters, max_norm, norm_type, norm_dtype_);
  auto total = norm(parameters, norm_type);
  optim::scale_to_norm(parameters, total, max_norm);
  return total;
}

at::Tensor GradientPipeline::unscaled(const at::Tensor& norm) {
  return scaler_ && scaler_->is_enabled() ? norm / scaler()->get_scale() : norm;
}

}  // namespace accel
