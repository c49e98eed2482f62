#pragma once

#include <functional>

namespace accel {

/// Runs `train` as this process's rank and returns the process's exit code.
///
///     int train(int argc, char** argv) { accel::Accelerator accelerator; ...; return 0; }
///     int main(int argc, char** argv) { return accel::run(argc, argv, train); }
///
/// The rank is read from the environment: torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
/// MASTER_PORT), or those of mpirun or SLURM. Ranks use NCCL if the build supports CUDA and the machine has a GPU, else
/// Gloo. Without these variables the process trains alone, on a GPU if there is one and ACCELERATE_USE_CPU permits it.
/// Returns the result of `train`, 1 if it throws, or 2 for a ConfigError, with the message on standard error.
///
/// Under `sim-run --ranks N -- ./train`, which sets the variable ACCEL_SIM, `train` runs on N threads of this process,
/// one per simulated rank, so it must not modify global state. There a result other than 0 is a failure of the rank,
/// and the exit code is that of sim-run: 3 for a diagnosed hang or desync.
int run(int argc, char** argv, const std::function<int(int argc, char** argv)>& train);

}  // namespace accel
