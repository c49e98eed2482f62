#pragma once

namespace accel::programs {

/// `accel config`: asks for a configuration and writes it; with any key as a flag it asks nothing. `accel config
/// default` and `accel config update` as Accelerate's.
int config_main(int argc, char** argv);

/// `accel to-fsdp2`: a configuration of FSDP version 1 as one of version 2.
int to_fsdp2_main(int argc, char** argv);

}  // namespace accel::programs
