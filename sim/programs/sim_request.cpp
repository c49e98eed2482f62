#include "sim/programs/sim_request.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <vector>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVariable = "ACCEL_SIM";

// Takes the members that it is asked for; says what is wrong with them, and which were not asked for.
class RequestReader {
 public:
  explicit RequestReader(Json json) : json_(std::move(json)) {}

  void read_int(const char* key, int min, int& value) {
    const auto member = take(key);
    if (member.is_discarded()) return;
    const bool fits = member.is_number_integer() && member >= min && member <= INT_MAX;
    if (fits) value = member;
    else problems_.push_back(fmt::format("{}: expected an integer of {} or more, got {}", key, min, member.dump()));
  }

  void read_backend(std::string& value) {
    const auto member = take("backend");
    if (member.is_discarded()) return;
    const bool known = std::any_of(std::begin(kBackends), std::end(kBackends), [&](const char* name) { return member == name; });
    if (known) value = member;
    else problems_.push_back(fmt::format("backend: expected {}, got {}", fmt::join(kBackends, ", "), member.dump()));
  }

  void require(const char* key) {
    if (!json_.contains(key)) problems_.push_back(fmt::format("{}: missing", key));
  }

  void finish() {
    for (const auto& [key, value] : json_.items()) problems_.push_back(fmt::format("{}: unknown key", key));
    check_config(problems_.empty(), "{}: {}", kVariable, fmt::join(problems_, "; "));
  }

 private:
  Json take(const char* key) {
    if (!json_.contains(key)) return Json(Json::value_t::discarded);
    auto member = json_[key];
    json_.erase(key);
    return member;
  }

  Json json_;
  std::vector<std::string> problems_;
};

}  // namespace

std::string to_json(const SimRequest& request) {
  Json json{{"ranks", request.ranks}, {"backend", request.backend}};
  if (request.acknowledge >= 0) json["acknowledge"] = request.acknowledge;
  return json.dump();
}

SimRequest parse_sim_request(const std::string& text) {
  auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_object(), "{}: expected one JSON object such as {}, got '{}'", kVariable, to_json({.ranks = 8}), text);
  RequestReader reader(std::move(json));
  SimRequest request;
  reader.require("ranks");
  reader.read_int("ranks", 1, request.ranks);
  reader.read_backend(request.backend);
  reader.read_int("acknowledge", 0, request.acknowledge);
  reader.finish();
  return request;
}

std::optional<SimRequest> read_sim_request() {
  const auto text = environment(kVariable);
  return text ? std::optional(parse_sim_request(*text)) : std::nullopt;
}

void acknowledge(const SimRequest& request) {
  if (request.acknowledge < 0) return;
  // The descriptor stays open, so that its number never is another file's.
  struct stat status {};
  const bool is_pipe = fstat(request.acknowledge, &status) == 0 && S_ISFIFO(status.st_mode);
  check_config(is_pipe && write(request.acknowledge, "r", 1) == 1,
               "{}: descriptor {}, on which sim-run waits for this program, is not open; start the program without closing it",
               kVariable, request.acknowledge);
}

}  // namespace accel::programs
