// Max-min fair sharing of links among flows, the model of competing transfers. Its definition is checked directly
// on random problems, in addition to small examples with known rates.
#include "sim/network/network.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/property.hpp"

using ::testing::DoubleEq;
using ::testing::ElementsAre;

namespace accel::sim {
namespace {

using accel::testing::expect_property;
using accel::testing::pick;

Flows flows_of(const std::vector<std::vector<int>>& routes) {
  Flows flows;
  for (const auto& route : routes) flows.add(route);
  return flows;
}

TEST(MaxMinTest, AFlowLimitedElsewhereLeavesItsShareToOthers) {
  // Flow 0 is limited to 1 by link 0, so the other two flows share the remaining 9 of link 1.
  EXPECT_THAT(max_min_rates(flows_of({{0, 1}, {1}, {1, 2}}), std::vector{1.0, 10.0, 100.0}),
              ElementsAre(1.0, 4.5, 4.5));
}

// The simplest case, where the fair rates are obvious.
TEST(MaxMinTest, FlowsOverOneLinkShareItEvenly) {
  EXPECT_THAT(max_min_rates(flows_of({{0}, {0}, {0}}), std::vector{6.0}), ElementsAre(2.0, 2.0, 2.0));
}

// Infinite capacities must not turn into NaN in divisions.
TEST(MaxMinTest, ALinkWithoutLimitRestrictsNoFlow) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  EXPECT_THAT(max_min_rates(flows_of({{0}, {0, 1}}), std::vector{kNoLimit, 3.0}), ElementsAre(kNoLimit, 3.0));
}

// Random flows over random links.
struct Problem {
  Flows flows;
  std::vector<double> capacities;
};

Problem any_problem() {
  Problem problem;
  problem.capacities.resize(pick(1, 12));
  for (auto& capacity : problem.capacities) capacity = pick(1, 50);
  for (int flow = pick(1, 30); flow > 0; --flow) {
    std::vector<int> route;
    for (int link = 0; link < static_cast<int>(problem.capacities.size()); ++link) {
      if (pick(0, 3) == 0) route.push_back(link);
    }
    if (route.empty()) route.push_back(0);
    problem.flows.add(route);
  }
  return problem;
}

std::vector<double> loads_of(const Problem& problem, const std::vector<double>& rates) {
  std::vector<double> loads(problem.capacities.size());
  for (int flow = 0; flow < problem.flows.size(); ++flow) {
    for (const int link : problem.flows.route(flow)) loads[link] += rates[flow];
  }
  return loads;
}

// Returns the greatest rate on a link.
double greatest(const Problem& problem, const std::vector<double>& rates, int link) {
  double most = 0;
  for (int flow = 0; flow < problem.flows.size(); ++flow) {
    const auto route = problem.flows.route(flow);
    if (std::find(route.begin(), route.end(), link) != route.end()) most = std::max(most, rates[flow]);
  }
  return most;
}

constexpr double kRounding = 1e-9;  // sums of at most 30 rates of at most 50

// Together with the next law, this defines max-min fairness, so nothing else needs to be compared.
TEST(MaxMinTest, NoLinkCarriesMoreThanItsCapacity) {
  expect_property(300, [] {
    const auto problem = any_problem();
    const auto loads = loads_of(problem, max_min_rates(problem.flows, problem.capacities));
    for (std::size_t link = 0; link < loads.size(); ++link)
      RC_ASSERT(loads[link] <= problem.capacities[link] + kRounding);
  });
}

// The definition of max-min: every flow crosses a saturated link on which no flow has a greater rate.
TEST(MaxMinTest, EveryFlowHasABottleneck) {
  expect_property(300, [] {
    const auto problem = any_problem();
    const auto rates = max_min_rates(problem.flows, problem.capacities);
    const auto loads = loads_of(problem, rates);
    for (int flow = 0; flow < problem.flows.size(); ++flow) {
      const auto route = problem.flows.route(flow);
      RC_ASSERT(std::any_of(route.begin(), route.end(), [&](int link) {
        return loads[link] >= problem.capacities[link] - kRounding &&
               rates[flow] >= greatest(problem, rates, link) - kRounding;
      }));
    }
  });
}

}  // namespace
}  // namespace accel::sim
