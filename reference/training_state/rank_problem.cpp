#include "reference/training_state/rank_problem.hpp"

#include <fmt/ranges.h>

#include <map>
#include <vector>

namespace accel {

void agree(RankContext& context, const std::string& what, const std::string& problem) {
  std::map<std::string, std::vector<std::size_t>> ranks_of;
  const auto problems = gather_object(context, std::vector<std::string>{problem});
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) ranks_of[problems[rank]].push_back(rank);
  }
  if (ranks_of.empty()) return;
  std::vector<std::string> texts;
  for (const auto& [text, ranks] : ranks_of) {
    const bool on_all_ranks = ranks.size() == problems.size();
    texts.push_back(on_all_ranks ? text : fmt::format("rank {}: {}", fmt::join(ranks, ", "), text));
  }
  throw CheckpointError(fmt::format("{}: {}", what, fmt::join(texts, "; ")));
}

}  // namespace accel
