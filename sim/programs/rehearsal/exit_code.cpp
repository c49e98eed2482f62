// Maps errors to exit codes. Scripts and the launchers rely on these codes, so they are fixed.
//
// Note [Exit codes]
// 2 means that a user can correct the input; nothing has been trained. 3 means that a diagnosis explains the end of the
// run. Everything else is 1, including signals and codes of user programs above 3, which the message distinguishes. A
// launcher forwards 2, gives 3 for a diagnosis of its own, and turns a 3 that a rank's program has returned into 1.
#include "sim/programs/rehearsal/exit_code.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "sim/engine/run_error.hpp"

namespace accel::programs {
namespace {

bool is_config_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ConfigError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// A diagnosis wins over the errors of single ranks. Without one, the run counts as wrongly configured only if every
// rank that failed first has a ConfigError: ranks released from a wait carry a CommError that says nothing about the
// cause.
ExitCode exit_code_of_run(const sim::RunError& error) {
  if (error.diagnosis() != nullptr) return kDiagnosed;
  const auto& outcomes = error.outcomes();
  const bool all_config = std::all_of(outcomes.begin(), outcomes.end(), [](const sim::RankOutcome& outcome) {
    return !outcome.error || outcome.released || is_config_error(outcome.error);
  });
  return all_config ? kUsage : kFailure;
}

}  // namespace

ExitCode exit_code_of(const std::exception& error) {
  if (const auto* run_error = dynamic_cast<const sim::RunError*>(&error)) return exit_code_of_run(*run_error);
  if (dynamic_cast<const DiagnosedError*>(&error) != nullptr) return kDiagnosed;
  return dynamic_cast<const ConfigError*>(&error) != nullptr ? kUsage : kFailure;
}

}  // namespace accel::programs
