#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/comm/parameter_state.hpp"
#include "reference/core/thread_safety.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {

/// A parameter as messages name it.
struct ParameterDescription {
  std::string name;
  c10::ScalarType dtype{};
  std::vector<std::int64_t> sizes;
};
/// Describes the parameter at a place in the list of all parameters of a rank's models.
using DescribeParameter = std::function<ParameterDescription(std::size_t place)>;

/// Compares the replicas after each update: every rank submits hashes of its parameters, and the last to submit
/// reports the first difference between replicas; real backends would continue, with a different model on each rank.
/// Default generators that were equal and now differ are reported too.
///
/// Thread rule: any rank's thread.
class ReplicaComparison {
 public:
  explicit ReplicaComparison(World& world);

  /// Submits the states of all parameters of `rank`'s models, whose hashes are equal on all ranks in a correct program,
  /// the part that each is (ParameterLayout::layer_part), the stages that the rank has (Replicas::stage_rank), and
  /// the hash of its default generator, after its next update.
  void submit(int rank, std::vector<ParameterState> states, std::vector<int> parts, int stage_rank,
              std::uint64_t generator, const DescribeParameter& describe);
  /// From here on `rank`'s next update is compared with the next update of every other rank after the same call: ranks
  /// may have made different numbers of updates before. Every rank calls it, but none waits.
  void begin_interval(int rank);
  /// From here on the updates of these ranks are compared, in ascending order: the others have ended.
  void set_ranks(const std::vector<int>& ranks);
  /// The same for `rank`, which joins: its next update is compared with the next one of the others.
  void join(int rank, const std::vector<int>& ranks);

 private:
  struct Turn {
    std::size_t interval = 0;
    std::uint64_t update = 0;  // counted within its interval
    auto operator<=>(const Turn&) const = default;
  };
  using Hashes = std::vector<std::uint64_t>;  // one per parameter of each model
  struct Submission {
    std::vector<ParameterState> states;
    std::vector<int> parts;  // see layer_part, one per state
    int stage_rank = 0;
    std::uint64_t generator = 0;
    bool is_there = false;
  };
  struct Submissions {
    std::vector<Submission> ranks;  // by rank
  };

  // `ranks`: those with the same stages.
  void compare(const std::vector<int>& ranks, std::uint64_t update, const Submissions& submissions,
               const DescribeParameter& describe);
  // Returns whether the hashes of these ranks, one list each, are equal.
  bool agree(const std::vector<int>& ranks, std::uint64_t update, const std::vector<Hashes>& hashes,
             const Submissions& submissions, const DescribeParameter& describe);
  void compare_generators(const std::vector<int>& ranks, std::uint64_t update, const Submissions& submissions);

  World& world_;
  Mutex mutex_;
  std::vector<int> ranks_ ACCEL_GUARDED_BY(mutex_);  // those that are compared
  std::vector<Turn> next_ ACCEL_GUARDED_BY(mutex_);  // by rank
  std::vector<std::uint64_t> first_updates_ ACCEL_GUARDED_BY(mutex_) = {
      0};  // per interval, counted by the rank with the most updates
  std::map<Turn, Submissions> open_ ACCEL_GUARDED_BY(mutex_);
  bool generators_were_equal_ ACCEL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> were_different_{false};  // the replicas
};

}  // namespace accel::sim
