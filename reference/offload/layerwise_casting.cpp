#include "reference/offload/layerwise_casting.hpp"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/dispatch_units.hpp"
#include "reference/offload/module_tensors.hpp"

// Layerwise casting is offloading to another dtype: a StreamedModel whose slots show the small copy between calls and
// load the large one for a call.
namespace accel {
namespace offload {
namespace {

// The layers that Accelerate casts; others, such as norms, keep their dtype.
constexpr std::array kCastLayers{"Conv1d",           "Conv2d",          "Conv3d", "ConvTranspose1d",
                                 "ConvTranspose2d",  "ConvTranspose3d", "Linear", "ColumnParallelLinear",
                                 "RowParallelLinear"};

std::vector<std::regex> expressions_of(const std::vector<std::string>& patterns) {
  std::vector<std::regex> expressions;
  std::vector<std::string> problems;
  for (const auto& pattern : patterns) {
    try {
      expressions.emplace_back(pattern);
    } catch (const std::regex_error& error) {
      problems.push_back(fmt::format("'{}' ({})", pattern, error.what()));
    }
  }
  check_argument(problems.empty(), "skip_modules_pattern: expected regular expressions, got {}",
                 listed(problems, ", "));
  return expressions;
}

template <typename Names>
bool is_one_of(const ModuleDescription& module, const Names& classes) {
  return std::any_of(std::begin(classes), std::end(classes),
                     [&](const auto& name) { return is_class(module.class_name, name); });
}

// Chooses the tensors to cast. A skipped module excludes everything inside it, because the walk does not descend.
class CastPlanner {
 public:
  CastPlanner(const ModelDescription& model, const LayerwiseCastingOptions& options)
      : model_(model), options_(options), skipped_(expressions_of(options.skip_modules_pattern)) {
    add(model.root);
  }
  [[nodiscard]] bool casts(const std::string& tensor) const { return cast_.contains(tensor); }

 private:
  void add(const ModuleDescription& module) {
    const bool matches = std::any_of(skipped_.begin(), skipped_.end(), [&](const auto& expression) {
      // re.search in Python: a match anywhere in the name.
      return std::regex_search(module.name, expression);
    });
    if (matches || is_one_of(module, options_.skip_modules_classes)) return;
    if (is_one_of(module, kCastLayers)) {
      for (const auto parameter : module.parameters) cast_.insert(model_.parameters[parameter].shape.name);
      for (const auto& buffer : module.buffers) cast_.insert(model_.buffers[buffer.index].shape.name);
      return;
    }
    for (const auto& child : module.children) add(child);
  }

  const ModelDescription& model_;
  const LayerwiseCastingOptions& options_;
  std::vector<std::regex> skipped_;
  std::set<std::string> cast_;
};

}  // namespace

std::shared_ptr<StreamedModel> cast_layerwise(const std::shared_ptr<torch::nn::Module>& module,
                                              const LayerwiseCastingOptions& options) {
  const c10::NoGradGuard no_grad;
  const auto model = describe(module);
  const CastPlanner plan(model.description, options);
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& [name, part] : model.modules) modules.emplace(name, part);
  std::map<std::string, at::Tensor> tensors(model.buffers.begin(), model.buffers.end());
  tensors.insert(model.names.begin(), model.names.end());
  std::vector<Slot> slots;
  std::vector<StreamedUnit> units;
  std::map<std::string, std::size_t> places;
  for (const auto& unit : plan_units(model.description, {.called_modules = options.called_modules})) {
    StreamedUnit streamed{.name = unit.name, .module = modules.at(unit.name), .slots = {}};
    for (const auto& name : unit.tensors) {
      const auto& tensor = tensors.at(name);
      if (!plan.casts(name) || !tensor.is_floating_point()) continue;
      // A tensor that several units share has one slot.
      const auto [place, is_new] = places.emplace(name, slots.size());
      const auto stored = tensor.detach().to(options.storage_dtype);
      if (is_new)
        slots.push_back({name, tensor, stored, [stored, dtype = options.compute_dtype] { return stored.to(dtype); }});
      streamed.slots.push_back(place->second);
    }
    if (!streamed.slots.empty()) units.push_back(std::move(streamed));
  }
  // Casting is cheap, so a worker thread would cost more than it saves.
  return std::make_shared<StreamedModel>(module, std::move(slots), std::move(units), /*prefetch=*/false);
}

}  // namespace offload

AlignModuleDevice::AlignModuleDevice(torch::nn::Module& module, std::optional<c10::Device> execution_device)
    : unit_(module) {
  // A unit is loaded by `unit_` to its own device; only other modules are moved here.
  if (unit_ || !execution_device) return;
  const c10::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    moved_.push_back({item.value(), item.value().detach()});
    set_module_tensor_to_device(module, item.key(), *execution_device);
  }
}

AlignModuleDevice::~AlignModuleDevice() {
  const c10::NoGradGuard no_grad;
  // A tensor of another module may have been changed meanwhile, so its current values are moved back, as in Python. One
  // that was set to the meta device has no values to keep.
  for (const auto& [tensor, original] : moved_) {
    if (tensor.device() != original.device())
      offload::show(tensor, tensor.is_meta() ? original : tensor.detach().to(original.device()));
  }
}

}  // namespace accel
