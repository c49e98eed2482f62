#pragma once

#include <memory>

#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/memory_scope.hpp"

namespace accel::sharded {

/// While it lives, counts CPU tensor memory that its thread allocates as activations, unless the account lists it under
/// another kind.
///
///     {
///       const ActivationMeter meter(account);
///       loss = model(inputs).mean();
///     }
///     account.most(MemoryKind::kActivations);
///
/// At most one meter per thread at a time. See memory_scope.hpp for its effect on LibTorch's allocator. Scratch memory
/// of kernels that bypass this allocator is not counted. Thread rule: the rank's thread; tensors may be freed on any
/// thread.
class ActivationMeter {
 public:
  explicit ActivationMeter(MemoryAccount& account);
  ~ActivationMeter();
  ActivationMeter(const ActivationMeter&) = delete;
  ActivationMeter& operator=(const ActivationMeter&) = delete;

  class Taken;

 private:
  std::shared_ptr<Taken> taken_;
  MemoryScope scope_;
};

}  // namespace accel::sharded
