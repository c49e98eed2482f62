// The machine-readable form of a run's end, written by --diagnosis and read by `sim-run explore`. Other programs
// rely on it: texts may change, keys and kinds may not.
#include "sim/programs/rehearsal/diagnosis_json.hpp"

#include <fmt/ranges.h>

#include "reference/diagnosis/diagnosis_json.hpp"

namespace accel::programs {
namespace {

using Kind = Diagnosis::Kind;

// The diagnosis of a run whose ranks threw on their own, without a hang, a desync or an injected fault. Lists only the
// ranks that failed first: ranks that were released from a wait because a peer had failed are consequences.
Diagnosis rank_failure(const std::exception_ptr& error) {
  Diagnosis diagnosis{.kind = Kind::kRankFailure};
  try {
    std::rethrow_exception(error);
  } catch (const sim::RunError& failed) {
    diagnosis.text = failed.what();
    for (const auto& outcome : failed.outcomes()) {
      if (outcome.error && !outcome.released) diagnosis.ranks.push_back(outcome.rank);
    }
  } catch (const std::exception& failed) {
    diagnosis.text = failed.what();
  }
  return diagnosis;
}

}  // namespace

Diagnosis diagnosis_of(const sim::SimulationReport& report) {
  if (!report.error) return {};
  return report.diagnosis ? *report.diagnosis : rank_failure(report.error);
}

std::string diagnosis_json(const sim::SimulationReport& report) {
  // A run that ended well still has findings and faults that it survived; they share the "text" key, and the prefix
  // "injected fault: " lets explore_target.cpp tell them apart.
  auto diagnosis = diagnosis_of(report);
  if (!report.error) {
    auto lines = report.findings;
    for (const auto& strike : report.strikes)
      lines.push_back("injected fault: " + strike.text + ", which did not stop the run");
    diagnosis.text = fmt::format("{}", fmt::join(lines, "\n"));
  }
  return accel::diagnosis_json(diagnosis);
}

}  // namespace accel::programs
