// Random generators per rank. LibTorch has one default generator per process, so a function of it is interposed;
// each thread that is a rank then has its own default generator.
#include "reference/rank_local/random.hpp"

#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/torch.hpp"

namespace accel {
namespace {

// Draws numbers of the kinds that a training program draws. Calls `between` after each.
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

// Threads that draw at the same time, each in the scope of its own generator.
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

// Interposition fails silently if the linker binds the symbol inside LibTorch, so it is verified first.
TEST(RandomTest, LibTorchUsesTheInterposedFunction) { EXPECT_NO_THROW(verify_interposition()); }

// All threads draw at the same time, so a shared generator would mix their streams.
TEST(RandomTest, ThreadsWithOneSeedDrawEqualStreams) {
  const auto alone = draws_in_a_scope(7);
  for (const auto& drawn : draws_of_threads(8, [](int) { return 7; })) EXPECT_TRUE(equal(drawn, alone));
}

// LibTorch has one default generator per process; simulated ranks need one per thread.
TEST(RandomTest, ThreadsWithDifferentSeedsDrawDifferentStreams) {
  const auto drawn = draws_of_threads(8, [](int thread) { return thread; });
  for (int thread = 0; thread < 8; ++thread) EXPECT_TRUE(equal(drawn[thread], draws_in_a_scope(thread))) << thread;
  EXPECT_FALSE(equal(drawn[0], drawn[1]));
}

// The replacement must not change the numbers of a program.
TEST(RandomTest, OutsideAScopeAStreamIsTheSameAsInside) {
  EXPECT_TRUE(equal(draws(11, [] {}), draws_in_a_scope(11)));
}

// Neither its state nor its seed.
TEST(RandomTest, AScopeDoesNotChangeTheOuterGenerator) {
  torch::manual_seed(3);
  const auto before = default_generator().get_state();
  draws_in_a_scope(7);
  EXPECT_TRUE(default_generator().get_state().equal(before));
  EXPECT_EQ(default_generator().current_seed(), 3U);
}

// Programs that do not use ranks must behave as with plain LibTorch.
TEST(RandomTest, OutsideAScopeAllThreadsShareLibTorchsGenerator) {
  const auto here = default_generator();
  at::Generator there;
  std::thread([&] { there = default_generator(); }).join();
  EXPECT_EQ(here, there);
  EXPECT_EQ(here, at::globalContext().defaultGenerator(at::kCPU));
}

// Scopes are nested when a library function uses its own generator.
TEST(RandomTest, TheInnermostScopeIsUsed) {
  const auto outer = make_generator(1), inner = make_generator(2);
  const GeneratorScope outer_scope(outer);
  {
    const GeneratorScope inner_scope(inner);
    EXPECT_EQ(default_generator(), inner);
  }
  EXPECT_EQ(default_generator(), outer);
}

// Loaders draw their seed with this function, and Python draws it with torch.empty((), dtype=int64).random_().
TEST(RandomTest, AnInt64IsOneDrawOfTheGenerator) {
  const auto generator = make_generator(42), reference = make_generator(42);
  EXPECT_EQ(draw_int64(generator), torch::empty({}, at::kLong).random_(reference).item<std::int64_t>());
  EXPECT_TRUE(generator.get_state().equal(reference.get_state()));
  EXPECT_FALSE(generator.get_state().equal(make_generator(42).get_state()));
}

}  // namespace
}  // namespace accel
