#pragma once

#include <memory>

#include "reference/modules/call.hpp"
#include "reference/modules/model_hook.hpp"

/// Attaches hooks to modules.
///
///     accel::add_hook_to_module(*net, std::make_shared<HalfInputs>());
///     auto output = accel::call(net, batch);
///     accel::remove_hook_from_module(*net);
///
/// LibTorch's modules have no hooks, so a hook runs only if its module is called
///
/// | as | |
/// |---|---|
/// | `accel::call(module, ...)` | anywhere in the program |
/// | an element of a Sequential (one tensor in and out) | if the Sequential or a module around it is called so |
/// | the model | through the handle that `prepare`, `dispatch_model` or `cpu_offload_with_hook` returned |
///
/// `module->forward(...)` and `(*module)(...)` run no hook. If the hook of a module inside the called one did not run,
/// a warning names the module, once per hook.
///
/// Hooks run innermost: after sharding or offloading has completed the module's parameters, on inputs that have been
/// moved to its device, and again when activations are recomputed. A captured step runs them only while it is recorded.
/// The module keeps its hook. After the module is gone, the hook is destroyed when its thread next calls one of these
/// functions. Thread rule: the rank's thread. Source: accelerate/hooks.py.
namespace accel {

struct AddHookOptions {
  bool append = false;  ///< combines an existing hook and this one in a SequentialHook
};
/// Attaches `hook` to a module that a ModuleHolder or a shared_ptr owns. Without `append` it replaces an existing hook,
/// whose `detach_hook` is not called. With `append` the existing hook is detached and both are initialized. Throws
/// ArgumentError for a null hook and for a module on the stack.
void add_hook_to_module(torch::nn::Module& module, std::shared_ptr<ModelHook> hook, AddHookOptions options = {false});

struct RemoveHookOptions {
  bool recurse = false;  ///< also from all modules inside
};
/// Detaches the module's hook, if it has one.
void remove_hook_from_module(torch::nn::Module& module, RemoveHookOptions options = {false});

}  // namespace accel
