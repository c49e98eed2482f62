#pragma once

namespace accel::programs {

/// `accel test`: starts `accel test --inner` as `accel launch` would start a program, with the same flags and files,
/// and says whether all is well. `accel test --inner` is one rank of it, under any launcher's variables. `argv[0]` is
/// the command. Returns the exit code; throws ConfigError for wrong usage.
int test_main(int argc, char** argv);

/// One rank of the self test: what a training relies on, each on all ranks together; the main process tells what
/// failed, and where. Returns 0, or 1 if anything failed on any rank. Source:
/// accelerate/test_utils/scripts/test_script.py.
int run_self_test(int argc, char** argv);

}  // namespace accel::programs
