// Point-to-point messages: matching by tag and order, and diagnoses of receives that never match.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"

namespace accel::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tags of the three messages alternate, so a receiver that matched by order alone would mix them up.
TEST(WorldTest, MessagesArriveInOrderPerTag) {
  World world({.num_ranks = 2});
  std::vector<int> received;
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    const auto message = [&](int tag) {
      auto value = std::make_shared<Summand>();
      auto meeting = world.receive(*group, 0, 1, tag, {.op = Collective::kRecv}, value,
                                   [](const Participant& sent, const Participant& to, auto) {
                                     static_cast<Summand*>(to.get())->output = static_cast<Summand*>(sent.get())->input;
                                   });
      world.wait(1, *meeting);
      EXPECT_EQ(meeting->peer(), 0);
      received.push_back(value->output);
    };
    if (rank == 0) {
      for (const int value : {1, 2, 3})
        world.send(*group, 0, 1, value % 2, {.op = Collective::kSend}, std::make_shared<Summand>(Summand{value}));
    } else {
      message(1);
      message(0);
      message(1);
    }
  });
  EXPECT_THAT(received, ElementsAre(1, 2, 3));
}

// Both receives wait before the first message is sent, which has the tag of the second one.
TEST(WorldTest, AWaitingReceiveGetsTheMessageOfItsTag) {
  World world({.num_ranks = 2});
  std::vector<int> received;
  run_ranks(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    const auto send = [&](int to, int tag, int value) {
      world.send(*group, rank, to, tag, {.op = Collective::kSend}, std::make_shared<Summand>(Summand{value}));
    };
    const auto receive = [&](int source, int tag, const std::shared_ptr<Summand>& value) {
      return world.receive(*group, source, rank, tag, {.op = Collective::kRecv}, value,
                           [](const Participant& sent, const Participant& to, auto) {
                             static_cast<Summand*>(to.get())->output = static_cast<Summand*>(sent.get())->input;
                           });
    };
    if (rank == 0) {
      world.wait(0, *receive(1, 2, std::make_shared<Summand>()));
      send(1, 0, 10);
      send(1, 1, 11);
      return;
    }
    const auto of_tag_1 = std::make_shared<Summand>(), of_tag_0 = std::make_shared<Summand>();
    const auto first = receive(0, 1, of_tag_1), second = receive(0, 0, of_tag_0);
    send(0, 2, 0);
    world.wait(1, *first);
    world.wait(1, *second);
    received = {of_tag_1->output, of_tag_0->output};
  });
  EXPECT_THAT(received, ElementsAre(11, 10));
}

// Rank 0 ends its program, so the message can never come: this is reported at once, not after the timeout.
// With room for one message the second send waits, and no rank can continue.
TEST(WorldTest, ASendWithoutRoomIsDiagnosed) {
  World world({.num_ranks = 2, .send_capacity = 1});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 1) return;
    for (int count = 0; count < 2; ++count)
      world.wait(0, *world.send(*group, 0, 1, 0, {.op = Collective::kSend}, nullptr));
    ADD_FAILURE() << "the second send returned";
  });
  EXPECT_THAT(error.what(), HasSubstr("rank 1 has not received: it "));
}

TEST(WorldTest, ReceiveWithoutASenderIsDiagnosed) {
  World world({.num_ranks = 2});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 1) wait_for_message(world, *group);
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_THAT(error.diagnosis()->ranks, ElementsAre(0));
  EXPECT_THAT(error.what(), HasSubstr("recv #0 from rank 0 of group world"));
  EXPECT_THAT(error.what(), HasSubstr("and rank 0 has not sent: it has ended its program, before any collective"));
}

// Each pair of ranks counts its own messages. The number in the report must be one that both programs can count to.
TEST(WorldTest, MessagesAreCountedBySenderAndReceiver) {
  World world({.num_ranks = 3});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", first_ranks(3));
    if (rank != 1) {
      for (int message = 0; message < 2 + rank; ++message)
        world.send(*group, rank, 1, 0, {.op = Collective::kSend}, nullptr);
      return;
    }
    for (int message = 0; message < 2; ++message)
      world.wait(1, *world.receive(*group, 2, 1, 0, {.op = Collective::kRecv}, nullptr,
                                   [](const auto&, const auto&, auto) {}));
    for (int message = 0; message < 3; ++message) wait_for_message(world, *group);
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_EQ(error.diagnosis()->sequence, 2u);
  EXPECT_EQ(error.diagnosis()->waiting.at(0).sequence, 2u);
  EXPECT_THAT(error.what(),
              HasSubstr("rank 0 has not sent: it has ended its program, after send #1 to rank 1 of group world"));
}

// Any rank could have sent, so no particular sender can be blamed.
TEST(WorldTest, ReceiverFromAnySourceIsTheCulpritOfItsWait) {
  World world({.num_ranks = 2});
  const auto error = failure_of(world, [&](int rank) {
    auto group = world.group("world", {0, 1});
    if (rank == 1)
      world.wait(1, *world.receive(*group, -1, 1, 0, {.op = Collective::kRecv}, nullptr,
                                   [](const auto&, const auto&, auto) {}));
  });
  ASSERT_NE(error.diagnosis(), nullptr);
  EXPECT_THAT(error.diagnosis()->ranks, ElementsAre(1));
  EXPECT_THAT(error.what(), HasSubstr("and no rank has sent"));
}

}  // namespace
}  // namespace accel::sim
