// The two ends of a channel, in one process and in two.
#include "backends/process/link.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

namespace accel::process {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kSoon = std::chrono::milliseconds(1);

MessageWriter message(int number) {
  MessageWriter writer;
  writer.put(number);
  return writer;
}

TEST(LinkTest, RequestsArriveInOrderWhenTheChannelIsFull) {
  const auto area = SharedArea::create(2);
  std::thread rank([&] {
    RankLink link(area, 1);
    for (int number = 0; number < 1000; ++number) link.post(message(number));
  });
  ProxyLink proxy(area, 1);
  for (int expected = 0; expected < 1000;) {
    if (auto read = proxy.next(std::chrono::seconds(1))) EXPECT_EQ(read->get<int>(), expected++);
  }
  rank.join();
  EXPECT_FALSE(proxy.next(kSoon).has_value());
}

TEST(LinkTest, AProcessGetsItsAnswers) {
  const auto area = SharedArea::create(1);
  const pid_t pid = fork();
  if (pid == 0) {
    RankLink link(SharedArea::attach(dup(area->descriptor())), 0);
    bool is_right = link.ask(message(20)) == 21;
    try {
      link.ask(message(-1));
      is_right = false;
    } catch (const CommError& error) {
      is_right = is_right && std::string(error.what()) == "no";
    }
    _exit(is_right ? 0 : 1);
  }
  ProxyLink proxy(area, 0);
  for (int answered = 0; answered < 2;) {
    auto read = proxy.next(std::chrono::seconds(10));
    ASSERT_TRUE(read);
    const int number = read->get<int>();
    proxy.answer(number < 0 ? Answer{.has_failed = true, .text = "no"} : Answer{.value = number + 1});
    ++answered;
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  area->record_end(0, status);
  EXPECT_FALSE(proxy.next(std::chrono::seconds(10)).has_value());
  EXPECT_EQ(proxy.end().has_ended, 1u);
}

// What a process has asked before it died is still answered for the run's record, and then its end is seen at once.
TEST(LinkTest, RequestsBeforeTheEndAreReadFirst) {
  const auto area = SharedArea::create(1);
  RankLink(area, 0).post(message(5));
  area->record_end(0, 9);
  ProxyLink proxy(area, 0);
  auto read = proxy.next(kSoon);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->get<int>(), 5);
  EXPECT_FALSE(proxy.next(std::chrono::hours(1)).has_value());
  EXPECT_EQ(proxy.end().status, 9);
}

TEST(LinkTest, EveryThreadGetsItsOwnAnswer) {
  constexpr int kThreads = 8, kRequests = 200;
  const auto area = SharedArea::create(1);
  RankLink link(area, 0);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int request = 0; request < kRequests; ++request) {
        const int number = thread * kRequests + request;
        link.post(message(-1));
        if (link.ask(message(number)) != number) ++num_wrong;
      }
    });
  }
  ProxyLink proxy(area, 0);
  std::map<std::uint32_t, int> open;  // by reply; answered when all threads wait, the last one first
  std::set<pid_t> senders;
  for (int num_answered = 0; num_answered < kThreads * kRequests;) {
    auto read = proxy.next(std::chrono::seconds(10));
    if (!read) continue;  // woken for a request that was read before
    senders.insert(proxy.sender().thread);
    const int number = read->get<int>();
    if (number >= 0) EXPECT_TRUE(open.emplace(proxy.sender().reply, number).second);
    if (open.size() < kThreads) continue;
    for (auto one = open.rbegin(); one != open.rend(); ++one, ++num_answered) {
      proxy.answer({.value = one->second}, one->first);
    }
    open.clear();
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(senders.size(), static_cast<std::size_t>(kThreads));
}

TEST(LinkTest, TooManyThreadsThatWaitAreAnError) {
  const auto area = SharedArea::create(1);
  RankLink link(area, 0);
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < Channel::kReplies; ++thread)
    threads.emplace_back([&] { EXPECT_EQ(link.ask(message(0)), 7); });
  ProxyLink proxy(area, 0);
  std::vector<std::uint32_t> replies;
  while (replies.size() < Channel::kReplies) {
    if (proxy.next(std::chrono::seconds(10))) replies.push_back(proxy.sender().reply);
  }
  EXPECT_THAT([&] { link.ask(message(0)); }, ThrowsMessage<StateError>(HasSubstr("rank 0: 65 of its threads wait")));
  for (const auto reply : replies) proxy.answer({.value = 7}, reply);
  for (auto& thread : threads) thread.join();
}

TEST(SharedAreaTest, BadInputIsAConfigError) {
  EXPECT_THAT([] { SharedArea::create(0); }, ThrowsMessage<ConfigError>(HasSubstr("expected 1 to 1024")));
  EXPECT_THAT([] { SharedArea::create(5000); }, ThrowsMessage<ConfigError>(HasSubstr("5000 ranks as processes")));
  const int file = open("/dev/null", O_RDWR);
  EXPECT_THAT([&] { SharedArea::attach(file); }, ThrowsMessage<ConfigError>(HasSubstr("is not the shared memory")));
  close(file);
}

}  // namespace
}  // namespace accel::process
