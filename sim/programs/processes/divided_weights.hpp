#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace accel::programs {

/// Compares the complete weights of a model of which every rank trains a part. FSDP2 does not exchange them, so ranks
/// that drew different models train a mixture of them.
///
///     if (const auto finding = weights.add(rank, "fc1.weight", hash, "train.py:12")) world.failures().warn(*finding);
///
/// Thread rule: any thread.
class DividedWeights {
 public:
  explicit DividedWeights(int num_ranks) : next_(num_ranks) {}

  /// Adds the next weight of a rank. Returns a finding if it differs from that of the other ranks; once per run. Hash
  /// 0: the rank does not know the weight, or has loaded another since.
  std::optional<std::string> add(int rank, const std::string& name, std::uint64_t hash, const std::string& where);

 private:
  struct Weight {
    std::string name;
    std::uint64_t hash = 0;
    int rank = 0;       // the first that divided it
    int num_ranks = 0;  // that have
  };

  std::mutex mutex_;
  std::vector<std::size_t> next_;          // by rank: the number of its next weight
  std::map<std::size_t, Weight> pending_;  // by number: until all ranks have divided it
  bool has_finding_ = false;
};

}  // namespace accel::programs
