#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/comm/parameter_state.hpp"
#include "reference/core/thread_safety.hpp"
#include "reference/state/step_observer.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {

using ReplicaModels = std::vector<std::shared_ptr<const Replicas>>;  // each with parameters

/// Those of a rank's models that are compared after an update: all that still exist, except for those that keep their
/// gradients local. Forgets models that are gone.
ReplicaModels compared_models(std::vector<std::weak_ptr<const Replicas>>& models);

/// Return each parameter's state, its name, and the part that it is, in order.
std::vector<ParameterState> states_of(const ReplicaModels& models);
std::vector<std::string> names_of(const ReplicaModels& models);
std::vector<int> parts_of(const ReplicaModels& models);

/// Compares the replicas after each update: every rank submits hashes of its parameters, and the last to submit
/// compares them. Replicas that differ end the run; real backends would continue, with a different model on each rank.
/// Default generators that were equal and now differ are a finding.
///
/// Thread rule: any rank's thread.
class ReplicaComparison {
 public:
  using Models = ReplicaModels;

  explicit ReplicaComparison(World& world) : world_(world), next_(world.num_ranks()) {}

  /// Submits the parameters of `rank`'s models with their states, whose hashes are equal on all ranks in a correct
  /// program, and its default generator, after its next update.
  void submit(int rank, const Models& models, std::vector<ParameterState> states, std::uint64_t generator);
  /// From here on `rank`'s next update is compared with the next update of every other rank after the same call: ranks
  /// may have made different numbers of updates before. Every rank calls it, but none waits.
  void begin_interval(int rank);

 private:
  struct Turn {
    std::size_t interval = 0;
    std::uint64_t update = 0;  // counted within its interval
    auto operator<=>(const Turn&) const = default;
  };
  using Hashes = std::vector<std::uint64_t>;  // one per parameter of each model
  struct Submissions {
    std::vector<std::vector<ParameterState>> states;  // by rank
    std::vector<std::vector<int>> parts;              // by rank: see layer_part, one per state
    std::vector<std::uint64_t> generators;
    int num_submitted = 0;
  };

  void compare(std::uint64_t update, const Submissions& submissions, const Models& models);
  // Ends the run and returns false if the hashes of these ranks, one list each, differ.
  bool agree(const std::vector<int>& ranks, std::uint64_t update, const std::vector<Hashes>& hashes,
             const Submissions& submissions, const Models& models);
  void compare_generators(std::uint64_t update, const Submissions& submissions);

  World& world_;
  Mutex mutex_;
  std::vector<Turn> next_ ACCEL_GUARDED_BY(mutex_);  // by rank
  std::vector<std::uint64_t> first_updates_ ACCEL_GUARDED_BY(mutex_) = {
      0};  // per interval, counted by the rank with the most updates
  std::map<Turn, Submissions> open_ ACCEL_GUARDED_BY(mutex_);
  bool generators_were_equal_ ACCEL_GUARDED_BY(mutex_) = false;
};

}  // namespace accel::sim
