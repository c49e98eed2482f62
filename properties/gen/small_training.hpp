#pragma once

#include <cstdint>
#include <string>

#include "reference/state/rank_context.hpp"

/// Small trainings under DDP, generated over the options that a program may choose.
namespace accel::testing {

struct SmallTraining {
  int num_ranks = 2;
  std::uint64_t seed = 0;
  std::int64_t length = 12, batch_size = 2;
  int epochs = 1, accumulation_steps = 1;
  bool shuffles = false, dispatches = false, joins_uneven = false;
  bool bf16 = false, has_dropout = false, has_batch_norm = false;
  bool finds_unused = false, views_buckets = false;
  bool has_second_model = false, clips = false, evaluates = false;
};

std::string describe(const SmallTraining& training);

/// Returns any training that ends without an error. Call it inside a property.
SmallTraining any_training(int most_ranks = 4);

/// Trains on one rank of `training.num_ranks`; returns the bytes of all parameters. Collective.
std::string train(const SmallTraining& training, RankContext& rank);

}  // namespace accel::testing
