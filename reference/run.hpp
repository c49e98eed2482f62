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
/// one process alone. Returns what `train` returns; 1 if it throws, 2 for a ConfigError, with the message on standard
/// error.
int run(int argc, char** argv, const std::function<int(int argc, char** argv)>& train);

}  // namespace accel
