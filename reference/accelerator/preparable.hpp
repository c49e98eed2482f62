#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include "reference/accelerator/deepspeed_objects.hpp"
#include "reference/core/borrowed.hpp"
#include "reference/core/never.hpp"
#include "reference/data/dataset.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

/// Concepts that classify the arguments of Accelerator::prepare by type. `T` is a type without references.
///
/// LibTorch's loaders and datasets are recognized by their members, since including their headers is slow to compile.
namespace accel::detail {

template <typename T>
concept OptimizerObject = std::derived_from<T, torch::optim::Optimizer>;
template <typename T>
concept SchedulerObject = std::derived_from<T, LRScheduler>;
template <typename T>
concept ModuleObject = std::derived_from<T, torch::nn::Module>;
template <typename T>
concept ModuleHolderObject = requires(T& object) {
  typename T::ContainedType;
  object.ptr();
};
template <typename T>
concept LibTorchScheduler =
    std::derived_from<T, torch::optim::LRScheduler> || std::derived_from<T, torch::optim::ReduceLROnPlateauScheduler>;
/// StatelessDataLoader, StatefulDataLoader.
template <typename T>
concept LibTorchLoader = requires(T& object) {
  object.begin();
  object.end();
  object.join();
  object.options();
};
template <typename T>
concept DatasetObject = MapDataset<T> || StreamDataset<T>;
/// A DataLoader of this library, which is also a range of batches.
template <typename T>
concept LoaderObject = requires(T& object) {
  object.dataset();
  object.options();
};

/// std::shared_ptr or std::unique_ptr.
template <typename T>
concept SmartPointer = requires {
  typename T::element_type;
} && (std::same_as<T, std::shared_ptr<typename T::element_type>> || requires { typename T::deleter_type; });
template <typename T>
concept OptimizerPointer = SmartPointer<T> && OptimizerObject<typename T::element_type>;
template <typename T>
concept SchedulerPointer = SmartPointer<T> && SchedulerObject<typename T::element_type>;
template <typename T>
concept ModulePointer = SmartPointer<T> && ModuleObject<typename T::element_type>;
template <typename T>
concept LibTorchSchedulerPointer = SmartPointer<T> && LibTorchScheduler<typename T::element_type>;
template <typename T>
concept LibTorchLoaderPointer = SmartPointer<T> && LibTorchLoader<typename T::element_type>;

template <typename T>
concept PlainPointer =
    std::is_pointer_v<T> && (OptimizerObject<std::remove_pointer_t<T>> || SchedulerObject<std::remove_pointer_t<T>> ||
                             ModuleObject<std::remove_pointer_t<T>>);
/// torch::nn::AnyModule.
template <typename T>
concept AnyModuleObject = !ModuleHolderObject<T> && requires(const T& object) {
  object.ptr();
  object.type_info();
  object.is_empty();
};

/// torch::jit::Module, recognized by its members.
template <typename T>
concept ScriptModule = requires(const T& object) {
  object.get_methods();
  object.hasattr("");
};

/// True, or for a type that `prepare` rejects false, after a compile error that says what to pass instead.
template <typename T, bool kIsTemporary>
constexpr bool check_preparable() {
  if constexpr (SchedulerObject<T> && kIsTemporary) {
    static_assert(kNever<T>,
                  "prepare: a temporary schedule is destroyed at the end of this statement; give it a name: "
                  "accel::StepLR step_lr(...); prepare(..., step_lr)");
    return false;
  } else if constexpr (LibTorchScheduler<T> || LibTorchSchedulerPointer<T>) {
    static_assert(kNever<T>,
                  "prepare: LibTorch's schedules are unsupported, since they also advance when the optimizer skips a "
                  "step; use accel::StepLR, accel::ReduceLROnPlateau or another schedule of accel");
    return false;
  } else if constexpr (PlainPointer<T>) {
    static_assert(kNever<T>,
                  "prepare: plain pointers are unsupported; pass the object itself (*pointer) or a shared_ptr");
    return false;
  } else if constexpr (AnyModuleObject<T>) {
    static_assert(kNever<T>,
                  "prepare: torch::nn::AnyModule is unsupported, since the type of its forward is unknown; pass the "
                  "module that it holds");
    return false;
  } else if constexpr (ScriptModule<T>) {
    static_assert(
        kNever<T>,
        "prepare: TorchScript modules are unsupported, since their forward is interpreted and their parameters "
        "are no torch::nn::Module's; port the module to torch::nn::Module, and load its weights");
    return false;
  } else if constexpr (ModuleObject<T> && kIsTemporary) {
    static_assert(kNever<T>,
                  "prepare: a temporary module is destroyed at the end of this statement; give it a name, or use "
                  "std::make_shared<Net>(...)");
    return false;
  } else if constexpr (ModulePointer<T> && !std::is_copy_constructible_v<T>) {
    static_assert(kNever<T>,
                  "prepare: a unique_ptr of a module is unsupported, since LibTorch shares modules; use "
                  "std::make_shared<Net>(...)");
    return false;
  } else if constexpr (LibTorchLoader<T> || LibTorchLoaderPointer<T>) {
    static_assert(kNever<T>,
                  "prepare: a torch::data loader is unsupported; create accel::DataLoader "
                  "loader(accel::from_torch(dataset), {.batch_size = n}), or wrap the loader by "
                  "accel::from_torch_loader");
    return false;
  } else if constexpr (LibTorchDataset<T>) {
    static_assert(kNever<T>,
                  "prepare: a torch::data dataset is unsupported; create accel::DataLoader "
                  "loader(accel::from_torch(dataset), {.batch_size = n}) and prepare that");
    return false;
  } else if constexpr (DatasetObject<T> && !LoaderObject<T>) {
    static_assert(kNever<T>,
                  "prepare: a dataset is unsupported; create accel::DataLoader loader(dataset, {.batch_size = n}) and "
                  "prepare that");
    return false;
  } else {
    return true;
  }
}

/// Returns a shared_ptr to a module that may be on the stack. LibTorch's functions call shared_from_this on a module,
/// so a module that no shared_ptr owns gets one that owns nothing.
template <typename Module>
std::shared_ptr<Module> shared_module(Module& module) {
  if (auto owner = module.weak_from_this().lock()) return {std::move(owner), &module};
  return {&module, OwnsNothing()};
}

}  // namespace accel::detail
