#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/mesh/parameter_layout.hpp"

/// What the ranks of a run computed, for finding where two runs diverge.
///
///     const auto difference = first_difference(read_recording(a, 4), read_recording(b, 4));
///     if (difference) std::cout << describe(*difference, "a (sim)", "b (gloo)") << '\n';
///
/// A folder has one file per rank, rank0.jsonl and so on, with one JSON object per line:
/// {"step":3,"kind":"output","name":"fc1","value":"91c2...","detail":"Float [8, 10], norm 12.3"}.
///
/// Thread rule: values and pure functions.
namespace accel::programs {

/// Elements of a tensor in the file of a rank's values.
struct RecordedTensor {
  std::int64_t offset = 0;  ///< in bytes
  std::string dtype = {};   ///< as c10::toString prints it
  std::vector<std::int64_t> sizes = {};
  std::string placement = {};  ///< see TensorPlacement; "": none
  std::int64_t dim = 0;
};

/// One observation of a rank. `kind` is one of:
///
/// | kind | name | value |
/// |---|---|---|
/// | loss | | as passed to backward, before the division for accumulation |
/// | prepared parameter(s), parameter(s) | the parameter, or none: a hash of all | when prepared; after an update |
/// | generator state | | of the rank's default generator, after an update |
/// | input, evaluation input | the prepared model | what its forward gets |
/// | output, evaluation output | a module | |
/// | input gradient | a module | the gradient with respect to what forward gets |
/// | samples, learning rate, ... | | a line of `sim-run --trace`, split into its fields |
/// | gradient, stepped gradient | a parameter | before clipping, before an update; only with values |
/// | variable | its name | the program of a Python rank has read this size of a mesh; only with values |
struct Observation {
  std::int64_t step = 0;  ///< micro-batches whose backward pass had begun before; those in it have its number
  std::string kind;
  std::string name = {};    ///< "" for a prepared model itself; "model 1: fc" inside the second one, and so on
  std::string value = {};   ///< equal texts mean equal bits
  std::string detail = {};  ///< for people; not compared
  std::vector<std::string> collectives = {};  ///< of the rank since its previous observation; only with values
  std::vector<RecordedTensor> tensors = {};   ///< only with values
  /// Of a parameter that a layer divides, by a Shard; only with values.
  std::optional<ParameterLayout::Division> division = {};

  friend bool operator==(const Observation& a, const Observation& b) {
    return a.step == b.step && a.kind == b.kind && a.name == b.name && a.value == b.value;
  }
};

/// What is observed on every rank: the `count`-th observation of this kind and name in a step.
struct ObservationKey {
  std::int64_t step = 0;
  std::string kind = {}, name = {};
  int count = 0;
  friend auto operator<=>(const ObservationKey&, const ObservationKey&) = default;
};

using RankRecording = std::vector<Observation>;  ///< in the order of the program
using Recording = std::vector<RankRecording>;    ///< by rank

std::string to_line(const Observation& observation);

/// Returns the file of a rank in the folder of a recording, and that of its values.
std::string recording_file(const std::string& folder, int rank);
std::string values_file(const std::string& folder, int rank);

/// Reads a file of observations; none if it does not exist. Throws Error for an invalid line.
RankRecording read_observations(const std::string& file);
/// Reads the folder of a recording. A rank without a file has no observations. Throws Error for an invalid line.
Recording read_recording(const std::string& folder, int num_ranks);

/// Converts the lines of `sim-run --trace`, of all ranks, each rank's in the order of its program. Throws Error for an
/// invalid line.
Recording recording_of_trace(const std::vector<std::string>& lines, int num_ranks);

/// The first difference of two runs.
struct Difference {
  int rank = 0;
  std::int64_t step = 0;
  std::size_t place = 0;                      ///< index in both ranks' observations, which are equal before it
  std::optional<Observation> a = {}, b = {};  ///< none: that run has no more observations of this rank
};

/// Returns the first difference of one rank.
std::optional<Difference> first_difference(const RankRecording& a, const RankRecording& b, int rank);

/// Returns the difference that comes first in the order of the program: the smallest step, then the smallest place,
/// then the lowest rank. Both recordings have the same number of ranks.
std::optional<Difference> first_difference(const Recording& a, const Recording& b);

/// Returns what was observed, as in "the output of module fc1".
std::string describe(const Observation& observation);
/// Returns a sentence such as "rank 1, step 3: the loss is 0.75 on a (sim), but 0.5 on b (gloo)".
std::string describe(const Difference& difference, const std::string& name_of_a, const std::string& name_of_b);

}  // namespace accel::programs
