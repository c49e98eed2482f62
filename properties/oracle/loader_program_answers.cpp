// Runs a part of a loader program (properties/gen/loader_part.hpp) on the ranks of this job. What a rank sees is
// written step by step, so that it outlives a rank that fails.
#include <fstream>
#include <nlohmann/json.hpp>

#include "properties/gen/loader_part.hpp"
#include "properties/oracle/answers.hpp"

namespace accel::testing {

OrderedJson loader_program_answer(RankContext& rank, const std::string& request) {
  const auto part = loader_program::part_from_json(request);
  std::ofstream out(part.seen_path(rank.rank));
  loader_program::run_part(rank, part, [&](std::size_t, const std::string& seen) { out << seen << std::endl; });
  return nullptr;
}

}  // namespace accel::testing
