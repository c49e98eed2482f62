#include "reference/accelerator/process_control.hpp"

#include <ATen/ops/full.h>

#include <exception>

namespace accel {

ProcessControl::MainFirst::MainFirst(const Group& world, bool is_main, std::source_location where)
    : world_(world), is_main_(is_main), where_(where), uncaught_(std::uncaught_exceptions()) {
  if (!is_main_) world_.barrier(where_);
}

ProcessControl::MainFirst::~MainFirst() noexcept(false) {
  // While an exception unwinds the scope, the main process must not wait for the others. They leave their barrier with
  // the group's error when this rank ends. The count, unlike uncaught_exceptions() > 0, is right inside destructors
  // too.
  if (is_main_ && std::uncaught_exceptions() == uncaught_) world_.barrier(where_);
}

bool ProcessControl::check_trigger(std::source_location where) {
  // A sum, not a maximum, as in accelerate/accelerator.py, check_trigger.
  auto flag = at::full({}, trigger_ ? 1 : 0, at::kLong);
  context_->world.all_reduce(flag, ReduceOp::kSum, where).wait();
  const bool is_set = flag.item<std::int64_t>() >= 1;
  if (is_set) trigger_ = false;
  return is_set;
}

}  // namespace accel
