#include "reference/precision/float8_layers.hpp"

#include <fmt/ranges.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/linear.h>

#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/linear.hpp"
#include "reference/core/random.hpp"
#include "reference/precision/float8_linear.hpp"

namespace accel {
namespace {

thread_local std::shared_ptr<const Float8Layers> current_layers;

std::vector<std::pair<std::string, const torch::nn::LinearImpl*>> linear_layers(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, const torch::nn::LinearImpl*>> layers;
  if (const auto* layer = model.as<torch::nn::LinearImpl>()) layers.emplace_back("", layer);
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (const auto* layer = item.value()->as<torch::nn::LinearImpl>()) layers.emplace_back(item.key(), layer);
  }
  return layers;
}

bool is_aligned(std::int64_t features) { return features % 16 == 0; }

}  // namespace

Float8Layers::Float8Layers(const torch::nn::Module& model, const AORecipeKwargs& recipe)
    : config_(std::make_shared<const Float8LinearConfig>(recipe.config.value())) {
  verify_interposition();
  const auto all = linear_layers(model);
  for (const auto& [name, layer] : all) {
    const bool is_chosen = recipe.module_filter_func ? recipe.module_filter_func(*layer, name)
                                                     : layer != all.front().second && layer != all.back().second &&
                                                           is_aligned(layer->options.in_features()) &&
                                                           is_aligned(layer->options.out_features());
    if (!is_chosen) continue;
    names_.push_back(name);
    layers_.insert(layer);
  }
}

void Float8Layers::check_ran() const {
  check_state(ran_ || names_.empty(),
              "mixed_precision: fp8: none of the layers that were chosen has computed in float8: {}; they are called "
              "by a forward of their own class: "
              "let it ask accel::computes_in_float8(*this), and call torch::nn::LinearImpl::forward then",
              fmt::join(names_, ", "));
}

Float8Scope::Float8Scope(std::shared_ptr<const Float8Layers> layers)
    : previous_(std::exchange(current_layers, std::move(layers))) {}
Float8Scope::~Float8Scope() { current_layers = std::move(previous_); }
std::shared_ptr<const Float8Layers> Float8Scope::current() { return current_layers; }

bool computes_in_float8(const torch::nn::LinearImpl& layer) {
  return current_layers && current_layers->contains(layer);
}

}  // namespace accel

namespace torch::nn {

// In the place of LibTorch's own: Note [Interposition] in core/interpose.cpp. Modules of C++ cannot be exchanged for
// others, as Python does it, since their owners hold them by type.
Tensor LinearImpl::forward(const Tensor& input) {
  if (accel::computes_in_float8(*this)) {
    accel::current_layers->mark_ran();
    return accel::float8_linear(input, weight, bias, accel::current_layers->config());
  }
  if (auto output = accel::plain_linear(input, weight, bias)) return *std::move(output);
  return functional::linear(input, weight, bias);
}

}  // namespace torch::nn
