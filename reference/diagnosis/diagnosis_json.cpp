// The keys are fixed: other programs read them. Texts may change, keys and kinds may not.
#include "reference/diagnosis/diagnosis_json.hpp"

#include <nlohmann/json.hpp>

namespace accel {
namespace {

using Json = nlohmann::ordered_json;
using Kind = Diagnosis::Kind;

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

Kind kind_named(const std::string& name) {
  for (const auto kind : {Kind::kNone, Kind::kHang, Kind::kDesync, Kind::kRankFailure, Kind::kFault}) {
    if (name == name_of(kind)) return kind;
  }
  throw InternalError("unknown kind of diagnosis: " + name);
}

std::string text_of(const Json& text) { return text.is_null() ? "" : text.get<std::string>(); }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json to_json(const Difference& difference) {
  Json calls = Json::array();
  for (const auto& side : difference.sides)
    calls.push_back({{"ranks", side.ranks}, {"call", side.call}, {"where", text_or_null(side.where)}});
  return {{"group", difference.group}, {"sequence", difference.sequence}, {"calls", calls}};
}

Difference difference_of(const Json& json) {
  Difference difference{.group = json["group"], .sequence = json["sequence"]};
  for (const auto& side : json["calls"])
    difference.sides.push_back({.ranks = side["ranks"], .call = side["call"], .where = text_of(side["where"])});
  return difference;
}

}  // namespace

std::string diagnosis_json(const Diagnosis& diagnosis) {
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

Diagnosis diagnosis_of_json(std::string_view text) {
  const auto json = Json::parse(text);
  Diagnosis diagnosis{.kind = kind_named(json["kind"]),
                      .fault = text_of(json["fault"]),
                      .ranks = json["ranks"],
                      .op = text_of(json["op"]),
                      .group = text_of(json["group"]),
                      .sequence = json["sequence"].is_null() ? 0 : json["sequence"].get<std::uint64_t>(),
                      .shapes = json["shapes"],
                      .where = text_of(json["where"]),
                      .text = json["text"]};
  if (!json["first_difference"].is_null()) diagnosis.first_difference = difference_of(json["first_difference"]);
  for (const auto& one : json["waiting"])
    diagnosis.waiting.push_back({one["rank"], one["op"], one["group"], one["sequence"], text_of(one["where"])});
  return diagnosis;
}

}  // namespace accel
