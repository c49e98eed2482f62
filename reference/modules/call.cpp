#include "reference/modules/call.hpp"

#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "reference/core/borrowed.hpp"
#include "reference/core/errors.hpp"
#include "reference/modules/hooks.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// Which modules have hooks or an observer, over all ranks of the process. A registry instead of a member: LibTorch's
// Module has no place for one, and modules of the program derive from it directly.
class Registry {
  using Entries = std::unordered_map<const torch::nn::Module*, detail::Surroundings>;

 public:
  void add(const torch::nn::Module* module, std::shared_ptr<ModuleHooks> hooks) {
    const std::unique_lock lock(mutex_);
    auto& own = entry_of(module).hooks;
    // Two sets of hooks, say of sharding and of offloading, would both replace the module's parameters.
    check_state(!own, "prepare: a module is part of two prepared models; prepare each module once");
    own = std::move(hooks);
  }
  void add(const torch::nn::Module* module, std::shared_ptr<ModuleObserver> observer) {
    const std::unique_lock lock(mutex_);
    auto& own = entry_of(module).observer;
    check_state(!own, "ScopedModuleObserver: the module already has an observer; expected at most one");
    own = std::move(observer);
  }
  // Removes the hooks or the observer: the member of the entry to which `part` points.
  template <typename Part>
  void remove(const torch::nn::Module* module, Part part) {
    const std::unique_lock lock(mutex_);
    const auto found = entries_.find(module);
    if (found == entries_.end()) return;
    (found->second.*part).reset();
    erase_if_empty(found);
  }
  // Replaces the attached hook; null removes it. Also removes those of this thread's modules that are gone. Returns
  // what was removed, which the caller destroys without the lock: destructors of hooks are code of the program.
  std::vector<std::shared_ptr<detail::AttachedHook>> attach(const torch::nn::Module* module,
                                                            std::shared_ptr<detail::AttachedHook> attached) {
    const std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<detail::AttachedHook>> removed;
    entry_of(module).attached.swap(attached);
    removed.push_back(std::move(attached));
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      auto& own = entry->second.attached;
      if (own && own->module.expired() && own->thread == std::this_thread::get_id()) removed.push_back(std::move(own));
      entry = erase_if_empty(entry);
    }
    num_attached_ = static_cast<int>(std::count_if(entries_.begin(), entries_.end(),
                                                   [](const auto& entry) { return entry.second.attached != nullptr; }));
    return removed;
  }
  detail::Surroundings find(const torch::nn::Module* module) {
    // Programs without hooks pay one atomic load per call. Registration happens before the rank's thread calls the
    // module, so no stale 0 can hide its own hooks.
    if (size_ == 0) return {};
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(module);
    auto result = found == entries_.end() ? detail::Surroundings() : found->second;
    // Another module may have the address of one that is gone.
    if (result.attached && result.attached->module.expired()) result.attached.reset();
    result.may_be_inside = num_attached_ > 0;
    return result;
  }
  [[nodiscard]] bool has_attached() const { return num_attached_ > 0; }

 private:
  // Under the lock.
  detail::Surroundings& entry_of(const torch::nn::Module* module) {
    const auto [entry, is_new] = entries_.try_emplace(module);
    if (is_new) ++size_;
    return entry->second;
  }
  Entries::iterator erase_if_empty(Entries::iterator entry) {
    if (!entry->second.empty()) return std::next(entry);
    --size_;
    return entries_.erase(entry);
  }

  std::atomic<int> size_ = 0, num_attached_ = 0;
  std::shared_mutex mutex_;
  Entries entries_;
};

Registry& registry() {
  // Process-wide although ranks share the process: keys are module addresses, and each rank has its own modules.
  // Never destroyed: hooks of threads that have ended may hold tensors, which must not outlive LibTorch.
  static auto& the = *new Registry;
  return the;
}

// Replaces an element of a Sequential, so that the Sequential's own forward goes through `call`.
class HookedElementImpl : public torch::nn::Module {
 public:
  explicit HookedElementImpl(torch::nn::AnyModule part) : part_(std::move(part)) {}
  at::Tensor forward(at::Tensor values) { return call(part_, values); }

 private:
  torch::nn::AnyModule part_;
};

}  // namespace

ScopedModuleHooks::ScopedModuleHooks(const torch::nn::Module& module, std::shared_ptr<ModuleHooks> surround)
    : module_(&module) {
  registry().add(&module, std::move(surround));
}

ScopedModuleHooks::~ScopedModuleHooks() {
  if (module_ != nullptr) registry().remove(module_, &detail::Surroundings::hooks);
}

ScopedModuleObserver::ScopedModuleObserver(const torch::nn::Module& module, std::shared_ptr<ModuleObserver> observer)
    : module_(&module) {
  registry().add(&module, std::move(observer));
}

ScopedModuleObserver::~ScopedModuleObserver() {
  if (module_ != nullptr) registry().remove(module_, &detail::Surroundings::observer);
}

