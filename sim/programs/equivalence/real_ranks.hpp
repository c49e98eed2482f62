#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/programs/equivalence/simulated_case.hpp"

namespace accel::programs {

class CaseWorlds;

/// Runs cases of the equivalence suite on the ranks of a job. Rank 0 leads: it sends cases to all ranks, they run them
/// and return what they observed. The other ranks follow until the lead sends its verdict.
///
///     RealRanks real(job);
///     if (job.rank != 0) return real.follow();
///     const auto observed = real.observe(cases);
///     real.finish(is_equal);
///
/// A case that fails on a rank ends in an observation, see kFailed; the ranks then continue in new groups. Throws
/// CommError if a rank is lost. Thread rule: the rank's thread; all ranks make the same calls.
class RealRanks {
 public:
  explicit RealRanks(RankContext& job);
  ~RealRanks();
  RealRanks(const RealRanks&) = delete;
  RealRanks& operator=(const RealRanks&) = delete;

  [[nodiscard]] RankLimits limits() const;
  /// The lead's call: what the ranks of each case observed.
  std::vector<RankObservations> observe(const std::vector<EquivalenceCase>& cases);
  void finish(bool is_equal);
  /// The other ranks' call: returns the verdict once the lead has called finish().
  bool follow();

 private:
  struct Message;
  Message send(const std::vector<std::string>& texts);
  Message receive(const Message& message);
  std::vector<std::vector<Observations>> run(const Message& message);
  Observations run_case(const std::string& text, std::int64_t number, bool& has_groups);
  std::string run_stage(const EquivalenceCase& one, int stage, std::int64_t number, std::string& state,
                        Observations& seen);

  RankContext& job_;
  std::unique_ptr<CaseWorlds> worlds_;
  std::int64_t generation_ = 0, num_cases_ = 0;  // of the lead
};

}  // namespace accel::programs
