// Tests of messages through shared memory between the ranks of one host, on threads and in killed processes.
#include "backends/gloo/shared_memory/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <tuple>

#include "reference/core/errors.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using namespace gloo;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kEnough = std::chrono::seconds(60);
constexpr std::uint64_t kCollective = 0x0400000000000000;  // the prefix of an all-reduce

/// Runs a body on each rank, on a thread.
void on_ranks(int num_ranks, const std::function<void(int, Exchange&)>& body) {
  std::vector<SegmentListener> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < num_ranks; ++rank) addresses.push_back(listeners.emplace_back(num_ranks).address());
  std::vector<std::string> errors(num_ranks);
  std::vector<std::thread> threads;
  std::atomic<int> num_done{0};
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Exchange exchange(rank, connect(std::move(listeners[rank]), addresses, rank, kEnough));
        body(rank, exchange);
        // No rank closes while another still receives what it was offered.
        for (++num_done; num_done < num_ranks;) std::this_thread::yield();
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        ++num_done;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < num_ranks; ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

std::vector<std::uint8_t> bytes_of(int from, int to, int index, std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(from * 7 + to * 3 + index));
  return bytes;
}

/// One buffer of a rank, with the memory of all its operations.
struct Operations {
  explicit Operations(Exchange& of) : exchange(of) {}
  ~Operations() { exchange.forget(buffer); }
  void wait(Exchange::Direction direction, std::chrono::milliseconds timeout = kEnough) {
    exchange.wait(buffer, direction, nullptr, timeout);
  }
  Exchange& exchange;
  Exchange::Buffer buffer;
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const LinkError& error) {
    return error.what();
  }
  return "";
}

struct Message {
  int from, to;
  std::uint64_t slot;
  std::size_t size;
};

// Gloo counts finished operations: after n waits for a slot, its first n messages must have arrived.
TEST(ExchangeTest, MessagesOfASlotArriveInOrderForAnySizes) {
  expect_property(30, [] {
    const int num_ranks = pick(2, 5);
    const auto count = pick(1, 40);
    std::vector<Message> messages;
    const std::vector<std::size_t> sizes{0, 1, 1000, 100'000, 262'144, 262'145, 1'500'000};
    for (int i = 0; i < count; ++i) {
      const int from = pick(0, num_ranks);
      const int to = (from + pick(1, num_ranks)) % num_ranks;
      const auto slot = static_cast<std::uint64_t>(pick(0, 3)) + (pick(0, 4) == 0 ? 0 : kCollective);
      messages.push_back({from, to, slot, sizes[pick<std::size_t>(0, sizes.size())]});
    }
    const bool receives_late = pick(0, 2) == 0;
    std::atomic<int> num_wrong{0};
    on_ranks(num_ranks, [&](int rank, Exchange& exchange) {
      // One buffer for each peer and slot, as in Gloo's algorithms.
      std::map<std::tuple<bool, int, std::uint64_t>, std::unique_ptr<Operations>> buffers;
      std::vector<std::vector<std::uint8_t>> memory(messages.size());
      const auto buffer_of = [&](bool is_send, int peer, std::uint64_t slot) -> Operations& {
        auto& operations = buffers[{is_send, peer, slot}];
        if (!operations) operations = std::make_unique<Operations>(exchange);
        return *operations;
      };
      const auto post = [&](bool is_send) {
        for (int i = 0; i < count; ++i) {
          const auto& [from, to, slot, size] = messages[i];
          if (is_send && from == rank) {
            memory[i] = bytes_of(from, to, i, size);
            exchange.send(buffer_of(true, to, slot).buffer, to, slot, memory[i].data(), size);
          } else if (!is_send && to == rank) {
            memory[i].resize(size);
            exchange.receive(buffer_of(false, from, slot).buffer, {from}, slot, memory[i].data(), size);
          }
        }
      };
      post(/*is_send=*/receives_late);
      post(/*is_send=*/!receives_late);
      for (int i = 0; i < count; ++i) {
        const auto& [from, to, slot, size] = messages[i];
        if (to != rank) continue;
        buffer_of(false, from, slot).wait(Exchange::Direction::kReceive);
        if (memory[i] != bytes_of(from, to, i, size)) ++num_wrong;
      }
      for (const auto& message : messages) {
        if (message.from == rank) buffer_of(true, message.to, message.slot).wait(Exchange::Direction::kSend);
      }
    });
    RC_ASSERT(num_wrong == 0);
  });
}

TEST(ExchangeTest, AMessageIsMovedWhileItsSenderIsBusy) {
  constexpr std::size_t kLarge = 10 << 20;  // ten rings
  std::atomic<bool> has_come{false};
  on_ranks(2, [&](int rank, Exchange& exchange) {
    Operations operations(exchange);
    std::vector<std::uint8_t> memory = bytes_of(0, 1, 0, kLarge);
    if (rank == 0) {
      exchange.send(operations.buffer, 1, 5, memory.data(), kLarge);
      while (!has_come) std::this_thread::yield();
      operations.wait(Exchange::Direction::kSend);
      return;
    }
    memory.assign(kLarge, 0);
    exchange.receive(operations.buffer, {0}, 5, memory.data(), kLarge);
    operations.wait(Exchange::Direction::kReceive);
    EXPECT_EQ(memory, bytes_of(0, 1, 0, kLarge));
    has_come = true;
  });
}

TEST(ExchangeTest, ReceivesFromAnyOfSeveralPeers) {
  on_ranks(4, [&](int rank, Exchange& exchange) {
    Operations operations(exchange);
    int value = rank;
    if (rank != 0) {
      exchange.send(operations.buffer, 0, 9, &value, sizeof(value));
      return operations.wait(Exchange::Direction::kSend);
    }
    std::vector<int> seen;
    for (int i = 0; i < 3; ++i) {
      exchange.receive(operations.buffer, {0, 1, 2, 3}, 9, &value, sizeof(value));
      int from = -1;
      exchange.wait(operations.buffer, Exchange::Direction::kReceive, &from, kEnough);
      EXPECT_EQ(value, from);
      seen.push_back(from);
    }
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre(1, 2, 3));
  });
}

