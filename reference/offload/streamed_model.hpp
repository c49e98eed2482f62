#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {
class ModuleHooks;
}

/// The executor of offloading: a model some of whose tensors are stored elsewhere between calls. The tensors of a unit
/// are loaded when it is called, if possible in advance by a worker thread while the previous unit runs, and released
/// afterwards.
///
/// Thread rule: the rank's thread; `Slot::load` runs on the worker thread.
namespace accel::offload {

/// A tensor of the model that is loaded for calls.
struct Slot {
  std::string name = {};
  at::Tensor tensor = {};
  at::Tensor away = {};              ///< what `tensor` shows between calls
  std::function<at::Tensor()> load;  ///< returns its values on the device where its unit runs
};

struct StreamedUnit {
  std::string name = {};
  std::shared_ptr<torch::nn::Module> module = {};
  std::vector<std::size_t> slots = {};  ///< indices into the model's slots
  std::optional<c10::Device> input_device = {};
};

struct StreamStatistics {
  std::int64_t num_loads = 0;                  ///< how often a unit was loaded
  std::int64_t num_prefetched = 0;             ///< how many of these loads started before the unit was called
  std::int64_t bytes_now = 0, bytes_peak = 0;  ///< loaded tensors, for the unit that runs and the next one
};

class StreamedModel {
 public:
  /// Installs the hooks, and lets all slots show their `away` tensor. Throws StateError if one of the modules already
  /// has hooks of something else. `is_spread`: the model has a device map of several entries.
  StreamedModel(const std::shared_ptr<torch::nn::Module>& module, std::vector<Slot> slots,
                std::vector<StreamedUnit> units, bool prefetch, bool is_spread = false);
  ~StreamedModel();
  StreamedModel(const StreamedModel&) = delete;
  StreamedModel& operator=(const StreamedModel&) = delete;

  [[nodiscard]] const StreamStatistics& statistics() const;
  /// Clears the record of the units that were called.
  void begin_pass();
  /// Names of the units that were not called since `begin_pass`.
  [[nodiscard]] std::vector<std::string> uncalled() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Whether the module or one inside it is part of a model that `dispatch_model` has spread over several devices.
bool is_spread(const torch::nn::Module& module);

/// Keeps a unit's tensors loaded while it lives. For a module that is not a unit it has no effect, and converts to
/// false.
class LoadedUnit {
 public:
  explicit LoadedUnit(const torch::nn::Module& module);
  ~LoadedUnit();
  LoadedUnit(const LoadedUnit&) = delete;
  LoadedUnit& operator=(const LoadedUnit&) = delete;
  explicit operator bool() const { return unit_ != nullptr; }

 private:
  std::shared_ptr<ModuleHooks> unit_;
};

}  // namespace accel::offload
