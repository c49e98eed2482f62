// The machine-readable form of a run's end, written by --diagnosis and read by `sim-run explore`. The keys are fixed by
// shared/contracts.md; texts may change, keys and kinds may not.
#include "sim/programs/rehearsal/diagnosis_json.hpp"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using Kind = sim::Diagnosis::Kind;

// A time-out counts as a hang: whether the engine proves the deadlock or the deadline passes first depends on the
// schedule, and readers of the file should not have to distinguish the two.
const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "none";
    case Kind::kHang:
    case Kind::kTimeout: return "hang";
    case Kind::kDesync: return "desync";
    case Kind::kRankFailure: return "rank_failure";
    case Kind::kFault: return "fault";
  }
  throw InternalError("unknown kind of diagnosis");
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// The diagnosis of a run whose ranks threw on their own, without a hang, a desync or an injected fault. Lists only the
// ranks that failed first: ranks that were released from a wait because a peer had failed are consequences.
sim::Diagnosis rank_failure(const std::exception_ptr& error) {
  sim::Diagnosis diagnosis{.kind = Kind::kRankFailure};
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

Json to_json(const sim::Difference& difference) {
  Json calls = Json::array();
  for (const auto& side : difference.sides)
    calls.push_back({{"ranks", side.ranks}, {"call", side.call}, {"where", text_or_null(side.where)}});
  return {{"group", difference.group}, {"sequence", difference.sequence}, {"calls", calls}};
}

}  // namespace

sim::Diagnosis diagnosis_of(const sim::SimulationReport& report) {
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
  const bool has_call = !diagnosis.op.empty();
  Json waiting = Json::array();
  for (const auto& one : diagnosis.waiting) {
    waiting.push_back({{"rank", one.rank},
                       {"op", one.op},
                       {"group", one.group},
                       {"sequence", one.sequence},
                       {"where", text_or_null(one.where)}});
  }
  return Json{{"kind", name_of(diagnosis.kind)},
              {"fault", text_or_null(diagnosis.fault)},
              {"ranks", diagnosis.ranks},
              {"op", text_or_null(diagnosis.op)},
              {"group", text_or_null(diagnosis.group)},
              {"sequence", has_call ? Json(diagnosis.sequence) : Json(nullptr)},
              {"shapes", diagnosis.shapes},
              {"where", text_or_null(diagnosis.where)},
              {"first_difference", diagnosis.first_difference ? to_json(*diagnosis.first_difference) : Json(nullptr)},
              {"waiting", waiting},
              {"text", diagnosis.text}}
      .dump(-1, ' ', /*ensure_ascii=*/false,
            Json::error_handler_t::replace);  // error texts may hold bytes that are not UTF-8
}

}  // namespace accel::programs
