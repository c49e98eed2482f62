#include "sim/programs/processes/divided_weights.hpp"

#include <fmt/format.h>

namespace accel::programs {

std::optional<std::string> DividedWeights::add(int rank, const std::string& name, std::uint64_t hash,
                                               const std::string& where) {
  const std::lock_guard lock(mutex_);
  const auto number = next_[rank]++;
  const auto found = pending_.try_emplace(number, Weight{.name = name, .hash = hash, .rank = rank}).first;
  auto& weight = found->second;
  const bool is_known = weight.name == name && weight.hash != 0 && hash != 0;
  const bool differs = is_known && weight.hash != hash && !has_finding_;
  std::optional<std::string> finding;
  if (differs) {
    has_finding_ = true;
    finding = fmt::format(
        "ranks {} and {} train parts of different models, first in {}{}: each has kept a part of its own; call "
        "set_seed with one seed on all ranks before the model is made, or load one state into it",
        weight.rank, rank, name, where.empty() ? "" : " at " + where);
  }
  if (++weight.num_ranks == static_cast<int>(next_.size())) pending_.erase(found);
  return finding;
}

}  // namespace accel::programs
