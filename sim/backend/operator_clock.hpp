#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "sim/ranks/rehearse_ranks.hpp"

namespace accel::sim {

/// Charges virtual time for the LibTorch operators that a rank's thread calls, by a cost table: the same program takes
/// the same virtual time on every machine. If operators call others, those with floating-point operations of
/// their own (matrix products, convolutions) are charged as one; otherwise only the innermost are charged.
/// Thread rule: create and destroy it on the rank's thread. Does nothing without a table.
class OperatorClock {
 public:
  /// `advance` is called with the seconds of each operator.
  OperatorClock(std::function<void(double seconds)> advance, OperatorSeconds seconds);
  ~OperatorClock();
  OperatorClock(const OperatorClock&) = delete;
  OperatorClock& operator=(const OperatorClock&) = delete;

 private:
  struct Frame;
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);

  std::function<void(double seconds)> advance_;
  OperatorSeconds seconds_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  Frame* innermost_ = nullptr;
};

/// Returns the floating-point operations of an operator; 0 if its cost does not depend on them.
double flops_of(const at::RecordFunction& function);

}  // namespace accel::sim
