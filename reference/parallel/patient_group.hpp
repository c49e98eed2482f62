#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "reference/comm/group.hpp"

namespace accel {

/// The group for tensors on `device`, whose all-reduces are waited for before they are returned while `*is_patient`.
///
/// The first backward pass of a static graph ends with c10d's delay_all_reduce, which calls all-reduces and then waits
/// for their futures: a simulated rank that blocks there is not seen by its engine, and nobody else is let run. Thread
/// rule: as the group.
Group patient_group(const Group& group, c10::Device device, std::shared_ptr<const bool> is_patient);

}  // namespace accel
