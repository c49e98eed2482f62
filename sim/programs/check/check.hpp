#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/check/program_run.hpp"
#include "sim/report/check_report.hpp"

/// The checks of `sim-run check`: each answers one question about a program from a few runs of it.
///
///     Runs runs(program, options);
///     for (const auto& check : checks()) print(check.name, check.judge(runs));
namespace accel::programs {

class Runs;

using Verdict = sim::CheckVerdict;
const char* name_of(Verdict verdict);

struct CheckResult {
  Verdict verdict = Verdict::kPass;
  std::string text;         ///< one sentence: what was seen, or the cause in the program's terms
  std::string where = {};   ///< a line of the program, "train.py:31"; "": none
  std::string replay = {};  ///< the command that shows it alone; "": `sim-run check --only NAME`

  // --- figures of a report ---
  std::optional<sim::ReadSamples> samples = {};
  std::vector<sim::ComparedQuantity> quantities = {};
  std::optional<RunRequest> run = {};  ///< that shows it
};

struct Check {
  const char* name;
  const char* question;
  std::function<CheckResult(Runs&)> judge;  ///< throws CannotJudge
};

/// What a check needs is not there: another check tells why.
struct CannotJudge {
  std::string reason;
};

/// In the order in which they run.
const std::vector<Check>& checks();

CheckResult judge_runs(Runs& runs);
CheckResult judge_determinism(Runs& runs);
CheckResult judge_samples(Runs& runs);
CheckResult judge_world_size(Runs& runs);
CheckResult judge_replicas(Runs& runs);
CheckResult judge_random_streams(Runs& runs);
CheckResult judge_metrics(Runs& runs);
CheckResult judge_calls(Runs& runs);
CheckResult judge_resume(Runs& runs);
CheckResult judge_crash(Runs& runs);
CheckResult judge_files(Runs& runs);
CheckResult judge_failure(Runs& runs);
CheckResult judge_scaling(Runs& runs);

}  // namespace accel::programs
