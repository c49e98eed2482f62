// Times of collectives on shared links. Messages of one round share links by max-min fairness; collectives of
// different groups share them approximately, see Note [Sharing with others]. Rounds repeat their pattern of
// messages (Stage::pattern), so rates are solved once per pattern and cached in the group.
#include "sim/network/network.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

constexpr double kTie = 1e-12;  // links whose shares differ only by rounding fill at the same time

struct OpenLink {
  double left = 0;  // remaining capacity
  int open = 0;     // flows without a rate yet
  std::vector<int> flows;
  [[nodiscard]] double share() const { return left / open; }
};

// Only links that some flow crosses: a topology may have millions of others. `index_of` maps link numbers to them.
std::vector<OpenLink> links_in_use(const Flows& flows, std::span<const double> capacities, std::vector<int>& index_of) {
  index_of.assign(capacities.size(), -1);
  std::vector<OpenLink> links;
  for (int flow = 0; flow < flows.size(); ++flow) {
    for (const int number : flows.route(flow)) {
      if (index_of[number] < 0) {
        index_of[number] = static_cast<int>(links.size());
        links.push_back({.left = capacities[number]});
      }
      auto& link = links[index_of[number]];
      ++link.open;
      link.flows.push_back(flow);
    }
  }
  return links;
}

std::vector<int> unique(std::vector<int> links) {
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

}  // namespace

void Flows::add(std::span<const int> route) {
  links.insert(links.end(), route.begin(), route.end());
  begins.push_back(static_cast<int>(links.size()));
}

std::vector<double> max_min_rates(const Flows& flows, std::span<const double> capacities) {
  constexpr double kOpen = std::numeric_limits<double>::infinity();
  std::vector<double> rates(flows.size(), kOpen);
  std::vector<int> index_of;
  auto links = links_in_use(flows, capacities, index_of);
  for (;;) {
    double share = kOpen;
    for (const auto& link : links) {
      if (link.open > 0) share = std::min(share, link.share());
    }
    if (share == kOpen) return rates;  // the remaining flows are unlimited
    std::vector<int> fixed;
    for (const auto& link : links) {
      if (link.open == 0 || link.share() > share * (1 + kTie)) continue;
      std::copy_if(link.flows.begin(), link.flows.end(), std::back_inserter(fixed),
                   [&](int flow) { return rates[flow] == kOpen; });
    }
    for (const int flow : fixed) {
      if (rates[flow] != kOpen) continue;  // already fixed: two links on its route filled at the same time
      rates[flow] = share;
      for (const int number : flows.route(flow)) {
        auto& link = links[index_of[number]];
        link.left -= share;
        --link.open;
      }
    }
  }
}

/// The costs of the rounds of one collective, given the other collectives whose links it crosses.
///
/// Note [Sharing with others]. The times of earlier collectives have already been returned, so they cannot be
/// slowed down. To make a new collective end when it would under fair sharing, each earlier one counts for its
/// remaining time and, since it would have been slowed down, for as long again. Example: of two equal transfers
/// that start together, the second ends after twice its time.
class Network::Costs {
 public:
  Costs(Network& network, Group& group, double begin) : network_(network), group_(group), begin_(begin) {
    for (const auto& [number, other] : network.groups_) {
      for (const auto& usage : other.under_way) {
        if (usage.end > begin) others_.push_back(&usage);
      }
    }
  }

  // Most rounds meet no other collective, and return the cached costs; only pairs of pattern and active set are
  // solved again.
  std::span<const PairCosts> operator()(const Stage& stage, int round, const std::vector<Message>& messages,
                                        double now) {
    const PatternKey key{stage.pairs, stage.root, stage.pattern(round)};
    auto& pattern = alone(key, messages);
    // Pointers to patterns stay valid: std::map does not move its elements.
    crossed_.insert(&pattern);
    auto active = active_at(now);
    std::erase_if(active, [&](const Usage* usage) { return !meets(usage->links, pattern.links); });
    if (active.empty()) return pattern.costs;
    auto& shared = shared_[{key, active}];
    if (shared.costs.empty()) shared = network_.solve(group_, messages, active);
    return shared.costs;
  }

