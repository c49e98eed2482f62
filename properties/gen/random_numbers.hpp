#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/state/rank_context.hpp"

/// The first random numbers of every kind on a rank. properties/oracle/random_numbers.py is the same in Python, so that
/// a simulated rank, a Gloo process and Python can be compared number by number; a kind is added to both.
///
/// Thread rule: the rank's thread. `random_numbers` is collective, as the training loop in it is.
namespace accel::testing {

struct RandomKind {
  std::string name;
  at::Tensor (*draw)(std::int64_t count);  ///< one dimension, of the calling rank's generator
};

const std::vector<RandomKind>& random_kinds();

struct RandomNumbersRequest {
  std::uint64_t seed = 0;
  bool device_specific = false;
  std::int64_t count = 40;
  bool use_seedable_sampler = false;
  std::optional<std::int64_t> data_seed;
};

/// By name, in the order of drawing. Floats as float64, integers as int64.
using RandomNumbers = std::vector<std::pair<std::string, std::vector<at::Tensor>>>;

/// Reads {"seed", "device_specific", "count", "use_seedable_sampler", "data_seed"}, all of them given.
RandomNumbersRequest parse_random_numbers_request(const std::string& json);

/// Per kind, the first numbers after set_seed, and those after all kinds before it; then the samples and draws of two
/// shuffled epochs with evaluations.
RandomNumbers random_numbers(RankContext& rank, const RandomNumbersRequest& request);

}  // namespace accel::testing
