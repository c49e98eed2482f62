#include "sim/programs/check/loader_pass.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

std::optional<std::int64_t> number_in(const Json& facts, const char* key) {
  const auto found = facts.find(key);
  return found == facts.end() || !found->is_number_integer() ? std::nullopt : std::optional(found->get<std::int64_t>());
}

LoaderPass pass_of(const Observation& begin) {
  const auto facts = Json::parse(begin.detail, nullptr, /*allow_exceptions=*/false);
  LoaderPass pass{.loader = begin.name, .number = std::atoi(begin.value.c_str())};
  if (!facts.is_object()) return pass;
  pass.size = number_in(facts, "size");
  pass.batch_size = number_in(facts, "batch_size");
  pass.drops_last = facts.value("drop_last", false);
  pass.shuffles = facts.value("shuffles", false);
  pass.is_divided = facts.value("is_divided", false);
  pass.begins_inside = facts.value("begins_inside", false);
  return pass;
}

}  // namespace

std::vector<std::string> LoaderPass::samples() const {
  std::vector<std::string> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

// What a pass draws itself comes at its begin, or with a batch.
std::vector<GeneratorState> generator_states_of(const RankRecording& rank) {
  std::vector<GeneratorState> states;
  bool may_be_drawn_by_loader = true;
  for (const auto& seen : rank) {
    if (seen.kind == "pass" || seen.kind == "draw") may_be_drawn_by_loader = true;
    if (seen.kind != "generator state") continue;
    const bool is_drawn = !may_be_drawn_by_loader && !states.empty() && states.back().value != seen.value;
    states.push_back({seen.value, is_drawn});
    may_be_drawn_by_loader = false;
  }
  return states;
}

std::vector<LoaderPass> passes_of(const RankRecording& rank) {
  std::vector<LoaderPass> passes;
  LoaderPass* last_read = nullptr;
  const auto latest = [&](const std::string& loader) -> LoaderPass* {
    const auto found =
        std::find_if(passes.rbegin(), passes.rend(), [&](const auto& pass) { return pass.loader == loader; });
    return found == passes.rend() ? nullptr : &*found;
  };
  passes.reserve(static_cast<std::size_t>(
      std::count_if(rank.begin(), rank.end(), [](const auto& seen) { return seen.kind == "pass"; })));
  for (const auto& seen : rank) {
    if (seen.kind == "pass") passes.push_back(pass_of(seen));
    if (seen.kind == "loss" && last_read != nullptr) last_read->trains = true;
    if (seen.kind != "read" && seen.kind != "pass end") continue;
    auto* const pass = latest(seen.name);
    if (pass == nullptr) continue;
    if (seen.kind == "pass end") {
      pass->is_complete = true;
    } else {
      pass->batches.push_back(words_of(seen.value));
      last_read = pass;
    }
  }
  return passes;
}

}  // namespace accel::programs
