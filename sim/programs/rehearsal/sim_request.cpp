// The protocol between sim-run and a user program: sim-run sets ACCEL_SIM, the program's accel::run reads it and writes
// one byte to a pipe. An environment variable passes through wrapper scripts and debuggers unchanged, and leaves the
// program's own command line alone.
#include "sim/programs/rehearsal/sim_request.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/programs/rehearsal/json_reader.hpp"

namespace accel::programs {

// The keys of ACCEL_SIM, listed once. records_steps is absent: `steps` implies it.
template <FieldsOf<SimRequest> Request, typename Visit>
void for_each_field(Request& request, Visit&& visit) {
  auto& rehearsal = request.rehearsal;
  visit(Field{.name = "ranks", .is_required = true}, request.ranks);
  visit(Field{"backend"}, request.backend);
  visit(Field{"sweep"}, request.sweep);
  visit(Field{"record"}, request.record.folder);
  visit(Field{"record_tensors"}, request.record.tensors);
  visit(Field{"record_values"}, request.record.values);
  visit(Field{"record_audit"}, request.record.audit);
  visit(Field{"record_same_work"}, request.record.same_work);
  visit(Field{"record_seed"}, request.record.seed);
  visit(Field{"record_disturb"}, request.record.disturb);
  visit(Field{"record_steps"}, request.record.max_steps);
  visit(Field{"record_costs"}, request.record.costs);
  visit(Field{"acknowledge"}, request.acknowledge);
  for_each_option([&](const RehearsalOption& option, auto member) {
    const auto key = option.key();
    visit(Field{.name = key.c_str()}, rehearsal.*member);
  });
  visit(Field{"steps"}, rehearsal.steps);
}

namespace {

using Json = nlohmann::ordered_json;

// sim-run has checked all of this before it sets the variable; users who set it by hand get the same messages.
std::vector<std::string> invalid_values(const SimRequest& request) {
  std::vector<std::string> problems;
  if (request.ranks < 1) problems.push_back(fmt::format("ranks: expected 1 or more, got {}", request.ranks));
  if (std::find(std::begin(kBackends), std::end(kBackends), request.backend) == std::end(kBackends)) {
    problems.push_back(fmt::format("backend: expected {}, got '{}'", fmt::join(kBackends, ", "), request.backend));
  }
  if (request.backend != "sim") {
    for (auto& problem : problems_without_simulator(request.rehearsal, "the backend"))
      problems.push_back(std::move(problem));
  }
  for (auto& problem : problems_of(request.rehearsal)) problems.push_back(std::move(problem));
  if (request.acknowledge.value_or(0) < 0)
    problems.push_back(fmt::format("acknowledge: expected 0 or more, got {}", *request.acknowledge));
  return problems;
}

}  // namespace

// Writes only values that differ from the defaults, so that a request printed in an error message stays short.
std::string to_json(const SimRequest& request) {
  Json json{{"ranks", request.ranks}, {"backend", request.backend}};
  const auto& rehearsal = request.rehearsal;
  const RehearsalOptions none;
  // The program may change its working directory.
  const auto absolute = [](const std::string& path) { return std::filesystem::absolute(path).string(); };
  for_each_option([&](const RehearsalOption& option, auto member) {
    const auto& value = rehearsal.*member;
    if (value == none.*member) return;
    json[option.key()] = value;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>) {
      if (option.text != OptionText::kValue) json[option.key()] = absolute(value);
    }
  });
  if (!rehearsal.steps.empty()) json["steps"] = absolute(rehearsal.steps);
  if (!request.sweep.empty()) json["sweep"] = request.sweep;
  if (!request.record.folder.empty()) json["record"] = absolute(request.record.folder);
  if (request.record.tensors) json["record_tensors"] = true;
  if (request.record.values) json["record_values"] = true;
  if (request.record.audit) json["record_audit"] = true;
  if (request.record.same_work) json["record_same_work"] = true;
  if (request.record.seed != 0) json["record_seed"] = request.record.seed;
  if (!request.record.disturb.empty()) json["record_disturb"] = request.record.disturb;
  if (request.record.max_steps) json["record_steps"] = *request.record.max_steps;
  if (!request.record.costs.empty()) json["record_costs"] = absolute(request.record.costs);
  if (request.acknowledge) json["acknowledge"] = *request.acknowledge;
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Syntax errors are reported with an example instead of the parser's position: the text is one line that people type.
SimRequest parse_sim_request(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_object(), "{}: expected one JSON object such as {}, got '{}'", kSimRequestVariable,
               to_json({.ranks = 8}), text);
  SimRequest request;
  JsonReader reader(json);
  reader.read(request);
  auto problems = reader.problems();
  for (auto& problem : invalid_values(request)) problems.push_back(std::move(problem));
  check_config(problems.empty(), "{}: {}", kSimRequestVariable, listed(problems, "; "));
  return request;
}

std::optional<SimRequest> read_sim_request() {
  // Unlike ACCEL_LAUNCHED the variable is kept: accel::run may be called more than once, and each call makes ranks.
  const auto text = environment(kSimRequestVariable);
  return text ? std::optional(parse_sim_request(*text)) : std::nullopt;
}

void acknowledge(const SimRequest& request) {
  if (!request.acknowledge) return;
  // The descriptor stays open, so that its number is never reused for another file, to which a second call of
  // accel::run would write. Checking for a pipe protects files if a wrapper has closed the pipe and opened something
  // else.
  struct stat status {};
  const bool is_pipe = fstat(*request.acknowledge, &status) == 0 && S_ISFIFO(status.st_mode);
  check_config(
      is_pipe && write(*request.acknowledge, "r", 1) == 1,
      "{}: descriptor {}, on which sim-run waits for this program, is not open; start the program without closing "
      "inherited descriptors",
      kSimRequestVariable, *request.acknowledge);
}

// Does not throw: the run has ended, and its result counts.
void acknowledge_end(const SimRequest& request) {
  if (request.acknowledge) (void)!write(*request.acknowledge, "e", 1);
}

}  // namespace accel::programs
