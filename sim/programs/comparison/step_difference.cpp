// Finds where two runs of one program diverge. Runs are compared by text lines, because `sim-run explore` also compares
// user programs, which leave their records in a file. Losses are hexadecimal floats and parameters are hashes, so equal
// text means equal bits.
#include "sim/programs/comparison/step_difference.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using Place = std::pair<std::int64_t, int>;  // a step or an update, then a rank; pairs sort by time

struct Steps {
  std::map<Place, std::string> losses;
  std::map<Place, Json> updates;
};

// Sorts lines into losses and updates. The order of lines depends on the schedule; the maps restore the order of time.
Steps parsed(const std::vector<std::string>& lines) {
  Steps steps;
  for (const auto& line : lines) {
    const auto json = Json::parse(line);
    const int rank = json["rank"];
    if (json.contains("step"))
      steps.losses.emplace(Place(json["step"], rank), json["loss"]);
    else
      steps.updates.emplace(Place(json["update"], rank), json["parameters"]);
  }
  return steps;
}

// Returns the first place at which only one map has an entry, or the entries differ. Both maps are sorted, so one pass
// suffices, and the first mismatch is the earliest in time: later ones are usually its consequences.
template <typename Value>
std::optional<Place> first_difference(const std::map<Place, Value>& one, const std::map<Place, Value>& other) {
  auto a = one.begin(), b = other.begin();
  for (; a != one.end() && b != other.end() && *a == *b; ++a, ++b) {
  }
  if (a == one.end() && b == other.end()) return std::nullopt;
  if (a == one.end()) return b->first;
  if (b == other.end()) return a->first;
  return std::min(a->first, b->first);
}

// The text shows nine significant digits, which distinguish any two floats; the comparison itself used all bits.
std::string loss_at(const std::map<Place, std::string>& losses, const Place& place) {
  const auto found = losses.find(place);
  return found == losses.end() ? "none" : fmt::format("{:.9g}", std::strtod(found->second.c_str(), nullptr));
}

std::string differing_parameter(const Json& one, const Json& other) {
  for (std::size_t place = 0; place < one.size(); ++place) {
    if (place >= other.size() || one[place] != other[place]) return one[place][0];
  }
  return other[one.size()][0];  // `other` has more parameters
}

// Parameters are compared in registration order, so the first that differs is usually the one closest to the cause.
std::string update_difference(const Steps& run, const Steps& round_robin, const Place& place) {
  const auto& [update, rank] = place;
  if (!run.updates.contains(place) || !round_robin.updates.contains(place))
    return fmt::format("rank {} makes update {} in only one of the runs", rank, update);
  return fmt::format("the first parameter that differs is {}, after update {} of rank {}",
                     differing_parameter(run.updates.at(place), round_robin.updates.at(place)), update, rank);
}

}  // namespace

// Losses are written as hexadecimal floats and hashes with a fixed width, so that lines can be compared as text.
std::vector<std::string> lines_of(const sim::StepRecords& records) {
  std::vector<std::string> lines;
  for (const auto& [rank, step, loss] : records.losses)
    lines.push_back(Json{{"rank", rank}, {"step", step}, {"loss", fmt::format("{:a}", loss)}}.dump());
  for (const auto& [rank, update, names, hashes] : records.updates) {
    Json parameters = Json::array();
    for (std::size_t place = 0; place < hashes.size(); ++place)
      parameters.push_back({(*names)[place], fmt::format("{:016x}", hashes[place])});
    lines.push_back(Json{{"rank", rank}, {"update", update}, {"parameters", std::move(parameters)}}.dump());
  }
  return lines;
}

std::optional<std::string> difference_of(const std::vector<std::string>& lines,
                                         const std::vector<std::string>& round_robin) {
  if (lines == round_robin) return std::nullopt;
  const auto run = parsed(lines), turns = parsed(round_robin);
  const auto loss = first_difference(run.losses, turns.losses);
  const auto update = first_difference(run.updates, turns.updates);
  std::string text;
  if (loss)
    text = fmt::format("rank {}, step {}: the loss is {}, but {} when the ranks take turns", loss->second, loss->first,
                       loss_at(run.losses, *loss), loss_at(turns.losses, *loss));
  if (update) text += (text.empty() ? "" : "; ") + update_difference(run, turns, *update);
  return text;
}

}  // namespace accel::programs
