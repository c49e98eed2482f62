#pragma once

namespace accel::programs {

/// `sim-run explore --schedules N [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: many schedules of one program, and
/// the first that fails, or computes something else, made small. Returns the exit code: 0 if none was found.
int explore_main(int argc, char** argv);

/// `sim-run plan`: answers requests of a file, or one made of flags. `argv[0]` is "plan". Returns the exit code; throws
/// ConfigError for wrong usage.
int plan_main(int argc, char** argv);

}  // namespace accel::programs