struct ScopedSequentialHooks::State {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::pair<std::size_t, torch::nn::AnyModule>> parts;  // the original elements
};

ScopedSequentialHooks::ScopedSequentialHooks(std::shared_ptr<torch::nn::Module> module)
    : state_(std::make_unique<State>(State{std::move(module), {}})) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(state_->module.get());
  if (sequential == nullptr) return;
  for (std::size_t index = 0; index < sequential->size(); ++index) {
    auto& part = *(sequential->begin() + static_cast<std::ptrdiff_t>(index));
    // Other elements stay. Therefore hooks and observers must be registered before this object is constructed.
    if (registry().find(part.ptr().get()).empty()) continue;
    state_->parts.emplace_back(index, part);
    part = torch::nn::AnyModule(std::make_shared<HookedElementImpl>(part));
  }
}

ScopedSequentialHooks::~ScopedSequentialHooks() {
  // Restores the original elements; a moved-from object has none.
  if (!state_ || state_->parts.empty()) return;
  auto& sequential = dynamic_cast<torch::nn::SequentialImpl&>(*state_->module);
  for (auto& [index, part] : state_->parts)
    *(sequential.begin() + static_cast<std::ptrdiff_t>(index)) = std::move(part);
}

ScopedSequentialHooks::ScopedSequentialHooks(ScopedSequentialHooks&&) noexcept = default;

at::Tensor call(torch::nn::AnyModule& module, const at::Tensor& values) {
  const auto surroundings = registry().find(module.ptr().get());
  // AnyModule is copied below only if it is needed: the copy shares the module, but allocates its wrapper.
  if (surroundings.empty() && !surroundings.may_be_inside) return module.forward<at::Tensor>(values);
  auto forward = [module](const at::Tensor& given) mutable { return module.forward<at::Tensor>(given); };
  return detail::call_surrounded(
      surroundings, detail::HookedForward{*module.ptr(), surroundings.attached, std::move(forward)}, values);
}

detail::Surroundings detail::surroundings_of(const torch::nn::Module& module) { return registry().find(&module); }

std::shared_ptr<ModuleHooks> detail::hooks_of(const torch::nn::Module& module) {
  return registry().find(&module).hooks;
}

struct detail::InnerHooks::State {
  struct Inner {
    std::string name;
    std::shared_ptr<AttachedHook> attached;
    std::int64_t num_calls;  // before the forward
  };
  std::string module = {};
  std::vector<Inner> hooked = {};
  std::vector<ScopedSequentialHooks> sequentials = {};
};

detail::InnerHooks::InnerHooks(torch::nn::Module& module) {
  if (!registry().has_attached()) return;
  State state{.module = module.name()};
  // Without the module itself, which may be on the stack.
  const auto inside = module.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (const auto& item : inside) {
    if (auto attached = registry().find(item.value().get()).attached)
      state.hooked.push_back({item.key(), attached, attached->num_calls});
  }
  if (state.hooked.empty()) return;
  state.sequentials.emplace_back(borrowed(module));
  for (const auto& item : inside) state.sequentials.emplace_back(item.value());
  state_ = std::make_unique<State>(std::move(state));
}

detail::InnerHooks::~InnerHooks() = default;

void detail::InnerHooks::finish() const {
  if (!state_) return;
  for (const auto& [name, attached, num_calls] : state_->hooked) {
    if (attached->num_calls > num_calls || std::exchange(attached->was_reported, true)) continue;
    warn_once(fmt::format(
        "the hook of '{}' did not run in a call of {}, which either skipped the module or called its forward "
        "directly; call it by accel::call(module, ...)",
        name, state_->module));
  }
}

void add_hook_to_module(torch::nn::Module& module, std::shared_ptr<ModelHook> hook, AddHookOptions options) {
  check_argument(hook != nullptr, "add_hook_to_module: the hook is null");
  check_argument(!module.weak_from_this().expired(),
                 "add_hook_to_module: {} is on the stack; create it by std::make_shared or a ModuleHolder, so that the "
                 "end of its life is known",
                 module.name());
  const auto existing = options.append ? registry().find(&module).attached : nullptr;
  if (existing) {
    remove_hook_from_module(module);
    hook = std::make_shared<SequentialHook>(std::vector{existing->hook, std::move(hook)});
  }
  hook->init_hook(module);
  detail::AttachedHook attached{.hook = std::move(hook), .module = module.weak_from_this()};
  registry().attach(&module, std::make_shared<detail::AttachedHook>(std::move(attached)));
}

void remove_hook_from_module(torch::nn::Module& module, RemoveHookOptions options) {
  if (const auto attached = registry().find(&module).attached) {
    attached->hook->detach_hook(module);
    registry().attach(&module, nullptr);
  }
  if (!options.recurse) return;
  for (const auto& child : module.children()) remove_hook_from_module(*child, options);
}

}  // namespace accel
