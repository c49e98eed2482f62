#include "sim/programs/runtime/diagnosis_json.hpp"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using Kind = sim::Diagnosis::Kind;

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

// Of a run whose ranks threw, without a hang, a desync or a fault.
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
            Json::error_handler_t::replace);  // of an error's text, which may be of any bytes
}

}  // namespace accel::programs
