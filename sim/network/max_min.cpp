#include "sim/network/max_min.hpp"

#include <algorithm>
#include <limits>

namespace accel::sim {
namespace {

constexpr double kTie = 1e-12;  // links whose shares differ by rounding alone are full together

struct OpenLink {
  double left = 0;  // of its capacity
  int open = 0;     // flows without a rate
  std::vector<int> flows;
  [[nodiscard]] double share() const { return left / open; }
};

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
    if (share == kOpen) return rates;  // what is left has no limit
    std::vector<int> fixed;
    for (const auto& link : links) {
      if (link.open == 0 || link.share() > share * (1 + kTie)) continue;
      std::copy_if(link.flows.begin(), link.flows.end(), std::back_inserter(fixed),
                   [&](int flow) { return rates[flow] == kOpen; });
    }
    for (const int flow : fixed) {
      if (rates[flow] != kOpen) continue;  // two full links on its way
      rates[flow] = share;
      for (const int number : flows.route(flow)) {
        auto& link = links[index_of[number]];
        link.left -= share;
        --link.open;
      }
    }
  }
}

}  // namespace accel::sim
