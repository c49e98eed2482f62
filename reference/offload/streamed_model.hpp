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
class CallSurround;
}

/// The executor of offloading: a model whose units have some of their tensors elsewhere between calls. What a unit
/// needs is brought when it is called, by a worker thread while the unit before it runs, and let go behind it.
///
/// Thread rule: the rank's thread, and `Slot::load` on the worker's.
namespace accel::offload {

/// A tensor of the model.
struct Slot {
  std::string name = {};
  at::Tensor tensor = {};
  at::Tensor away = {};              ///< what it shows between calls
  std::function<at::Tensor()> load;  ///< its values, where its unit runs
};

struct StreamedUnit {
  std::string name = {};
  std::shared_ptr<torch::nn::Module> module = {};
  std::vector<std::size_t> slots = {};  ///< of the model's
  std::optional<c10::Device> input_device = {};
};

struct StreamStatistics {
  std::int64_t num_loads = 0;                  ///< of units
  std::int64_t num_prefetched = 0;             ///< of these, begun before the unit was called
  std::int64_t bytes_now = 0, bytes_peak = 0;  ///< of what was brought, for the unit that runs and the next
};

class StreamedModel {
 public:
  /// All slots show what they show between calls. Throws StateError if one of the modules is a unit of something else.
  StreamedModel(const std::shared_ptr<torch::nn::Module>& module, std::vector<Slot> slots,
                std::vector<StreamedUnit> units, bool prefetch);
  ~StreamedModel();
  StreamedModel(const StreamedModel&) = delete;
  StreamedModel& operator=(const StreamedModel&) = delete;

  [[nodiscard]] const StreamStatistics& statistics() const;
  /// Forgets which units were called.
  void begin_pass();
  /// Names of units that were not called since.
  [[nodiscard]] std::vector<std::string> uncalled() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// A unit's tensors are there as long as it lives. For a module that is no unit it does nothing, and is false.
class BroughtUnit {
 public:
  explicit BroughtUnit(const torch::nn::Module& module);
  ~BroughtUnit();
  BroughtUnit(const BroughtUnit&) = delete;
  BroughtUnit& operator=(const BroughtUnit&) = delete;
  explicit operator bool() const { return unit_ != nullptr; }

 private:
  std::shared_ptr<CallSurround> unit_;
};

}  // namespace accel::offload
