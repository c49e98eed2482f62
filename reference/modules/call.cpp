#include "reference/modules/call.hpp"

#include <torch/nn/modules/container/sequential.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

// Which modules have hooks or an observer, over all ranks of the process. A registry instead of a member: LibTorch's
// Module has no place for one, and modules of the program derive from it directly.
class Registry {
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
    if (!found->second) size_ -= static_cast<int>(entries_.erase(module));
  }
  detail::Surroundings find(const torch::nn::Module* module) {
    // Programs without hooks pay one atomic load per call. Registration happens before the rank's thread calls the
    // module, so no stale 0 can hide its own hooks.
    if (size_ == 0) return {};
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(module);
    return found == entries_.end() ? detail::Surroundings() : found->second;
  }

 private:
  // Under the lock.
  detail::Surroundings& entry_of(const torch::nn::Module* module) {
    const auto [entry, is_new] = entries_.try_emplace(module);
    if (is_new) ++size_;
    return entry->second;
  }

  std::atomic<int> size_ = 0;
  std::shared_mutex mutex_;
  std::unordered_map<const torch::nn::Module*, detail::Surroundings> entries_;
};

Registry& registry() {
  // Process-wide although ranks share the process: keys are module addresses, and each rank has its own modules.
  static Registry the;
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
    if (!registry().find(part.ptr().get())) continue;
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
  if (!surroundings) return module.forward<at::Tensor>(values);
  return detail::call_surrounded(
      surroundings, [module](const at::Tensor& given) mutable { return module.forward<at::Tensor>(given); }, values);
}

detail::Surroundings detail::surroundings_of(const torch::nn::Module& module) { return registry().find(&module); }

std::shared_ptr<ModuleHooks> detail::hooks_of(const torch::nn::Module& module) {
  return registry().find(&module).hooks;
}

}  // namespace accel
