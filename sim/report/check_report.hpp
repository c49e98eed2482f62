#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The result of `sim-run check` as one self-contained HTML page, with the look of the page of a run.
///
///     CheckReport report{.title = "train.py on 4 ranks"};
///     report.checks.push_back({.name = "samples", .question = "is every sample read once?", .text = "yes"});
///     std::ofstream("index.html") << check_page(report);
///
/// Thread rule: values; check_page from any thread.
namespace accel::sim {

enum class CheckVerdict { kPass, kFail, kFinding, kNotApplicable };

/// The samples that the ranks read in one pass over a loader.
struct ReadSamples {
  std::string loader;                                   ///< the line that names it
  int pass = 1;                                         ///< counted from 1
  std::int64_t size = 0;                                ///< of the dataset
  std::vector<std::vector<std::int64_t>> by_rank = {};  ///< indices in the dataset
};

/// What several ranks and one rank compute at the same place of the program.
struct ComparedQuantity {
  std::size_t micro_batch = 0, update = 0;
  std::string what;
  std::string ours, one;  ///< on all ranks, and on one
};

struct CheckedQuestion {
  std::string name, question;
  CheckVerdict verdict = CheckVerdict::kPass;
  double seconds = 0;
  std::string text;         ///< what was seen, or the cause
  std::string where = {};   ///< a line of the program; "": none
  std::string replay = {};  ///< the command that shows it alone; "": none
  std::optional<ReadSamples> samples = {};
  std::vector<ComparedQuantity> quantities = {};  ///< the last ones differ
  std::string run_page = {};                      ///< page of the run that shows it, beside this one; "": none
  std::string timeline = {};                      ///< file for Perfetto, beside this page; "": none
};

struct CheckReport {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts = {};
  std::vector<CheckedQuestion> checks = {};
};

/// Returns the page in UTF-8, without scripts or external resources. Equal reports give equal bytes.
std::string check_page(const CheckReport& report);

}  // namespace accel::sim
