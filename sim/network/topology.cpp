// Builds links and routes. Trees and grids create all links at once; in a full topology there is one link per
// pair, 16 million on 4,096 ranks, so links are created when a route is requested.
#include "sim/network/topology.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

std::optional<std::int64_t> num_ranks_max(const TopologySpec& spec) {
  if (const auto* tree = std::get_if<TreeSpec>(&spec)) return tree->num_ranks_max;
  const auto* torus = std::get_if<TorusSpec>(&spec);
  if (torus == nullptr || torus->shape.empty()) return std::nullopt;
  std::int64_t places = 1;
  for (const int extent : torus->shape) places *= extent;  // read_network limits the product
  return places;
}

constexpr std::int64_t kMostRanks = 1 << 20;  // cap: a unit of this size holds all ranks

// Returns the link of a rank's port: port p of unit u of a tier that begins at link `first` has two links, up
// and down. Ranks of a unit are spread over its ports in order.
int port_link(int first, const Tier& tier, int ranks_per_unit, int rank, bool upward) {
  const auto port = static_cast<std::int64_t>(rank % ranks_per_unit) * tier.ports / ranks_per_unit;
  return first + (rank / ranks_per_unit * tier.ports + static_cast<int>(port)) * 2 + (upward ? 0 : 1);
}

}  // namespace

Topology::Topology(TopologySpec spec, const std::vector<LinkOverride>& overrides, int num_ranks)
    : spec_(std::move(spec)), num_ranks_(num_ranks) {
  check_config(num_ranks >= 1, "got a network of {} ranks; expected 1 or more", num_ranks);
  const auto most = num_ranks_max(spec_);
  check_config(!most || num_ranks <= *most,
               "the topology holds {} ranks, but there are {}; use fewer ranks or describe a larger topology",
               most.value_or(0), num_ranks);
  std::visit([this](const auto& kind) { add_links(kind); }, spec_);
  for (const auto& change : overrides) override_link(change);
}

int Topology::add_link(const LinkCosts& costs) {
  links_.push_back(costs);
  return num_links() - 1;
}

void Topology::add_links(const FullSpec& /*spec*/) {}  // created on demand by find_route

void Topology::add_links(const TreeSpec& spec) {
  int ranks_per_unit = 1;
  for (const auto& tier : spec.tiers) {
    ranks_per_unit =
        static_cast<int>(std::min<std::int64_t>(static_cast<std::int64_t>(ranks_per_unit) * tier.units, kMostRanks));
    tiers_.push_back({.first = num_links(), .ranks_per_unit = ranks_per_unit});
    const int units = (num_ranks_ + ranks_per_unit - 1) / ranks_per_unit;
    links_.insert(links_.end(), static_cast<std::size_t>(units) * tier.ports * 2, tier.port);
  }
  if (spec.core_bytes_per_second < kUnlimited) core_ = add_link({.bytes_per_second = spec.core_bytes_per_second});
}

void Topology::add_links(const TorusSpec& /*spec*/) {
  auto& torus = std::get<TorusSpec>(spec_);
  if (torus.shape.empty()) torus.shape = {num_ranks_};
  // Two links per rank and dimension, forward and backward. All places of the grid have links, also those
  // without a rank: routes may pass through them.
  links_.assign(static_cast<std::size_t>(*num_ranks_max(spec_)) * torus.shape.size() * 2, torus.link);
}

Route Topology::find_route(const FullSpec& spec, int /*from*/, int /*to*/) { return {add_link(spec.link)}; }

// Climbs until both ranks are in the same unit, then descends. Only messages that climb through every tier
// cross the core.
Route Topology::find_route(const TreeSpec& spec, int from, int to) {
  Route up, down;
  std::size_t tier = 0;
  for (; tier < tiers_.size(); ++tier) {
    const auto [first, ranks_per_unit] = tiers_[tier];
    if (from / ranks_per_unit == to / ranks_per_unit) break;
    up.push_back(port_link(first, spec.tiers[tier], ranks_per_unit, from, /*upward=*/true));
    down.push_back(port_link(first, spec.tiers[tier], ranks_per_unit, to, /*upward=*/false));
  }
  if (core_ >= 0 && tier == tiers_.size()) up.push_back(core_);
  up.insert(up.end(), down.rbegin(), down.rend());
  return up;
}

// Dimension-order routing. On a tie between the two directions it goes forward, so routes are deterministic.
Route Topology::find_route(const TorusSpec& spec, int from, int to) {
  Route route;
  const auto num_dimensions = static_cast<int>(spec.shape.size());
  for (int dimension = 0, stride = 1, place = from; dimension < num_dimensions; stride *= spec.shape[dimension++]) {
    const int extent = spec.shape[dimension];
    int here = place / stride % extent;
    const int forward = (to / stride % extent - here + extent) % extent;
    const bool goes_forward = 2 * forward <= extent;
    for (int hop = goes_forward ? forward : extent - forward; hop > 0; --hop) {
      route.push_back((place * num_dimensions + dimension) * 2 + (goes_forward ? 0 : 1));
      const int next = (here + (goes_forward ? 1 : extent - 1)) % extent;
      place += (next - here) * stride;
      here = next;
    }
  }
  return route;
}

const Route& Topology::route(int from, int to) {
  ensure(from != to, "a route from rank {} to itself", from);
  const auto key = static_cast<std::int64_t>(from) * num_ranks_ + to;
  // Routes are cached: every round of a collective asks for the same ones.
  const auto known = routes_.find(key);
  if (known != routes_.end()) return known->second;
  return routes_.emplace(key, std::visit([&](const auto& kind) { return find_route(kind, from, to); }, spec_))
      .first->second;
}

// Latencies add up along a route, rates do not: the slowest share bounds the message (max_min_rates).
double Topology::latency_seconds(const Route& route) const {
  double sum = 0;
  for (const int number : route) sum += links_[number].latency_seconds;
  return sum;
}

// An override of ranks that the run does not have is ignored, so that one file serves several numbers of ranks.
void Topology::override_link(const LinkOverride& change) {
  if (change.from >= num_ranks_ || change.to >= num_ranks_) return;
  const auto& known = route(change.from, change.to);
  if (known.size() == 1) {
    links_[known[0]] = change.costs;
  } else {
    routes_[static_cast<std::int64_t>(change.from) * num_ranks_ + change.to] = {add_link(change.costs)};
  }
}

void Topology::scale(int from, int to, double factor) {
  check_argument(from >= 0 && from < num_ranks_ && to >= 0 && to < num_ranks_ && from != to,
                 "got a link from rank {} to rank {} of {} ranks; expected two different ranks", from, to, num_ranks_);
  check_argument(factor > 0, "got a link factor of {}; expected a positive number", factor);
  auto scaled = route(from, to);
  if (scaled.size() == 1) {
    links_[scaled[0]].latency_seconds *= factor;
    links_[scaled[0]].bytes_per_second /= factor;
    return;
  }
  // Adds one private link to the route with the missing latency and the reduced rate: the shared links stay unchanged.
  double rate = kUnlimited;
  for (const int number : scaled) rate = std::min(rate, links_[number].bytes_per_second);
  scaled.push_back(add_link({(factor - 1) * latency_seconds(scaled), rate / factor}));
  routes_[static_cast<std::int64_t>(from) * num_ranks_ + to] = scaled;
}

}  // namespace accel::sim
