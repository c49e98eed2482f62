// The two ends of a channel, in one process and in two.
#include "backends/process/link.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

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

TEST(SharedAreaTest, BadInputIsAConfigError) {
  EXPECT_THAT([] { SharedArea::create(0); }, ThrowsMessage<ConfigError>(HasSubstr("expected 1 to 1024")));
  EXPECT_THAT([] { SharedArea::create(5000); }, ThrowsMessage<ConfigError>(HasSubstr("5000 ranks as processes")));
  const int file = open("/dev/null", O_RDWR);
  EXPECT_THAT([&] { SharedArea::attach(file); }, ThrowsMessage<ConfigError>(HasSubstr("is not the shared memory")));
  close(file);
}

}  // namespace
}  // namespace accel::process
