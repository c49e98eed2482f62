// Recordings as files, and the comparison of two of them. Values are compared as text: losses are hexadecimal floats
// and tensors are hashes, so equal text means equal bits.
#include "sim/programs/comparison/recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

Json parsed_object(const std::string& line) {
  auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(fmt::format("a recording: expected one JSON object per line, got '{}'", line));
  return json;
}

// The same float may be spelled in several ways, e.g. with trailing zeros.
std::string canonical_hex(const std::string& spelled) {
  const double value = std::strtod(spelled.c_str(), nullptr);
  return std::isfinite(value) ? fmt::format("{:a}", value) : fmt::format("{}", value);
}

// Fields of a trace that are values, with the words that describe them.
struct TraceField {
  const char* key;
  const char* kind;
};
constexpr TraceField kTraceFields[] = {{"loss", "loss"},
                                       {"samples", "number of samples"},
                                       {"sync_gradients", "value of sync_gradients"},
                                       {"lr", "learning rate"},
                                       {"eval_correct", "number of correct predictions in evaluation"},
                                       {"eval_samples", "number of samples in evaluation"},
                                       {"parameters_sha256", "SHA-256 of the final parameters"},
                                       {"sample_sha256", "SHA-256 of the generated text"}};

Observation observation_of(const TraceField& field, const Json& value, std::int64_t step) {
  Observation observation{.step = step, .kind = field.kind};
  if (field.kind == std::string("loss")) {
    observation.value = canonical_hex(value.get<std::string>());
    observation.detail = fmt::format("{:.9g}", std::strtod(observation.value.c_str(), nullptr));
  } else if (field.key == std::string("lr")) {
    observation.value = Json(value.get<double>()).dump();  // 1 and 1.0 are equal
  } else {
    observation.value = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return observation;
}

// The step at which the runs diverge at `place`. If both continue, the earlier of the two.
std::int64_t step_at(const RankRecording& a, const RankRecording& b, std::size_t place) {
  if (place >= a.size()) return b[place].step;
  if (place >= b.size()) return a[place].step;
  return std::min(a[place].step, b[place].step);
}

std::optional<Observation> at_place(const RankRecording& recording, std::size_t place) {
  return place < recording.size() ? std::optional(recording[place]) : std::nullopt;
}

const std::string& shown(const Observation& observation) {
  return observation.detail.empty() ? observation.value : observation.detail;
}

// Several values in one hash, which the sentence names in the plural.
bool is_all_parameters(const Observation& observation) {
  return observation.kind == "parameters" || observation.kind == "prepared parameters";
}

// Whether the value is a hash, which tells a reader nothing.
bool is_hash(const Observation& observation) {
  return observation.kind != "loss" && (!observation.detail.empty() || is_all_parameters(observation) ||
                                        observation.kind == "generator state" || observation.kind.starts_with("SHA"));
}

// Splits "model 1: fc" into the model and the module. Only programs with several models have the first part.
std::pair<std::string, std::string> parts_of(const std::string& name) {
  const auto colon = name.find(": ");
  if (colon == std::string::npos) return {"", name};
  return {name.substr(0, colon), name.substr(colon + 2)};
}

}  // namespace

std::string to_line(const Observation& observation) {
  Json json{{"step", observation.step}, {"kind", observation.kind}};
  if (!observation.name.empty()) json["name"] = observation.name;
  json["value"] = observation.value;
  if (!observation.detail.empty()) json["detail"] = observation.detail;
  if (!observation.collectives.empty()) json["collectives"] = observation.collectives;
  for (const auto& tensor : observation.tensors) {
    json["tensors"].push_back({{"offset", tensor.offset},
                               {"dtype", tensor.dtype},
                               {"sizes", tensor.sizes},
                               {"placement", tensor.placement},
                               {"dim", tensor.dim}});
  }
  if (const auto& division = observation.division) {
    const auto& shard = std::get<Shard>(division->placement);
    json["division"] = {{"axis", name_of(division->axis)},
                        {"dim", shard.dim},
                        {"sections", shard.sections},
                        {"index", division->index},
                        {"num_parts", division->num_parts}};
  }
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string recording_file(const std::string& folder, int rank) { return fmt::format("{}/rank{}.jsonl", folder, rank); }
std::string values_file(const std::string& folder, int rank) { return fmt::format("{}/rank{}.values", folder, rank); }

RankRecording read_observations(const std::string& file) {
  RankRecording recording;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // a process that was killed may end within a line
    const auto json = parsed_object(line);
    auto& observation = recording.emplace_back(Observation{.step = json.at("step"),
                                                           .kind = json.at("kind"),
                                                           .name = json.value("name", ""),
                                                           .value = json.at("value"),
                                                           .detail = json.value("detail", ""),
                                                           .collectives = json.value("collectives", Texts())});
    for (const auto& tensor : json.value("tensors", Json::array())) {
      observation.tensors.push_back({.offset = tensor.at("offset"),
                                     .dtype = tensor.at("dtype"),
                                     .sizes = tensor.at("sizes"),
                                     .placement = tensor.at("placement"),
                                     .dim = tensor.at("dim")});
    }
    if (const auto division = json.find("division"); division != json.end()) {
      observation.division = {.axis = axis_named(division->at("axis").get<std::string>()),
                              .placement = Shard{.dim = division->at("dim"), .sections = division->at("sections")},
                              .index = division->at("index"),
                              .num_parts = division->at("num_parts")};
    }
  }
  return recording;
}

