#include "reference/modules/model_hook.hpp"

#include <c10/util/Type.h>

#include <algorithm>

namespace accel {

void CallValues::map_tensors(const std::function<at::Tensor(const at::Tensor&)>& map) const {
  for (const auto& place : places_) place.visit_tensors(place.value, [&](at::Tensor& tensor) { tensor = map(tensor); });
}

std::vector<at::Tensor> CallValues::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const auto& place : places_)
    place.visit_tensors(place.value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

void CallValues::check_type(std::size_t index, const std::type_info& type) const {
  check_argument(index < places_.size(), "CallValues: value {} does not exist; the call has {}", index, places_.size());
  check_argument(*places_[index].type == type, "CallValues: value {} is a {}, not a {}", index,
                 c10::demangle(places_[index].type->name()), c10::demangle(type.name()));
}

SequentialHook::SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks) : hooks_(std::move(hooks)) {
  const bool has_null = std::any_of(hooks_.begin(), hooks_.end(), [](const auto& hook) { return hook == nullptr; });
  check_argument(!has_null, "SequentialHook: one of the {} hooks is null", hooks_.size());
}

// Accelerate's SequentialHook ignores the no_grad of its hooks, so that appending a hook turns gradients on again.
bool SequentialHook::no_grad() const {
  return std::any_of(hooks_.begin(), hooks_.end(), [](const auto& hook) { return hook->no_grad(); });
}

void SequentialHook::init_hook(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->init_hook(module);
}

void SequentialHook::pre_forward(torch::nn::Module& module, CallValues& arguments) {
  for (const auto& hook : hooks_) hook->pre_forward(module, arguments);
}

void SequentialHook::post_forward(torch::nn::Module& module, CallValues& output) {
  for (const auto& hook : hooks_) hook->post_forward(module, output);
}

void SequentialHook::detach_hook(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->detach_hook(module);
}

}  // namespace accel
