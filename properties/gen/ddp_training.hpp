#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/state/rank_context.hpp"

/// Runs a few steps of a small model under options of DistributedDataParallel, or under local SGD.
/// properties/oracle/ddp_training.py does the same in Python, so that simulated ranks, Gloo processes and Python
/// can be compared bit by bit.
///
/// Thread rule: the rank's thread. `train_ddp` is collective.
namespace accel::testing {

struct DdpTrainingRequest {
  std::uint64_t seed = 0;
  std::int64_t hidden = 16;  ///< the model's width: 16 has one bucket, 700 several
  int steps = 5;
  int accumulation_steps = 1;
  int local_sgd_steps = 0;  ///< 0: none
  bool uneven = false;      ///< rank r stops r steps early, inside join_uneven_inputs
  std::string unused =
      "no";  ///< a layer: "no", "always" unused, "in_loss" (an output that the loss does not use), "at_times"
  std::string mixed_precision = "no";
  DistributedDataParallelKwargs kwargs = {};
};

/// The result of one step on one rank.
struct DdpTrainingStep {
  double loss = 0;
  std::string state_sha256;  ///< of parameters and buffers
};

/// Reads an object whose keys are the names of the fields. Absent fields keep their defaults.
DdpTrainingRequest parse_ddp_training_request(const std::string& json);

/// Returns the result of every step, and at the end the final state once more, with loss 0.
std::vector<DdpTrainingStep> train_ddp(RankContext& rank, const DdpTrainingRequest& request);

}  // namespace accel::testing
