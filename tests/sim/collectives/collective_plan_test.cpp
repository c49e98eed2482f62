#include "sim/collectives/collective_plan.hpp"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "reference/core/errors.hpp"
#include "sim/collectives/stages.hpp"
#include "tests/sim/network/network_examples.hpp"

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

namespace accel::sim {
namespace {

using accel::sim::testing::kMiB;
using accel::testing::expect_property;
using accel::testing::pick;

struct Traffic {
  std::vector<std::int64_t> bytes_sent, bytes_received, pieces_sent;
};

void for_each_message(const CollectivePlan& plan, const std::function<void(const Message&)>& visit) {
  std::vector<Message> messages;
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    for (const auto& stage : plan.stages) {
      for (int round = 0; round < stage.num_rounds; ++round) {
        stage.messages(round, messages);
        for (const auto& message : messages) {
          if (message.pieces > 0) visit(message);
        }
      }
    }
  }
}

Traffic traffic_of(const CollectiveCall& call, Library library = Library::kGloo, std::int64_t tree_bytes_max = 0) {
  const std::vector<std::int64_t> none(call.num_ranks);
  Traffic traffic{none, none, none};
  for_each_message(plan_collective(call, library, tree_bytes_max), [&](const Message& message) {
    traffic.bytes_sent[message.from] += message.bytes;
    traffic.bytes_received[message.to] += message.bytes;
    traffic.pieces_sent[message.from] += message.pieces;
  });
  return traffic;
}

// 2(P-1)/P B each way, in 2(S-k) messages of S segments, k of them in a chunk.
TEST(CollectivePlanTest, AnAllReduceSendsWhatGloosFormulaSays) {
  for (const int ranks : {2, 3, 8, 64}) {
    const std::int64_t bytes = ranks * 2 * 4 * std::int64_t{1000};
    const auto traffic = traffic_of({.op = Collective::kAllReduce, .bytes = bytes, .num_ranks = ranks});
    EXPECT_THAT(traffic.bytes_sent, Each(2 * (ranks - 1) * bytes / ranks));
    EXPECT_THAT(traffic.bytes_received, Each(2 * (ranks - 1) * bytes / ranks));
    EXPECT_THAT(traffic.pieces_sent, Each(2 * (2 * ranks - 2)));
  }
}

TEST(CollectivePlanTest, ALargeAllReduceIsCutIntoSegmentsOfAMebibyte) {
  const auto traffic = traffic_of({.op = Collective::kAllReduce, .bytes = 12 * kMiB, .num_ranks = 2});
  EXPECT_THAT(traffic.pieces_sent, Each(2 * (12 - 6)));
}

TEST(CollectivePlanTest, OneNumberTravelsAloneAroundTheRing) {
  const auto traffic = traffic_of({.op = Collective::kAllReduce, .bytes = 4, .num_ranks = 4});
  EXPECT_THAT(traffic.bytes_sent, ElementsAre(4, 4, 8, 8));  // summed 3, 2, 1, 0; then passed on 0, 3, 2, 1
}

TEST(CollectivePlanTest, WhatTheOtherCollectivesSend) {
  const auto sent = [](Collective op, Library library = Library::kGloo) {
    return traffic_of({.op = op, .bytes = 4096, .num_ranks = 4, .root = 1}, library).bytes_sent;
  };
  EXPECT_THAT(sent(Collective::kAllGather), Each(3 * 4096));
  EXPECT_THAT(sent(Collective::kBroadcast), ElementsAre(0, 8192, 4096, 0));
  EXPECT_THAT(sent(Collective::kGather), ElementsAre(4096, 0, 4096, 4096));
  EXPECT_THAT(sent(Collective::kScatter), ElementsAre(0, 3 * 4096, 0, 0));
  EXPECT_THAT(sent(Collective::kReduce), ElementsAre(4096, 3072, 4096, 4096));  // the ring, then the chunks to the root
  EXPECT_THAT(sent(Collective::kReduceScatterTensor), Each(6144));              // Gloo reduces all everywhere
  EXPECT_THAT(sent(Collective::kReduceScatter), Each(4 * 1536));
  EXPECT_THAT(sent(Collective::kAllToAll), Each(3072));
  EXPECT_THAT(sent(Collective::kBarrier), Each(0));
  EXPECT_THAT(sent(Collective::kReduceScatterTensor, Library::kNccl), Each(3072));
  EXPECT_THAT(sent(Collective::kBroadcast, Library::kNccl),
              ElementsAre(0, 4096, 4096, 4096));  // down the chain 1, 2, 3, 0
  EXPECT_THAT(sent(Collective::kReduce, Library::kNccl), ElementsAre(4096, 0, 4096, 4096));  // 2, 3, 0, 1
}

TEST(CollectivePlanTest, ATreeAllReduceSendsEverythingUpAndDown) {
  const auto traffic =
      traffic_of({.op = Collective::kAllReduce, .bytes = 100, .num_ranks = 4}, Library::kGloo, /*tree_bytes_max=*/100);
  EXPECT_THAT(traffic.bytes_sent, ElementsAre(200, 200, 100, 100));
  EXPECT_THAT(traffic_of({.op = Collective::kAllReduce, .bytes = 128, .num_ranks = 4}, Library::kGloo, 100).bytes_sent,
              Each(192));
}

using Holdings = std::vector<std::vector<std::set<int>>>;  // [rank][chunk]: whose contributions are in it

// Chunk c has c + 1 bytes, which tell it from the others.
void pass_on(const Stage& stage, Holdings& held) {
  std::vector<Message> messages;
  for (int round = 0; round < stage.num_rounds; ++round) {
    stage.messages(round, messages);
    const auto before = held;
    for (const auto& message : messages) {
      const auto chunk = message.bytes - 1;
      auto& received = held[message.to][chunk];
      if (!message.is_reduced) received.clear();
      received.insert(before[message.from][chunk].begin(), before[message.from][chunk].end());
    }
  }
}

TEST(CollectivePlanTest, AfterTheRingsHalvesARankHasItsChunkThenAllChunksOfAllRanks) {
  for (const auto direction : {Pairs::kRingDown, Pairs::kRingUp}) {
    for (const int ranks : {2, 3, 7}) {
      std::vector<Message> chunks(ranks);
      for (int chunk = 0; chunk < ranks; ++chunk) chunks[chunk].bytes = chunk + 1;
      Holdings held(ranks, std::vector<std::set<int>>(ranks));
      for (int rank = 0; rank < ranks; ++rank) std::fill(held[rank].begin(), held[rank].end(), std::set{rank});
      pass_on(ring_reduce_scatter(chunks, direction), held);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_THAT(held[rank][rank], SizeIs(ranks));
      pass_on(ring_all_gather(chunks, direction), held);
      for (const auto& of_rank : held) EXPECT_THAT(of_rank, Each(SizeIs(ranks)));
    }
  }
}

// Who has heard of whom; a message brings what its sender had heard before the round.
std::vector<std::set<int>> heard_after(const CollectivePlan& plan, int num_ranks) {
  std::vector<std::set<int>> heard(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) heard[rank] = {rank};
  std::vector<Message> messages;
  for (const auto& stage : plan.stages) {
    for (int round = 0; round < stage.num_rounds; ++round) {
      stage.messages(round, messages);
      const auto before = heard;
      for (const auto& message : messages) {
        if (message.pieces > 0) heard[message.to].insert(before[message.from].begin(), before[message.from].end());
      }
    }
  }
  return heard;
}

TEST(CollectivePlanTest, EveryRankHearsOfThoseWhoseDataItNeeds) {
  for (const auto library : {Library::kGloo, Library::kNccl}) {
    for (const auto tree_bytes_max : {0, 1 << 20}) {
      for (int ranks = 2; ranks <= 17; ++ranks) {
        for (const auto op : sim::testing::group_collectives()) {
          const int root = ranks / 2;
          const auto heard = heard_after(
              plan_collective({.op = op, .bytes = 1 << 20, .num_ranks = ranks, .root = root}, library, tree_bytes_max),
              ranks);
          if (op == Collective::kBroadcast || op == Collective::kScatter) {
            for (const auto& of_rank : heard) EXPECT_TRUE(of_rank.contains(root)) << name_of(op) << " on " << ranks;
          } else if (op == Collective::kGather || op == Collective::kReduce) {
            EXPECT_THAT(heard[root], SizeIs(ranks)) << name_of(op) << " on " << ranks;
          } else {
            EXPECT_THAT(heard, Each(SizeIs(ranks))) << name_of(op) << " on " << ranks;
          }
        }
      }
    }
  }
}

TEST(CollectivePlanTest, FromTheRootEveryOtherRankReceivesItsBytesOnce) {
  for (const auto library : {Library::kGloo, Library::kNccl}) {
    for (int ranks = 2; ranks <= 17; ++ranks) {
      for (const auto op : {Collective::kBroadcast, Collective::kScatter}) {
        auto expected = std::vector<std::int64_t>(ranks, 3 << 20);
        expected[ranks / 2] = 0;
        EXPECT_EQ(
            traffic_of({.op = op, .bytes = 3 << 20, .num_ranks = ranks, .root = ranks / 2}, library).bytes_received,
            expected)
            << name_of(op);
      }
    }
  }
}

TEST(CollectivePlanTest, AnExchangeOfManyRanksGoesInSeveralRoundsAndLosesNothing) {
  const CollectiveCall call{.op = Collective::kAllToAll, .bytes = 1000 * 8, .num_ranks = 1000};
  EXPECT_GT(plan_collective(call, Library::kGloo).stages[0].num_rounds, 1);
  EXPECT_THAT(traffic_of(call).bytes_received, Each(999 * 8));
}

TEST(CollectivePlanTest, WhatIsSentIsReceivedAndNobodySendsToHimself) {
  expect_property(200, [] {
    const auto call = sim::testing::any_call();
    const auto library = pick(0, 2) == 0 ? Library::kGloo : Library::kNccl;
    std::int64_t sent = 0;
    for_each_message(plan_collective(call, library), [&](const Message& message) {
      RC_ASSERT(message.from != message.to);
      RC_ASSERT(message.from >= 0 && message.from < call.num_ranks && message.to >= 0 && message.to < call.num_ranks);
      sent += message.bytes;
    });
    const auto traffic = traffic_of(call, library);
    RC_ASSERT(std::accumulate(traffic.bytes_sent.begin(), traffic.bytes_sent.end(), std::int64_t{0}) == sent);
    RC_ASSERT(std::accumulate(traffic.bytes_received.begin(), traffic.bytes_received.end(), std::int64_t{0}) == sent);
  });
}

// Rounds of a pattern may be solved once only if they have the same pairs in the same order.
TEST(CollectivePlanTest, RoundsOfOnePatternHaveTheSamePairs) {
  expect_property(200, [] {
    const auto plan = plan_collective(sim::testing::any_call(), pick(0, 2) == 0 ? Library::kGloo : Library::kNccl);
    for (const auto& stage : plan.stages) {
      std::map<int, std::vector<std::pair<int, int>>> pairs_of;
      for (int round = 0; round < stage.num_rounds; ++round) {
        std::vector<Message> messages;
        stage.messages(round, messages);
        std::vector<std::pair<int, int>> pairs;
        for (const auto& message : messages) pairs.emplace_back(message.from, message.to);
        RC_ASSERT(pairs_of.emplace(stage.pattern(round), pairs).first->second == pairs);
      }
    }
  });
}

// A round of a pattern that was visited is skipped.
TEST(CollectivePlanTest, LinksAreThePairsOfAllMessages) {
  using Links = std::set<std::pair<int, int>>;
  for (const auto op : sim::testing::group_collectives()) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int root = 0; root < ranks; ++root) {
        Links links, used;
        for_each_link(op, ranks, root, [&](int from, int to) { links.emplace(from, to); });
        for_each_message(
            plan_collective({.op = op, .bytes = 1 << 20, .num_ranks = ranks, .root = root}, Library::kGloo),
            [&](const Message& message) { used.emplace(message.from, message.to); });
        EXPECT_EQ(links, used) << name_of(op) << ", " << ranks << " ranks, root " << root;
      }
    }
  }
}

TEST(CollectivePlanTest, WrongCallsAreRefused) {
  EXPECT_THROW(plan_collective({.op = Collective::kBroadcast, .num_ranks = 2}, Library::kGloo), ArgumentError);
  EXPECT_THROW(plan_collective({.op = Collective::kGather, .num_ranks = 2, .root = 2}, Library::kGloo), ArgumentError);
  EXPECT_THROW(plan_collective({.op = Collective::kSend, .num_ranks = 3}, Library::kGloo), ArgumentError);
}

}  // namespace
}  // namespace accel::sim
