// Who sends to whom stands in two places, as faults know no network: here they are compared.
#include <gtest/gtest.h>

#include <set>

#include "sim/faults/fault_injector.hpp"
#include "sim/network/collective_plan.hpp"
#include "tests/sim/network/network_examples.hpp"

namespace accel::sim {
namespace {

using Links = std::set<std::pair<int, int>>;

Links links_of_plan(std::string_view op, int num_ranks, int root) {
  Links links;
  const auto plan = plan_collective({.op = op, .bytes = 1 << 20, .num_ranks = num_ranks, .root = root}, Library::kGloo);
  std::vector<Message> messages;
  for (const auto& stage : plan.stages) {
    for (int round = 0; round < stage.num_rounds; ++round) {
      stage.messages(round, messages);
      for (const auto& message : messages) {
        if (message.pieces > 0) links.emplace(message.from, message.to);
      }
    }
  }
  return links;
}

Links links_of_faults(std::string_view op, int num_ranks, int root) {
  Links links;
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      if (sends_message(op, num_ranks, root, from, to)) links.emplace(from, to);
    }
  }
  return links;
}

TEST(LinksOfCollectivesTest, FaultsStrikeTheLinksThatTheNetworkUses) {
  for (const auto op : testing::kGroupOps) {
    for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
      for (int root = 0; root < num_ranks; ++root)
        EXPECT_EQ(links_of_faults(op, num_ranks, root), links_of_plan(op, num_ranks, root))
            << op << ", " << num_ranks << " ranks, root " << root;
    }
  }
}

}  // namespace
}  // namespace accel::sim
