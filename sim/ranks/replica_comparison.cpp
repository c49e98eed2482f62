// Note [Replica comparison]
// Data parallelism relies on every rank applying equal gradients to equal parameters. A rank that skips one
// all-reduce breaks this silently on real backends. Comparing hashes instead of tensors keeps the check cheap,
// and the majority shows which rank is wrong. No rank waits for the others: the last one to submit compares.
#include "sim/ranks/replica_comparison.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "reference/mesh/parameter_layout.hpp"
#include "sim/ranks/replica_difference.hpp"

namespace accel::sim {

ReplicaComparison::ReplicaComparison(World& world)
    : world_(world), ranks_(world.num_ranks()), next_(world.num_ranks()) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

void ReplicaComparison::set_ranks(const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  ranks_ = ranks;
}

// One of the others has made all updates so far.
void ReplicaComparison::join(int rank, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  ranks_ = ranks;
  for (const int other : ranks) {
    if (other != rank) next_[rank] = std::max(next_[rank], next_[other]);
  }
}

// Comparing runs without the mutex: it calls World::fail, which may run user callbacks.
void ReplicaComparison::submit(int rank, std::vector<ParameterState> states, std::vector<int> parts, int stage_rank,
                               std::uint64_t generator, const DescribeParameter& describe) {
  Submissions complete;
  std::vector<int> compared;
  std::uint64_t update = 0;
  {
    const MutexLock lock(mutex_);
    const auto turn = next_[rank];
    ++next_[rank].update;
    auto& submissions = open_[turn];
    submissions.ranks.resize(world_.num_ranks());
    submissions.ranks[rank] = {std::move(states), std::move(parts), stage_rank, generator};
    submissions.ranks[rank].is_there = true;
    const auto is_there = [&](int other) { return submissions.ranks[other].is_there; };
    if (!std::all_of(ranks_.begin(), ranks_.end(), is_there)) return;
    compared = ranks_;
    complete = std::move(submissions);
    // Earlier incomplete submissions stay incomplete: some rank had no batch for those updates.
    open_.erase(open_.begin(), open_.upper_bound(turn));
    update = first_updates_[turn.interval] + turn.update;
  }
  std::map<int, std::vector<int>> ranks_of_stages;
  for (const int other : compared) ranks_of_stages[complete.ranks[other].stage_rank].push_back(other);
  for (const auto& [stage, ranks] : ranks_of_stages) compare(ranks, update, complete, describe);
  compare_generators(compared, update, complete);
}

// Called at the end of a join context, in which ranks that ran out of data stop updating. A new interval realigns
// their counts; update numbers in messages continue from the rank with the most updates.
void ReplicaComparison::begin_interval(int rank) {
  const MutexLock lock(mutex_);
  auto& [interval, update] = next_[rank];
  if (++interval == first_updates_.size()) first_updates_.push_back(0);
  first_updates_[interval] = std::max(first_updates_[interval], first_updates_[interval - 1] + update);
  update = 0;
}

// Ranks that hold the same parts must agree in everything. If there are several such parties, the complete parameters
// of all ranks are compared first.
void ReplicaComparison::compare(const std::vector<int>& ranks, std::uint64_t update, const Submissions& submissions,
                                const DescribeParameter& describe) {
  std::map<std::vector<int>, std::vector<int>> parties;
  const auto hashes_of = [&](const std::vector<int>& some) {
    std::vector<Hashes> hashes;
    for (const auto rank : some) {
      auto& own = hashes.emplace_back();
      for (const auto& state : submissions.ranks[rank].states) own.push_back(state.hash);
    }
    return hashes;
  };
  for (const auto rank : ranks) parties[submissions.ranks[rank].parts].push_back(rank);
  auto complete = hashes_of(ranks);
  for (std::size_t index = 0; index < ranks.size() && parties.size() > 1; ++index) {
    const auto& parts = submissions.ranks[ranks[index]].parts;
    for (std::size_t place = 0; place < parts.size(); ++place) {
      if (parts[place] != ParameterLayout::kUndivided) complete[index][place] = 0;
    }
  }
  bool is_equal = agree(ranks, update, complete, submissions, describe);
  for (const auto& [parts, party] : parties) {
    if (parties.size() > 1) is_equal = is_equal && agree(party, update, hashes_of(party), submissions, describe);
  }
}

// All parameters of all models are one list of hashes, so the first difference has one index.
bool ReplicaComparison::agree(const std::vector<int>& ranks, std::uint64_t update, const std::vector<Hashes>& hashes,
                              const Submissions& submissions, const DescribeParameter& describe) {
  auto culprits = minority(hashes);
  if (culprits.empty()) return true;
  if (were_different_.exchange(true)) return false;  // replicas that differ once differ from then on
  // The first difference is searched between one culprit and one rank that differs from it; on a tie any pair
  // will do.
  const bool is_tie = culprits.size() == hashes.size();
  const auto& others = is_tie ? hashes.back() : hashes[culprits.front()];
  const auto majority = std::find_if(hashes.begin(), hashes.end(), [&](const auto& own) { return own != others; });
  const auto first =
      std::mismatch(others.begin(), others.end(), majority->begin(), majority->end()).first - others.begin();
  const auto parameter = describe(static_cast<std::size_t>(first));
  std::vector<ParameterState> states;
  for (const auto rank : ranks) {
    const auto& own = submissions.ranks[rank].states;
    if (static_cast<std::size_t>(first) < own.size()) states.push_back(own[first]);
  }
  for (auto& culprit : culprits) culprit = ranks[culprit];
  Diagnosis diagnosis{
      .ranks = culprits, .op = "optimizer_step", .group = "world", .sequence = update, .shapes = {parameter.sizes}};
  const auto difference = is_tie                 ? "differ from one another, and there is no majority"
                          : culprits.size() == 1 ? "differs from the rest"
                                                 : "differ from the rest";
  const auto cause = states.size() == ranks.size() ? likely_cause(states, ranks) : "";
  diagnosis.text = fmt::format(
      "optimizer_step #{}: the replicas' parameters differ; {} {}, first in parameter {} ({} [{}]); {}every rank must "
      "start from equal parameters and apply equal gradients",
      update, describe_ranks(culprits), difference, parameter.name, c10::toString(parameter.dtype),
      fmt::join(parameter.sizes, ", "), cause);
  world_.report(Check::kReplicas, std::move(diagnosis));
  return false;
}

// A finding, not an error: ranks may seed differently on purpose. Only a change from equal to different is
// suspicious, for example a rank that draws one number more than the others.
void ReplicaComparison::compare_generators(const std::vector<int>& ranks, std::uint64_t update,
                                           const Submissions& submissions) {
  std::vector<std::uint64_t> generators;
  for (const int rank : ranks) generators.push_back(submissions.ranks[rank].generator);
  auto others = minority(generators);
  for (auto& other : others) other = ranks[other];
  bool were_equal = false;
  {
    const MutexLock lock(mutex_);
    were_equal = generators_were_equal_;
    generators_were_equal_ = others.empty();
  }
  if (!were_equal || others.empty()) return;
  const bool is_tie = others.size() == generators.size();
  world_.report(
      Check::kGenerators,
      fmt::format("after optimizer_step #{} the default generator of {} is in another state than {}, which had been "
                  "equal: the ranks draw different "
                  "numbers from here on",
                  update, describe_ranks(others), is_tie ? "one another's" : "the others'"));
}

}  // namespace accel::sim
