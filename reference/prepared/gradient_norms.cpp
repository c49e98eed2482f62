// Norms of gradients of which ranks hold parts: shards, and parts of layers that are divided over ranks.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "reference/modules/divided_parameter.hpp"
#include "reference/optim/optimizers/clip.hpp"
#include "reference/prepared/gradient_pipeline.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/objects.hpp"

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

const ModelStages* GradientPipeline::stages() const {
  for (const auto& model : models_) {
    if (const auto* stages = model->layouts().stages()) return stages;
  }
  return nullptr;
}

// Where the complete model has the parameter, and whether this rank counts it. Parameters of other models, which every
// rank of a pipeline has, count on the first one.
std::pair<std::size_t, bool> GradientPipeline::place_in_stages(const at::Tensor& parameter) const {
  for (const auto& model : models_) {
    const auto* entry = model->layouts().entry_in_stages(parameter);
    if (entry == nullptr) continue;
    const auto& own = *model->layouts().stages();
    return {entry - own.entries.data(), entry->ranks.front() == own.group.rank()};
  }
  const auto& own = *stages();
  return {own.entries.size(), own.group.rank() == 0};
}

// As one rank computes it: the norm of the norms of all parameters, in the order of the complete model.
at::Tensor GradientPipeline::norm_of_stages(const std::vector<at::Tensor>& parameters, double norm_type) const {
  std::vector<std::pair<std::int64_t, at::Tensor>> own;  // place, norm
  std::vector<at::Tensor> counted;
  for (const auto& parameter : unique_tensors(parameters)) {
    const auto [place, counts] = place_in_stages(parameter);
    if (!counts) continue;
    counted.push_back(parameter);
    if (parameter.grad().defined()) own.emplace_back(place, optim::grad_norm({parameter}, norm_type, norm_dtype_));
  }
  if (has_divided_layers() || has_sharded_models()) own = {{std::int64_t{0}, norm_of_rank(counted, norm_type)}};
  std::vector<std::pair<std::int64_t, at::Tensor>> all;
  for (auto& of_rank : detail::gather_trees(stages()->group, own))
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  std::ranges::stable_sort(all, {}, [](const auto& item) { return item.first; });
  std::vector<at::Tensor> norms;
  auto dtype = at::kFloat;
  for (const auto& [place, norm] : all) dtype = at::promote_types(dtype, norm.scalar_type());
  for (const auto& [place, norm] : all) norms.push_back(norm.to(context_->device, dtype));
  return norms.empty() ? at::zeros({}) : at::linalg_vector_norm(at::stack(norms), norm_type);
}

at::Tensor GradientPipeline::norm(const std::vector<at::Tensor>& parameters, double norm_type) const {
  return stages() == nullptr ? norm_of_rank(parameters, norm_type) : norm_of_stages(parameters, norm_type);
}

// A parameter that every tensor-parallel rank holds counts once; the parts of one that a layer divides are summed over
// the ranks that hold them.
at::Tensor GradientPipeline::norm_of_rank(const std::vector<at::Tensor>& parameters, double norm_type) const {
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
  if (norms.empty()) return at::zeros({}, at::TensorOptions(context_->device));  // a stage without these parameters
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
  if (!has_sharded_models() && !has_divided_layers() && stages() == nullptr)
    return optim::clip_grad_norm(parameters, max_norm, norm_type, norm_dtype_);
  auto total = norm(parameters, norm_type);
  optim::scale_to_norm(parameters, total, max_norm);
  return total;
}

at::Tensor GradientPipeline::unscaled(const at::Tensor& norm) {
  return scaler_ && scaler_->is_enabled() ? norm / scaler()->get_scale() : norm;
}

}  // namespace accel
