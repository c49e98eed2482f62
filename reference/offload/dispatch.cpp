#include "reference/offload/dispatch.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/offload/dispatch_units.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/offload/module_tensors.hpp"
#include "reference/state/warnings.hpp"

// Turns a device map into a StreamedModel: decides for every tensor whether it stays on its device or becomes a slot
// that is filled during calls, and where each unit runs. All problems are collected before anything is moved, so a map
// that does not fit leaves the model unchanged.
namespace accel::offload {
namespace {

class Dispatcher {
 public:
  Dispatcher(const std::shared_ptr<torch::nn::Module>& module, const DeviceMap& device_map,
             const DispatchOptions& options)
      : module_(module), device_map_(device_map), options_(options), model_(describe(module)) {
    // Entries may name any of the places of a repeated module, so all of them must be known here.
    check_device_map(describe(module, Repeats::kEverywhere).description, device_map);
    for (const auto& [name, device] : device_map) {
      if (!device.is_disk()) torch_device(device);
      uses_gpus_ |= device.is_gpu();
    }
    // GPUs are ordered first, so the smallest device is the GPU with the smallest number.
    if (options.main_device)
      main_ = *options.main_device;
    else if (uses_gpus_)
      main_ = std::min_element(device_map.begin(), device_map.end(), [](const auto& a, const auto& b) {
                return a.second < b.second;
              })->second;
    check_argument(!main_.is_disk(), "main_device: modules cannot run on \"disk\"; expected a GPU or \"cpu\"");
    uses_gpus_ |= main_.is_gpu();
    torch_device(main_);
  }

  std::shared_ptr<StreamedModel> dispatch() {
    list_tensors();
    plan();
    if (!options_.offload_index.empty())
      index_ = options_.offload_index;
    else if (!options_.offload_dir.empty() && needs_folder())
      index_ = read_offload_index(options_.offload_dir);
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < offloaded_.size(); ++i)
      slots.push_back(slot(offloaded_[i].first, offloaded_[i].second, runs_on_[i]));
    check_resident();
    check_argument(problems_.empty(), "dispatch_model: {}", listed(problems_, "; "));
    warn_of_separated_names();
    write_to_disk(slots);
    for (const auto& [name, tensor, device] : resident_) {
      // Resident tensors are moved last, when nothing can fail any more except an allocation.
      if (tensor.device() != device) show(tensor, tensor.detach().to(device));
    }
    // With several devices, hooks are needed even without slots: they move inputs between devices.
    if (slots.empty() && !uses_gpus_) return nullptr;
    return std::make_shared<StreamedModel>(module_, std::move(slots), std::move(units_), options_.prefetch,
                                           /*is_spread=*/device_map_.size() > 1);
  }

