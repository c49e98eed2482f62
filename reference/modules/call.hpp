#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/modules/model_hook.hpp"
#include "reference/modules/tensor_placement.hpp"
#include "reference/tree/tree.hpp"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
class AnyModule;
}  // namespace torch::nn

/// Calls of modules that other code can hook into: LibTorch's modules have no forward hooks.
///
///     for (const auto& block : *blocks_) values = accel::call(block->as<BlockImpl>(), values);
///
/// A custom module uses it to call those of its submodules that are to be sharded, recomputed or offloaded as a unit;
/// elements of a Sequential need no change. Without a hook, `call` is the submodule's `forward`. Programs attach their
/// own hooks with reference/modules/hooks.hpp. Thread rule: the rank's thread.
namespace accel {

/// Hooks around the forward of one module.
class ModuleHooks {
 public:
  virtual ~ModuleHooks() = default;
  virtual void before_forward() = 0;
  /// May replace `outputs` by tensors of equal values.
  virtual void after_forward(std::vector<at::Tensor>& outputs) = 0;
  /// Whether activations are not kept but recomputed in backward.
  [[nodiscard]] virtual bool recomputes() const { return false; }
  /// Called instead of `after_forward` if forward throws.
  virtual void forward_failed() noexcept {}
  /// The device on which the module runs, to which its inputs are moved; nullopt: they are not moved.
  [[nodiscard]] virtual std::optional<c10::Device> input_device() const { return std::nullopt; }
};

/// Sees the tensors of one module's calls and changes nothing. A module may have hooks and an observer.
class ModuleObserver {
 public:
  virtual ~ModuleObserver() = default;
  virtual void before_forward(const std::vector<at::Tensor>& inputs) = 0;
  virtual void after_forward(const std::vector<at::Tensor>& outputs) = 0;
  /// Called instead of the others, with one placement per tensor. The default drops the placements.
  virtual void before_forward(const std::vector<at::Tensor>& inputs,
                              const std::vector<TensorPlacement>& /*placements*/) {
    before_forward(inputs);
  }
  virtual void after_forward(const std::vector<at::Tensor>& outputs,
                             const std::vector<TensorPlacement>& /*placements*/) {
    after_forward(outputs);
  }
};

/// Reports the calls of `module` to an observer for as long as it lives. Throws StateError if the module already has
/// an observer.
class ScopedModuleObserver {
 public:
  ScopedModuleObserver(const torch::nn::Module& module, std::shared_ptr<ModuleObserver> observer);
  ~ScopedModuleObserver();
  ScopedModuleObserver(ScopedModuleObserver&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
  ScopedModuleObserver& operator=(ScopedModuleObserver&&) = delete;

 private:
  const torch::nn::Module* module_;
};

/// Installs hooks around the calls of `module` for as long as it lives.
class ScopedModuleHooks {
 public:
  ScopedModuleHooks(const torch::nn::Module& module, std::shared_ptr<ModuleHooks> surround);
  ~ScopedModuleHooks();
  ScopedModuleHooks(ScopedModuleHooks&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
  ScopedModuleHooks& operator=(ScopedModuleHooks&&) = delete;

 private:
  const torch::nn::Module* module_;
};

/// While it lives, a Sequential calls those of its elements that have hooks or an observer through `call`. Such an
/// element must accept and return one tensor. Has no effect on other modules.
class ScopedSequentialHooks {
 public:
  explicit ScopedSequentialHooks(std::shared_ptr<torch::nn::Module> module);
  ~ScopedSequentialHooks();
  ScopedSequentialHooks(ScopedSequentialHooks&&) noexcept;
  ScopedSequentialHooks& operator=(ScopedSequentialHooks&&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

namespace detail {

/// A hook that add_hook_to_module has attached.
struct AttachedHook {
  std::shared_ptr<ModelHook> hook = {};
  std::weak_ptr<const torch::nn::Module> module = {};
  std::thread::id thread = std::this_thread::get_id();  ///< the only one that destroys the hook
  std::int64_t num_calls = 0;
  bool was_reported = false;  ///< as one that did not run
};

/// What surrounds the calls of a module; null members if there is nothing.
struct Surroundings {
  std::shared_ptr<ModuleHooks> hooks = {};
  std::shared_ptr<ModuleObserver> observer = {};
  std::shared_ptr<AttachedHook> attached = {};
  bool may_be_inside = false;  ///< modules inside may have an attached hook
  [[nodiscard]] bool empty() const { return !hooks && !observer && !attached; }
};
Surroundings surroundings_of(const torch::nn::Module& module);
std::shared_ptr<ModuleHooks> hooks_of(const torch::nn::Module& module);

/// Runs `forward` without keeping activations, and again in backward. Gradients flow to `inputs` only.
std::vector<at::Tensor> checkpoint(std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward,
                                   std::vector<at::Tensor> inputs);

template <typename Module>
Module& module_of(Module* module) {
  return *module;
}
template <typename Module>
Module& module_of(const std::shared_ptr<Module>& module) {
  return *module;
}
template <typename Contained>
Contained& module_of(const torch::nn::ModuleHolder<Contained>& holder) {
  return *holder.ptr();
}
template <typename Module>
  requires requires(Module& module) { module.named_parameters(); }
Module& module_of(Module& module) {
  return module;
}

/// While it lives, a Sequential inside `module`, or the module itself, calls its elements with attached hooks through
/// `call`.
class InnerHooks {
 public:
  explicit InnerHooks(torch::nn::Module& module);
  ~InnerHooks();
  InnerHooks(const InnerHooks&) = delete;
  InnerHooks& operator=(const InnerHooks&) = delete;
  /// Called after a complete forward. Warns of attached hooks inside the module that did not run.
  void finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null if no module inside has a hook
};

/// A module's forward with its attached hook, if it has one, and those of the modules inside.
template <typename Forward>
struct HookedForward {
  torch::nn::Module& module;
  std::shared_ptr<AttachedHook> attached;
  Forward forward;

  template <typename... Args>
  auto operator()(Args&&... args) {
    const InnerHooks inner(module);
    auto output = attached ? with_hook(*attached, std::forward<Args>(args)...) : forward(std::forward<Args>(args)...);
    inner.finish();
    return output;
  }

 private:
  // Arguments are copied, so that a hook changes those of this call and not the caller's variables.
  template <typename... Args>
  auto with_hook(AttachedHook& own, Args&&... args) {
    std::tuple<std::decay_t<Args>...> values{std::forward<Args>(args)...};
    ++own.num_calls;
    auto arguments = std::apply([](auto&... each) { return CallValues::of(each...); }, values);
    own.hook->pre_forward(module, arguments);
    auto output = [&] {
      const c10::AutoGradMode grad(c10::GradMode::is_enabled() && !own.hook->no_grad());
      return std::apply([&](auto&... each) { return forward(std::move(each)...); }, values);
    }();
    auto result = CallValues::of(output);
    own.hook->post_forward(module, result);
    return output;
  }
};
template <typename Forward>
HookedForward(torch::nn::Module&, std::shared_ptr<AttachedHook>, Forward) -> HookedForward<Forward>;

template <typename Arg>
auto on_device(Arg&& arg, c10::Device device) {
  if constexpr (Tree<std::remove_cvref_t<Arg>>) {
    return map_tensors(arg, [device](const at::Tensor& tensor) { return tensor.to(device); });
  } else {
    return std::remove_cvref_t<Arg>(std::forward<Arg>(arg));
  }
}

template <typename Forward, typename... Args>
auto forward_of(ModuleHooks& surround, Forward& forward, Args&&... args) {
  try {
    if (const auto device = surround.input_device()) return forward(on_device(std::forward<Args>(args), *device)...);
    return forward(std::forward<Args>(args)...);
  } catch (...) {
    surround.forward_failed();
    throw;
  }
}

// `forward` is copied, because backward may call it again after this call has returned.
template <typename Forward, typename... Args>
auto call_with_hooks(ModuleHooks& surround, Forward forward, Args&&... args) {
  using Output = std::remove_cvref_t<decltype(forward(std::forward<Args>(args)...))>;
  static_assert(Tree<Output>, "accel::call: the module's output must be a tree of tensors");
  surround.before_forward();
  std::optional<Output> output;
  std::vector<at::Tensor> tensors;
  if constexpr ((Tree<std::remove_cvref_t<Args>> && ...)) {
    if (surround.recomputes()) {
      auto inputs = std::make_tuple(std::remove_cvref_t<Args>(args)...);
      auto input_tensors = tensors_of(inputs);
      tensors = checkpoint(
          [forward, inputs = std::move(inputs), first = &output](const std::vector<at::Tensor>& given) mutable {
            auto own = inputs;
            replace_tensors(own, given);
            auto result = std::apply(forward, own);
            auto result_tensors = tensors_of(result);
            if (first != nullptr) std::exchange(first, nullptr)->emplace(std::move(result));
            return result_tensors;
          },
          std::move(input_tensors));
    }
  }
  if (!output) {
    output.emplace(forward_of(surround, forward, std::forward<Args>(args)...));
    tensors = tensors_of(*output);
  }
  surround.after_forward(tensors);
  replace_tensors(*output, tensors);
  return *std::move(output);
}

template <typename Forward, typename... Args>
auto call_surrounded(const Surroundings& surroundings, HookedForward<Forward> forward, Args&&... args) {
  if (surroundings.observer) surroundings.observer->before_forward(tensors_among(args...), placements_among(args...));
  const auto run = [&] {
    return surroundings.hooks ? call_with_hooks(*surroundings.hooks, forward, std::forward<Args>(args)...)
                              : forward(std::forward<Args>(args)...);
  };
  auto output = run();
  if constexpr (Tree<decltype(output)>) {
    if (surroundings.observer) surroundings.observer->after_forward(tensors_of(output), placements_among(output));
  }
  return output;
}

/// Calls the module's forward with attached hooks only: for handles that surround the module themselves.
template <typename Module, typename... Args>
auto forward_with_hook(Module& module, Args&&... args) {
  const auto forward = [&module](auto&&... given) { return module.forward(std::forward<decltype(given)>(given)...); };
  const auto surroundings = surroundings_of(module);
  if (!surroundings.attached && !surroundings.may_be_inside) return forward(std::forward<Args>(args)...);
  return HookedForward{module, surroundings.attached, forward}(std::forward<Args>(args)...);
}

}  // namespace detail

/// Calls `module.forward(args...)` with its hooks. `module`: a reference, pointer, shared_ptr or ModuleHolder.
template <typename Module, typename... Args>
  requires(!std::same_as<std::remove_cvref_t<Module>, torch::nn::AnyModule>)
auto call(Module&& module, Args&&... args) {
  auto& callee = detail::module_of(module);
  const auto forward = [&callee](auto&&... given) { return callee.forward(std::forward<decltype(given)>(given)...); };
  const auto surroundings = detail::surroundings_of(callee);
  if (surroundings.empty() && !surroundings.may_be_inside) return forward(std::forward<Args>(args)...);
  return detail::call_surrounded(surroundings, detail::HookedForward{callee, surroundings.attached, forward},
                                 std::forward<Args>(args)...);
}

/// The same for a type-erased module with one tensor as input and output.
at::Tensor call(torch::nn::AnyModule& module, const at::Tensor& values);

}  // namespace accel
