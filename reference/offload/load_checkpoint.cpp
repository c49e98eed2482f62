#include "reference/offload/load_checkpoint.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "reference/checkpoint/module_state.hpp"
#include "reference/core/errors.hpp"
#include "reference/offload/module_tensors.hpp"
#include "reference/state/warnings.hpp"

// Loads a checkpoint tensor by tensor, so that memory never holds more than the model and one tensor.
namespace accel {
namespace {

class CheckpointLoad {
 public:
  CheckpointLoad(torch::nn::Module& module, const LoadCheckpointOptions& options)
      : options_(options), tensors_(offload::tensors_of(module)) {
    // emplace keeps the first name, under which device maps and indices list a shared tensor.
    for (const auto& [name, tensor] : tensors_) names_.emplace(tensor.unsafeGetTensorImpl(), name);
    for (const auto& item : module.named_buffers()) buffers_.insert(item.value().unsafeGetTensorImpl());
  }

  OffloadIndex load(const std::string& checkpoint) {
    // Everything that can fail because of the checkpoint or the map comes before the first tensor is changed.
    const auto weights = read_weights(checkpoint);
    auto pairs = checkpoint::matched(checkpoint, tensors_, weights, options_.strict);
    for (const auto& [tensor, saved] : pairs) devices_.push_back(device_of_tensor(tensor));
    warn_of_unused(checkpoint, weights);
    for (std::size_t i = 0; i < pairs.size(); ++i) put(pairs[i].first, pairs[i].second, devices_[i]);
    if (!options_.offload_folder.empty() && !offloaded_.empty()) {
      PosixFiles files;
      save_offload_index(files, options_.offload_folder, offloaded_);
    }
    return std::move(offloaded_);
  }

 private:
  // Source: accelerate/utils/modeling.py, load_checkpoint_in_model.
  void warn_of_unused(const std::string& checkpoint, const std::map<std::string, StoredWeight>& weights) const {
    std::set<std::string> known;
    for (const auto& [name, tensor] : tensors_) known.insert(name);
    std::vector<std::string> unused;
    for (const auto& [name, weight] : weights) {
      if (!known.contains(name)) unused.push_back(name);
    }
    if (!unused.empty())
      warn_once(fmt::format("load_checkpoint_in_model: {}: not in the model, and therefore not used: {}", checkpoint,
                            fmt::join(unused, ", ")));
  }

  // The device to which a tensor is loaded; nullopt: it stays on disk.
  std::optional<c10::Device> device_of_tensor(const at::Tensor& tensor) const {
    if (!options_.device_map) return tensor.is_meta() ? c10::Device(at::kCPU) : tensor.device();
    const auto device = device_of(*options_.device_map, names_.at(tensor.unsafeGetTensorImpl()));
    if (!device.is_disk()) return offload::torch_device(device);
    // Buffers are loaded even where the map assigns their module to disk, as in Accelerate.
    const bool stays = buffers_.contains(tensor.unsafeGetTensorImpl()) && !options_.offload_buffers;
    return stays ? std::optional(c10::Device(at::kCPU)) : std::nullopt;
  }

  [[nodiscard]] at::ScalarType dtype_of(const at::Tensor& tensor) const {
    if (!options_.dtype || !(c10::isFloatingType(tensor.scalar_type()) || c10::isComplexType(tensor.scalar_type())))
      return tensor.scalar_type();
    const auto& name = names_.at(tensor.unsafeGetTensorImpl());
    const auto& kept = options_.keep_in_fp32_modules;
    const bool is_kept = std::any_of(kept.begin(), kept.end(), [&](const auto& key) {
      // A substring search, as in Python: "layer" also matches "big_layer.weight".
      return name == key || name.find(key + ".") != std::string::npos;
    });
    // Only float16 lacks the range that such modules need; bfloat16 has that of float32.
    return *options_.dtype == at::kHalf && is_kept ? at::kFloat : *options_.dtype;
  }

  // Three cases: the weight stays on disk, it fits into the existing memory, or it needs new memory.
  void put(const at::Tensor& tensor, const StoredWeight& saved, std::optional<c10::Device> device) {
    const auto dtype = dtype_of(tensor);
    if (!device) {
      offload::show(tensor, offload::meta_like(tensor, dtype));
      auto weight = saved;
      if (dtype != saved.dtype)
        weight = {.file = saved.file, .dtype = saved.dtype, .sizes = saved.sizes, .load = [load = saved.load, dtype] {
                    return load().to(dtype);
                  }};
      offloaded_.emplace(names_.at(tensor.unsafeGetTensorImpl()), std::move(weight));
    } else if (tensor.device() == *device && tensor.scalar_type() == dtype) {
      saved.load_into(tensor.detach());
    } else {
      offload::show(tensor, saved.load().to(*device, dtype));
    }
  }

  const LoadCheckpointOptions& options_;
  NamedTensors tensors_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;  // the first name of each tensor
  std::set<const c10::TensorImpl*> buffers_;
  std::vector<std::optional<c10::Device>> devices_;
  OffloadIndex offloaded_;
};

}  // namespace

OffloadIndex load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint,
                                      const LoadCheckpointOptions& options) {
  const c10::NoGradGuard no_grad;
  return CheckpointLoad(module, options).load(checkpoint);
}

}  // namespace accel
