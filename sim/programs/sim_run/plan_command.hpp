#pragma once

namespace accel::programs {

/// `sim-run plan`: answers requests of a file, or one made of flags. `argv[0]` is "plan". Returns the exit code; throws
/// ConfigError for wrong usage.
int plan_main(int argc, char** argv);

}  // namespace accel::programs
