#pragma once

namespace accel::programs {

/// `accel env`: versions, machine and configuration, to be pasted into a bug report.
int env_main(int argc, char** argv);

}  // namespace accel::programs