  /// Returns all links that the rounds so far have crossed, sorted.
  [[nodiscard]] std::vector<int> links() const {
    std::vector<int> all;
    for (const auto* pattern : crossed_) all.insert(all.end(), pattern->links.begin(), pattern->links.end());
    return unique(std::move(all));
  }

 private:
  Pattern& alone(const PatternKey& key, const std::vector<Message>& messages) {
    auto& pattern = group_.patterns[key];
    if (pattern.costs.empty()) pattern = network_.solve(group_, messages, {});
    return pattern;
  }

  // Doubles the remaining time of each usage; see Note [Sharing with others].
  [[nodiscard]] std::vector<const Usage*> active_at(double now) const {
    std::vector<const Usage*> active;
    for (const auto* usage : others_) {
      const double left = usage->end - std::max(begin_, usage->begin);
      if (usage->begin <= now && now < usage->end + left) active.push_back(usage);
    }
    return active;
  }

  static bool meets(const std::vector<int>& some, const std::vector<int>& others) {
    std::vector<int> both;
    std::set_intersection(some.begin(), some.end(), others.begin(), others.end(), std::back_inserter(both));
    return !both.empty();
  }

  Network& network_;
  Group& group_;
  double begin_;
  std::vector<const Usage*> others_;
  std::map<std::pair<PatternKey, std::vector<const Usage*>>, Pattern> shared_;
  std::set<const Pattern*> crossed_;
};

Network::Network(NetworkSpec spec) : spec_(std::move(spec)) {}

Network Network::load(const std::string& file) { return Network(read_network(file)); }

void Network::set_ranks(int num_ranks) {
  try {
    topology_ = std::make_unique<Topology>(spec_.topology, spec_.links, num_ranks);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("network {}: {}", spec_.name, error.what()));
  }
  num_ranks_ = num_ranks;
  groups_.clear();
}

void Network::scale_link(int from, int to, double factor) {
  check_state(topology_ != nullptr, "network {}: scale_link was called before set_ranks; call set_ranks first",
              spec_.name);
  topology_->scale(from, to, factor);
  // Cached rates depend on the link that has changed.
  for (auto& [number, group] : groups_) group.patterns.clear();
}

Network::Group& Network::group_of(std::uint64_t number, const Transfer& transfer, std::span<const double> ready) {
  check_state(topology_ != nullptr, "network {}: finish_times was called before set_ranks; call set_ranks first",
              spec_.name);
  const auto op = name_of(transfer.op);
  check_argument(transfer.ranks != nullptr && !transfer.ranks->empty() && transfer.ranks->size() == ready.size(),
                 "{}: got times of {} ranks for a group of {}; expected one time per rank", op, ready.size(),
                 transfer.ranks == nullptr ? 0 : transfer.ranks->size());
  for (const double time : ready)
    check_argument(std::isfinite(time), "{}: got a rank that is ready at {} s; expected a finite time", op, time);
  auto& group = groups_[number];
  if (group.ranks.empty()) {
    for (const int rank : *transfer.ranks) {
      check_argument(rank >= 0 && rank < num_ranks_,
                     "{}: rank {} is not in the network of {} ranks; expected 0 or more and less than {}", op, rank,
                     num_ranks_, num_ranks_);
    }
    group.ranks = *transfer.ranks;
    group.lane_free.assign(group.ranks.size() * spec_.lanes, 0);
  }
  check_argument(group.ranks == *transfer.ranks,
                 "{}: group {} has different ranks than in its first call; use a new number", op, number);
  return group;
}

