#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <source_location>
#include <vector>

#include "reference/accelerator/accelerator.hpp"

namespace accel {

struct LocalSGDOptions {
  int local_sgd_steps = 8;  ///< optimizer steps between two averages
  bool enabled = true;
};

/// Local SGD: each rank steps on its own gradients; every few steps the ranks average their parameters.
///
///     accel::LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 8});
///     for (auto& [image, label] : batches) {
///       accelerator.backward(loss_of(model(image), label));
///       optimizer.step();
///       optimizer.zero_grad();
///       local_sgd.step();
///     }
///     local_sgd.finish();
///
/// Gradients stay local from construction until finish(). The destructor does not communicate: without finish(),
/// gradient synchronization resumes but the parameters are not averaged. Thread rule: the rank's thread. Source:
/// accelerate/local_sgd.py.
class LocalSGD {
 public:
  /// Throws ArgumentError, on every rank, if local_sgd_steps is less than 1, and StateError for a sharded model.
  template <typename Module>
  LocalSGD(Accelerator& accelerator, const PreparedModel<Module>& model, LocalSGDOptions options = {})
      : LocalSGD(accelerator, model.parameters(), options) {
    if (enabled_) window_.emplace(accelerator.no_sync(model));
  }

  /// Counts an optimizer step; call it after each. Every local_sgd_steps-th call averages the parameters and is
  /// collective.
  void step(std::source_location where = std::source_location::current());
  /// Averages the parameters a last time and resumes gradient synchronization. Collective. Later calls do nothing.
  void finish(std::source_location where = std::source_location::current());
  [[nodiscard]] int num_steps() const { return num_steps_; }

 private:
  LocalSGD(Accelerator& accelerator, std::vector<at::Tensor> parameters, LocalSGDOptions options);
  void synchronize_parameters(std::source_location where);

  Accelerator* accelerator_;
  std::vector<at::Tensor> parameters_;
  LocalSGDOptions options_;
  bool enabled_;  // false without a process group, and after finish()
  int num_steps_ = 0;
  std::optional<Accelerator::Window> window_;
};

/// Runs `body`, then calls finish(). If the body throws, nothing is averaged. Collective.
///
///     accel::local_sgd(accelerator, model, {.local_sgd_steps = 8}, [&](accel::LocalSGD& local_sgd) {
///       ...
///       local_sgd.step();
///     });
template <typename Module, typename Body>
void local_sgd(Accelerator& accelerator, const PreparedModel<Module>& model, LocalSGDOptions options, Body&& body,
               std::source_location where = std::source_location::current()) {
  LocalSGD scope(accelerator, model, options);
  body(scope);
  scope.finish(where);
}

}  // namespace accel
