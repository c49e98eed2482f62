#pragma once

/// The library's public face: everything that a training program includes.
#include "reference/accelerator/accelerator.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/random.hpp"
#include "reference/core/shared.hpp"
#include "reference/core/tree.hpp"
#include "reference/core/tree_rows.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/optim/fused_adam.hpp"
#include "reference/optim/lr_scheduler.hpp"
#include "reference/run.hpp"
#include "reference/sources/csv_dataset.hpp"
#include "reference/sources/idx.hpp"
#include "reference/sources/safetensors_dataset.hpp"
#include "reference/sources/text_lines.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rng_sync.hpp"