TEST(ExchangeTest, ThreadsOfARankWaitForDifferentSlots) {
  on_ranks(2, [&](int rank, Exchange& exchange) {
    constexpr int kThreads = 4, kRounds = 300;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        Operations operations(exchange);
        const auto slot = kCollective + static_cast<std::uint64_t>(thread);
        for (int round = 0; round < kRounds; ++round) {
          int mine = round * kThreads + thread, other = -1;
          exchange.receive(operations.buffer, {1 - rank}, slot, &other, sizeof(other));
          exchange.send(operations.buffer, 1 - rank, slot, &mine, sizeof(mine));
          operations.wait(Exchange::Direction::kReceive);
          operations.wait(Exchange::Direction::kSend);
          ASSERT_EQ(other, mine);
        }
      });
    }
    for (auto& each : threads) each.join();
  });
}

// A lost wake-up would block both ranks, as each waits for the next word of the other.
TEST(ExchangeTest, ManyShortMessagesLoseNoWakeUp) {
  on_ranks(2, [&](int rank, Exchange& exchange) {
    Operations operations(exchange);
    for (int round = 0; round < 20000; ++round) {
      int mine = round, other = -1;
      exchange.receive(operations.buffer, {1 - rank}, kCollective, &other, sizeof(other));
      exchange.send(operations.buffer, 1 - rank, kCollective, &mine, sizeof(mine));
      operations.wait(Exchange::Direction::kReceive, 20s);
      operations.wait(Exchange::Direction::kSend, 20s);
      ASSERT_EQ(other, round);
    }
  });
}

TEST(ExchangeTest, ATimeoutIsReportedAndClosesTheLinks) {
  std::atomic<bool> is_late{false};
  on_ranks(2, [&](int rank, Exchange& exchange) {
    Operations operations(exchange);
    int value = 0;
    if (rank == 0) {
      exchange.receive(operations.buffer, {1}, 1, &value, sizeof(value));
      EXPECT_EQ(error_of([&] { operations.wait(Exchange::Direction::kReceive, 50ms); }),
                "Timed out waiting 50ms for recv operation to complete");
      EXPECT_EQ(error_of([&] { exchange.send(operations.buffer, 1, 1, &value, sizeof(value)); }),
                "Application timeout caused pair closure");
      is_late = true;
      return;
    }
    while (!is_late) std::this_thread::yield();
    EXPECT_EQ(error_of([&] {
                exchange.receive(operations.buffer, {0}, 1, &value, sizeof(value));
                operations.wait(Exchange::Direction::kReceive);
              }),
              "Connection closed by peer [rank 0]");
  });
}

TEST(ExchangeTest, ASendWaitsUntilItsPeerReceives) {
  on_ranks(2, [&](int rank, Exchange& exchange) {
    if (rank == 1) return;
    Operations operations(exchange);
    int value = 0;
    exchange.send(operations.buffer, 1, /*slot=*/1, &value, sizeof(value));
    EXPECT_EQ(error_of([&] { operations.wait(Exchange::Direction::kSend, 50ms); }),
              "Timed out waiting 50ms for send operation to complete");
  });
}

TEST(ExchangeTest, AMessageLargerThanItsBufferIsAnErrorOnBothSides) {
  for (const std::size_t size : {8u, 1u << 20}) {
    on_ranks(2, [&](int rank, Exchange& exchange) {
      Operations operations(exchange);
      std::vector<std::uint8_t> memory(size);
      if (rank == 0) {
        exchange.send(operations.buffer, 1, kCollective, memory.data(), size);
        EXPECT_EQ(error_of([&] {
                    exchange.receive(operations.buffer, {1}, kCollective, memory.data(), size);
                    operations.wait(Exchange::Direction::kReceive);
                  }),
                  "Connection closed by peer [rank 1]");
        return;
      }
      exchange.receive(operations.buffer, {0}, kCollective, memory.data(), 4);
      EXPECT_THAT(error_of([&] { operations.wait(Exchange::Direction::kReceive); }),
                  HasSubstr(fmt::format("{} vs 4", size)));
    });
  }
}

