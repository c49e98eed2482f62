#pragma once

/// What a training loop uses: the Accelerator, loaders, the common schedules, collectives on trees, and the functions
/// that start ranks.
///
/// Other names need another header, or `<accel/all.hpp>`, which includes all of these:
///
/// | header | contents |
/// |---|---|
/// | `<accel/optim.hpp>` | optimizers of accel::optim, and the other schedules |
/// | `<accel/sources.hpp>` | datasets in files, and tokenizers |
/// | `<accel/tracking.hpp>` | trackers, logs, progress bars, the profiler |
/// | `<accel/checkpoint.hpp>` | files of weights, of torch.save, and PyTorch's distributed checkpoints |
/// | `<accel/offload.hpp>` | models that are larger than memory, hooks of modules |
#include "reference/accelerator/accelerator.hpp"
#include "reference/accelerator/local_sgd.hpp"
#include "reference/accelerator/tree_device.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/shared.hpp"
#include "reference/data/collate.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/data/from_torch.hpp"
#include "reference/data/transformed.hpp"
#include "reference/data/unfit_dataset.hpp"
#include "reference/launch.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/linear_cross_entropy.hpp"
#include "reference/optim/schedules/cosine_schedules.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/run.hpp"
#include "reference/state/available.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/tree/tree.hpp"
#include "reference/tree/tree_rows.hpp"
