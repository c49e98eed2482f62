#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "reference/files/files.hpp"
#include "sim/ranks/rehearse_ranks.hpp"

namespace accel::programs {

/// Applies the faults of a rank's files to the writes of its process, which asks before each.
///
/// Thread rule: the rank's thread.
class WriteFaults {
 public:
  explicit WriteFaults(const sim::SimulatedRank& simulated);
  ~WriteFaults();

  /// Returns an answer of process::WriteDecision.
  std::int64_t answer_of(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
  /// What killed the process in a write; null: it lives.
  [[nodiscard]] const std::exception_ptr& death() const { return death_; }

 private:
  class Disk;
  std::shared_ptr<Disk> disk_;
  std::shared_ptr<Files> files_;                                     // with faults; null: none are planned
  std::map<std::string, std::unique_ptr<WritableFile>> files_open_;  // by path
  std::exception_ptr death_;
};

}  // namespace accel::programs
