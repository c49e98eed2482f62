#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "reference/state/step_listener.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {

using ReplicaModels = std::vector<std::shared_ptr<const Replicas>>;  // each with parameters

/// A hash of the bits of each parameter, and its name, in order.
std::vector<std::uint64_t> hashes_of(const ReplicaModels& models);
std::vector<std::string> names_of(const ReplicaModels& models);

/// After each update every rank casts what its replica is, as hashes; the last to cast compares. Replicas that differ
/// end the run: real backends train on, each rank a model of its own. Generators that were equal and differ now are a
/// finding.
///
/// Thread rule: any rank's thread.
class ReplicaVote {
 public:
  using Models = ReplicaModels;

  explicit ReplicaVote(World& world) : world_(world), next_(world.num_ranks()) {}

  /// The parameters of `rank`'s models, with their hashes, equal on all ranks if all is well, and its default
  /// generator, after its next update.
  void cast(int rank, const Models& models, std::vector<std::uint64_t> hashes, std::uint64_t generator);
  /// `rank`'s next update is compared with the first that every other rank makes behind its own call: until here some
  /// may have made fewer. Collective, but nobody waits.
  void begin_era(int rank);

 private:
  struct Turn {
    std::size_t era = 0;
    std::uint64_t update = 0;  // in its era
    auto operator<=>(const Turn&) const = default;
  };
  struct Ballot {
    std::vector<std::vector<std::uint64_t>> hashes;  // by rank, a hash for each parameter of each model
    std::vector<std::uint64_t> generators;
    int num_cast = 0;
  };

  void compare(std::uint64_t update, const Ballot& ballot, const Models& models);
  void compare_generators(std::uint64_t update, const Ballot& ballot);

  World& world_;
  Mutex mutex_;
  std::vector<Turn> next_ ACCEL_GUARDED_BY(mutex_);  // by rank
  std::vector<std::uint64_t> first_updates_ ACCEL_GUARDED_BY(mutex_) = {
      0};  // of each era, as counted by the rank with most
  std::map<Turn, Ballot> open_ ACCEL_GUARDED_BY(mutex_);
  bool generators_were_equal_ ACCEL_GUARDED_BY(mutex_) = false;
};

}  // namespace accel::sim
