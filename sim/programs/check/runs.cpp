#include "sim/programs/check/runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sim/programs/check/check.hpp"

namespace accel::programs {

const ProgramRun& Runs::get(const RunRequest& request) {
  const auto found = runs_.find(request);
  if (found != runs_.end()) return found->second;
  const auto folder = fmt::format("{}/run{}", folder_.path(), runs_.size());
  std::filesystem::create_directory(folder);
  return runs_.emplace(request, run_program(program_, request, folder)).first->second;
}

const ProgramRun& Runs::base() {
  const auto& run = get({.ranks = num_ranks_});
  if (!run.has_ended_well()) throw CannotJudge{fmt::format("the program does not end well on {} ranks", num_ranks_)};
  return run;
}

const std::vector<std::vector<LoaderPass>>& Runs::passes() {
  const auto& run = base();
  if (passes_.empty()) {
    for (const auto& rank : run.recording) passes_.push_back(passes_of(rank));
  }
  return passes_;
}

int Runs::uneven_ranks() {
  std::optional<std::int64_t> size;
  for (const auto& pass : passes().front()) {
    if (pass.trains && pass.size) size = pass.size;
  }
  for (const int ranks : {3, 2, 5, 7, 6}) {
    if (ranks != num_ranks_ && size.value_or(ranks + 1) % ranks != 0) return ranks;
  }
  return num_ranks_ + 1;
}

std::string Runs::shared_folder(const std::string& name) {
  auto folder = fmt::format("{}/{}", folder_.path(), name);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace accel::programs