// A rank starts when it is ready and one of its lanes is free. Gloo's barrier waits for all lanes, because
// PyTorch runs it after all earlier calls.
std::vector<double> Network::starts(const Group& group, Collective op, std::span<const double> ready) const {
  const bool waits_for_all = op == Collective::kBarrier && spec_.library == Library::kGloo;
  std::vector<double> starts(ready.begin(), ready.end());
  for (std::size_t rank = 0; rank < starts.size(); ++rank) {
    const auto lanes = std::span(group.lane_free).subspan(rank * spec_.lanes, spec_.lanes);
    const double free =
        waits_for_all ? *std::max_element(lanes.begin(), lanes.end()) : *std::min_element(lanes.begin(), lanes.end());
    starts[rank] = std::max(starts[rank], free) + spec_.overhead_seconds;
  }
  return starts;
}

// The lane that was free first is the one that `starts` assumed.
void Network::occupy_lanes(Group& group, std::span<const double> ends) const {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const auto lanes = std::span(group.lane_free).subspan(rank * spec_.lanes, spec_.lanes);
    *std::min_element(lanes.begin(), lanes.end()) = ends[rank];
  }
}

// Every other collective on a link takes an equal share, however many messages it has there.
std::vector<double> Network::capacities_shared_with(const std::vector<const Usage*>& others) const {
  std::vector<int> users(topology_->num_links(), 1);
  for (const auto* usage : others) {
    for (const int link : usage->links) ++users[link];
  }
  std::vector<double> capacities(users.size());
  for (std::size_t link = 0; link < users.size(); ++link) {
    capacities[link] = topology_->link(static_cast<int>(link)).bytes_per_second / users[link];
  }
  return capacities;
}

Network::Pattern Network::solve(const Group& group, const std::vector<Message>& messages,
                                const std::vector<const Usage*>& others) {
  Pattern pattern;
  Flows flows;
  for (const auto& message : messages) {
    const auto& route = topology_->route(group.ranks[message.from], group.ranks[message.to]);
    flows.add(route);
    pattern.costs.push_back({.latency_seconds = topology_->latency_seconds(route)});
  }
  // Messages of one round are assumed to be in flight together for the complete round.
  const auto rates = max_min_rates(flows, capacities_shared_with(others));
  for (std::size_t index = 0; index < rates.size(); ++index) pattern.costs[index].seconds_per_byte = 1 / rates[index];
  pattern.links = unique(std::move(flows.links));
  return pattern;
}

std::vector<double> Network::finish_times(std::uint64_t number, const Transfer& transfer,
                                          std::span<const double> ready) {
  const CollectiveCall call{.op = transfer.op,
                            .bytes = transfer.bytes,
                            .element_bytes = transfer.element_bytes,
                            .num_ranks = static_cast<int>(ready.size()),
                            .root = transfer.root};
  const auto plan = plan_collective(call, spec_.library, spec_.tree_all_reduce_bytes_max);
  auto& group = group_of(number, transfer, ready);
  auto clocks = starts(group, transfer.op, ready);
  const double begin = *std::min_element(clocks.begin(), clocks.end());
  if (static_cast<int>(group.under_way.size()) == spec_.lanes) {  // the new one replaces the first to end
    group.under_way.erase(std::min_element(group.under_way.begin(), group.under_way.end(),
                                           [](const auto& a, const auto& b) { return a.end < b.end; }));
  }
  Costs costs(*this, group, begin);
  const TimingOptions options{.reduce_seconds_per_byte = spec_.reduce_seconds_per_byte,
                              .time_factor = size_factor(spec_.size_factors, transfer.bytes)};
  // `costs` records the links that it crosses while the plan runs, so the usage is known only afterwards.
  auto ends = run_plan(plan, std::move(clocks), options, std::ref(costs));
  occupy_lanes(group, ends);
  group.under_way.push_back(
      {.begin = begin, .end = *std::max_element(ends.begin(), ends.end()), .links = costs.links()});
  return ends;
}

}  // namespace accel::sim
