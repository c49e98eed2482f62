#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <string_view>

#include "sim/engine/world.hpp"

namespace accel::sim {

/// Virtual seconds of one operator, e.g. "aten::addmm", that computes so many floating-point operations and touches so
/// many bytes of its inputs.
using OperatorSeconds = std::function<double(std::string_view name, double flops, double bytes)>;

/// Charges a rank for the operators of LibTorch that its thread calls, by a table: the same program takes the same
/// virtual time, on every machine. Of operators that call others, those with floating-point operations of their own
/// (matrix products, convolutions) are charged as a whole, of the rest the innermost.
///
/// Thread rule: made and destroyed by the rank's thread. Does nothing without a table.
class OperatorClock {
 public:
  OperatorClock(World& world, int rank, OperatorSeconds seconds);
  ~OperatorClock();
  OperatorClock(const OperatorClock&) = delete;
  OperatorClock& operator=(const OperatorClock&) = delete;

 private:
  struct Frame;
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);

  World& world_;
  int rank_;
  OperatorSeconds seconds_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  Frame* innermost_ = nullptr;
};

/// Floating-point operations of an operator, 0 where they are not what it costs.
double flops_of(const at::RecordFunction& function);

}  // namespace accel::sim
