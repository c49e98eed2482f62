#pragma once

#include <memory>

#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/memory_scope.hpp"

namespace accel::sharded {

/// While it lives, memory of tensors on the CPU that its thread takes, and that the account has under no other kind, is
/// activations.
///
///     {
///       const ActivationMeter meter(account);
///       loss = model(inputs).mean();
///     }
///     account.most(MemoryKind::kActivations);
///
/// One meter for each thread at a time; what it does to LibTorch's allocator: memory_scope.hpp. Scratch memory of
/// kernels that this allocator does not see is not counted. Thread rule: the rank's thread; tensors may be freed
/// anywhere.
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
