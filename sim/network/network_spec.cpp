// Reads network files. All problems are collected with their lines (YamlProblems). A value that is wrong is
// replaced by a harmless one, so that reading continues and finds the remaining problems.
#include "sim/network/network_spec.hpp"

#include <algorithm>
#include <cmath>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

bool is_time(double value) { return value >= 0 && std::isfinite(value); }
// An infinite rate is allowed (".inf" in YAML): a link that costs only latency.
bool is_rate(double value) { return value > 0; }
constexpr int kMostCount = 1 << 16;
constexpr int kMostCards = 1 << 10;
constexpr double kMostPlaces = 1 << 20;  // in a torus

bool is_finite_rate(double value) { return value > 0 && std::isfinite(value); }
bool is_rank(int value) { return value >= 0; }

double read_time(YamlReader& reader, const std::string& key) {
  return reader.required<double>(key, is_time, "0 seconds or more");
}
double read_rate(YamlReader& reader, const std::string& key) {
  return reader.required<double>(key, is_rate, "a positive number");
}
double read_optional_rate(YamlReader& reader, const std::string& key) {
  return reader.optional<double>(key, is_rate, "a positive number").value_or(kUnlimited);
}
int read_count(YamlReader& reader, const std::string& key, int absent, int most = kMostCount) {
  return reader
      .optional<int>(
          key, [=](int value) { return value >= 1 && value <= most; }, fmt::format("1 to {}", most))
      .value_or(absent);
}
// Reports a missing key and continues with 1, so that the rest of the file is still checked.
int read_required_count(YamlReader& reader, const std::string& key) {
  if (!reader.has(key)) reader.missing(key);
  return read_count(reader, key, 1);
}
double read_oversubscription(YamlReader& reader) {
  return reader.optional<double>("oversubscription", is_finite_rate, "a positive number").value_or(1);
}

LinkCosts read_link(YamlReader& reader) {
  return {read_time(reader, "latency_seconds"), read_rate(reader, "bytes_per_second")};
}

LinkCosts read_link(YamlReader& parent, const std::string& key) {
  if (!parent.has(key)) parent.missing(key);
  auto reader = parent.mapping(key);
  // The missing key has been reported; its own missing keys would only repeat that.
  if (!parent.has(key)) return {};
  const auto link = read_link(reader);
  reader.finish_keys();
  return link;
}

// A switch is a tree with one tier, a fat tree has two, nodes have up to three: routes need only one algorithm.
TopologySpec read_switch(YamlReader& reader) {
  return TreeSpec{.tiers = {{.port = read_link(reader)}},
                  .core_bytes_per_second = read_optional_rate(reader, "core_bytes_per_second")};
}

// Racks under one core: a rack's uplink carries what its ranks can send together, divided by the oversubscription.
TopologySpec read_fat_tree(YamlReader& reader) {
  const auto port = read_link(reader);
  const int ranks = read_required_count(reader, "ranks_per_rack");
  const LinkCosts up{port.latency_seconds, port.bytes_per_second * ranks / read_oversubscription(reader)};
  return TreeSpec{.tiers = {{.port = port}, {.units = ranks, .port = up}}};
}

// Nodes: fast links inside, network cards to the outside, and racks of nodes above if they are given. A single
// node needs no card.
TopologySpec read_nodes(YamlReader& reader) {
  TreeSpec spec;
  const int ranks = read_required_count(reader, "ranks_per_node");
  const int cards = read_count(reader, "cards_per_node", 1, kMostCards);
  spec.tiers.push_back({.port = read_link(reader, "inside")});
  const int num_nodes = read_count(reader, "num_nodes", 0);
  if (num_nodes > 0) spec.num_ranks_max = static_cast<std::int64_t>(num_nodes) * ranks;
  if (num_nodes == 1 && !reader.has("card")) return spec;
  const auto card = read_link(reader, "card");
  spec.tiers.push_back({.units = ranks, .ports = cards, .port = card});
  if (reader.has("nodes_per_rack")) {
    const int nodes = read_required_count(reader, "nodes_per_rack");
    spec.tiers.push_back(
        {.units = nodes,
         .port = {card.latency_seconds, card.bytes_per_second * cards * nodes / read_oversubscription(reader)}});
  }
  return spec;
}

TopologySpec read_torus(YamlReader& reader) {
  const auto fits = [](const std::vector<int>& shape) {
    // A double, because the product of three ints may overflow an int.
    double places = 1;
    for (const int extent : shape) places *= extent;
    return (shape.size() == 2 || shape.size() == 3) &&
           std::all_of(shape.begin(), shape.end(), [](int extent) { return extent >= 1; }) && places <= kMostPlaces;
  };
  auto shape = reader.required<std::vector<int>>(
      "shape", fits, fmt::format("2 or 3 positive integers, of a product up to {}", static_cast<int>(kMostPlaces)));
  return TorusSpec{.shape = std::move(shape), .link = read_link(reader)};
}

TopologySpec read_topology(YamlReader& file) {
  if (!file.has("topology")) file.missing("topology");
  auto reader = file.mapping("topology");
  if (!file.has("topology")) return FullSpec{};
  static const std::map<std::string, TopologySpec (*)(YamlReader&)> kinds = {
      {"full", [](YamlReader& of) -> TopologySpec { return FullSpec{read_link(of)}; }},
      {"ring", [](YamlReader& of) -> TopologySpec { return TorusSpec{.link = read_link(of)}; }},
      {"switch", read_switch},
      {"fat_tree", read_fat_tree},
      {"nodes", read_nodes},
      {"torus", read_torus}};
  const auto kind = reader.required<std::string>(
      "kind", [](const auto& name) { return kinds.contains(name); }, "full, ring, switch, fat_tree, nodes or torus");
  if (!kinds.contains(kind)) return FullSpec{};  // the keys of an unknown kind cannot be checked
  auto topology = kinds.at(kind)(reader);
  reader.finish_keys();
  return topology;
}