TEST(ExchangeTest, AnAbortEndsTheWaitOfAnotherThread) {
  on_ranks(2, [&](int rank, Exchange& exchange) {
    if (rank == 1) return;
    Operations operations(exchange);
    int value = 0;
    exchange.receive(operations.buffer, {1}, 1, &value, sizeof(value));
    std::thread aborting([&] { exchange.abort(operations.buffer, Exchange::Direction::kReceive); });
    EXPECT_FALSE(exchange.wait(operations.buffer, Exchange::Direction::kReceive, nullptr, kEnough));
    aborting.join();
  });
}

// --- processes -------------------------------------------------------------------------------------------------------

int num_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

bool file_names(const char* path, const std::string& text) {
  std::ifstream in(path);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  return all.find(text) != std::string::npos;
}

/// Rank 1 is a child process that runs `body_of_child` and kills itself; this process is rank 0.
void with_killed_process(const std::function<void(Exchange&)>& body_of_child,
                         const std::function<void(Exchange&, pid_t)>& body) {
  std::vector<SegmentListener> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) addresses.push_back(listeners.emplace_back(2).address());
  const pid_t child = fork();
  if (child == 0) {
    listeners.erase(listeners.begin());
    Exchange exchange(1, connect(std::move(listeners.front()), addresses, 1, kEnough));
    body_of_child(exchange);
    kill(getpid(), SIGKILL);
  }
  listeners.pop_back();
  {
    Exchange exchange(0, connect(std::move(listeners.front()), addresses, 0, kEnough));
    body(exchange, child);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(ExchangeTest, AKilledProcessFailsCurrentAndLaterWaits) {
  const auto wait_for_ever = [](Exchange& exchange) {
    Operations operations(exchange);
    int value = 0;
    exchange.receive(operations.buffer, {0}, kCollective, &value, sizeof(value));
    operations.wait(Exchange::Direction::kReceive);
  };
  with_killed_process(wait_for_ever, [](Exchange& exchange, pid_t) {
    Operations operations(exchange);
    int value = 0;
    exchange.receive(operations.buffer, {1}, kCollective + 1, &value, sizeof(value));
    exchange.send(operations.buffer, 1, kCollective, &value, sizeof(value));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(error_of([&] { operations.wait(Exchange::Direction::kReceive); }), "Connection closed by peer [rank 1]");
    EXPECT_LT(std::chrono::steady_clock::now() - start, kEnough / 2);
    EXPECT_EQ(error_of([&] { exchange.send(operations.buffer, 1, kCollective, &value, sizeof(value)); }),
              "Connection closed by peer [rank 1]");
    EXPECT_EQ(error_of([&] { exchange.receive(operations.buffer, {1}, kCollective, &value, sizeof(value)); }),
              "Connection closed by peer [rank 1]");
  });
}

TEST(ExchangeTest, MessagesSentBeforeAProcessWasKilledArrive) {
  const auto send_word = [](Exchange& exchange) {
    Operations operations(exchange);
    const int value = 42;
    exchange.send(operations.buffer, 0, kCollective, &value, sizeof(value));
  };
  with_killed_process(send_word, [](Exchange& exchange, pid_t child) {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
    Operations operations(exchange);
    int other = 0, value = 0;
    EXPECT_EQ(error_of([&] {
                exchange.receive(operations.buffer, {1}, kCollective + 1, &other, sizeof(other));
                operations.wait(Exchange::Direction::kReceive);
              }),
              "Connection closed by peer [rank 1]");
    Operations later(exchange);
    exchange.receive(later.buffer, {1}, kCollective, &value, sizeof(value));
    later.wait(Exchange::Direction::kReceive);
    EXPECT_EQ(value, 42);
  });
}

TEST(ExchangeTest, ManyGroupsAndKilledProcessesLeaveNothingBehind) {
  const int before = num_descriptors();
  for (int group = 0; group < 50; ++group) on_ranks(3, [](int, Exchange&) {});
  with_killed_process([](Exchange&) {},
                      [](Exchange&, pid_t) { EXPECT_TRUE(file_names("/proc/self/maps", "memfd:accel-gloo")); });
  EXPECT_EQ(num_descriptors(), before);
  EXPECT_FALSE(file_names("/proc/self/maps", "accel-gloo"));
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("accel-gloo")));
}

TEST(ExchangeTest, AnIdleExchangeTakesNoProcessorTime) {
  const auto processor_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  on_ranks(2, [&](int rank, Exchange& exchange) {
    Operations operations(exchange);
    int value = 0;
    // Rank 0 waits for one second; rank 1 waits for the end of rank 0.
    exchange.receive(operations.buffer, {1 - rank}, kCollective, &value, sizeof(value));
    const auto start = processor_seconds();
    EXPECT_NE(error_of([&] { operations.wait(Exchange::Direction::kReceive, rank == 0 ? 1000ms : kEnough); }), "");
    if (rank == 0) {
      EXPECT_LT(processor_seconds() - start, 0.1);  // a hundred checks of the watcher take 0.006
    }
  });
}

}  // namespace
}  // namespace accel::testing
