#include "sim/programs/sim_run/python_proof.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

std::string request_of(const ParallelismConfig& layout) {
  const auto mesh = mesh_of(layout);
  Json groups = Json::object();
  for (const auto& kind : mesh_group_kinds()) groups[kind.name] = mesh.groups(kind.axes);
  return Json{{"ranks", mesh.num_ranks()}, {"groups", groups}}.dump();
}

Disagreement disagreement_of(const Json& json) {
  return {.what = {.step = json.at("step"), .kind = json.at("kind"), .name = json.at("name")},
          .rank = json.at("rank"),
          .cause = json.at("cause"),
          .collective = json.at("collective"),
          .missing = json.at("missing"),
          .is_absent = json.at("is_absent"),
          .error = json.at("error")};
}

}  // namespace

LayoutComparison compare_python_runs(const std::vector<std::string>& command, const std::string& one,
                                     const std::string& mesh, const ParallelismConfig& layout) {
  const auto program = python_program(command).value();
  const auto output = mesh + "/comparison", error = mesh + "/comparison.error";
  const auto end =
      run_child({.command = {program.command.front(), "-m", "simranks.proof", one, mesh, request_of(layout)},
                 .environment = program.environment},
                output, error);
  const auto answer = Json::parse(accel::read_text(output), nullptr, /*allow_exceptions=*/false);
  if (end.exit_code != kSuccess || !answer.is_object())
    throw Error(fmt::format("prove: the comparison failed: {}", accel::read_text(error)));
  LayoutComparison comparison{.not_compared = answer.at("not_compared")};
  if (const auto& found = answer.at("disagreement"); !found.is_null()) comparison.disagreement = disagreement_of(found);
  return comparison;
}

std::vector<std::string> axes_read(const RankRecording& one) {
  std::vector<std::string> axes;
  for (const auto& axis : mesh_axes()) {
    if (std::any_of(one.begin(), one.end(),
                    [&](const auto& seen) { return seen.kind == "variable" && seen.name == axis.variable; }))
      axes.emplace_back(axis.name);
  }
  return axes;
}

}  // namespace accel::programs
