#pragma once

/// Files of checkpoints without an Accelerator: those of torch.save, weights in one file or several, and PyTorch's
/// distributed checkpoints. Accelerator::save_state and load_state are in `<accel/accel.hpp>`.
#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/files/safetensors.hpp"
