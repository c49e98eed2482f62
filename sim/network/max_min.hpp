#pragma once

#include <span>
#include <vector>

/// Max-min fair rates of flows that share links: no flow can have more without one that has no more than it having
/// less.
///
///     Flows flows;
///     flows.add({0, 1});  // crosses the links 0 and 1
///     flows.add({1});
///     max_min_rates(flows, /*capacities=*/{1.0, 10.0});  // 1.0 and 9.0
///
/// By progressive filling: the link with the least for each of its open flows fixes those, until all are fixed. A flow
/// over links without limit has an unlimited rate. Thread rule: pure.
namespace accel::sim {

struct Flows {
  std::vector<int> begins = {0};  ///< of each flow in `links`, and the end of the last
  std::vector<int> links;

  void add(std::span<const int> route);
  [[nodiscard]] int size() const { return static_cast<int>(begins.size()) - 1; }
  [[nodiscard]] std::span<const int> route(int flow) const {
    return std::span(links).subspan(begins[flow], begins[flow + 1] - begins[flow]);
  }
};

/// `capacities` by link number.
std::vector<double> max_min_rates(const Flows& flows, std::span<const double> capacities);

}  // namespace accel::sim
