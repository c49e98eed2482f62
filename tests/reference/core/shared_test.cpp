// Values that ranks of one process share, such as data sets: one thread makes the value and the others wait for it.
// 64 ranks would otherwise hold 64 copies.
#include "reference/core/shared.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>
#include <vector>

namespace accel {
namespace {

// Runs the body on threads that all start at the same moment.
void on_threads(int num_threads, const std::function<void(int thread)>& body) {
  std::barrier start(num_threads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      start.arrive_and_wait();
      body(thread);
    });
  }
  for (auto& thread : threads) thread.join();
}

// All threads start together at a barrier, so they really compete.
TEST(SharedTest, ManyThreadsMakeTheValueOnce) {
  std::atomic<int> num_made = 0;
  std::vector<std::shared_ptr<const int>> values(8);
  on_threads(8, [&](int thread) { values[thread] = shared<int>("many threads", [&] { return ++num_made; }); });
  EXPECT_EQ(num_made, 1);
  EXPECT_THAT(values, ::testing::Each(values.front()));
  EXPECT_EQ(*values.front(), 1);
}

// A cache that never forgets would keep the data of every test of the process.
TEST(SharedTest, TheValueIsRemadeAfterItsLastHolder) {
  int num_made = 0;
  const auto make = [&] { return ++num_made; };
  auto first = shared<int>("remade", make);
  auto second = shared<int>("remade", make);
  first.reset();
  EXPECT_EQ(*shared<int>("remade", make), 1) << "a holder is left";
  second.reset();
  EXPECT_EQ(*shared<int>("remade", make), 2);
}

// A file that was missing may be there later.
TEST(SharedTest, AfterAnErrorTheNextCallerTriesAgain) {
  EXPECT_THROW(shared<int>("throws", []() -> int { throw std::runtime_error("no file"); }), std::runtime_error);
  EXPECT_EQ(*shared<int>("throws", [] { return 3; }), 3);
}

// The others must not get a stale error; one of them computes the value.
TEST(SharedTest, OnlyTheFailingCallerGetsTheError) {
  std::atomic<int> num_calls = 0, num_errors = 0;
  std::vector<std::shared_ptr<const int>> values(8);
  on_threads(8, [&](int thread) {
    try {
      values[thread] = shared<int>("throws once", [&]() -> int {
        if (++num_calls == 1) throw std::runtime_error("no file");
        return 3;
      });
    } catch (const std::runtime_error&) {
      ++num_errors;
    }
  });
  EXPECT_EQ(num_calls, 2);
  EXPECT_EQ(num_errors, 1);
}

TEST(SharedTest, KeysHaveSeparateValues) {
  const auto one = shared<int>("one", [] { return 1; });
  const auto two = shared<int>("two", [] { return 2; });
  EXPECT_EQ(*one, 1);
  EXPECT_EQ(*two, 2);
}

// Keys are often file names, from which different things are loaded.
TEST(SharedTest, OneKeyMayBeUsedForTwoTypes) {
  const auto number = shared<int>("key", [] { return 1; });
  const auto text = shared<std::string>("key", [] { return std::string("text"); });
  EXPECT_EQ(*number, 1);
  EXPECT_EQ(*text, "text");
}

// Simulated ranks hold the same order of a data set, which can be large.
TEST(SharedCopyTest, EqualIndicesShareACopyWhileItIsHeld) {
  auto first = shared_indices({1, 2, 3});
  EXPECT_EQ(shared_indices({1, 2, 3}), first);
  EXPECT_THAT(*first, ::testing::ElementsAre(1, 2, 3));
  const std::weak_ptr<const std::vector<std::int64_t>> watched = first;
  first.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_THAT(*shared_indices({1, 2, 3}), ::testing::ElementsAre(1, 2, 3));
}

// The lookup compares the ends first; the middle must be compared as well.
TEST(SharedCopyTest, IndicesWithEqualEndsAreDistinguished) {
  const auto first = shared_indices({1, 2, 3}), second = shared_indices({1, 4, 3});
  EXPECT_THAT(*first, ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(*second, ::testing::ElementsAre(1, 4, 3));
  EXPECT_EQ(shared_indices({1, 4, 3}), second);
  EXPECT_THAT(*shared_indices({}), ::testing::IsEmpty());
}

// They ask at the same moment; a race would give some of them a copy of their own.
TEST(SharedCopyTest, ManyThreadsGetOneCopy) {
  std::vector<std::shared_ptr<const std::vector<std::int64_t>>> copies(8);
  on_threads(8, [&](int thread) { copies[thread] = shared_indices({5, 6}); });
  EXPECT_THAT(copies, ::testing::Each(copies.front()));
}

}  // namespace
}  // namespace accel
