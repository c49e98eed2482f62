#pragma once

/// Models whose layers the ranks of a pipeline share out.
///
///     accel::Accelerator accelerator({.parallelism_config = accel::ParallelismConfig{.pp_size = 4}});
///     auto stages = accel::pipeline_model(accel::pipeline_layers(net), accelerator.mesh(), {.micro_batches = 8});
///     auto [model, optimizer, batches] = accelerator.prepare(stages, adam, loader);
///     auto loss = accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
///
/// `sim-run pipeline` proves schedules.
#include "reference/pipeline/pipeline_model.hpp"
#include "reference/state/device_mesh.hpp"
