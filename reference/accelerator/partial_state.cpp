#include "reference/accelerator/partial_state.hpp"

#include <exception>

namespace accel {

PartialState::MainFirst::MainFirst(const Group& world, bool is_main, std::source_location where)
    : world_(world), is_main_(is_main), where_(where), uncaught_(std::uncaught_exceptions()) {
  if (!is_main_) world_.barrier(where_);
}

PartialState::MainFirst::~MainFirst() noexcept(false) {
  // While an exception unwinds the scope, the main process must not wait for the others. They leave their barrier with
  // the group's error when this rank ends. The count, unlike uncaught_exceptions() > 0, is right inside destructors
  // too.
  if (is_main_ && std::uncaught_exceptions() == uncaught_) world_.barrier(where_);
}

// A single process without a launcher has the backend "none" and counts as kNo; one rank started by a launcher counts
// as distributed, as in Python.
DistributedType PartialState::distributed_type() const {
  if (context_->backend == "none") return DistributedType::kNo;
  return context_->device.is_cpu() ? DistributedType::kMultiCpu : DistributedType::kMultiGpu;
}

}  // namespace accel
