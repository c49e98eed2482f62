// Random numbers of the program itself: in threads that it starts, and from the C library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::program_threads_test {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ACCEL_THREADS_INHERIT 0  // the sanitizer replaces pthread_create
#endif
#endif
#ifndef ACCEL_THREADS_INHERIT
#define ACCEL_THREADS_INHERIT 1
#endif

std::vector<double> drawn(int count) {
  std::vector<double> values;
  for (int draw = 0; draw < count; ++draw) values.push_back(torch::rand({1}).item<double>());
  return values;
}

// As with LibTorch alone, where all threads of a process share its generator.
TEST(ProgramThreadsTest, AThreadOfARankDrawsFromTheRanksGenerator) {
  if (!ACCEL_THREADS_INHERIT) GTEST_SKIP() << "sanitizers replace pthread_create";
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto with_threads = collect_ranks(backend, 4, [](RankContext& rank) {
      torch::manual_seed(10 + rank.rank);
      auto values = drawn(3);
      std::thread([&] {
        for (const auto value : drawn(3)) values.push_back(value);
        std::thread([&] {  // of a thread of the rank
          for (const auto value : drawn(2)) values.push_back(value);
        })
            .join();
      }).join();
      for (const auto value : drawn(2)) values.push_back(value);
      return values;
    });
    for (int rank = 0; rank < 4; ++rank) {
      const GeneratorScope scope(make_generator(10 + rank));
      EXPECT_EQ(with_threads[rank], drawn(10)) << name_of(backend);
    }
  }
}

// What a process draws.
struct LibcDraws {
  std::vector<long> before_seed, after_seed;
  bool operator==(const LibcDraws&) const = default;
};

std::vector<long> libc_drawn() {
  std::vector<long> values;
  for (int draw = 0; draw < 50; ++draw) {
    values.push_back(std::rand());
    values.push_back(random());
    values.push_back(lrand48());
    values.push_back(mrand48());
    values.push_back(static_cast<long>(drand48() * 1e9));
    if (draw % 10 == 0) std::this_thread::yield();
  }
  return values;
}

LibcDraws libc_draws(unsigned seed) {
  LibcDraws draws{.before_seed = libc_drawn()};
  std::srand(seed);
  srand48(seed);
  draws.after_seed = libc_drawn();
  return draws;
}

// The state of a new process.
void reset_libc() {
  std::srand(1);
  unsigned short zeros[3] = {0, 0, 0};
  seed48(zeros);
}

// Simulated ranks share a process, but each begins as a new process does.
TEST(ProgramThreadsTest, EachSimulatedRankHasARandomStateOfTheCLibrary) {
  for (int repetition = 0; repetition < 2; ++repetition) {
    reset_libc();
    const auto of_ranks = collect_ranks(Backend::kSim, 8, [](RankContext& rank) { return libc_draws(rank.rank % 4); });
    for (int rank = 4; rank < 8; ++rank) EXPECT_EQ(of_ranks[rank], of_ranks[rank - 4]);
    EXPECT_EQ(of_ranks[3], libc_draws(3));
  }
  if (ACCEL_THREADS_INHERIT) {
    run_ranks(Backend::kSim, 2, [](RankContext&) {
      std::srand(5);
      const long first = std::rand(), second = std::rand();
      std::srand(5);
      std::thread([&] { EXPECT_EQ(std::rand(), first); }).join();
      EXPECT_EQ(std::rand(), second);
    });
  }
}

}  // namespace
}  // namespace accel::testing::program_threads_test
