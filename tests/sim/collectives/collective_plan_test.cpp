// The plan of each collective: which rank sends what to whom, in which round. The network model turns these
// messages into time, so their number and sizes must be those of Gloo's and NCCL's algorithms.
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

// What each rank sends and receives in a plan.
struct Traffic {
  std::vector<std::int64_t> bytes_sent, bytes_received, pieces_sent;
};

// Visits all messages that transfer data. Messages without pieces only keep the rounds of all ranks aligned.
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

// 2(P-1)/P B in each direction, in 2(S-k) messages, where S is the number of segments and k the segments per chunk.
TEST(CollectivePlanTest, AnAllReduceFollowsGloosFormula) {
  for (const int ranks : {2, 3, 8, 64}) {
    // Divisible by 2 P and by 4, so that all segments have the same size.
    const std::int64_t bytes = ranks * 2 * 4 * std::int64_t{1000};
    const auto traffic = traffic_of({.op = Collective::kAllReduce, .bytes = bytes, .num_ranks = ranks});
    EXPECT_THAT(traffic.bytes_sent, Each(2 * (ranks - 1) * bytes / ranks));
    EXPECT_THAT(traffic.bytes_received, Each(2 * (ranks - 1) * bytes / ranks));
    EXPECT_THAT(traffic.pieces_sent, Each(2 * (2 * ranks - 2)));
  }
}

// Gloo limits segments to 1 MiB (gloo/allreduce.cc, kMaxSegmentSize), so 12 MiB on two ranks become 12 segments.
TEST(CollectivePlanTest, ALargeAllReduceIsCutIntoSegmentsOfAMebibyte) {
  const auto traffic = traffic_of({.op = Collective::kAllReduce, .bytes = 12 * kMiB, .num_ranks = 2});
  EXPECT_THAT(traffic.pieces_sent, Each(2 * (12 - 6)));
}

// One element cannot be cut, so a single chunk moves and the other chunks are empty.
TEST(CollectivePlanTest, OneNumberTravelsAloneAroundTheRing) {
  const auto traffic = traffic_of({.op = Collective::kAllReduce, .bytes = 4, .num_ranks = 4});
  EXPECT_THAT(traffic.bytes_sent, ElementsAre(4, 4, 8, 8));  // summed 3, 2, 1, 0; then passed on 0, 3, 2, 1
}

TEST(CollectivePlanTest, TheOtherCollectivesSendTheirAlgorithmsBytes) {
  // The root is 1 and not 0, because a root of 0 hides mistakes in the rotation of ranks.
  const auto sent = [](Collective op, Library library = Library::kGloo) {
    return traffic_of({.op = op, .bytes = 4096, .num_ranks = 4, .root = 1}, library).bytes_sent;
  };
  EXPECT_THAT(sent(Collective::kAllGather), Each(3 * 4096));
  EXPECT_THAT(sent(Collective::kBroadcast), ElementsAre(0, 8192, 4096, 0));
  EXPECT_THAT(sent(Collective::kGather), ElementsAre(4096, 0, 4096, 4096));
  EXPECT_THAT(sent(Collective::kScatter), ElementsAre(0, 3 * 4096, 0, 0));
  EXPECT_THAT(sent(Collective::kReduce),
              ElementsAre(4096, 3072, 4096, 4096));  // the ring, then each rank sends its chunk to the root
  EXPECT_THAT(sent(Collective::kReduceScatterTensor), Each(6144));  // Gloo reduces everything on every rank
  EXPECT_THAT(sent(Collective::kReduceScatter), Each(4 * 1536));
  EXPECT_THAT(sent(Collective::kAllToAll), Each(3072));
  EXPECT_THAT(sent(Collective::kBarrier), Each(0));
  EXPECT_THAT(sent(Collective::kReduceScatterTensor, Library::kNccl), Each(3072));
  EXPECT_THAT(sent(Collective::kBroadcast, Library::kNccl),
              ElementsAre(0, 4096, 4096, 4096));  // down the chain 1, 2, 3, 0
  EXPECT_THAT(sent(Collective::kReduce, Library::kNccl), ElementsAre(4096, 0, 4096, 4096));  // 2, 3, 0, 1
}

