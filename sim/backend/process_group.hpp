#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "sim/backend/sim_backend.hpp"

namespace accel::sim {

/// A process group whose only backend is a SimBackend. `ranks` are world ranks in order; the member's is one of them.
/// Thread rule: the member's thread.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks);

}  // namespace accel::sim
