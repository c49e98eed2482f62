#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/tree/tree.hpp"

namespace torch::nn {
class Module;
}

/// What runs before and after the forward of one module. See reference/modules/hooks.hpp, which attaches it.
///
///     struct HalfInputs : accel::ModelHook {
///       void pre_forward(torch::nn::Module&, accel::CallValues& arguments) override {
///         arguments.map_tensors([](const at::Tensor& tensor) { return tensor.to(at::kHalf); });
///       }
///     };
///
/// Thread rule: the rank's thread. Source: accelerate/hooks.py.
namespace accel {

/// The arguments of one call, or its output, which is one value. A hook may replace any tensor, number or other value,
/// also by one of another shape, dtype or device. It cannot change the number of values or their C++ types.
///
/// Changes reach the module and the caller of the module, but not the variables that were passed as arguments. Valid
/// during the hook's function.
class CallValues {
 public:
  template <typename... Values>
  static CallValues of(Values&... values) {
    CallValues result;
    (result.add(values), ...);
    return result;
  }

  [[nodiscard]] std::size_t size() const { return places_.size(); }
  /// Returns a value, for example `arguments.get<std::map<std::string, at::Tensor>>(0)["mask"]`. T is its type without
  /// const and reference. Throws ArgumentError if there is no such value or it has another type.
  template <typename T>
  [[nodiscard]] T& get(std::size_t index) const {
    check_type(index, typeid(T));
    return *static_cast<T*>(places_[index].value);
  }
  /// Replaces every tensor of every value that is a tree (core/tree.hpp) by `map(tensor)`. Tensors may be undefined.
  void map_tensors(const std::function<at::Tensor(const at::Tensor&)>& map) const;
  /// The tensors of all values, in the order of `for_each_leaf`.
  [[nodiscard]] std::vector<at::Tensor> tensors() const;

 private:
  using Visit = std::function<void(at::Tensor&)>;
  struct Place {
    void* value;
    const std::type_info* type;
    void (*visit_tensors)(void* value, const Visit& visit);
  };

  template <typename T>
  void add(T& value) {
    places_.push_back({&value, &typeid(T), [](void* place, const Visit& visit) {
                         if constexpr (Tree<T>) for_each_tensor(*static_cast<T*>(place), visit);
                       }});
  }
  void check_type(std::size_t index, const std::type_info& type) const;

  std::vector<Place> places_;
};

/// Base class of hooks. One hook may be attached to several modules, all of the same rank.
class ModelHook {
 public:
  virtual ~ModelHook() = default;
  /// Whether the module's forward runs without gradients. The functions of hooks run in the mode of the caller.
  [[nodiscard]] virtual bool no_grad() const { return false; }
  /// Called when the hook is attached to `module`.
  virtual void init_hook(torch::nn::Module& /*module*/) {}
  /// Called before the forward. May change the arguments.
  virtual void pre_forward(torch::nn::Module& /*module*/, CallValues& /*arguments*/) {}
  /// Called after the forward, unless it threw. May change the output.
  virtual void post_forward(torch::nn::Module& /*module*/, CallValues& /*output*/) {}
  /// Called before the hook is removed from `module`; not called when another hook replaces it.
  virtual void detach_hook(torch::nn::Module& /*module*/) {}
};

/// Calls several hooks in their order, `post_forward` included. Runs the forward without gradients if one of them does.
class SequentialHook : public ModelHook {
 public:
  explicit SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks);
  [[nodiscard]] bool no_grad() const override;
  void init_hook(torch::nn::Module& module) override;
  void pre_forward(torch::nn::Module& module, CallValues& arguments) override;
  void post_forward(torch::nn::Module& module, CallValues& output) override;
  void detach_hook(torch::nn::Module& module) override;

 private:
  std::vector<std::shared_ptr<ModelHook>> hooks_;
};

}  // namespace accel
