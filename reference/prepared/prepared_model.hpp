#pragma once

#include <c10/core/GradMode.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "reference/core/call_site.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/core/tree.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/sharded/sharded_model.hpp"
#include "reference/state/step_listener.hpp"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace accel {

/// What surrounds the forward of a prepared model, whatever its type.
struct ModelWrapper {
  std::shared_ptr<DistributedDataParallel> ddp = {};       ///< null with one rank, and where parameters are divided
  std::shared_ptr<sharded::ShardedModel> sharded = {};     ///< null where parameters are whole
  std::optional<Autocast::Options> autocast = {};          ///< none in full precision
  std::shared_ptr<const Float8Layers> float8_layers = {};  ///< null unless mixed_precision is "fp8"
  std::shared_ptr<StepListener> listener = {};             ///< null where nobody listens
  bool is_trained = false;                                 ///< not prepared for evaluation alone
  /// Of a model that is not sharded, whose account has nothing but activations.
  std::shared_ptr<sharded::MemoryAccount> memory = std::make_shared<sharded::MemoryAccount>();

  /// Whether it must find all tensors of what forward returns.
  [[nodiscard]] bool sees_outputs() const { return sharded || autocast || (ddp && ddp->sees_outputs()); }
  /// Throws StateError for a model that is sharded, whose parameters are parts: `what` is the call.
  void check_is_whole(const char* what) const;
};

namespace detail {
/// Throws ArgumentError: `type`, which forward returns, is no tree, and `wrapper` must see its tensors.
[[noreturn]] void refuse_outputs(const std::type_info& type, const ModelWrapper& wrapper);
}  // namespace detail

/// A handle on a model: calling it runs the module's `forward` under autocast and DDP, with outputs in float32.
///
///     auto model = accelerator.prepare(net);
///     at::Tensor out = model(x);       // model.forward(x) is the same call; model->forward(x) bypasses DDP, and
///     optimizer.step() throws model->train();                  // -> reaches all members of the module
///
/// What `forward` returns must be a tree (core/tree.hpp) under mixed precision, FSDP, DeepSpeed, find_unused_parameters
/// and static_graph: for a struct that is one line beside it. Copies share one model. Thread rule: the rank's thread.
template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelWrapper> wrapper)
      : module_(std::move(module)), wrapper_(std::move(wrapper)) {}
  /// A handle on nothing, which release_memory leaves.
  explicit PreparedModel(std::nullptr_t) {}

  // A parameter pack allows no default argument behind it, and a report of a hang names the program's line.
  auto operator()(std::source_location where = std::source_location::current()) { return run(where); }
  template <typename A>
  auto operator()(A&& a, std::source_location where = std::source_location::current()) {
    return run(where, std::forward<A>(a));
  }
  template <typename A, typename B>
  auto operator()(A&& a, B&& b, std::source_location where = std::source_location::current()) {
    return run(where, std::forward<A>(a), std::forward<B>(b));
  }
  template <typename A, typename B, typename C>
  auto operator()(A&& a, B&& b, C&& c, std::source_location where = std::source_location::current()) {
    return run(where, std::forward<A>(a), std::forward<B>(b), std::forward<C>(c));
  }
  template <typename... Args>
    requires(sizeof...(Args) > 3)
  auto operator()(Args&&... args) {
    return run(std::source_location(), std::forward<Args>(args)...);
  }
  /// The call operator, by the name that LibTorch uses.
  template <typename... Args>
  auto forward(Args&&... args) {
    return run(std::source_location(), std::forward<Args>(args)...);
  }

  /// The module itself, whose `forward` none of this surrounds.
  [[nodiscard]] const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  /// Each once, as Python's: LibTorch's `parameters()` gives one that several modules share as often as there are
  /// modules.
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return each_once(module_->parameters()); }
  [[nodiscard]] auto named_parameters() const { return module_->named_parameters(); }
  void train(bool on = true) const { module_->train(on); }
  void eval() const { module_->eval(); }
  [[nodiscard]] bool is_training() const { return module_->is_training(); }
  /// Names of the Linear layers that compute in float8 when this is called.
  [[nodiscard]] std::vector<std::string> float8_layers() const {
    return wrapper_->float8_layers ? wrapper_->float8_layers->names() : std::vector<std::string>();
  }
  [[nodiscard]] const std::shared_ptr<ModelWrapper>& shared_wrapper() const { return wrapper_; }

  /// torch::save and torch::load: the module's parameters and buffers, on the rank that calls it. Throws StateError if
  /// the model is sharded: see Accelerator::save_model.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const PreparedModel& model) {
    model.wrapper_->check_is_whole("torch::save");
    return archive << model.module_;
  }
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, PreparedModel& model) {
    model.wrapper_->check_is_whole("torch::load");
    return archive >> model.module_;
  }

 private:
  template <typename... Args>
  auto run(std::source_location where, Args&&... args) {
    using Output = std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    if constexpr (!Tree<Output>) {
      if (wrapper_->sees_outputs()) detail::refuse_outputs(typeid(Output), *wrapper_);
    }
    const PhaseScope phase(wrapper_->listener.get(), "forward");
    if (wrapper_->sharded) {
      const CallSite site(where);
      return run_sharded(std::forward<Args>(args)...);
    }
    if (wrapper_->ddp) {
      const CallSite site(where);  // not of the collectives in the module's own forward
      wrapper_->ddp->before_forward();
    }
    auto output = run_forward(std::forward<Args>(args)...);
    if (wrapper_->float8_layers) wrapper_->float8_layers->check_ran();
    if (wrapper_->ddp) {
      std::vector<at::Tensor> tensors;
      if constexpr (Tree<Output>) {
        tensors = tensors_of(output);
        if (wrapper_->ddp->after_forward(tensors)) put_tensors(output, tensors);
      } else {
        wrapper_->ddp->after_forward(tensors);
      }
    }
    return output;
  }

  template <typename... Args>
  auto run_sharded(Args&&... args) {
    auto& sharded = *wrapper_->sharded;
    using Output = std::remove_cvref_t<decltype(run_forward(std::forward<Args>(args)...))>;
    std::optional<Output> output;
    sharded.before_forward();
    try {
      output.emplace(sharded.casts_inputs() ? run_forward(cast_input(sharded, std::forward<Args>(args))...)
                                            : run_forward(std::forward<Args>(args)...));
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
