#pragma once

namespace accel::programs {

/// The text of configs/sim/networks/ethernet_25g.yaml, which Python's package lacks.
extern const char* const kEthernet25g;

}  // namespace accel::programs
