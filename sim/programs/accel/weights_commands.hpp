#pragma once

namespace accel::programs {

/// `accel merge-weights`, `accel estimate-memory`. `argv[0]` is the command. Return the exit code; throw ConfigError
/// for wrong usage.
int merge_weights_main(int argc, char** argv);
int estimate_memory_main(int argc, char** argv);

}  // namespace accel::programs
