#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "reference/sharded/memory_account.hpp"

namespace accel::sharded {

/// While it lives, counts tensor memory that its thread allocates on the CPU or on a device as activations, unless the
/// account lists it under another kind.
///
///     {
///       const ActivationMeter meter(account, device);
///       accelerator.backward(model(inputs).mean());
///     }
///     account.most(MemoryKind::kActivations);
///
/// At most one meter per thread at a time. See memory_scope.hpp for its effect on LibTorch's allocator of CPU memory.
/// Scratch memory of kernels that bypass the allocators is not counted. On a device, memory that is freed after the
/// meter's scope still counts until the next meter, and no profiler can record in the scope: constructing a meter while
/// one does throws StateError, and LibTorch refuses to start one.
/// Thread rule: the rank's thread; tensors may be freed on any thread.
class ActivationMeter {
 public:
  ActivationMeter(MemoryAccount& account, c10::Device device);
  ~ActivationMeter();
  ActivationMeter(const ActivationMeter&) = delete;
  ActivationMeter& operator=(const ActivationMeter&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accel::sharded
