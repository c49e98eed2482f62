#pragma once

#include <string>
#include <vector>

#include "sim/faults/fault.hpp"

/// Faults as YAML:
///
///     seed: 7                        # decides everything below that is random; default 0
///     faults:
///       - {kind: rank_crash_before_optimizer_step, rank: 3, when: {step: 5}}
///       - {kind: message_delay, link: [0, 1], seconds: 0.2, probability: 0.01}
///
/// A fault draws from the stream of its position in the list; `stream: N` lets it keep its draws in another position.
/// Thread rule: pure.
namespace accel::sim {

/// Throws one ConfigError with every problem, each with file and line.
std::vector<Fault> read_faults(const std::string& file, int num_ranks);
/// Like read_faults, for the text of a file of that name.
std::vector<Fault> parse_faults(const std::string& text, const std::string& file, int num_ranks);

/// Writes a file that reads back as these faults. Throws ArgumentError if they have more than one seed.
std::string to_yaml(const std::vector<Fault>& faults);

}  // namespace accel::sim