 private:
  void list_tensors() {
    for (std::size_t i = 0; i < model_.parameters.size(); ++i)
      tensors_.emplace(model_.description.parameters[i].shape.name, model_.parameters[i]);
    std::set<const c10::TensorImpl*> seen;
    for (const auto& [name, buffer] : model_.buffers) {
      if (!seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
      tensors_.emplace(name, buffer);
      // As in Accelerate, buffers stay on the device that runs them unless offload_buffers is set: they are small.
      if (!options_.offload_buffers) kept_.insert(name);
    }
    // All names of a shared tensor: a state_dict or an index may contain any of them.
    for (const auto& [name, tensor] : tensors_of(*module_)) names_[tensor.unsafeGetTensorImpl()].push_back(name);
  }

  // A shared tensor has one place, whatever the map says about its other names. Source: accelerate/utils/modeling.py,
  // check_tied_parameters_on_same_device.
  void warn_of_separated_names() const {
    for (const auto& [tensor, names] : names_) {
      std::map<MapDevice, std::string> devices;
      for (const auto& name : names) devices.emplace(device_of(device_map_, name), name);
      if (devices.size() < 2) continue;
      std::vector<std::string> places;
      for (const auto& [device, name] : devices) places.push_back(fmt::format("'{}' on {}", name, device.name()));
      warn_once(
          fmt::format("dispatch_model: the device map places one shared tensor twice: {}; it is kept where its "
                      "first user is",
                      fmt::join(places, ", ")));
    }
  }

  // Tensors on the CPU are at home if the model runs there; they are slots only if it runs on a GPU.
  [[nodiscard]] bool is_offloaded(const std::string& name) const {
    const auto device = device_of(device_map_, name);
    return !kept_.contains(name) && (device.is_disk() || (device.is_cpu() && main_.is_gpu()));
  }

  // The device on which a unit runs: the GPU of its tensors that stay on one, else the main device.
  MapDevice device_of_unit(const Unit& unit) {
    std::set<MapDevice> devices;
    for (const auto& name : unit.tensors) {
      const auto device = device_of(device_map_, name);
      if (device.is_gpu()) devices.insert(device);
    }
    if (devices.size() > 1) {
      std::vector<std::string> names;
      for (const auto& device : devices) names.push_back(device.name());
      problems_.push_back(
          fmt::format("'{}' runs as one unit, but the device map spreads it over devices {}; list its class in "
                      "no_split_module_classes, or its parts in called_modules",
                      unit.name, fmt::join(names, ", ")));
    }
    return devices.empty() ? main_ : *devices.begin();
  }

  void plan() {
    std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
    for (const auto& [name, part] : model_.modules) modules.emplace(name, part);
    std::map<std::string, std::size_t> slot_of;
    std::map<std::string, MapDevice> runs_on;
    // Distributes the tensors of all units over `resident_` and `offloaded_`. Units come in the order of the model, so
    // a shared tensor belongs to the unit that uses it first.
    for (const auto& unit :
         plan_units(model_.description, {options_.preload_module_classes, options_.called_modules})) {
      const auto device = device_of_unit(unit);
      StreamedUnit streamed{.name = unit.name, .module = modules.at(unit.name), .slots = {}};
      for (const auto& name : unit.tensors) {
        // A tensor that several units share has one slot; StreamedModel counts its users.
        const auto [other, is_first] = runs_on.emplace(name, device);
        if (other->second != device)
          problems_.push_back(
              fmt::format("'{}' is shared by parts on devices {} and {}", name, other->second.name(), device.name()));
        if (is_first && !is_offloaded(name)) resident_.push_back({name, tensors_.at(name), torch_device(device)});
        if (!is_offloaded(name)) continue;
        if (is_first) {
          slot_of.emplace(name, offloaded_.size());
          offloaded_.emplace_back(name, tensors_.at(name));
          runs_on_.push_back(torch_device(device));
        }
        streamed.slots.push_back(slot_of.at(name));
      }
      // Inputs follow the unit: the output of one GPU's unit is the input of the next one's.
      if (uses_gpus_) streamed.input_device = torch_device(device);
      if (!streamed.slots.empty() || uses_gpus_) units_.push_back(std::move(streamed));
    }
  }

  // The index of offload_dir is only read if a tensor needs it: the folder may be stale or not exist yet.
  [[nodiscard]] bool needs_folder() const {
    return std::any_of(offloaded_.begin(), offloaded_.end(), [&](const auto& named) {
      return named.second.is_meta() && device_of(device_map_, named.first).is_disk();
    });
  }

  // Between calls a slot shows a meta tensor, so that an operator that uses it fails instead of computing with garbage.
  // A slot without `load` is completed by write_to_disk, or has a problem.
  Slot slot(const std::string& name, const at::Tensor& tensor, c10::Device device) {
    Slot slot{.name = name, .tensor = tensor, .away = meta_like(tensor), .load = {}};
    if (device_of(device_map_, name).is_cpu()) {
      auto host = in_memory(name, tensor);
      if (host.defined()) slot.load = [host, device] { return host.to(device); };
      return slot;
    }
    if (!tensor.is_meta()) {
      to_write_.emplace_back(name, tensor);
      return slot;
    }
    if (const auto* weight = stored(name, tensor))
      slot.load = [load = weight->load, device, dtype = tensor.scalar_type()] { return load().to(device, dtype); };
    return slot;
  }
  at::Tensor in_memory(const std::string& name, const at::Tensor& tensor) {
    for (const auto& alias : names_.at(tensor.unsafeGetTensorImpl())) {
      if (const auto found = options_.state_dict.find(alias); found != options_.state_dict.end()) return found->second;
    }
    if (!tensor.is_meta()) return tensor.detach().to(at::kCPU);
    problems_.push_back(fmt::format("'{}' is on the meta device and missing in state_dict", name));
    return {};
  }

  const StoredWeight* stored(const std::string& name, const at::Tensor& tensor) {
    for (const auto& alias : names_.at(tensor.unsafeGetTensorImpl())) {
      const auto found = index_.find(alias);
      if (found == index_.end()) continue;
      if (tensor.sizes() == c10::IntArrayRef(found->second.sizes)) return &found->second;
      problems_.push_back(fmt::format("'{}' has sizes [{}] on disk, the model's are [{}]", name,
                                      fmt::join(found->second.sizes, ", "), fmt::join(tensor.sizes(), ", ")));
      return nullptr;
    }
    problems_.push_back(fmt::format(
        "'{}' is mapped to disk, but has no values in the model, offload_index or offload_dir; load its values first",
        name));
    return nullptr;
  }

  void check_resident() {
    if (!to_write_.empty() && options_.offload_dir.empty()) {
      problems_.push_back(fmt::format("offload_dir is missing, but needed for '{}'{}; set it to a folder",
                                      to_write_.front().first, to_write_.size() > 1 ? " and others" : ""));
    }
    for (const auto& [name, tensor, device] : resident_) {
      if (tensor.is_meta())
        problems_.push_back(
            fmt::format("'{}' is mapped to {}, but is on the meta device; load its values first", name, device.str()));
    }
  }

  // Runs after the check of problems. The tensors' memory is released when the StreamedModel shows the meta tensors.
  void write_to_disk(std::vector<Slot>& slots) {
    if (to_write_.empty()) return;
    PosixFiles files;
    offload_state_dict(files, options_.offload_dir, to_write_);
    const auto written = read_offload_index(options_.offload_dir);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i].load)
        slots[i].load = [load = written.at(slots[i].name).load, device = runs_on_[i]] { return load().to(device); };
    }
  }

  struct Resident {
    std::string name;
    at::Tensor tensor;
    c10::Device device;
  };

  std::shared_ptr<torch::nn::Module> module_;
  const DeviceMap& device_map_;
  const DispatchOptions& options_;
  DescribedModel model_;
  // Where offloaded parts run. "cpu" if the map has no GPU and the caller chose none.
  MapDevice main_ = "cpu";
  bool uses_gpus_ = false;
  std::map<std::string, at::Tensor> tensors_;  // by first name
  std::set<std::string> kept_;                 // buffers that are not offloaded
  std::map<const c10::TensorImpl*, std::vector<std::string>> names_;
  std::vector<StreamedUnit> units_;
  std::vector<Resident> resident_;
  NamedTensors offloaded_, to_write_;
  std::vector<c10::Device> runs_on_;  // in the order of offloaded_
  OffloadIndex index_;
  std::vector<std::string> problems_;
};

}  // namespace

