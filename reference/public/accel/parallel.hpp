#pragma once

/// Models that are divided over ranks: tensor, sequence, context and expert parallelism.
///
///     accel::Accelerator accelerator({.parallelism_config = accel::ParallelismConfig{.tp_size = 4}});
///     auto model = std::make_shared<Model>(accelerator.mesh());     // of layers such as ColumnParallelLinear
///     auto [prepared, optimizer] = accelerator.prepare(model, adam);
///
/// Everything here is in namespace accel::parallel. `sim-run prove -- ./train` compares all layouts of a model with one
/// rank.
#include "reference/context_parallel/context_attention.hpp"
#include "reference/context_parallel/context_parallel_scope.hpp"
#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/context_parallel/token_mean.hpp"
#include "reference/experts/mixture_of_experts.hpp"
#include "reference/state/device_mesh.hpp"
#include "reference/tensor_parallel/cut_random.hpp"
#include "reference/tensor_parallel/layers.hpp"
#include "reference/tensor_parallel/operators.hpp"
