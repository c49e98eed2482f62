#pragma once

#include <functional>

namespace accel {

/// Runs `train` as this process's rank and returns the process's exit code.
///
///     int train(int argc, char** argv) { accel::Accelerator accelerator; ...; return 0; }
///     int main(int argc, char** argv) { return accel::run(argc, argv, train); }
///
/// The rank comes from the environment: torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT),
/// or those of mpirun or SLURM, over NCCL where the build has CUDA and a GPU is there, else Gloo; without any of them,
/// one process alone, on a GPU if there is one and ACCELERATE_USE_CPU does not forbid it. Returns what `train` returns;
/// 1 if it throws, 2 for a ConfigError, with the message on standard error.
///
/// Under `sim-run --ranks N -- ./train` the rank comes from the variable ACCEL_SIM: `train` runs on N threads of this
/// process at once, each a simulated rank, so what it changes must not be global. There a rank that returns another
/// number than 0 has failed, and the exit code is sim-run's: 3 for a diagnosed hang or desync.
int run(int argc, char** argv, const std::function<int(int argc, char** argv)>& train);

}  // namespace accel