std::shared_ptr<StreamedModel> dispatch(const std::shared_ptr<torch::nn::Module>& module, const DeviceMap& device_map,
                                        const DispatchOptions& options) {
  const c10::NoGradGuard no_grad;
  return Dispatcher(module, device_map, options).dispatch();
}

// Many operators accept meta tensors and return one without an error, so a missed part may only show up in the output.
void check_output(const std::vector<at::Tensor>& tensors, const StreamedModel& streamed) {
  const bool has_values = std::none_of(tensors.begin(), tensors.end(),
                                       [](const at::Tensor& tensor) { return tensor.defined() && tensor.is_meta(); });
  check_state(
      has_values,
      "the output has no values, because these parts were not called with accel::call, which loads their weights: '{}'",
      fmt::join(streamed.uncalled(), "', '"));
}

// Operators that mix meta and real tensors do fail; LibTorch's message then mentions the meta device in some form.
void explain(const std::exception& error, const StreamedModel& streamed) {
  std::string message = error.what();
  // LibTorch appends a C++ stack trace, which would hide the explanation.
  message.resize(std::min(message.size(), message.find('\n')));  // without the stack
  const auto uncalled = streamed.uncalled();
  if (uncalled.empty() || (message.find("meta") == std::string::npos && message.find("Meta") == std::string::npos))
    return;
  throw StateError(fmt::format("{}; these parts had not been called with accel::call, which loads their weights: '{}'",
                               message, fmt::join(uncalled, "', '")));
}

}  // namespace accel::offload
