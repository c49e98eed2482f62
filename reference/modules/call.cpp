#include "reference/modules/call.hpp"

#include <torch/nn/modules/container/sequential.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

class Registry {
 public:
  void add(const torch::nn::Module* module, std::shared_ptr<CallSurround> surround) {
    const std::unique_lock lock(mutex_);
    check_state(surrounds_.emplace(module, std::move(surround)).second,
                "prepare: a module is part of two prepared models");
    ++size_;
  }
  void remove(const torch::nn::Module* module) {
    const std::unique_lock lock(mutex_);
    size_ -= static_cast<int>(surrounds_.erase(module));
  }
  std::shared_ptr<CallSurround> find(const torch::nn::Module* module) {
    if (size_ == 0) return nullptr;
    const std::shared_lock lock(mutex_);
    const auto found = surrounds_.find(module);
    return found == surrounds_.end() ? nullptr : found->second;
  }

 private:
  std::atomic<int> size_ = 0;
  std::shared_mutex mutex_;
  std::unordered_map<const torch::nn::Module*, std::shared_ptr<CallSurround>> surrounds_;
};

Registry& registry() {
  static Registry the;
  return the;
}

// What a part of a Sequential is replaced by.
class PartCallImpl : public torch::nn::Module {
 public:
  explicit PartCallImpl(torch::nn::AnyModule part) : part_(std::move(part)) {}
  at::Tensor forward(at::Tensor values) { return call(part_, values); }

 private:
  torch::nn::AnyModule part_;
};

}  // namespace

SurroundedCalls::SurroundedCalls(const torch::nn::Module& module, std::shared_ptr<CallSurround> surround)
    : module_(&module) {
  registry().add(&module, std::move(surround));
}

SurroundedCalls::~SurroundedCalls() {
  if (module_ != nullptr) registry().remove(module_);
}

struct SurroundedParts::State {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::pair<std::size_t, torch::nn::AnyModule>> parts;  // as they were
};

SurroundedParts::SurroundedParts(std::shared_ptr<torch::nn::Module> module)
    : state_(std::make_unique<State>(State{std::move(module), {}})) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(state_->module.get());
  if (sequential == nullptr) return;
  for (std::size_t index = 0; index < sequential->size(); ++index) {
    auto& part = *(sequential->begin() + static_cast<std::ptrdiff_t>(index));
    if (registry().find(part.ptr().get()) == nullptr) continue;
    state_->parts.emplace_back(index, part);
    part = torch::nn::AnyModule(std::make_shared<PartCallImpl>(part));
  }
}

SurroundedParts::~SurroundedParts() {
  if (!state_ || state_->parts.empty()) return;
  auto& sequential = dynamic_cast<torch::nn::SequentialImpl&>(*state_->module);
  for (auto& [index, part] : state_->parts)
    *(sequential.begin() + static_cast<std::ptrdiff_t>(index)) = std::move(part);
}

SurroundedParts::SurroundedParts(SurroundedParts&&) noexcept = default;

at::Tensor call(torch::nn::AnyModule& module, const at::Tensor& values) {
  const auto surround = registry().find(module.ptr().get());
  if (!surround) return module.forward<at::Tensor>(values);
  return detail::call_surrounded(
      *surround, [module](const at::Tensor& given) mutable { return module.forward<at::Tensor>(given); }, values);
}

std::shared_ptr<CallSurround> detail::surround_of(const torch::nn::Module& module) { return registry().find(&module); }

}  // namespace accel
