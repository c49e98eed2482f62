#include "reference/parallel/sync_batch_norm.hpp"

#include <fmt/ranges.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include "reference/core/errors.hpp"
#include "reference/parallel/sync_batch_norm_function.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {
namespace {

using Names = std::vector<std::string>;

// Returns the SyncBatchNorm that replaces a BatchNorm; null for another module.
std::shared_ptr<SyncBatchNormImpl> converted(const torch::nn::Module& module, const std::optional<Group>& group) {
  if (const auto* norm = module.as<torch::nn::BatchNorm1dImpl>())
    return std::make_shared<SyncBatchNormImpl>(*norm, group);
  if (const auto* norm = module.as<torch::nn::BatchNorm2dImpl>())
    return std::make_shared<SyncBatchNormImpl>(*norm, group);
  if (const auto* norm = module.as<torch::nn::BatchNorm3dImpl>())
    return std::make_shared<SyncBatchNormImpl>(*norm, group);
  return nullptr;
}

// The three dimensions have no common base class in LibTorch.
bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr || module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

// Collects the BatchNorms that cannot be replaced. A module calls its children through its own member variables, so
// replacing the registered child alone would leave forward using the old norm. Only Sequential calls what it stores.
void find_fixed(const torch::nn::Module& module, const std::string& prefix, Names& names) {
  for (const auto& child : module.named_children()) {
    const auto name = prefix + child.key();
    if (is_batch_norm(*child.value())) {
      // The module is named with its owner, whose source the user has to change.
      if (module.as<torch::nn::SequentialImpl>() == nullptr)
        names.push_back(fmt::format("{} of {}", name, module.name()));
    } else {
      find_fixed(*child.value(), name + ".", names);
    }
  }
}

void convert_inside(torch::nn::Module& module, const std::optional<Group>& group) {
  auto* sequential = module.as<torch::nn::SequentialImpl>();
  std::size_t place = 0;
  for (const auto& child : module.named_children()) {
    if (auto norm = converted(*child.value(), group)) {
      // Both copies: forward uses the AnyModule, while named_parameters and train use the registered child.
      *(sequential->begin() + static_cast<std::ptrdiff_t>(place)) = torch::nn::AnyModule(norm);
      sequential->replace_module(child.key(), norm);
    } else {
      convert_inside(*child.value(), group);
    }
    ++place;
  }
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const SyncBatchNormOptions& options, std::optional<Group> group)
    : NormImplBase(options), group_(std::move(group)) {}

// Shares tensors instead of copying values: optimizers, hooks and prepared models already refer to these parameters.
void SyncBatchNormImpl::share(const at::Tensor& other_weight, const at::Tensor& other_bias,
                              const at::Tensor& other_mean, const at::Tensor& other_var,
                              const at::Tensor& other_tracked) {
  const auto set = [](auto& registered, const char* name, at::Tensor& member, const at::Tensor& value) {
    member = value;
    registered[name] = value;
  };
  // Parameters are reassigned in both places where the module holds them, the member and the dictionary.
  set(parameters_, "weight", weight, other_weight);
  set(parameters_, "bias", bias, other_bias);
  const auto set_buffer = [](at::Tensor& member, const at::Tensor& value) {
    // set_data keeps the registered buffer's identity, so the entry in `buffers_` needs no update.
    if (member.defined()) member.set_data(value);
  };
  set_buffer(running_mean, other_mean);
  set_buffer(running_var, other_var);
  set_buffer(num_batches_tracked, other_tracked);
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  check_argument(input.dim() >= 2, "SyncBatchNorm: expected at least 2 dimensions (N, C, ...), got {}", input.dim());
  check_argument(input.size(1) == options.num_features(), "SyncBatchNorm: expected {} channels, got {}",
                 options.num_features(), input.size(1));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0.0);
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    // Without momentum, running statistics are a cumulative average over all batches, as in BatchNorm.
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  if (is_training()) {
    // Resolved at call time: a model may be built before its rank joins a world, or on another thread.
    const auto group = group_ ? *group_ : default_group_ ? *default_group_ : current_rank().world;
    const bool tracks = options.track_running_stats();
    if (group.size() > 1) {
      return sync_batch_norm(input,
                             {.weight = weight,
                              .bias = bias,
                              .running_mean = tracks ? running_mean : at::Tensor(),
                              .running_var = tracks ? running_var : at::Tensor(),
                              .momentum = momentum,
                              .eps = options.eps()},
                             group);
    }
  }
  // Evaluation, and training with one rank: no communication, and the same kernel as BatchNorm.
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(), momentum,
                                                   options.eps());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "accel::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ')';
}

void set_default_groups_of_norms(const torch::nn::Module& module, const Group& group) {
  for (const auto& part : module.modules()) {
    if (auto* norm = part->as<SyncBatchNormImpl>()) norm->set_default_group(group);
  }
}

void convert_sync_batchnorm(torch::nn::Module& module, const std::optional<Group>& group) {
  check_argument(!is_batch_norm(module),
                 "convert_sync_batchnorm: the module itself is a {}, which cannot be replaced in place; construct "
                 "an accel::SyncBatchNorm from it",
                 module.name());
  Names fixed;
  find_fixed(module, "", fixed);
  check_argument(fixed.empty(),
                 "convert_sync_batchnorm: {} cannot be replaced: modules other than Sequential hold their children "
                 "in member variables; declare these as accel::SyncBatchNorm",
                 fmt::join(fixed, ", "));
  // After the check of the complete module, so that an error leaves it unchanged.
  convert_inside(module, group);
}

}  // namespace accel
