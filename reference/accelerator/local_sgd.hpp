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

/// Local SGD: ranks step on their own gradients, and average parameters every few steps in place of gradients in each.
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
/// Gradients stay local from its construction to finish(). A destructor does not communicate: without finish()
/// gradients synchronise again, and parameters stay as they are on each rank. Thread rule: the rank's thread. Source:
/// accelerate/local_sgd.py.
class LocalSGD {
 public:
  /// Throws ArgumentError, on every rank, if local_sgd_steps is less than 1.
  template <typename Module>
  LocalSGD(Accelerator& accelerator, const PreparedModel<Module>& model, LocalSGDOptions options = {})
      : LocalSGD(accelerator, model.parameters(), options) {
    if (enabled_) window_.emplace(accelerator.no_sync(model));
  }

  /// After each optimizer step; collective in every local_sgd_steps-th call.
  void step(std::source_location where = std::source_location::current());
  /// Averages a last time; gradients synchronise again. Collective. A second call does nothing.
  void finish(std::source_location where = std::source_location::current());
  [[nodiscard]] int num_steps() const { return num_steps_; }

 private:
  LocalSGD(Accelerator& accelerator, std::vector<at::Tensor> parameters, LocalSGDOptions options);
  void synchronize_parameters(std::source_location where);

  Accelerator* accelerator_;
  std::vector<at::Tensor> parameters_;
  LocalSGDOptions options_;
  bool enabled_;  // not without a group of ranks
  int num_steps_ = 0;
  std::optional<Accelerator::Window> window_;
};

/// The body, then finish(). If the body throws, nothing is averaged. Collective.
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
