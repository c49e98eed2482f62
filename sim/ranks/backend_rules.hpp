#pragma once

#include <string_view>
#include <vector>

#include "reference/core/collective.hpp"
#include "sim/collectives/collective_plan.hpp"
#include "sim/ranks/tensor_call.hpp"

/// Which tensors a backend accepts for each collective. The simulator accepts those of the backend that it rehearses,
/// no more and no less.
///
///     check_accepted(Library::kGloo, Collective::kBroadcast, {tensor});  // ArgumentError for int16
///
/// Gloo's rules are those of ProcessGroupGloo in LibTorch 2.11 to 2.15, which differ in one collective: the rank knows
/// whether its version has it. backend_rules_test.cpp compares every combination with real Gloo. NCCL's are those of
/// NCCLUtils.hpp and ProcessGroupNCCL. Where Gloo accepts memory that is not contiguous and computes wrong values, the
/// rules refuse it: a rehearsal must not pass where a real run computes other numbers.
///
/// Thread rule: pure.
namespace accel::sim {

/// Throws ArgumentError if the backend lacks the collective. `is_in_gloo`: of the rank's version of Gloo.
void check_supported(Library library, Collective op, bool is_in_gloo);
/// Throws ArgumentError for a message of a rank to or from itself if the backend is Gloo, whose ranks have no
/// connection to themselves. ProcessGroupNCCL accepts it. `peer` and `rank` are group ranks.
void check_accepted_peer(Library library, Collective op, int peer, int rank);
/// Throws ArgumentError if the tensors of an all_to_all have different shapes and the backend is Gloo.
void check_accepted_parts(Library library, Collective op, const std::vector<TensorDescription>& inputs,
                          const std::vector<TensorDescription>& outputs);
/// Throws ArgumentError, which names the collective and the dtype or the shape, if the backend refuses one of the
/// tensors that the collective reads, or reads it wrongly.
void check_accepted(Library library, Collective op, const std::vector<TensorDescription>& inputs);
/// The same for a tensor that the collective writes and does not read.
void check_accepted_output(Library library, Collective op, const TensorDescription& output);
/// The same for a reduction, by the name that reduction_of returns.
void check_accepted_reduction(Library library, Collective op, std::string_view reduce_op, c10::ScalarType dtype);

}  // namespace accel::sim
