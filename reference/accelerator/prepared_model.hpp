#pragma once

#include <c10/core/GradMode.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/core/tree.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/sharded/sharded_model.hpp"
#include "reference/state/step_listener.hpp"

namespace accel {

/// What surrounds the forward of a prepared model, whatever its type.
struct ModelWrapper {
  std::unique_ptr<DistributedDataParallel> ddp;  ///< null with one rank, and where parameters are divided
  std::shared_ptr<sharded::ShardedModel> sharded;  ///< null where parameters are whole
  std::optional<Autocast::Options> autocast;     ///< none in full precision
  std::shared_ptr<const Float8Layers> float8_layers;  ///< null unless mixed_precision is "fp8"
  std::shared_ptr<StepListener> listener;        ///< null where nobody listens
  /// Of a model that is not sharded, whose account has nothing but activations.
  std::shared_ptr<sharded::MemoryAccount> memory = std::make_shared<sharded::MemoryAccount>();
};

/// A handle on a model: calling it runs the module's `forward` under autocast and DDP, with outputs in float32.
///
///     auto model = accelerator.prepare(net);
///     at::Tensor out = model(x);
///     model->train();
///
/// Copies share one model. Thread rule: the rank's thread.
template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelWrapper> wrapper)
      : module_(std::move(module)), wrapper_(std::move(wrapper)) {}
  /// A handle on nothing, which release_memory leaves.
  explicit PreparedModel(std::nullptr_t) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    const PhaseScope phase(wrapper_->listener.get(), "forward");
    if (wrapper_->sharded) return run_sharded(std::forward<Args>(args)...);
    if (wrapper_->ddp) wrapper_->ddp->before_forward();
    auto output = run_forward(std::forward<Args>(args)...);
    if (wrapper_->float8_layers) wrapper_->float8_layers->check_ran();
    if (wrapper_->ddp) {
      if constexpr (Tree<decltype(output)>) {
        auto tensors = tensors_of(output);
        if (wrapper_->ddp->after_forward(tensors)) put_tensors(output, tensors);
      } else {
        std::vector<at::Tensor> tensors;
        wrapper_->ddp->after_forward(tensors);
      }
    }
    return output;
  }

  /// The module itself.
  [[nodiscard]] const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  /// Each once, as Python's: LibTorch's `parameters()` gives one that several modules share as often as there are modules.
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return each_once(module_->parameters()); }
  /// Names of the Linear layers that compute in float8 when this is called.
  [[nodiscard]] std::vector<std::string> float8_layers() const { return wrapper_->float8_layers ? wrapper_->float8_layers->names() : std::vector<std::string>(); }
  [[nodiscard]] const std::shared_ptr<ModelWrapper>& shared_wrapper() const { return wrapper_; }

 private:
  template <typename... Args>
  auto run_sharded(Args&&... args) {
    auto& sharded = *wrapper_->sharded;
    using Output = std::remove_cvref_t<decltype(run_forward(std::forward<Args>(args)...))>;
    std::optional<Output> output;
    sharded.before_forward();
    try {
      output.emplace(sharded.casts_inputs() ? run_forward(cast_input(sharded, std::forward<Args>(args))...) : run_forward(std::forward<Args>(args)...));
    } catch (const c10::Error& error) {
      sharded.explain(error);
      throw;
    }
    if (wrapper_->float8_layers) wrapper_->float8_layers->check_ran();
    if constexpr (Tree<Output>) {
      auto tensors = tensors_of(*output);
      sharded.after_forward(tensors);
      put_tensors(*output, tensors);
    }
    return *std::move(output);
  }

  template <typename Arg>
  static std::remove_cvref_t<Arg> cast_input(const sharded::ShardedModel& sharded, Arg&& arg) {
    if constexpr (Tree<Arg>) {
      return map_tensors(arg, [&](const at::Tensor& tensor) { return sharded.cast_input(tensor); });
    } else {
      return std::forward<Arg>(arg);
    }
  }

  template <typename... Args>
  auto run_forward(Args&&... args) {
    const Float8Scope float8(wrapper_->float8_layers);
    if (!wrapper_->autocast) return module_->forward(std::forward<Args>(args)...);
    using Output = std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    std::optional<Output> output;
    {
      const Autocast scope(*wrapper_->autocast);
      output.emplace(module_->forward(std::forward<Args>(args)...));
    }
    if constexpr (Tree<Output>) {
      return convert_tree_to_fp32(*output);
    } else {
      return *std::move(output);
    }
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelWrapper> wrapper_;
};

}  // namespace accel
