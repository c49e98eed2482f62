#include "reference/core/random.hpp"

#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/torch.hpp"

namespace accel {
namespace {

// Draws of the kinds that a training program makes; `between` runs after each.
std::vector<at::Tensor> draws(std::uint64_t seed, const std::function<void()>& between) {
  std::vector<at::Tensor> drawn;
  const auto keep = [&](const at::Tensor& tensor) {
    drawn.push_back(tensor.detach());
    between();
  };
  torch::manual_seed(seed);
  keep(torch::randn({33}));
  keep(torch::dropout(torch::ones({64}), /*p=*/0.5, /*train=*/true));
  keep(torch::randperm(50));
  keep(torch::nn::Linear(7, 5)->weight);
  keep(torch::rand({3}, at::kDouble));
  return drawn;
}

std::vector<at::Tensor> draws_in_a_scope(
    std::uint64_t seed, const std::function<void()>& between = [] {}) {
  const GeneratorScope scope(make_generator(0));
  return draws(seed, between);
}

bool equal(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.equal(b); });
}

std::vector<std::vector<at::Tensor>> draws_of_threads(int num_threads, const std::function<std::uint64_t(int)>& seed) {
  std::barrier together(num_threads);
  std::vector<std::vector<at::Tensor>> drawn(num_threads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back(
        [&, thread] { drawn[thread] = draws_in_a_scope(seed(thread), [&] { together.arrive_and_wait(); }); });
  }
  for (auto& thread : threads) thread.join();
  return drawn;
}

TEST(RandomTest, LibTorchTakesTheGeneratorOfThisProgram) { EXPECT_NO_THROW(verify_interposition()); }

TEST(RandomTest, ThreadsWithOneSeedDrawEqualStreams) {
  const auto alone = draws_in_a_scope(7);
  for (const auto& drawn : draws_of_threads(8, [](int) { return 7; })) EXPECT_TRUE(equal(drawn, alone));
}

TEST(RandomTest, ThreadsWithOtherSeedsDrawTheirOwnStreams) {
  const auto drawn = draws_of_threads(8, [](int thread) { return thread; });
  for (int thread = 0; thread < 8; ++thread) EXPECT_TRUE(equal(drawn[thread], draws_in_a_scope(thread))) << thread;
  EXPECT_FALSE(equal(drawn[0], drawn[1]));
}

TEST(RandomTest, OutsideAScopeAStreamIsTheSameAsInside) {
  EXPECT_TRUE(equal(draws(11, [] {}), draws_in_a_scope(11)));
}

TEST(RandomTest, AScopeLeavesTheGeneratorOutsideAlone) {
  torch::manual_seed(3);
  const auto before = default_generator().get_state();
  draws_in_a_scope(7);
  EXPECT_TRUE(default_generator().get_state().equal(before));
  EXPECT_EQ(default_generator().current_seed(), 3U);
}

TEST(RandomTest, OutsideAScopeAllThreadsShareLibTorchsGenerator) {
  const auto here = default_generator();
  at::Generator there;
  std::thread([&] { there = default_generator(); }).join();
  EXPECT_EQ(here, there);
  EXPECT_EQ(here, at::globalContext().defaultGenerator(at::kCPU));
}

TEST(RandomTest, TheInnermostScopeCounts) {
  const auto outer = make_generator(1), inner = make_generator(2);
  const GeneratorScope outer_scope(outer);
  {
    const GeneratorScope inner_scope(inner);
    EXPECT_EQ(default_generator(), inner);
  }
  EXPECT_EQ(default_generator(), outer);
}

TEST(RandomTest, OneInt64IsOneDrawOfTheGenerator) {
  const auto generator = make_generator(42), reference = make_generator(42);
  EXPECT_EQ(draw_int64(generator), torch::empty({}, at::kLong).random_(reference).item<std::int64_t>());
  EXPECT_TRUE(generator.get_state().equal(reference.get_state()));
  EXPECT_FALSE(generator.get_state().equal(make_generator(42).get_state()));
}

}  // namespace
}  // namespace accel
