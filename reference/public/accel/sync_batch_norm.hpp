#pragma once

/// accel::SyncBatchNorm and accel::convert_sync_batchnorm. Apart from <accel/accel.hpp>, as a torch::nn module needs
/// LibTorch's large headers.
#include "reference/parallel/sync_batch_norm.hpp"
