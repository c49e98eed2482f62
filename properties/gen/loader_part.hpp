#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "properties/gen/data_sources.hpp"
#include "reference/state/rank_context.hpp"

/// Programs that use a loader and an Accelerator, and how a rank runs them; properties/gen/loader_program.hpp draws
/// them.
namespace accel::testing::loader_program {

enum class Kind { kNext, kSkip, kBreak, kEvaluate, kGather, kSetSeed, kSave, kLoad, kLoadOn, kThrow, kCount };
inline constexpr const char* kNames[] = {"next",     "skip", "break", "evaluate", "gather",
                                         "set_seed", "save", "load",  "load on",  "throw"};

struct Step {
  Kind kind = Kind::kNext;
  std::int64_t number = 0;  ///< batches to skip, seed, ranks to continue on, or the rank that throws
  bool draws = false;       ///< gather also draws one random number per rank
};

// The loaders that the program uses.
struct Setup {
  int ranks = 1, workers = 0;
  std::int64_t length = 1, batch_size = 1, eval_length = 1;
};

constexpr std::uint64_t kFirstSeed = 7;
constexpr std::int64_t kDataSeed = 3;

inline std::string text_of_batch(const Ids& ids, bool is_last) {
  return fmt::format("batch {}, last {}", ids, is_last);
}

/// The message of the rank that throws.
inline std::string failure_of(const Step& step) { return fmt::format("injected failure of rank {}", step.number); }

/// A program whose ranks change, or fail, runs in parts: each is a job that begins anew or with a checkpoint.
struct Part {
  Setup setup;
  std::size_t first = 0;    ///< number of the first step
  std::vector<Step> steps;  ///< the last one may be kThrow
  std::string from;         ///< the checkpoint that it begins with, or ""
  std::string folder;       ///< of checkpoints; step i saves in its subfolder save<i>
  bool loads = true;        ///< a planted bug of the program: `from` is not loaded

  /// Where a process writes what its rank sees, one line per step.
  [[nodiscard]] std::string seen_path(int rank) const { return fmt::format("{}/seen{}_{}.txt", folder, first, rank); }
  [[nodiscard]] std::string folder_of(std::size_t step) const { return fmt::format("{}/save{}", folder, step); }
};

/// Runs a part on this rank, and calls `see` with what the rank sees in each step.
void run_part(RankContext& rank, const Part& part, const std::function<void(std::size_t step, std::string seen)>& see);

/// One line of JSON.
std::string to_json(const Part& part);
Part part_from_json(const std::string& json);

}  // namespace accel::testing::loader_program
