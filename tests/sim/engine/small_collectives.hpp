#pragma once

#include <functional>
#include <vector>

#include "sim/engine/world.hpp"

/// The smallest collectives and messages, and helpers for runs that must fail.
namespace accel::sim {

/// Returns 0, 1, ..., count - 1.
std::vector<int> first_ranks(int count);

struct Summand {
  int input = 0, output = 0;
};

/// Sums ints over the group and returns the result.
int all_sum(World& world, EngineGroup& group, int rank, int input,
            Call call = {.op = Collective::kAllReduce, .reduce_op = "sum", .dtype = "int32", .shapes = {{1}}});

/// Waits on rank 1 for a message of rank 0.
void wait_for_message(World& world, EngineGroup& group);

/// Returns the error of a run that must fail.
RunError failure_of(World& world, const std::function<void(int)>& body);

/// Returns the error of a run in which `runner` runs on, without any call, until another rank's `body` has failed.
RunError failure_with_running_rank(World& world, int runner, const std::function<void(int)>& body);

}  // namespace accel::sim
