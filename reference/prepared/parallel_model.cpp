#include "reference/prepared/parallel_model.hpp"

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/prepared/peer_check.hpp"
#include "reference/prepared/registered_buffers.hpp"
#include "reference/prepared/registered_parameters.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

struct ParallelModel::Registered {
  ParameterLayouts layouts;
  RegisteredParameters parameters;
  RegisteredBuffers buffers = {};
  PeerCheck peer_check;
};

ParallelModel::ParallelModel(std::shared_ptr<torch::nn::Module> module, ParameterLayouts layouts, Options options)
    : module_(std::move(module)),
      options_(std::move(options)),
      registered_(new Registered{.layouts = std::move(layouts),
                                 .parameters = RegisteredParameters(*module_),
                                 .peer_check = PeerCheck(options_.peers)}),
      users_(module_) {}
ParallelModel::~ParallelModel() = default;

const ParameterLayouts& ParallelModel::layouts() const { return registered_->layouts; }

bool ParallelModel::registers(const at::Tensor& parameter) const { return registered_->parameters.contains(parameter); }

void ParallelModel::watch_buffers(RegisteredBuffers buffers) { registered_->buffers = std::move(buffers); }

void ParallelModel::add_shards(const std::vector<std::pair<at::Tensor, DividedParameter>>& shards) {
  registered_->layouts.add_shards(shards);
}

void ParallelModel::check_is_unsharded(const char* what) const {
  check_state(!is_sharded(),
              "{}: the model is sharded, so its parameters are only this rank's shards; use accelerator.save_model, or "
              "save_state and load_state",
              what);
  check_state(!registered_->layouts.has_divided_layers() && registered_->layouts.stages() == nullptr,
              "{}: ranks divide the parameters of the model's layers, so this rank has only its parts; use "
              "accelerator.save_model, or save_state and load_state",
              what);
  check_state(!options_.masters,
              "{}: with master_weights the model's parameters are bfloat16, and their float32 values are kept beside "
              "them; use accelerator.save_model, or save_state and load_state",
              what);
}

void ParallelModel::check_current(const char* what) {
  check_state(!is_retired_, "{}: the module was prepared again; use the handle of the last `prepare`", what);
  if (options_.is_trained && c10::GradMode::is_enabled()) registered_->parameters.check_unchanged(what);
  registered_->buffers.begin_forward();
}

void ParallelModel::check_buffers(const RankContext& context) const {
  const auto names = registered_->buffers.without_member();
  if (names.empty() || context.rank > 0) return;
  warn_once(
      context,
      fmt::format("no member of {} refers to the registered buffer{} '{}' any more: the module has assigned another "
                  "tensor to the member (seen = seen + x). The registered buffer keeps its old value, and "
                  "checkpoints hold that; write in place (seen.add_(x) or seen.copy_(y))",
                  module_->name(), names.size() > 1 ? "s" : "", listed(names, "', '")));
}

bool ParallelModel::awaits_inputs() const {
  return options_.is_trained && registered_->peer_check.awaits_inputs() && c10::GradMode::is_enabled();
}

void ParallelModel::compare_inputs(const std::vector<at::Tensor>& inputs,
                                   const std::vector<TensorPlacement>& placements) {
  registered_->peer_check.compare_inputs(inputs, placements);
}

void ParallelModel::compare_gradients() {
  if (!registered_->peer_check.awaits_gradients()) return;
  NamedTensors complete;
  for (const auto& item : module_->named_parameters()) {
    const auto* divided = registered_->layouts.of_layer(item.key());
    if (divided == nullptr || !divided->is_divided_over(kTensorAxis)) complete.emplace_back(item.key(), item.value());
  }
  registered_->peer_check.compare_gradients(complete);
}

void ParallelModel::explain_division(const std::exception& error) const {
  const auto divided = std::ranges::find_if(registered_->layouts.of_layers(),
                                            [](const auto& item) { return item.second.is_divided_over(kTensorAxis); });
  const std::string message = error.what();
  if (divided == registered_->layouts.of_layers().end() ||
      (message.find("shape") == std::string::npos && message.find("size") == std::string::npos))
    return;
  const auto ranks = divided->second.groups.front().size();
  throw StateError(
      fmt::format("{}; this may come from the {} tensor-parallel ranks, each of which has a part of the features of a "
                  "divided layer "
                  "such as that of '{}': in forward use the rank's own number of heads, heads / {}, and choose numbers "
                  "of heads and "
                  "of key-value heads that are multiples of {}",
                  message.substr(0, message.find('\n')), ranks, divided->first, ranks, ranks));
}

// Not a static_assert: whether outputs are needed depends on run-time options, and a struct that is no tree works
// without them.
void ParallelModel::check_outputs_not_needed(const std::type_info& output) const {
  const auto* feature = feature_needing_outputs();
  if (feature == nullptr) return;
  throw ArgumentError(
      fmt::format("model(...): forward returns {0}, whose tensors cannot be found, but {1} requires them; declare its "
                  "members next to the struct: "
                  "template <> inline constexpr auto accel::tree_members<{0}> = std::tuple(&{0}::first, &{0}::second);",
                  c10::demangle(output.name()), feature));
}

}  // namespace accel