// Ranks are not compared with the run's: one file serves runs of any size.
std::vector<LinkOverride> read_overrides(YamlReader& file) {
  std::vector<LinkOverride> links;
  for (auto& reader : file.mappings("links")) {
    LinkOverride link;
    link.from = reader.required<int>("from", is_rank, "a rank, 0 or more");
    link.to = reader.required<int>("to", is_rank, "a rank, 0 or more");
    if (reader.has("to") && link.from == link.to)
      reader.problem("to", fmt::format("expected a rank other than {}", link.from));
    link.costs = read_link(reader);
    reader.finish_keys();
    links.push_back(link);
  }
  return links;
}

std::vector<SizeFactor> read_size_factors(YamlReader& file) {
  const auto is_size = [](std::int64_t bytes) { return bytes >= 1; };
  std::vector<SizeFactor> factors;
  for (auto& reader : file.mappings("size_factors")) {
    const auto bytes = reader.required<std::int64_t>("bytes", is_size, "1 or more");
    const bool is_sorted = factors.empty() || bytes > factors.back().bytes;
    if (!is_sorted)
      reader.problem("bytes", fmt::format("expected more than the {} of the entry before, got {}; sort the entries",
                                          factors.back().bytes, bytes));
    factors.push_back({bytes, reader.required<double>("factor", is_finite_rate, "a positive number")});
    reader.finish_keys();
  }
  return factors;
}

void read_table(YamlReader& reader, ComputeCosts& costs) {
  costs.launch_seconds = read_time(reader, "launch_seconds");
  costs.flops_per_second = read_rate(reader, "flops_per_second");
  costs.bytes_per_second = read_rate(reader, "bytes_per_second");
  auto ops = reader.mapping("ops");
  for (const auto& name : ops.keys()) {
    auto op = ops.mapping(name);
    costs.op_seconds[name] = read_time(op, "seconds");
    op.finish_keys();
  }
}

ComputeCosts read_compute(YamlReader& file) {
  ComputeCosts costs;
  auto reader = file.mapping("compute");
  if (!file.has("compute")) return costs;
  const auto kind = reader.required<std::string>(
      "kind", [](const auto& name) { return name == "cpu_time" || name == "table"; }, "cpu_time or table");
  if (kind == "cpu_time") costs.cpu_time_factor = reader.optional<double>("factor", is_time, "0 or more").value_or(1);
  if (kind == "table") {
    costs.kind = ComputeCosts::Kind::kTable;
    read_table(reader, costs);
  }
  // Without a valid kind every other key would be reported as unknown.
  if (!kind.empty()) reader.finish_keys();
  return costs;
}

}  // namespace

double ComputeCosts::seconds_of(std::string_view op, double flops, double bytes) const {
  const auto entry = op_seconds.find(op);
  if (entry != op_seconds.end()) return entry->second;
  return launch_seconds + std::max(flops / flops_per_second, bytes / bytes_per_second);
}

// Logarithms, because measured sizes double from point to point and factors are ratios.
double size_factor(const std::vector<SizeFactor>& factors, std::int64_t bytes) {
  if (factors.empty()) return 1;
  const auto above =
      std::find_if(factors.begin(), factors.end(), [&](const auto& point) { return point.bytes >= bytes; });
  if (above == factors.begin()) return above->factor;
  if (above == factors.end()) return factors.back().factor;
  const auto& [low, low_factor] = *(above - 1);
  const double share = std::log(static_cast<double>(bytes) / static_cast<double>(low)) /
                       std::log(static_cast<double>(above->bytes) / static_cast<double>(low));
  return low_factor * std::pow(above->factor / low_factor, share);
}

NetworkSpec read_network(const std::string& file) {
  YamlProblems problems(file);
  const auto root = load_yaml(file, "a network file", problems);
  YamlReader reader(root, "", problems);
  NetworkSpec spec;
  spec.name = reader.required<std::string>("name");
  const auto library = reader.required<std::string>(
      "library", [](const auto& name) { return name == "gloo" || name == "nccl"; }, "gloo or nccl");
  spec.library = library == "nccl" ? Library::kNccl : Library::kGloo;
  // ProcessGroupGloo has two threads per group, so two collectives run at the same time; NCCL has one stream.
  spec.lanes = read_count(reader, "lanes", spec.library == Library::kGloo ? 2 : 1);
  spec.overhead_seconds = read_time(reader, "overhead_seconds");
  spec.reduce_seconds_per_byte = read_time(reader, "reduce_seconds_per_byte");
  const auto is_size = [](std::int64_t bytes) { return bytes >= 0; };
  spec.tree_all_reduce_bytes_max =
      reader.optional<std::int64_t>("tree_all_reduce_bytes_max", is_size, "0 or more").value_or(0);
  spec.size_factors = read_size_factors(reader);
  spec.topology = read_topology(reader);
  spec.links = read_overrides(reader);
  spec.compute = read_compute(reader);
  reader.finish_keys();
  problems.throw_if_any();
  return spec;
}

}  // namespace accel::sim
