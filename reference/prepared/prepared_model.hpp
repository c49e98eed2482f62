#pragma once

#include <c10/core/GradMode.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/core/never.hpp"
#include "reference/modules/call.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/prepared/parallel_model.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/state/step_observer.hpp"
#include "reference/tree/tree.hpp"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace accel {

namespace detail {

/// A forward that changes its arguments: T&. The handle converts arguments, so it passes values.
template <typename Module, typename... Args>
concept ChangesArguments = requires(Module& module, Args&&... args) {
  module.forward(std::forward<Args>(args)...);
} && !requires(Module& module, std::remove_cvref_t<Args>&&... args) { module.forward(std::move(args)...); };

}  // namespace detail

/// A handle on a prepared model. Calling it runs the module's `forward` under autocast and DDP and returns float32.
///
///     auto model = accelerator.prepare(net);
///     at::Tensor out = model(x);  // model.forward(x) is the same call
///     model->train();             // -> accesses the members of the module
///
/// model->forward(x) bypasses DDP; optimizer.step() throws afterwards.
///
/// The result of `forward` must be a tree (core/tree.hpp) under mixed precision, FSDP, DeepSpeed,
/// find_unused_parameters and static_graph; a struct needs one declaration for that. Copies share one model. The
/// Accelerator forgets a module on the stack when its last handle ends; both may end in any order if neither is used
/// between. Thread rule: the rank's thread.
template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ParallelModel> parallel)
      : module_(std::move(module)), parallel_(std::move(parallel)), use_(parallel_->users().share()) {}
  /// An empty handle, as release_memory leaves it.
  explicit PreparedModel(std::nullptr_t) {}

  // The overloads exist because no default argument can follow a parameter pack, and hang reports name the caller's
  // line.
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
  /// Same as the call operator, under LibTorch's name.
  template <typename... Args>
  auto forward(Args&&... args) {
    return run(std::source_location(), std::forward<Args>(args)...);
  }

  /// The module itself. Its `forward` runs without autocast and DDP.
  [[nodiscard]] const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  /// Returns each parameter once, as in Python. LibTorch's `parameters()` lists a parameter that several modules share
  /// once per module.
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return unique_tensors(module_->parameters()); }
  [[nodiscard]] auto named_parameters() const { return module_->named_parameters(); }
  void train(bool on = true) const { module_->train(on); }
  void eval() const { module_->eval(); }
  [[nodiscard]] bool is_training() const { return module_->is_training(); }
  template <typename... Args>
  void to(Args&&...) const {
    static_assert(detail::kNever<std::tuple<Args...>>,
                  "model.to: a handle has only the members that prepare changes; those of the module follow ->: "
                  "model->to(...)");
  }
  template <typename... Args>
  void zero_grad(Args&&...) const {
    static_assert(detail::kNever<std::tuple<Args...>>,
                  "model.zero_grad: call optimizer.zero_grad(), which keeps gradients while they accumulate, or "
                  "model->zero_grad()");
  }
  /// Names of the Linear layers that compute in float8.
  [[nodiscard]] std::vector<std::string> float8_layers() const {
    const auto& layers = parallel_->options().float8_layers;
    return layers ? layers->names() : std::vector<std::string>();
  }
  [[nodiscard]] const std::shared_ptr<ParallelModel>& parallel_model() const { return parallel_; }

  /// For torch::save and torch::load: the module's parameters and buffers on the calling rank. Throws StateError if the
  /// model is sharded or has master weights; use Accelerator::save_model there.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const PreparedModel& model) {
    model.parallel_->check_is_unsharded("torch::save");
    return archive << model.module_;
  }
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, PreparedModel& model) {
    model.parallel_->check_is_unsharded("torch::load");
    return archive >> model.module_;
  }

 private:
  template <typename... Args>
    requires detail::ChangesArguments<Module, Args...>
  at::Tensor run(std::source_location, Args&&...) {
    static_assert(
        detail::kNever<Module>,
        "model(...): forward takes an argument by reference (T&); take it by value or by const T&, and return "
        "what forward changes");
    return {};
  }
  template <typename... Args>
  auto run(std::source_location where, Args&&... args) {
    using Output = std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    if constexpr (!Tree<Output>) parallel_->check_outputs_not_needed(typeid(Output));
    auto* const listener = parallel_->options().listener.get();
    const bool is_observed = listener != nullptr && listener->observes_tensors();
    const PhaseScope phase(listener, "forward");
    std::optional<CallSite> site(std::in_place, where);
    parallel_->check_current("model(...)");
    if (parallel_->awaits_inputs())
      parallel_->compare_inputs(tensors_among(args...), detail::placements_among(args...));
    parallel_->before_forward();
    if (is_observed) listener->before_forward(*module_, tensors_among(args...));
    if (!parallel_->communicates_in_forward())
      site.reset();  // collectives of the module's forward report their own line
    auto output = run_explained(std::forward<Args>(args)...);
    if (const auto& layers = parallel_->options().float8_layers) layers->check_ran();
    std::vector<at::Tensor> tensors;
    if constexpr (Tree<Output>) {
      tensors = tensors_of(output);
      if (parallel_->after_forward(tensors)) replace_tensors(output, tensors);
    } else {
      parallel_->after_forward(tensors);
    }
    if (is_observed) listener->after_forward(*module_, tensors_among(output));
    return output;
  }

  template <typename... Args>
  auto run_explained(Args&&... args) {
    try {
      return parallel_->casts_inputs() ? run_forward(cast_input(std::forward<Args>(args))...)
                                       : run_forward(std::forward<Args>(args)...);
    } catch (const c10::Error& error) {
      parallel_->explain(error);
      throw;
    }
  }

  template <typename Arg>
  std::remove_cvref_t<Arg> cast_input(Arg&& arg) const {
    if constexpr (Tree<Arg>) {
      return map_tensors(arg, [&](const at::Tensor& tensor) { return parallel_->cast_input(tensor); });
    } else {
      return std::forward<Arg>(arg);
    }
  }

  template <typename... Args>
  auto run_forward(Args&&... args) {
    const auto& options = parallel_->options();
    const Float8Scope float8(options.float8_layers);
    if (!options.autocast) return detail::forward_with_hook(*module_, std::forward<Args>(args)...);
    using Output = std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    std::optional<Output> output;
    {
      const Autocast scope(*options.autocast);
      output.emplace(detail::forward_with_hook(*module_, std::forward<Args>(args)...));
    }
    if constexpr (Tree<Output>) {
      return convert_tree_to_fp32(*output);
    } else {
      return *std::move(output);
    }
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ParallelModel> parallel_;
  std::shared_ptr<const void> use_;
};

}  // namespace accel
