// Reads fault files with YamlReader, which collects problems instead of throwing at the first: a user sees all
// of them at once, with lines. What a kind does not accept stays unread and is reported by `finish_keys` as an
// unknown key.
#include "sim/faults/fault_file.hpp"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "sim/faults/fault_parameters.hpp"

namespace accel::sim {
namespace {

// Reads an enumerator by name; null if it is absent or unknown, which is reported.
template <typename Enum>
std::optional<Enum> read_name(YamlReader& reader, const char* key, std::span<const std::string_view> names) {
  const auto find = [&](const std::string& name) { return std::find(names.begin(), names.end(), name); };
  const auto is_known = [&](const std::string& name) { return find(name) != names.end(); };
  const auto name = reader.optional<std::string>(key, is_known, fmt::format("one of {}", fmt::join(names, ", ")));
  return name ? std::optional(static_cast<Enum>(find(*name) - names.begin())) : std::nullopt;
}

// Reads one parameter of any form into its field of Fault.
struct ReadValue {
  YamlReader& reader;
  const char* key;
  Fault& fault;

  void operator()(const NumberForm& form) const {
    const auto is_meant = [&](const double& value) {
      return std::isfinite(value) && value >= form.least && value <= form.most;
    };
    fault.*form.member = reader.optional<double>(key, is_meant, allowed_values(form));
  }
  void operator()(const CountForm& form) const {
    fault.*form.member = reader.optional<std::int64_t>(key, at_least_zero);
  }
  void operator()(const TextForm& form) const { fault.*form.member = reader.optional<std::string>(key); }
  template <typename Enum>
  void operator()(const ChoiceForm<Enum>& form) const {
    fault.*form.member = read_name<Enum>(reader, key, form.names);
  }
  void operator()(const FlagForm& form) const { fault.*form.member = reader.optional<bool>(key).value_or(false); }
};

// std::stoi would accept "3 ranks".
std::optional<int> number_in(const std::string& text) {
  int number = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

class FaultReader {
 public:
  FaultReader(YamlReader& reader, int num_ranks) : reader_(reader), num_ranks_(num_ranks) {}

  std::optional<Fault> read(std::uint64_t seed, std::uint32_t place) {
    const auto kind = read_kind();
    if (!kind) return std::nullopt;
    Fault fault{.kind = *kind, .seed = seed};
    const auto& rule = rule_of(*kind);
    read_place(rule, fault);
    if (rule.has(FaultRule::kStep)) fault.when = read_when(rule);
    read_amounts(rule, fault);
    const auto is_stream = [](const std::int64_t& number) { return number >= 0 && number <= UINT32_MAX; };
    const auto stream = reader_.optional<std::int64_t>("stream", is_stream, "a number of 0..4294967295");
    fault.stream = static_cast<std::uint32_t>(stream.value_or(place));
    reader_.finish_keys();
    return fault;
  }

 private:
  // Without a valid kind nothing else of the entry can be checked, so it is skipped.
  std::optional<FaultKind> read_kind() {
    if (!reader_.has("kind")) reader_.missing("kind");
    std::vector<std::string_view> names;
    for (const auto& rule : kFaultRules) names.push_back(rule.name);
    return read_name<FaultKind>(reader_, "kind", names);
  }

  void read_place(const FaultRule& rule, Fault& fault) {
    if (rule.needs_two_ranks() && num_ranks_ < 2) {
      reader_.problem("kind", fmt::format("{} requires at least two ranks; the run has {}", rule.name, num_ranks_));
    }
    if (rule.has(FaultRule::kRank)) fault.rank = read_rank();
    if (rule.has(FaultRule::kLink)) fault.link = read_link();
    if (rule.has(FaultRule::kRanks)) fault.ranks = read_side();
  }

  [[nodiscard]] bool is_rank(int rank) const { return rank >= 0 && rank < num_ranks_; }

  // A text that is no number becomes num_ranks_, which `is_rank` rejects.
  std::optional<int> read_rank() {
    const auto read = [&](const std::string& text) {
      return text == "any" ? kAnyRank : number_in(text).value_or(num_ranks_);
    };
    const auto is_meant = [&](const std::string& text) { return text == "any" || is_rank(read(text)); };
    const auto text =
        reader_.optional<std::string>("rank", is_meant, fmt::format("any, or a rank of 0..{}", num_ranks_ - 1));
    return text ? std::optional(read(*text)) : std::nullopt;
  }

  std::optional<NetworkLink> read_link() {
    using Ranks = std::vector<int>;
    const auto is_link = [&](const Ranks& ends) {
      return ends.size() == 2 && ends[0] != ends[1] && is_rank(ends[0]) && is_rank(ends[1]);
    };
    const auto ends =
        reader_.optional<Ranks>("link", is_link, fmt::format("[from, to], two ranks of 0..{}", num_ranks_ - 1));
    return ends ? std::optional(NetworkLink{(*ends)[0], (*ends)[1]}) : std::nullopt;
  }

  // A side must leave at least one rank on the other: a partition of all ranks separates nothing.
  std::optional<std::vector<int>> read_side() {
    const auto is_side = [&](const std::vector<int>& ranks) {
      const std::set<int> side(ranks.begin(), ranks.end());
      const bool are_ranks = !side.empty() && is_rank(*side.begin()) && is_rank(*side.rbegin());
      return are_ranks && side.size() == ranks.size() && std::ssize(side) < num_ranks_;
    };
    const auto expected = fmt::format("some of the ranks 0..{}, not all, each once", num_ranks_ - 1);
    auto ranks = reader_.optional<std::vector<int>>("ranks", is_side, expected);
    if (ranks) std::sort(ranks->begin(), ranks->end());
    return ranks;
  }

  // Exactly one of step and collective, and only those that the kind accepts. Both are read in any case, so
  // that neither is reported as an unknown key besides.
  std::optional<When> read_when(const FaultRule& rule) {
    auto reader = reader_.mapping("when");
    const auto read = [&](const char* unit) { return reader.optional<std::int64_t>(unit, at_least_zero); };
    const auto step = read("step");
    const auto collective = rule.has(FaultRule::kCollective) ? read("collective") : std::nullopt;
    const int given = int(reader.has("step")) + int(rule.has(FaultRule::kCollective) && reader.has("collective"));
    const auto* expected =
        rule.has(FaultRule::kCollective) ? "expected {step: N} or {collective: N}" : "expected {step: N}";
    if (reader_.has("when") && given != 1) reader_.problem("when", fmt::format("{}, one key, got {}", expected, given));
    reader.finish_keys();
    if (step) return When{When::Unit::kStep, *step};
    return collective ? std::optional(When{When::Unit::kCollective, *collective}) : std::nullopt;
  }

  void read_amounts(const FaultRule& rule, Fault& fault) {
    for (const auto& parameter : kFaultParameters) {
      if (rule.has(parameter.parameter)) std::visit(ReadValue{reader_, parameter.name, fault}, parameter.form);
    }
    if (fault.away && fault.seconds)
      reader_.problem("seconds", "a store that is away has no delay; expected either seconds or away");
  }

  YamlReader& reader_;
  const int num_ranks_;
};

// Writes what a reader needs to draw the same values again: the stream only if it is not the position.
void write_fault(YAML::Emitter& out, const Fault& fault, std::size_t place) {
  const auto key = [&](const std::string& name) -> YAML::Emitter& { return out << YAML::Key << name << YAML::Value; };
  out << YAML::Flow << YAML::BeginMap;
  key("kind") << std::string(rule_of(fault.kind).name);
  if (fault.rank == kAnyRank)
    key("rank") << "any";
  else if (fault.rank)
    key("rank") << *fault.rank;
  if (fault.link) key("link") << std::vector<int>{fault.link->from, fault.link->to};
  if (fault.ranks) key("ranks") << *fault.ranks;
  if (fault.when) {
    key("when") << YAML::BeginMap << YAML::Key << (fault.when->unit == When::Unit::kStep ? "step" : "collective");
    out << YAML::Value << fault.when->number << YAML::EndMap;
  }
  for (const auto& [name, text] : amounts(fault)) key(name) << text;
  if (fault.stream != place) key("stream") << fault.stream;
  out << YAML::EndMap;
}

}  // namespace

std::vector<Fault> parse_faults(const std::string& text, const std::string& file, int num_ranks) {
  YamlProblems problems(file);
  YamlReader reader(parse_yaml(text, file, problems), "", problems);
  const auto seed = reader.optional<std::int64_t>("seed", at_least_zero).value_or(0);
  std::vector<Fault> faults;
  // Two faults with one stream would draw the same values, for example strike the same rank.
  std::map<std::uint32_t, std::size_t> places;  // by stream
  auto entries = reader.required_mappings("faults");
  for (std::size_t place = 0; place < entries.size(); ++place) {
    FaultReader entry(entries[place], num_ranks);
    const auto fault = entry.read(static_cast<std::uint64_t>(seed), static_cast<std::uint32_t>(place));
    if (!fault) continue;
    const auto [earlier, is_new] = places.emplace(fault->stream, place);
    const auto problem =
        fmt::format("{} is already used by faults[{}]; expected a different number", fault->stream, earlier->second);
    if (!is_new) entries[place].problem("stream", problem);
    faults.push_back(*fault);
  }
  reader.finish_keys();
  problems.throw_if_any();
  return faults;
}

std::vector<Fault> read_faults(const std::string& file, int num_ranks) {
  return parse_faults(read_text(file), file, num_ranks);
}

std::string to_yaml(const std::vector<Fault>& faults) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  if (!faults.empty()) out << YAML::Key << "seed" << YAML::Value << faults.front().seed;
  out << YAML::Key << "faults" << YAML::Value << YAML::BeginSeq;
  for (std::size_t place = 0; place < faults.size(); ++place) {
    const auto seed = faults[place].seed, expected = faults.front().seed;
    check_argument(seed == expected,
                   "fault {}: expected seed {} as for the faults before it, got {}; a file has one seed", place,
                   expected, seed);
    write_fault(out, faults[place], place);
  }
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace accel::sim