// Small messages use a tree, since its latency grows with the logarithm of the ranks.
TEST(CollectivePlanTest, ATreeAllReduceSendsEverythingUpAndDown) {
  const auto traffic =
      traffic_of({.op = Collective::kAllReduce, .bytes = 100, .num_ranks = 4}, Library::kGloo, /*tree_bytes_max=*/100);
  EXPECT_THAT(traffic.bytes_sent, ElementsAre(200, 200, 100, 100));
  // 128 bytes exceed tree_bytes_max, so the ring is used again.
  EXPECT_THAT(traffic_of({.op = Collective::kAllReduce, .bytes = 128, .num_ranks = 4}, Library::kGloo, 100).bytes_sent,
              Each(192));
}

using Holdings = std::vector<std::vector<std::set<int>>>;  // [rank][chunk]: whose contributions are in it

// Chunk c has c + 1 bytes, which identify it in a message.
void pass_on(const Stage& stage, Holdings& held) {
  std::vector<Message> messages;
  for (int round = 0; round < stage.num_rounds; ++round) {
    stage.messages(round, messages);
    // All messages of a round are sent at the same time, so they carry the state before the round.
    const auto before = held;
    for (const auto& message : messages) {
      const auto chunk = message.bytes - 1;
      auto& received = held[message.to][chunk];
      if (!message.is_reduced) received.clear();
      received.insert(before[message.from][chunk].begin(), before[message.from][chunk].end());
    }
  }
}

// Simulates which contributions each rank holds. After the first half it must hold its complete chunk, after the
// second half all complete chunks.
TEST(CollectivePlanTest, TheRingsHalvesReduceScatterAndThenGather) {
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

// Returns from which ranks each rank has data. A message carries what its sender held before the round.
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

TEST(CollectivePlanTest, EveryRankReceivesTheDataThatItNeeds) {
  for (const auto library : {Library::kGloo, Library::kNccl}) {
    for (const auto tree_bytes_max : {0, 1 << 20}) {
      // Up to 17 ranks: powers of two, odd numbers and primes take different branches of the tree and ring plans.
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

// Data that arrives twice is correct but would double the predicted time.
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

// 1,000 x 999 messages are too many for one round, so the plan cuts them.
TEST(CollectivePlanTest, AnExchangeOfManyRanksGoesInSeveralRoundsAndLosesNothing) {
  const CollectiveCall call{.op = Collective::kAllToAll, .bytes = 1000 * 8, .num_ranks = 1000};
  EXPECT_GT(plan_collective(call, Library::kGloo).stages[0].num_rounds, 1);
  EXPECT_THAT(traffic_of(call).bytes_received, Each(999 * 8));
}

// A law for every plan, whatever its algorithm.
TEST(CollectivePlanTest, SentBytesAreReceivedAndNoRankSendsToItself) {
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

// The network solver reuses the solution of a pattern. That is right only if its rounds have the same pairs in the
// same order.
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

// for_each_link skips rounds of a pattern that it has visited, so it must agree with the full list of messages.
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

// The plan is the last place where a missing root or a wrong number of ranks is noticed.
TEST(CollectivePlanTest, WrongCallsAreRejected) {
  EXPECT_THROW(plan_collective({.op = Collective::kBroadcast, .num_ranks = 2}, Library::kGloo), ArgumentError);
  EXPECT_THROW(plan_collective({.op = Collective::kGather, .num_ranks = 2, .root = 2}, Library::kGloo), ArgumentError);
  EXPECT_THROW(plan_collective({.op = Collective::kSend, .num_ranks = 3}, Library::kGloo), ArgumentError);
}

}  // namespace
}  // namespace accel::sim
