#pragma once

/// accel::SyncBatchNorm and accel::convert_sync_batchnorm. Not part of <accel/accel.hpp>, because a torch::nn module
/// needs LibTorch's large headers.
#include "reference/parallel/sync_batch_norm.hpp"