Recording read_recording(const std::string& folder, int num_ranks) {
  Recording recording;
  for (int rank = 0; rank < num_ranks; ++rank) recording.push_back(read_observations(recording_file(folder, rank)));
  return recording;
}

// A loss that is not a number makes the parameters NaN too, and the sign of a NaN differs between builds of LibTorch.
// Hashes of such runs are left out.
Recording recording_of_trace(const std::vector<std::string>& lines, int num_ranks) {
  Recording recording(num_ranks);
  std::vector<std::int64_t> steps(num_ranks, 0);
  for (const auto& line : lines) {
    const auto json = parsed_object(line);
    const int rank = json.at("rank");
    check_argument(rank >= 0 && rank < num_ranks, "a trace: rank {}; expected 0 to {}", rank, num_ranks - 1);
    if (json.contains("step")) steps[rank] = json["step"];
    for (const auto& field : kTraceFields) {
      if (json.contains(field.key)) recording[rank].push_back(observation_of(field, json[field.key], steps[rank]));
    }
  }
  const auto has_nan = [](const RankRecording& rank) {
    return std::any_of(rank.begin(), rank.end(), [](const Observation& observation) {
      return observation.kind == "loss" && observation.value.find("nan") != std::string::npos;
    });
  };
  for (auto& rank : recording) {
    if (has_nan(rank)) std::erase_if(rank, [](const auto& observation) { return observation.kind.starts_with("SHA"); });
  }
  return recording;
}

std::optional<Difference> first_difference(const RankRecording& a, const RankRecording& b, int rank) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return std::nullopt;
  const auto place = static_cast<std::size_t>(in_a - a.begin());
  return Difference{
      .rank = rank, .step = step_at(a, b, place), .place = place, .a = at_place(a, place), .b = at_place(b, place)};
}

// Ranks affect each other only through collectives, and all run the same program. So the rank that diverges at the
// earliest place of its program is the one where it began; the others follow after the next all-reduce.
std::optional<Difference> first_difference(const Recording& a, const Recording& b) {
  ensure(a.size() == b.size(), "recordings of {} and {} ranks", a.size(), b.size());
  std::optional<Difference> first;
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    auto own = first_difference(a[rank], b[rank], static_cast<int>(rank));
    if (own && (!first || std::pair(own->step, own->place) < std::pair(first->step, first->place)))
      first = std::move(own);
  }
  return first;
}

std::string describe(const Observation& observation) {
  const auto& kind = observation.kind;
  const auto [model, name] = parts_of(observation.name);
  const auto of_model = model.empty() ? "" : " of " + model;
  if (kind.ends_with("parameter")) return fmt::format("{} {}{}", kind, name, of_model);
  if (kind.ends_with("input") || kind.ends_with("output") || kind == "input gradient") {
    if (name.empty()) return fmt::format("the {} of {}", kind, model.empty() ? "the model" : model);
    return fmt::format("the {} of module {}{}", kind, name, of_model);
  }
  return fmt::format("the {}{}{}", kind, name.empty() ? "" : " of " + name, of_model);
}

std::string describe(const Difference& difference, const std::string& name_of_a, const std::string& name_of_b) {
  const auto where = fmt::format("rank {}, step {}: ", difference.rank, difference.step);
  if (!difference.a || !difference.b) {
    const bool has_a = difference.a.has_value();
    return where + fmt::format("{} computes {}, but {} ends before it", has_a ? name_of_a : name_of_b,
                               describe(has_a ? *difference.a : *difference.b), has_a ? name_of_b : name_of_a);
  }
  const auto &a = *difference.a, &b = *difference.b;
  const auto what = describe(a);
  if (a.kind != b.kind || a.name != b.name || a.step != b.step) {
    const auto step_of = [&](const Observation& own) {
      return a.step == b.step ? "" : fmt::format(" of step {}", own.step);
    };
    return where + fmt::format("{} computes {}{}, but {} computes {}{}", name_of_a, what, step_of(a), name_of_b,
                               describe(b), step_of(b));
  }
  if (!is_hash(a)) {
    return where + fmt::format("{} is {} on {}, but {} on {}", what, shown(a), name_of_a, shown(b), name_of_b);
  }
  if (a.detail.empty()) return where + fmt::format("{} differ{}", what, is_all_parameters(a) ? "" : "s");
  return where + fmt::format("{} differs: {} on {}; {} on {}{}", what, a.detail, name_of_a, b.detail, name_of_b,
                             a.detail == b.detail ? "; the difference is smaller than the digits shown" : "");
}

}  // namespace accel::programs
