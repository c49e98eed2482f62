#pragma once

/// Datasets and loaders of torch::data as sources of an accel::DataLoader.
#include "reference/data/from_torch.hpp"
