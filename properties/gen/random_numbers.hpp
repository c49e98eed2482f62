#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/state/rank_context.hpp"

/// Draws the first random numbers of every kind on a rank. properties/oracle/random_numbers.py does the same in
/// Python, so that a simulated rank, a Gloo process and Python can be compared number by number. Add a new kind to
/// both.
///
/// Thread rule: the rank's thread. `random_numbers` is collective, because its training loop is.
namespace accel::testing {

struct RandomKind {
  std::string name;
  at::Tensor (*draw)(std::int64_t count);  ///< returns one dimension, from the calling rank's generator
};

const std::vector<RandomKind>& random_kinds();

struct RandomNumbersRequest {
  std::uint64_t seed = 0;
  bool device_specific = false;
  std::int64_t count = 40;
  bool use_seedable_sampler = false;
  std::optional<std::int64_t> data_seed;
};

/// Draws by name, in the order of drawing. Floats are float64 and integers int64.
using RandomNumbers = std::vector<std::pair<std::string, std::vector<at::Tensor>>>;

/// Reads {"seed", "device_specific", "count", "use_seedable_sampler", "data_seed"}. All keys are required.
RandomNumbersRequest parse_random_numbers_request(const std::string& json);

/// Returns for each kind the first numbers after set_seed, then those after all previous kinds, then the samples
/// and draws of two shuffled epochs with evaluations.
RandomNumbers random_numbers(RankContext& rank, const RandomNumbersRequest& request);

}  // namespace accel::testing
